//! The paged KV cache: slots in order, skipped tokens, saturation, and simultaneous moves.

use lz_core::TensorMut;
use lz_core::element::{F8E4M3, F8E5M2};
use lz_ops::{KvAppend, KvAppendLayout, KvCompact, KvCompactLayout, kv_append, kv_compact};

use crate::view;

#[test]
fn later_tokens_win_and_minus_one_is_skipped() {
    // Three pages of two slots, one head, one feature.
    let k = [1.0f32, 2.0, 3.0, 4.0];
    let v = [-1.0f32, -2.0, -3.0, -4.0];
    let slots = [5i64, -1, 0, 5];
    let (mut k_cache, mut v_cache) = ([9.0f32; 6], [9.0f32; 6]);
    let args = KvAppend::new(
        view(&k, &[4, 1, 1]),
        view(&v, &[4, 1, 1]),
        TensorMut::from_slice(&mut k_cache, &[3, 2, 1, 1]).unwrap(),
        TensorMut::from_slice(&mut v_cache, &[3, 2, 1, 1]).unwrap(),
        view(&slots, &[4]),
    );
    kv_append(&crate::reference_engine(), args).unwrap();
    assert_eq!(k_cache, [3.0, 9.0, 9.0, 9.0, 9.0, 4.0]);
    assert_eq!(v_cache, [-3.0, 9.0, 9.0, 9.0, 9.0, -4.0]);
}

#[test]
fn layout_determines_order_of_heads_and_slots() {
    // One page of two slots, two heads, one feature; one token into slot 1.
    let kv = [1.0f32, 2.0];
    let run = |layout, shape: &[i64]| {
        let (mut k_cache, mut v_cache) = ([0.0f32; 4], [0.0f32; 4]);
        let args = KvAppend::new(
            view(&kv, &[1, 2, 1]),
            view(&kv, &[1, 2, 1]),
            TensorMut::from_slice(&mut k_cache, shape).unwrap(),
            TensorMut::from_slice(&mut v_cache, shape).unwrap(),
            view(&[1i64], &[1]),
        )
        .layout(layout);
        kv_append(&crate::reference_engine(), args).unwrap();
        assert_eq!(k_cache, v_cache);
        k_cache
    };
    assert_eq!(run(KvAppendLayout::Nhd, &[1, 2, 2, 1]), [0.0, 0.0, 1.0, 2.0]);
    assert_eq!(run(KvAppendLayout::Hnd, &[1, 2, 2, 1]), [0.0, 1.0, 0.0, 2.0]);
}

#[test]
fn eight_bit_caches_saturate_and_keep_nan() {
    let kv = [1e6f32, f32::NEG_INFINITY, f32::NAN, 1.0625];
    let slots = [0i64, 1, 2, 3];
    let (mut k_cache, mut v_cache) = ([F8E4M3(0); 4], [F8E4M3(0); 4]);
    let args = KvAppend::new(
        view(&kv, &[4, 1, 1]),
        view(&kv, &[4, 1, 1]),
        TensorMut::from_slice(&mut k_cache, &[1, 4, 1, 1]).unwrap(),
        TensorMut::from_slice(&mut v_cache, &[1, 4, 1, 1]).unwrap(),
        view(&slots, &[4]),
    );
    kv_append(&crate::reference_engine(), args).unwrap();
    // 1.0625 is halfway between 1 and 1.125 and rounds to the even mantissa.
    assert_eq!(k_cache, [F8E4M3(0x7e), F8E4M3(0xfe), F8E4M3(0x7f), F8E4M3(0x38)]);
}

#[test]
fn pages_are_swapped_and_the_later_move_wins() {
    let mut k_cache: Vec<f32> = (0..8).map(|i| i as f32).collect();
    let mut v_cache: Vec<f32> = (0..8).map(|i| -(i as f32)).collect();
    // Pages 0 and 1 are swapped; page 3 is the target of page 0, then of page 2.
    let (source, target) = ([0i32, 1, 0, 2], [1i32, 0, 3, 3]);
    let args = KvCompact::new(
        TensorMut::from_slice(&mut k_cache, &[4, 2, 1, 1]).unwrap(),
        TensorMut::from_slice(&mut v_cache, &[4, 2, 1, 1]).unwrap(),
        view(&source, &[4]),
        view(&target, &[4]),
    );
    kv_compact(&crate::reference_engine(), args).unwrap();
    assert_eq!(k_cache, [2.0, 3.0, 0.0, 1.0, 4.0, 5.0, 4.0, 5.0]);
    assert_eq!(v_cache, [-2.0, -3.0, -0.0, -1.0, -4.0, -5.0, -4.0, -5.0]);
}

#[test]
fn compaction_copies_every_code_exactly() {
    let mut k_cache: Vec<F8E5M2> = (0..=255u8).chain(0..=255).map(F8E5M2).collect();
    k_cache[256..].fill(F8E5M2(0));
    let mut v_cache = k_cache.clone();
    let args = KvCompact::new(
        TensorMut::from_slice(&mut k_cache, &[2, 4, 16, 4]).unwrap(),
        TensorMut::from_slice(&mut v_cache, &[2, 4, 16, 4]).unwrap(),
        view(&[0i32], &[1]),
        view(&[1i32], &[1]),
    )
    .layout(KvCompactLayout::Hnd);
    kv_compact(&crate::reference_engine(), args).unwrap();
    let expected: Vec<F8E5M2> = (0..=255u8).chain(0..=255).map(F8E5M2).collect();
    assert_eq!(k_cache, expected);
    assert_eq!(v_cache, expected);
}
