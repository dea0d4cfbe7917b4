//! `norm.rms` over rows that lie densely in memory, in f32.

use lz_core::tensor::Indices;
use lz_core::{KernelError, Run};
use lz_ops::{NormRmsCall, NormRmsKernel, NormRmsOut};

/// Sums in as many lanes as the widest vector register has, so that the compiler keeps them in one.
const LANES: usize = 16;

/// Reads each row twice: once for its square sum, once to scale it.
#[derive(Debug)]
pub struct DenseRows;

#[lz_macros::kernel(
    id = "cpu.norm.rms.f32",
    operation = "norm.rms",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32], W = [f32]),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl NormRmsKernel for DenseRows {
    fn run(
        &self,
        call: &NormRmsCall<'_>,
        mut out: NormRmsOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let weight = match call.weight {
            Some(weight) => {
                Some(weight.as_slice::<f32>().ok_or_else(|| KernelError::failed("weight is not dense"))?)
            }
            None => None,
        };
        for row in Indices::new(&call.axes.rows_dims) {
            let (Some(x), Some(y)) = (call.x.row::<f32>(&row), out.output.row_mut::<f32>(&row)) else {
                return Err(KernelError::failed("a row is not dense"));
            };
            let scale = 1.0 / (square_sum(x) / x.len() as f32 + call.eps).sqrt();
            match weight {
                Some(weight) => {
                    for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
                        *y = x * scale * (weight + call.weight_offset);
                    }
                }
                None => {
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = x * scale;
                    }
                }
            }
        }
        Ok(())
    }
}

fn square_sum(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += x * x;
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>()
}
