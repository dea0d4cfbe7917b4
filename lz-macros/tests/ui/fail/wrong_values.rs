//! Numbers and words have their ranges.

trait NormRmsKernel {}

struct Mine;

#[lz_macros::kernel(
    id = "demo.mine",
    operation = "norm.rms",
    priority = 101,
    alignment = 3,
    platform = cpuu,
    strides = dense,
    layouts("BSHD"),
)]
impl NormRmsKernel for Mine {}

fn main() {}
