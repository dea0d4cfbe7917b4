//! `sampling.penalties`: copies the logits, and changes those of the tokens that occurred, found by sorting them.

use std::marker::PhantomData;

use lz_core::{KernelError, Run, TensorView};
use lz_ops::{SamplingPenaltiesCall, SamplingPenaltiesKernel, SamplingPenaltiesOut};

use super::{SLOTS, for_each_slot};
use crate::isa::require;
use crate::rows::{Rows, RowsMut, Shape, copy_bytes, should_stream};
use crate::simd::{Float, Simd, with_float};

/// Dense rows of logits, any float type.
#[derive(Debug)]
pub(crate) struct Penalties<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.sampling.penalties",
    operation = "sampling.penalties",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "min(rows, 16) * (generated + prompt) * 4"
)]
impl<S: Simd> SamplingPenaltiesKernel for Penalties<S> {
    fn run(
        &self,
        call: &SamplingPenaltiesCall<'_>,
        mut out: SamplingPenaltiesOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let [rows, generated, prompt] =
            [call.axes.rows, call.axes.generated, call.axes.prompt].map(|size| size as usize);
        let lists = Lists {
            start: run.workspace((rows.min(SLOTS) * (generated + prompt) * 4) as u64)?.as_mut_ptr().cast(),
            sizes: [generated, prompt],
        };
        let output_tokens = Rows::<i32>::new(&call.output_tokens)?;
        let prompt_tokens = call.prompt_tokens.as_ref().map(Rows::<i32>::new).transpose()?;
        let params = [
            PerRow::new(call.repetition_tensor.as_ref(), call.repetition)?,
            PerRow::new(call.frequency_tensor.as_ref(), call.frequency)?,
            PerRow::new(call.presence_tensor.as_ref(), call.presence)?,
        ];
        with_float!(call.dtype_t, T => {
            let logits = Rows::<T>::new(&call.logits)?;
            let output = RowsMut::<T>::new(&mut out.output)?;
            let bytes = logits.width() * size_of::<T>();
            let stream = should_stream(rows * bytes);
            for_each_slot(rows, 2 * bytes, |slot, rows| {
                // SAFETY: the workspace has space for every slot, and each belongs to one task.
                let [generated, prompt] = unsafe { lists.of(slot) };
                for row in rows {
                    // SAFETY: every row belongs to one task; both rows have these bytes.
                    let to = unsafe {
                        let to = output.row(row);
                        s.vectorize(|| {
                            copy_bytes(s, logits.row(row).as_ptr().cast(), to.as_mut_ptr().cast(), bytes, stream)
                        });
                        to
                    };
                    if stream {
                        s.fence();
                    }
                    generated.copy_from_slice(output_tokens.row(row));
                    generated.sort_unstable();
                    let prompt: &mut [i32] = match &prompt_tokens {
                        Some(tokens) => {
                            prompt.copy_from_slice(tokens.row(row));
                            prompt.sort_unstable();
                            prompt
                        }
                        None => &mut [],
                    };
                    penalize(to, generated, prompt, params.each_ref().map(|param| param.of(row)));
                }
            });
            Ok(())
        })
    }
}

/// Memory for the sorted tokens of a row, for each slot.
#[derive(Clone, Copy)]
struct Lists {
    start: *mut i32,
    sizes: [usize; 2],
}

// SAFETY: every slot is used by one task at a time.
unsafe impl Sync for Lists {}

impl Lists {
    /// # Safety
    /// The workspace has space for this slot, and no other reference to it exists.
    unsafe fn of<'m>(self, slot: usize) -> [&'m mut [i32]; 2] {
        let [generated, prompt] = self.sizes;
        if generated + prompt == 0 {
            // An empty workspace need not be aligned.
            return [&mut [], &mut []];
        }
        let start = self.start.wrapping_add(slot * (generated + prompt));
        // SAFETY: guaranteed by the caller.
        unsafe {
            [
                std::slice::from_raw_parts_mut(start, generated),
                std::slice::from_raw_parts_mut(start.wrapping_add(generated), prompt),
            ]
        }
    }
}

/// A param that a tensor may override for each row.
struct PerRow<'a> {
    rows: Option<Rows<'a, f32>>,
    param: f32,
}

impl<'a> PerRow<'a> {
    fn new(tensor: Option<&'a TensorView<'_>>, param: f32) -> Result<PerRow<'a>, KernelError> {
        let rows = tensor.map(|tensor| Rows::shaped(tensor, Shape::Elements)).transpose()?;
        Ok(PerRow { rows, param })
    }

    fn of(&self, row: usize) -> f64 {
        f64::from(self.rows.map_or(self.param, |rows| rows.row(row)[0]))
    }
}

/// Changes the logits of the tokens in two sorted lists.
fn penalize<T: Float>(logits: &mut [T], generated: &[i32], prompt: &[i32], params: [f64; 3]) {
    let [repetition, frequency, presence] = params;
    let repeated = |logit: f64| if logit > 0.0 { logit / repetition } else { logit * repetition };
    for run in generated.chunk_by(|a, b| a == b) {
        let Ok(token) = usize::try_from(run[0]) else { continue };
        let logit = f64::from(logits[token].to_f32());
        let penalized = repeated(logit) - (frequency * run.len() as f64 + presence);
        logits[token] = T::from_f32(penalized as f32);
    }
    for run in prompt.chunk_by(|a, b| a == b) {
        let Ok(token) = usize::try_from(run[0]) else { continue };
        if generated.binary_search(&run[0]).is_err() {
            logits[token] = T::from_f32(repeated(f64::from(logits[token].to_f32())) as f32);
        }
    }
}
