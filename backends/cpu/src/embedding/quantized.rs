//! `embedding.lookup.quantized`: decodes table rows.

use std::marker::PhantomData;

use lz_core::element::Element;
use lz_core::{DType, KernelError, Run};
use lz_ops::{
    EmbeddingLookupQuantizedCall, EmbeddingLookupQuantizedFormat as Format,
    EmbeddingLookupQuantizedGranularity as Granularity, EmbeddingLookupQuantizedKernel,
    EmbeddingLookupQuantizedOut, EmbeddingLookupQuantizedOutputDtype as Output,
};

use crate::isa::require;
use crate::quant::{Grouping, QuantizedRows, Stored};
use crate::rows::{Rows, RowsMut, Shape, for_each_range};
use crate::simd::{Float, Simd, vectors, with_float};

/// Elements that are decoded at once.
const PART: usize = 512;

/// Tables with dense rows.
#[derive(Debug)]
pub(crate) struct LookupQuantizedRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.embedding.lookup.quantized",
    operation = "embedding.lookup.quantized",
    backend = "cpu",
    priority = 60,
    dtypes(I = [i32, i64]),
    quant_formats("int8", "uint8", "int4", "uint4", "fp8_e4m3", "mxfp4"),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> EmbeddingLookupQuantizedKernel for LookupQuantizedRows<S> {
    fn run(
        &self,
        call: &EmbeddingLookupQuantizedCall<'_>,
        mut out: EmbeddingLookupQuantizedOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let dtype = match call.output_dtype {
            Output::F32 => DType::F32,
            Output::F16 => DType::F16,
            Output::Bf16 => DType::BF16,
        };
        with_float!(Some(dtype), T => match call.dtype_i {
            Some(DType::I32) => lookup::<S, T, i32>(s, call, &mut out, |id| id as usize),
            _ => lookup::<S, T, i64>(s, call, &mut out, |id| id as usize),
        })
    }
}

fn lookup<S: Simd, T: Float, I: Element>(
    s: S,
    call: &EmbeddingLookupQuantizedCall<'_>,
    out: &mut EmbeddingLookupQuantizedOut<'_>,
    index: fn(I) -> usize,
) -> Result<(), KernelError> {
    let stored = match call.format {
        Format::Int8 => Stored::Int8,
        Format::Uint8 => Stored::Uint8,
        Format::Int4 => Stored::Int4,
        Format::Uint4 => Stored::Uint4,
        Format::Fp8E4m3 => Stored::E4m3,
        Format::Mxfp4 => Stored::E2m1,
    };
    let (shape, elements) = match call.granularity {
        Granularity::Channel => (Shape::Elements, usize::MAX),
        Granularity::Block => (Shape::Last, call.block_size as usize),
    };
    let grouping = Grouping { matrix: usize::MAX, rows: 1, elements };
    let zero_points = call.zero_point.as_ref().map(|view| Rows::<i32>::shaped(view, shape)).transpose()?;
    let table =
        QuantizedRows::new(&call.table, stored, &call.scale, shape, grouping)?.zero_points(zero_points);
    let ids = Rows::<I>::shaped(&call.ids, Shape::Elements)?;
    let to = RowsMut::<T>::new(&mut out.output)?;
    let dim = call.dim as usize;
    for_each_range(ids.count(), dim * size_of::<f32>(), &|range| {
        let mut values = [0.0f32; PART];
        for token in range {
            let Some(&id) = ids.row(token).first() else { continue };
            // SAFETY: ranges are disjoint, so no other task writes this row.
            let to = unsafe { to.row(token) };
            for (to, start) in to.chunks_mut(PART).zip((0..dim).step_by(PART)) {
                // SAFETY: ids are inside the table, whose rows have `dim` elements (validated).
                unsafe { table.decode(s, index(id), start..start + to.len(), &mut values[..to.len()]) };
                s.vectorize(|| {
                    vectors!(S, to.len(), |span| {
                        // SAFETY: both have this many elements.
                        unsafe {
                            let value = <f32 as Float>::load(s, values.as_ptr(), span);
                            T::store(s, to.as_mut_ptr(), span, value);
                        }
                    });
                });
            }
        }
    });
    Ok(())
}
