//! `rope.append`: rotates queries, then rotates each key in L1 and writes it into its slot together with its value. Tasks split the
//! heads of the caches, never the tokens: if two tokens have the same slot, the later one must win.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{RopeAppendCall, RopeAppendKernel, RopeAppendLayout, RopeAppendOut};

use super::append::write;
use crate::isa::require;
use crate::memory::FirstError;
use crate::pool;
use crate::posenc::{Angles, Positions, rotate};
use crate::rows::{AnyRows, AnyRowsMut, Rows, RowsMut, Shape, for_each_range, should_parallelize, with_row};
use crate::simd::{Float, Simd, with_float};

/// Dense heads, tables and caches of any dtype.
#[derive(Debug)]
pub(crate) struct RopeAppendRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.rope.append",
    operation = "rope.append",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], A = [f32, f16, bf16], P = [i32, i64], C = [f32, f16, bf16, f8_e4m3, f8_e5m2]),
    strides = last_dense,
    kv_strategies("paged"),
    deterministic,
    tp_invariant = true
)]
impl<S: Simd> RopeAppendKernel for RopeAppendRows<S> {
    fn run(
        &self,
        call: &RopeAppendCall<'_>,
        mut out: RopeAppendOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        with_float!(call.dtype_t, T => run::<S, T>(simd, call, &mut out))
    }
}

fn run<S: Simd, T: Float>(
    simd: S,
    call: &RopeAppendCall<'_>,
    out: &mut RopeAppendOut<'_>,
) -> Result<(), KernelError> {
    let (q, k) = (Rows::<T>::new(&call.q)?, Rows::<T>::new(&call.k)?);
    let v = AnyRows::new(&call.v, Shape::Last)?;
    let y = RowsMut::<T>::new(&mut out.output)?;
    let caches =
        [AnyRowsMut::new(&mut out.k_cache, Shape::Last)?, AnyRowsMut::new(&mut out.v_cache, Shape::Last)?];
    let (cos, sin) = (AnyRows::new(&call.cos, Shape::Last)?, AnyRows::new(&call.sin, Shape::Last)?);
    let (table, half) = (cos.kind()?, cos.width());
    let positions = Positions::new(Some(&call.positions))?;
    let slots = Rows::<i64>::shaped(&call.slots, Shape::Elements)?;
    let (heads, kv_heads) = (call.axes.heads as usize, call.axes.kv_heads as usize);
    let page_size = call.axes.page_size as usize;
    let heads_first = call.layout == RopeAppendLayout::Hnd;
    let angles = |token: usize| {
        let position = positions.of(token, token);
        Angles { kind: table, cos: cos.start(position), sin: sin.start(position), half }
    };
    for_each_range(q.count(), 2 * q.width() * size_of::<T>(), &|range| {
        simd.vectorize(|| {
            for row in range {
                // SAFETY: ranges are disjoint, so no other task writes this row.
                let to = unsafe { y.row(row) };
                rotate(simd, q.row(row), to, angles(row / heads), call.interleaved);
            }
        });
    });
    let (kind, dtype) = (v.kind()?, caches[0].dtype());
    let append_heads = |values: bool, heads_of: std::ops::Range<usize>, key: &mut [T]| {
        for token in 0..slots.count() {
            let slot = slots.row(token).first().copied().unwrap_or(-1);
            let Ok(slot) = usize::try_from(slot) else { continue };
            let (page, slot_in_page) = (slot / page_size, slot % page_size);
            for head in heads_of.clone() {
                let row = if heads_first {
                    (page * kv_heads + head) * page_size + slot_in_page
                } else {
                    (page * page_size + slot_in_page) * kv_heads + head
                };
                // Both bodies in one closure are too large to be inlined into `vectorize`.
                let from = if values {
                    v.start(token * kv_heads + head)
                } else {
                    let from = k.row(token * kv_heads + head);
                    simd.vectorize(|| rotate(simd, from, key, angles(token), call.interleaved));
                    key.as_ptr().cast()
                };
                let to = caches[usize::from(values)].start(row);
                // SAFETY: all rows have the same length (validated); only this task writes this head of this
                // cache.
                simd.vectorize(|| unsafe { write(simd, kind, from, dtype, to, v.width()) });
            }
        }
    };
    let error = FirstError::default();
    let append_heads = |values: bool, heads_of: std::ops::Range<usize>| {
        error.keep(with_row(k.width(), |key| append_heads(values, heads_of, key)));
    };
    let bytes = slots.count() * kv_heads * v.width() * (kind.size() + dtype.size());
    if should_parallelize(2 * bytes) {
        // Enough tasks for load balance; keys and values are separate tasks.
        let parts = kv_heads.min(4);
        pool::for_each(2 * parts, &|task| {
            let part = task / 2;
            append_heads(task % 2 == 1, part * kv_heads / parts..(part + 1) * kv_heads / parts);
        });
    } else {
        append_heads(false, 0..kv_heads);
        append_heads(true, 0..kv_heads);
    }
    error.into_result()
}
