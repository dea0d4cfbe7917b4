//! A limit names an axis that the schema does not have.

trait NormRmsKernel {}

struct Mine;

#[lz_macros::kernel(
    id = "demo.mine",
    operation = "norm.rms",
    limits("hiden % 8 == 0" => HEAD_DIM_ALIGNMENT),
)]
impl NormRmsKernel for Mine {}

fn main() {}
