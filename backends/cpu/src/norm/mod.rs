//! Row normalization.

mod layer;
mod rms;
mod rms_add;

pub(crate) use layer::LayerRows;
pub(crate) use rms::RmsRows;
pub(crate) use rms_add::RmsAddRows;
