//! The file defines another operation than the one that is named.

trait NormRmsKernel {}

struct Mine;

#[lz_macros::kernel(
    id = "demo.mine",
    operation = "norm.rms",
    schema = "scale_add.yaml",
)]
impl NormRmsKernel for Mine {}

fn main() {}
