//! Reference of `kv.compact`: reads every source page before it writes any target page, bit by bit.

use std::collections::HashMap;

use lz_core::KernelError;
use lz_core::tensor::{Indices, TensorMut, TensorView};

use crate::reference::index::join;
use crate::{KvCompactCall, KvCompactOut};

/// Runs the operation.
pub fn run(call: &KvCompactCall<'_>, mut out: KvCompactOut<'_>) -> Result<(), KernelError> {
    for cache in [&mut out.k_cache, &mut out.v_cache] {
        move_pages(cache, &call.source, &call.target, call.axes.moves);
    }
    Ok(())
}

fn move_pages(cache: &mut TensorMut<'_>, source: &TensorView<'_>, target: &TensorView<'_>, moves: i64) {
    let mut cache = cache.bits_mut();
    let shape = cache.layout().shape;
    let [_, page_shape @ ..] = &*shape else { return };
    let mut pages: HashMap<i64, Vec<i64>> = HashMap::new();
    for i in 0..moves {
        let page = source.int_at(&[i]);
        pages.entry(page).or_insert_with(|| {
            Indices::new(page_shape).map(|index| cache.as_view().int_at(&join(&[&[page], &index]))).collect()
        });
    }
    for i in 0..moves {
        let Some(page) = pages.get(&source.int_at(&[i])) else { continue };
        for (index, &bits) in Indices::new(page_shape).zip(page) {
            cache.set_int(&join(&[&[target.int_at(&[i])], &index]), bits);
        }
    }
}
