//! No operation is named.

trait NormRmsKernel {}

struct Mine;

#[lz_macros::kernel(
    id = "demo.mine",
    priority = 50,
)]
impl NormRmsKernel for Mine {}

fn main() {}
