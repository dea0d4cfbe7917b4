//! The trait is not that of the operation.

trait NormLayerKernel {}

struct Mine;

#[lz_macros::kernel(id = "demo.mine", operation = "norm.rms")]
impl NormLayerKernel for Mine {}

fn main() {}
