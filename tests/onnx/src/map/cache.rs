//! Caches of keys and values: `TensorScatter`, and the present keys and values of `Attention`.
//!
//! A cache of the suite holds places by batch row and head, which is a paged cache whose pages are the batch rows. Our
//! operation writes keys and values at once: both get the same tensor, and both results are held against the suite.

use super::arguments::Arguments;
use super::sequences::Sequences;
use super::tensors::{from_bytes, indices, named};
use super::{MapError, Produced, Statement, unstatable};
use lz_core::Tensor;
use lz_engine::Engine;
use lz_ops::{KvAppend, KvAppendLayout};
use std::rc::Rc;

/// Present keys or values: the new ones behind the past ones.
pub fn present(output: usize, past: Option<Rc<Sequences>>, new: Rc<Sequences>) -> Statement {
    Statement::new("kv.append", move |engine| {
        // The past is already in the cache, and the places behind it are still zero.
        let room = Sequences::zeros_like(&new)?;
        let (cache, start) = match &past {
            Some(past) => (room.after(past)?, past.length),
            None => (room, 0),
        };
        let sizes = [cache.batch, cache.heads, cache.length, cache.size];
        let shape = sizes.map(|size| usize::try_from(size).unwrap_or(0));
        append(engine, &cache, &new, |_, place| start + place)?
            .iter()
            .map(|cache| Ok(Produced { output, tensor: named(cache, &shape)? }))
            .collect()
    })
}

/// `TensorScatter` is `kv.append`.
pub fn tensor_scatter(arguments: &Arguments<'_>) -> Result<Vec<Statement>, MapError> {
    arguments.only(&["axis", "mode"], 3)?;
    let cache = arguments.input(0)?;
    let shape = cache.shape.clone();
    if arguments.axis(-2, shape.len())? + 2 != shape.len() {
        return Err(unstatable("places that are not the second-last dimension"));
    }
    let circular = match arguments.text("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        other => return Err(unstatable(format!("the mode `{other}`"))),
    };
    // Of three dimensions there is one head.
    let (cache, update) = (Sequences::read(cache, 1)?, Sequences::read(arguments.input(1)?, 1)?);
    let starts = indices(arguments.input(2)?)?;
    Ok(vec![Statement::new("kv.append", move |engine| {
        let place = |batch_row, place| {
            let place = starts.view().int_at(&[batch_row]) + place;
            if circular { place % cache.length } else { place }
        };
        append(engine, &cache, &update, place)?
            .iter()
            .map(|cache| Ok(Produced { output: 0, tensor: named(cache, &shape)? }))
            .collect()
    })])
}

/// Writes every batch row of `update` into copies of `cache`, each vector at the place that `place` gives it; returns what
/// became of the keys and of the values.
fn append(
    engine: &Engine,
    cache: &Sequences,
    update: &Sequences,
    place: impl Fn(i64, i64) -> i64,
) -> Result<[Tensor; 2], MapError> {
    let shape = [cache.batch, cache.heads, cache.length, cache.size];
    let copy = || from_bytes(cache.tensor.bytes(), cache.tensor.dtype(), &shape);
    let (mut k_cache, mut v_cache) = (copy()?, copy()?);
    for batch_row in 0..update.batch {
        let tokens = update.tokens(batch_row)?;
        let slots: Vec<i64> =
            (0..update.length).map(|token| batch_row * cache.length + place(batch_row, token)).collect();
        let slots = Tensor::from_slice(&slots, &[update.length])?;
        let call = KvAppend::new(tokens, tokens, k_cache.view_mut(), v_cache.view_mut(), slots.view());
        lz_ops::kv_append(engine, call.layout(KvAppendLayout::Hnd))?;
    }
    Ok([k_cache, v_cache])
}
