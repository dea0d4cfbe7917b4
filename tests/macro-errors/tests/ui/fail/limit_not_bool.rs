//! A limit is a condition with a reason, and every mistake is reported at once.

trait NormRmsKernel {}

struct Mine;

#[lz_macros::kernel(
    id = "demo.mine",
    operation = "norm.rms",
    limits("hidden % 8" => HEAD_DIM_ALIGNMENT, "rows <" => ZERO_SIZES),
)]
impl NormRmsKernel for Mine {}

fn main() {}
