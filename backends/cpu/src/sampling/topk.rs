//! `sampling.topk`.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::reference::philox::{Stream, block_at, uniform};
use lz_ops::{SamplingTopkCall, SamplingTopkKernel, SamplingTopkOut};

use super::cutoff::{RowScratch, draw, first};
use super::scan::Scan;
use super::{SLOTS, for_each_slot, scalar};
use crate::isa::require;
use crate::rows::{Rows, RowsMut, Shape};
use crate::simd::{Simd, with_float};

/// Dense rows of logits, any float type.
#[derive(Debug)]
pub(crate) struct TopK<S>(pub PhantomData<S>);

/// Start address of the slots of a call.
#[derive(Clone, Copy)]
pub(super) struct Slots(pub *mut u8);

// SAFETY: every slot is used by one task at a time.
unsafe impl Sync for Slots {}

impl Slots {
    /// See [`RowScratch::slot`].
    ///
    /// # Safety
    /// As [`RowScratch::slot`].
    pub(super) unsafe fn slot<'m>(&self, slot: usize, vocab: usize) -> RowScratch<'m> {
        // SAFETY: guaranteed by the caller.
        unsafe { RowScratch::slot(self.0, slot, vocab) }
    }
}

#[lz_macros::kernel(
    id = "cpu.sampling.topk",
    operation = "sampling.topk",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    workspace = "min(rows, 16) * (vocab * 16 + ceil_div(vocab, 256) * 8)"
)]
impl<S: Simd> SamplingTopkKernel for TopK<S> {
    fn run(
        &self,
        call: &SamplingTopkCall<'_>,
        mut out: SamplingTopkOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let seed = scalar(call.seed_tensor.as_ref(), call.seed)?;
        let offset = scalar(call.offset_tensor.as_ref(), call.offset)?;
        let counts = call.k_tensor.as_ref().map(|k| Rows::<i32>::shaped(k, Shape::Elements)).transpose()?;
        let tokens = RowsMut::<i32>::shaped(&mut out.tokens, Shape::Elements)?;
        let (rows, vocab) = (call.axes.rows as usize, call.axes.vocab as usize);
        let bytes = rows.min(SLOTS) * RowScratch::bytes(vocab);
        let slots = Slots(run.workspace(bytes as u64)?.as_mut_ptr());
        let temperature = f64::from(call.temperature);
        with_float!(call.dtype_t, T => {
            let logits = Rows::<T>::new(&call.logits)?;
            for_each_slot(rows, vocab * size_of::<T>(), |slot, rows| {
                // SAFETY: the workspace has space for every slot, and each belongs to one task.
                let RowScratch { keys, weights, maxima, sorted } = unsafe { slots.slot(slot, vocab) };
                for row in rows {
                    let scan = Scan::new(s, logits.row(row), maxima);
                    let k = counts.map_or(call.k, |counts| i64::from(counts.row(row)[0]));
                    let kept = first(&scan, usize::try_from(k).unwrap_or(0), keys, sorted);
                    let last = keys[..kept].iter().max().copied();
                    let [w0, w1, ..] = block_at(Stream::TopK, seed, offset, row as u64);
                    let token = match last {
                        Some(last) if scan.largest > f32::NEG_INFINITY => {
                            draw(&scan, last, temperature, uniform(w0, w1), keys, weights)
                        }
                        _ => -1,
                    };
                    // SAFETY: every row belongs to one task.
                    unsafe { tokens.row(row)[0] = token };
                }
            });
            Ok(())
        })
    }
}
