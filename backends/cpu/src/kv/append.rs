//! `kv.append`: writes each head of each token into its slot. Tasks split the heads, never the tokens: if two
//! tokens have the same slot, the later one must win.

use std::marker::PhantomData;

use lz_core::{DType, KernelError, Run};
use lz_ops::{KvAppendCall, KvAppendKernel, KvAppendLayout, KvAppendOut};

use crate::isa::require;
use crate::pool;
use crate::rows::{AnyRows, AnyRowsMut, Rows, Shape, should_parallelize};
use crate::simd::{E4M3, E5M2, FloatKind, Simd, encode, store_bytes, vectors};

/// Dense heads, caches of any dtype.
#[derive(Debug)]
pub(crate) struct AppendRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.kv.append",
    operation = "kv.append",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], C = [f32, f16, bf16, f8_e4m3, f8_e5m2]),
    strides = last_dense,
    kv_strategies("paged"),
    deterministic,
    tp_invariant = true
)]
impl<S: Simd> KvAppendKernel for AppendRows<S> {
    fn run(
        &self,
        call: &KvAppendCall<'_>,
        mut out: KvAppendOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        append(simd, call, &mut out)
    }
}

/// Converts and writes a row into the cache.
///
/// # Safety
/// `from` has `len` readable elements of `kind`, `to` has `len` writable elements of `dtype`.
#[inline(always)]
pub(super) unsafe fn write<S: Simd>(
    s: S,
    kind: FloatKind,
    from: *const u8,
    dtype: DType,
    to: *mut u8,
    len: usize,
) {
    // SAFETY: the caller guarantees the elements; spans stay inside.
    unsafe {
        match (FloatKind::of(dtype), dtype) {
            // Bitwise copy: loading as floats would quiet signaling NaNs.
            (Some(other), _) if other == kind => std::ptr::copy_nonoverlapping(from, to, len * kind.size()),
            (Some(other), _) => {
                vectors!(S, len, |span| { other.store(s, to, span, kind.load(s, from, span)) });
            }
            (None, DType::F8E4M3) => {
                vectors!(S, len, |span| {
                    store_bytes(s, to, span, encode::<S, E4M3>(s, kind.load(s, from, span)));
                });
            }
            _ => {
                vectors!(S, len, |span| {
                    store_bytes(s, to, span, encode::<S, E5M2>(s, kind.load(s, from, span)));
                });
            }
        }
    }
}

fn append<S: Simd>(simd: S, call: &KvAppendCall<'_>, out: &mut KvAppendOut<'_>) -> Result<(), KernelError> {
    let inputs = [AnyRows::new(&call.k, Shape::Last)?, AnyRows::new(&call.v, Shape::Last)?];
    let caches =
        [AnyRowsMut::new(&mut out.k_cache, Shape::Last)?, AnyRowsMut::new(&mut out.v_cache, Shape::Last)?];
    let (kind, dtype) = (inputs[0].kind()?, caches[0].dtype());
    let slots = Rows::<i64>::shaped(&call.slots, Shape::Elements)?;
    let (heads, page_size) = (call.axes.kv_heads as usize, call.axes.page_size as usize);
    let heads_first = call.layout == KvAppendLayout::Hnd;
    let append_heads = |which: usize, heads_of: std::ops::Range<usize>| {
        simd.vectorize(|| {
            for token in 0..slots.count() {
                let slot = slots.row(token).first().copied().unwrap_or(-1);
                let Ok(slot) = usize::try_from(slot) else { continue };
                let (page, slot_in_page) = (slot / page_size, slot % page_size);
                for head in heads_of.clone() {
                    let row = if heads_first {
                        (page * heads + head) * page_size + slot_in_page
                    } else {
                        (page * page_size + slot_in_page) * heads + head
                    };
                    let (from, to) = (inputs[which].start(token * heads + head), caches[which].start(row));
                    // SAFETY: all rows have the same length (validated); only this task writes this head of
                    // this cache.
                    unsafe { write(simd, kind, from, dtype, to, inputs[which].width()) };
                }
            }
        });
    };
    let bytes = slots.count() * heads * inputs[0].width() * (kind.size() + dtype.size());
    if should_parallelize(2 * bytes) {
        // Enough tasks for load balance; keys and values are separate tasks.
        let parts = heads.min(4);
        pool::for_each(2 * parts, &|task| {
            let part = task / 2;
            append_heads(task % 2, part * heads / parts..(part + 1) * heads / parts);
        });
    } else {
        append_heads(0, 0..heads);
        append_heads(1, 0..heads);
    }
    Ok(())
}
