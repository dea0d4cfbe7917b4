//! A spec has no such field.

trait NormRmsKernel {}

struct Mine;

#[lz_macros::kernel(
    id = "demo.mine",
    operation = "norm.rms",
    priorty = 50,
)]
impl NormRmsKernel for Mine {}

fn main() {}
