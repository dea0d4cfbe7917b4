//! The operation is not in the catalog.

trait NormRmsKernel {}

struct Mine;

#[lz_macros::kernel(
    id = "demo.mine",
    operation = "norm.rsm",
)]
impl NormRmsKernel for Mine {}

fn main() {}
