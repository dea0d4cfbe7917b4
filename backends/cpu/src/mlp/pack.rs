//! `mlp.linear.pack`: packs integer weights into panels, transposing blocks of words.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{MlpLinearPackCall, MlpLinearPackKernel, MlpLinearPackOut};

use super::packed_words::{PackedWords, STEP};
use crate::isa::require;
use crate::rows::{AnyRowsMut, Shape, for_each_range};
use crate::simd::Simd;

/// Contiguous tensors of either type.
#[derive(Debug)]
pub(crate) struct LinearPack<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.mlp.linear.pack",
    operation = "mlp.linear.pack",
    backend = "cpu",
    priority = 60,
    dtypes(Q = [i8, u8]),
    strides = contiguous,
    deterministic,
    tp_invariant = true
)]
impl<S: Simd> MlpLinearPackKernel for LinearPack<S> {
    fn run(
        &self,
        call: &MlpLinearPackCall<'_>,
        mut out: MlpLinearPackOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let (rows, stored) = (call.axes.out_features as usize, call.axes.stored as usize);
        if rows == 0 || stored == 0 {
            return Ok(());
        }
        let words = PackedWords::new(&call.weight, false, rows, stored)?;
        let to = AnyRowsMut::new(&mut out.packed, Shape::Trailing(3))?;
        for_each_range(words.panels(), 2 * STEP * words.count(), &|panels| {
            for panel in panels {
                // SAFETY: a row of the output has space for all words of a panel, and tasks write disjoint
                // panels.
                unsafe { words.transpose(s, panel, 0..words.count(), to.start(panel)) };
            }
        });
        Ok(())
    }
}
