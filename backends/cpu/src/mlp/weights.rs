//! Weights of linear layers that are packed ahead of calls.

use std::marker::PhantomData;
use std::sync::Arc;

use lz_core::kernel::{Prepare, PreparedInput};
use lz_core::{Arg, DType, KernelError, TensorView};

use crate::gemm::panels::PackedPanels;
use crate::isa::require;
use crate::rows::Rows;
use crate::simd::Simd;

/// Packs f32 weights into panels for `S`, for any number of rows: few rows are bound by reading the weights, which are consecutive in
/// panels, in huge pages and prefetched across panels; in place each of them is its own stream. Prefill and decode steps of a model
/// share one packed copy.
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
        let Some(Arg::Tensor(x)) = args.first() else { return &[] };
        if x.elements() > 0 && x.dtype() == DType::F32 && S::LANES > 1 { self.inputs } else { &[] }
    }

    fn prepare(&self, input: &TensorView<'_>) -> Result<PreparedInput, KernelError> {
        Ok(Arc::new(PackedPanels::new(require::<S>()?, &Rows::new(input)?)?))
    }
}
