//! Workspace and grid are int expressions over axes and params.

trait NormRmsKernel {}

struct Mine;

#[lz_macros::kernel(
    id = "demo.mine",
    operation = "norm.rms",
    workspace = "hidden / 2",
    grid("rows", "1"),
)]
impl NormRmsKernel for Mine {}

fn main() {}
