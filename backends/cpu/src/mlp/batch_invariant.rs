//! `mlp.linear` for batch-invariant results: the blocked GEMM for any number of rows, because the skinny GEMM and AMX add in another order.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{MlpLinearCall, MlpLinearKernel, MlpLinearOut};

use super::linear::Layer;
use super::output::Output;
use crate::gemm::blocked::{gemm, packed_bytes};
use crate::isa::require;
use crate::rows::Rows;
use crate::simd::{Simd, with_float};

/// Dense rows of any float type.
#[derive(Debug)]
pub(crate) struct BatchInvariantLinear<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.mlp.linear.batch_invariant",
    operation = "mlp.linear",
    backend = "cpu",
    priority = 40,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    batch_invariant,
    workspace = "(24 if rows <= 8 else ceil_div(ceil_div(rows, ceil_div(rows, 1056)), 96) * 96) * ceil_div(in_features, 32) * 128"
)]
impl<S: Simd> MlpLinearKernel for BatchInvariantLinear<S> {
    fn run(
        &self,
        call: &MlpLinearCall<'_>,
        mut out: MlpLinearOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let [rows, columns, depth] =
            [axes.rows, axes.out_features, axes.in_features].map(|size| size as usize);
        let workspace = run.workspace(packed_bytes(rows, depth))?;
        with_float!(call.dtype_t, T => {
            let layer = Layer::<S, T, T> {
                s,
                x: Rows::new(&call.x)?,
                weight: Rows::new(&call.weight)?,
                out: Output::new(&mut out.output, call.bias.as_ref(), call.activation)?,
            };
            if rows > 0 && columns > 0 {
                gemm(s, [rows, columns, depth], workspace, &layer);
            }
            Ok(())
        })
    }
}
