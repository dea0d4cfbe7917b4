//! `embedding.lookup`: copies table rows bit by bit.

use std::marker::PhantomData;

use lz_core::element::Element;
use lz_core::{DType, KernelError, Run};
use lz_ops::{EmbeddingLookupCall, EmbeddingLookupKernel, EmbeddingLookupOut};

use crate::isa::require;
use crate::rows::{AnyRows, AnyRowsMut, Rows, Shape, copy_bytes, for_each_range, should_stream};
use crate::simd::Simd;

/// Tables with dense rows.
#[derive(Debug)]
pub(crate) struct LookupRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.embedding.lookup",
    operation = "embedding.lookup",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], I = [i32, i64]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> EmbeddingLookupKernel for LookupRows<S> {
    fn run(
        &self,
        call: &EmbeddingLookupCall<'_>,
        mut out: EmbeddingLookupOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        match call.dtype_i {
            Some(DType::I32) => run::<S, i32>(simd, call, &mut out, |id| id as usize),
            _ => run::<S, i64>(simd, call, &mut out, |id| id as usize),
        }
    }
}

fn run<S: Simd, I: Element>(
    simd: S,
    call: &EmbeddingLookupCall<'_>,
    out: &mut EmbeddingLookupOut<'_>,
    index: fn(I) -> usize,
) -> Result<(), KernelError> {
    let table = AnyRows::new(&call.table, Shape::Last)?;
    let ids = Rows::<I>::shaped(&call.ids, Shape::Elements)?;
    let to = AnyRowsMut::new(&mut out.output, Shape::Last)?;
    let bytes = table.width() * to.dtype().size();
    let stream = should_stream(ids.count() * bytes);
    for_each_range(ids.count(), 2 * bytes, &|range| {
        simd.vectorize(|| {
            for token in range {
                let Some(&id) = ids.row(token).first() else { continue };
                // SAFETY: rows of table and output have the same size (validated); ranges are disjoint, so no
                // other task writes this row.
                unsafe { copy_bytes(simd, table.start(index(id)), to.start(token), bytes, stream) };
            }
            if stream {
                simd.fence();
            }
        });
    });
    Ok(())
}
