//! Dtypes and their variables are those of the schema.

trait NormRmsKernel {}

struct Mine;

#[lz_macros::kernel(
    id = "demo.mine",
    operation = "norm.rms",
    dtypes(T = [f32, f64], S = [f32]),
)]
impl NormRmsKernel for Mine {}

fn main() {}
