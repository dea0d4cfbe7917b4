//! KV caches: `TensorScatter`, and the present keys and values of `Attention`.
//!
//! A cache of the suite is indexed by batch row, head and position, which is a paged KV cache with one page
//! per batch row. `kv.append` writes keys and values at once: both get the same tensor, and both results are
//! compared.

use super::arguments::Arguments;
use super::sequences::Sequences;
use super::tensors::{from_bytes, indices, named};
use super::{MapError, MappedCall, MappedOutput, unsupported};
use lz_core::Tensor;
use lz_engine::Engine;
use lz_ops::{KvAppend, KvAppendLayout};
use std::rc::Rc;

/// Present keys or values: the past ones followed by the new ones.
pub fn present(output: usize, past: Option<Rc<Sequences>>, new: Rc<Sequences>) -> MappedCall {
    MappedCall::new("kv.append", move |engine| {
        // The past is already in the cache, and the slots after it are still zero.
        let empty = Sequences::zeros_like(&new)?;
        let (cache, start) = match &past {
            Some(past) => (empty.after(past)?, past.length),
            None => (empty, 0),
        };
        let sizes = [cache.batch, cache.heads, cache.length, cache.size];
        let shape = sizes.map(|size| usize::try_from(size).unwrap_or(0));
        append(engine, &cache, &new, |_, position| start + position)?
            .iter()
            .map(|cache| Ok(MappedOutput { output, tensor: named(cache, &shape)? }))
            .collect()
    })
}

/// `TensorScatter` maps to `kv.append`.
pub fn tensor_scatter(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["axis", "mode"], 3)?;
    let cache = arguments.input(0)?;
    let shape = cache.shape.clone();
    if arguments.axis(-2, shape.len())? + 2 != shape.len() {
        return Err(unsupported("positions that are not the second-last dimension"));
    }
    let circular = match arguments.text("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        other => return Err(unsupported(format!("the mode `{other}`"))),
    };
    // With three dimensions there is one head.
    let (cache, update) = (Sequences::read(cache, 1)?, Sequences::read(arguments.input(1)?, 1)?);
    let starts = indices(arguments.input(2)?)?;
    Ok(vec![MappedCall::new("kv.append", move |engine| {
        let position = |batch_row, token| {
            let position = starts.view().int_at(&[batch_row]) + token;
            if circular { position % cache.length } else { position }
        };
        append(engine, &cache, &update, position)?
            .iter()
            .map(|cache| Ok(MappedOutput { output: 0, tensor: named(cache, &shape)? }))
            .collect()
    })])
}

/// Writes every batch row of `update` into copies of `cache`, each vector at the position that `position`
/// returns; returns the key cache and the value cache.
fn append(
    engine: &Engine,
    cache: &Sequences,
    update: &Sequences,
    position: impl Fn(i64, i64) -> i64,
) -> Result<[Tensor; 2], MapError> {
    let shape = [cache.batch, cache.heads, cache.length, cache.size];
    let copy = || from_bytes(cache.tensor.bytes(), cache.tensor.dtype(), &shape);
    let (mut k_cache, mut v_cache) = (copy()?, copy()?);
    for batch_row in 0..update.batch {
        let tokens = update.tokens(batch_row)?;
        let slots: Vec<i64> =
            (0..update.length).map(|token| batch_row * cache.length + position(batch_row, token)).collect();
        let slots = Tensor::from_slice(&slots, &[update.length])?;
        let call = KvAppend::new(tokens, tokens, k_cache.view_mut(), v_cache.view_mut(), slots.view());
        lz_ops::kv_append(engine, call.layout(KvAppendLayout::Hnd))?;
    }
    Ok([k_cache, v_cache])
}
