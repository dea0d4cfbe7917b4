//! Row normalization.

mod ada;
mod group;
mod layer;
mod rms;
mod rms_add;

pub(crate) use ada::AdaRows;
pub(crate) use group::GroupRows;
pub(crate) use layer::LayerRows;
pub(crate) use rms::RmsRows;
pub(crate) use rms_add::RmsAddRows;
