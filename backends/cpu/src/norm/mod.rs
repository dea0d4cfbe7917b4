//! Row normalization.

mod ada;
mod fused_quantize;
mod group;
mod layer;
mod layer_add;
mod quantized;
mod rms;
mod rms_add;
mod rms_quantize;

pub(crate) use ada::AdaRows;
pub(crate) use group::GroupRows;
pub(crate) use layer::LayerRows;
pub(crate) use layer_add::LayerAddRows;
pub(crate) use rms::RmsRows;
pub(crate) use rms_add::RmsAddRows;
pub(crate) use rms_quantize::{RmsAddQuantizeRows, RmsQuantizeRows};
