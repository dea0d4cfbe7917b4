//! Weights of linear layers that are packed ahead of calls.

use std::marker::PhantomData;
use std::sync::Arc;

use lz_core::kernel::{Prepare, PreparedInput};
use lz_core::{Arg, DType, KernelError, TensorView};

use crate::gemm::dots::MAX_SKINNY_ROWS;
use crate::gemm::panels::PackedPanels;
use crate::isa::require;
use crate::rows::Rows;
use crate::simd::Simd;

/// Weights up to this size come from a cache, where few rows are bound by instructions and gain from panels. Larger ones are read once,
/// in place, at the speed of memory.
const MAX_CACHED_BYTES: usize = 4 << 20;

/// Packs f32 weights into panels for `S`.
#[derive(Debug)]
pub(super) struct PackWeights<S> {
    inputs: &'static [usize],
    simd: PhantomData<S>,
}

impl<S: Simd> PackWeights<S> {
    /// Of these inputs of an operation whose first input has the rows.
    pub(super) fn new(inputs: &'static [usize]) -> PackWeights<S> {
        PackWeights { inputs, simd: PhantomData }
    }
}

impl<S: Simd> Prepare for PackWeights<S> {
    fn layout(&self) -> &'static str {
        match S::LANES {
            16 => "f32 panels of 48",
            8 => "f32 panels of 16",
            _ => "f32 panels of scalars",
        }
    }

    fn inputs(&self, args: &[Arg<'_>]) -> &'static [usize] {
        let (Some(Arg::Tensor(x)), Some(Arg::Tensor(weight))) = (args.first(), args.get(self.inputs[0]))
        else {
            return &[];
        };
        let features = x.shape().last().copied().unwrap_or(0).max(1);
        let rows = x.elements() / features;
        let fits_in_cache = weight.elements() as usize * size_of::<f32>() <= MAX_CACHED_BYTES;
        let faster = rows > MAX_SKINNY_ROWS as i64 || rows > 1 && fits_in_cache;
        if faster && x.dtype() == DType::F32 && S::LANES > 1 { self.inputs } else { &[] }
    }

    fn prepare(&self, input: &TensorView<'_>) -> Result<PreparedInput, KernelError> {
        Ok(Arc::new(PackedPanels::new(require::<S>()?, &Rows::new(input)?)?))
    }
}
