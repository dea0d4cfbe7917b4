//! Sizes that the drawn calls of the conformance suite do not reach: several tiles, panels, tasks and parts.

use half::bf16;
use lz_core::element::{Bool, Element};
use lz_core::{KernelEntry, Tensor, TensorView};
use lz_engine::Engine;
use lz_ops::*;

use crate::pool;

/// Numbers that look random, about normal.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..4 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        }
        sum * 1.7
    }

    fn many(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

fn view<'a, T: Element>(data: &'a [T], shape: &[i64]) -> TensorView<'a> {
    TensorView::from_slice(data, shape).unwrap()
}

/// Engines with one kernel each: every one of ours for the operation that this machine can run.
fn ours(operation: &str) -> Vec<(String, Engine)> {
    let entries: Vec<KernelEntry> =
        crate::kernels().into_iter().filter(|entry| entry.spec.operation == operation).collect();
    assert!(!entries.is_empty(), "no kernel for {operation}");
    entries
        .into_iter()
        .map(|entry| {
            let (id, engine) = (entry.spec.id.clone(), Engine::new());
            engine.register([entry]).unwrap();
            (id, engine)
        })
        .collect()
}

#[track_caller]
fn close(what: &str, found: &Tensor, wanted: &Tensor, tolerance: f64) {
    let (found, wanted) = (found.view(), wanted.view());
    assert_eq!(found.shape(), wanted.shape());
    for index in lz_core::tensor::Indices::new(found.shape()) {
        let (found, wanted) = (found.at(&index), wanted.at(&index));
        let same = found == wanted
            || (found.is_nan() && wanted.is_nan())
            || (found - wanted).abs() <= tolerance * (1.0 + wanted.abs());
        assert!(same, "{what}: {index:?} is {found}, but should be {wanted}");
    }
}

/// Runs a call on every kernel of ours with one thread and with several: like the reference, and the same bits each time.
macro_rules! holds {
    ($operation:literal, $function:ident, $args:expr, $tolerance:expr) => {{
        let wanted = $function(&reference_engine(), $args).unwrap();
        for (id, engine) in ours($operation) {
            let run = |threads| pool::with_threads(threads, || $function(&engine, $args));
            let found = match run(1) {
                Ok(found) => found,
                Err(error) if error.has(lz_core::ReasonCode::IsaUnsupported) => continue,
                Err(error) if error.has(lz_core::ReasonCode::DtypeUnsupported) => continue,
                Err(error) => panic!("{id}: {error}"),
            };
            close(&id, &found.output, &wanted.output, $tolerance);
            if let (Some(found), Some(wanted)) = (&found.lse, &wanted.lse) {
                close(&id, found, wanted, $tolerance);
            }
            let again = run(3).unwrap();
            assert_eq!(found.output.bytes(), again.output.bytes(), "{id}: threads change the result");
        }
    }};
}

#[test]
fn whole_sequences_of_several_tiles() {
    let mut numbers = Numbers(1);
    // batch, queries, keys, heads, key heads, features, features of values
    for [b, m, n, h, g, d, e] in [
        [1, 70, 210, 4, 2, 64, 64],
        [2, 150, 97, 3, 3, 20, 40],
        [1, 5, 300, 8, 1, 128, 72],
        [1, 33, 100, 6, 2, 7, 5],
        [1, 300, 130, 4, 2, 16, 16],
    ] {
        let (q, k, v) = (
            numbers.many((b * m * h * d) as usize),
            numbers.many((b * n * g * d) as usize),
            numbers.many((b * n * g * e) as usize),
        );
        let slopes = numbers.many(h as usize);
        let args = || {
            AttentionGqaPrefill::new(
                view(&q, &[b, m, h, d]),
                view(&k, &[b, n, g, d]),
                view(&v, &[b, n, g, e]),
            )
            .return_lse(true)
        };
        holds!("attention.gqa.prefill", attention_gqa_prefill, args(), 1e-5);
        holds!("attention.gqa.prefill", attention_gqa_prefill, args().causal(true), 1e-5);
        holds!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().causal(true).causal_offset(-20).soft_cap(3.0),
            1e-5
        );
        holds!("attention.gqa.prefill", attention_gqa_prefill, args().window_left(30).window_right(9), 1e-5);
        let slopes = view(&slopes, &[h]);
        holds!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().causal(true).alibi_slopes(slopes),
            1e-5
        );
        let floats: Vec<f32> = numbers
            .many((m * n) as usize)
            .into_iter()
            .map(|x| if x > 1.0 { f32::NEG_INFINITY } else { x })
            .collect();
        holds!("attention.gqa.prefill", attention_gqa_prefill, args().mask(view(&floats, &[m, n])), 1e-5);
        let seen: Vec<Bool> = (0..n).map(|j| Bool(u8::from(j % 3 != 1 && j < 90))).collect();
        holds!("attention.gqa.prefill", attention_gqa_prefill, args().mask(view(&seen, &[n])), 1e-5);
    }
}

#[test]
fn what_is_not_finite_reaches_exactly_the_rows_that_see_it() {
    let (m, n, h, d) = (40, 130, 2, 16);
    let mut numbers = Numbers(2);
    let (q, k, v) = (
        numbers.many((m * h * d) as usize),
        numbers.many((n * h * d) as usize),
        numbers.many((n * h * d) as usize),
    );
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38] {
        for place in [0, 1000, 129 * 32 + 3] {
            let (mut q, mut k, mut v) = (q.clone(), k.clone(), v.clone());
            let seen: Vec<Bool> = (0..n).map(|j| Bool(u8::from(j != 2))).collect();
            for which in 0..3 {
                let changed = [&mut q, &mut k, &mut v];
                let Some(number) = changed.into_iter().nth(which).and_then(|tensor| tensor.get_mut(place))
                else {
                    continue;
                };
                *number = bad;
                let args = || {
                    AttentionStandardPrefill::new(
                        view(&q, &[1, m, h, d]),
                        view(&k, &[1, n, h, d]),
                        view(&v, &[1, n, h, d]),
                    )
                    .return_lse(true)
                };
                holds!("attention.standard.prefill", attention_standard_prefill, args(), 1e-5);
                holds!("attention.standard.prefill", attention_standard_prefill, args().causal(true), 1e-5);
                holds!(
                    "attention.standard.prefill",
                    attention_standard_prefill,
                    args().mask(view(&seen, &[n])),
                    1e-5
                );
            }
        }
    }
}

#[test]
fn one_query_over_keys_that_are_split() {
    let mut numbers = Numbers(3);
    for [b, n, h, g, d, e] in [[2, 2500, 8, 2, 64, 64], [1, 1025, 3, 3, 20, 40], [3, 700, 12, 1, 128, 128]] {
        let (q, k, v) = (
            numbers.many((b * h * d) as usize),
            numbers.many((b * n * g * d) as usize),
            numbers.many((b * n * g * e) as usize),
        );
        let lens: Vec<i32> = (0..b).map(|b| [n, n.min(1024), 0][b as usize % 3] as i32).collect();
        let slopes = numbers.many(h as usize);
        let args = || {
            AttentionGqaDecode::new(view(&q, &[b, h, d]), view(&k, &[b, n, g, d]), view(&v, &[b, n, g, e]))
                .return_lse(true)
        };
        holds!("attention.gqa.decode", attention_gqa_decode, args(), 1e-5);
        holds!(
            "attention.gqa.decode",
            attention_gqa_decode,
            args().kv_lens(view(&lens, &[b])).soft_cap(2.0),
            1e-5
        );
        holds!(
            "attention.gqa.decode",
            attention_gqa_decode,
            args().window_left(77).alibi_slopes(view(&slopes, &[h])),
            1e-5
        );
        let mut k = k.clone();
        k[17] = f32::NAN;
        let args = || {
            AttentionGqaDecode::new(view(&q, &[b, h, d]), view(&k, &[b, n, g, d]), view(&v, &[b, n, g, e]))
                .return_lse(true)
        };
        holds!("attention.gqa.decode", attention_gqa_decode, args(), 1e-5);
    }
}

/// Heads that lie beside each other are read together, and yet each gets the bits that it gets alone, or in a layout where it lies apart.
#[test]
fn heads_beside_each_other_change_nothing() {
    let mut numbers = Numbers(12);
    for [n, h, g, d, e] in [[300, 37, 37, 24, 40], [130, 70, 10, 64, 7], [70, 20, 4, 33, 64]] {
        let (q, mut k, v) = (
            numbers.many((h * d) as usize),
            numbers.many((n * g * d) as usize),
            numbers.many((n * g * e) as usize),
        );
        // The second head cannot be trusted to f32, and its neighbours can.
        k[d as usize] = 3e4;
        let heads_first = |from: &[f32], features: i64| -> Vec<f32> {
            let row = |place: i64| ((place % n * g + place / n) * features) as usize;
            (0..g * n).flat_map(|place| from[row(place)..row(place) + features as usize].to_vec()).collect()
        };
        let (k_apart, v_apart) = (heads_first(&k, d), heads_first(&v, e));
        for (id, engine) in ours("attention.gqa.decode") {
            let run = |args: AttentionGqaDecode<'_>| attention_gqa_decode(&engine, args).unwrap().output;
            let together = AttentionGqaDecode::new(
                view(&q, &[1, h, d]),
                view(&k, &[1, n, g, d]),
                view(&v, &[1, n, g, e]),
            );
            let whole = match attention_gqa_decode(&engine, together) {
                Err(error) if error.has(lz_core::ReasonCode::IsaUnsupported) => continue,
                Err(error) if error.has(lz_core::ReasonCode::DtypeUnsupported) => continue,
                found => found.unwrap().output,
            };
            let apart = AttentionGqaDecode::new(
                view(&q, &[1, h, d]),
                view(&k_apart, &[1, g, n, d]),
                view(&v_apart, &[1, g, n, e]),
            );
            let apart = run(apart.layout(AttentionGqaDecodeLayout::Bhsd));
            assert_eq!(whole.bytes(), apart.bytes(), "{id}: the layout changes the result");
            for head in 0..g {
                let part = |of: &[f32], size: i64| {
                    let size = size as usize;
                    of[head as usize * size..][..size].to_vec()
                };
                let (q, k, v) = (part(&q, h / g * d), part(&k_apart, n * d), part(&v_apart, n * e));
                let alone = run(AttentionGqaDecode::new(
                    view(&q, &[1, h / g, d]),
                    view(&k, &[1, n, 1, d]),
                    view(&v, &[1, n, 1, e]),
                ));
                let size = alone.bytes().len();
                let found = &whole.bytes()[head as usize * size..][..size];
                assert_eq!(found, alone.bytes(), "{id}: head {head} depends on the others");
            }
        }
    }
}

/// So few keys that they are attended to at once: every number of them, none among them, and what f32 cannot be trusted with.
#[test]
fn short_calls_hold() {
    let (batch, heads, kv_heads) = (19i64, 6i64, 2i64);
    for (dim, dim_v) in [(64i64, 64i64), (40, 256), (1, 7)] {
        for seq_k in [1i64, 3, 16, 17] {
            let mut numbers = Numbers(11);
            let q = numbers.many((batch * heads * dim) as usize);
            let mut k = numbers.many((batch * seq_k * kv_heads * dim) as usize);
            let mut v = numbers.many((batch * seq_k * kv_heads * dim_v) as usize);
            let lens: Vec<i32> = (0..batch as i32).map(|row| row.min(seq_k as i32)).collect();
            for (at, value) in [(0, f32::INFINITY), (1, f32::NAN), (2, 3e4)] {
                let (row, last) = (batch - 1 - at, seq_k - 1);
                k[((row * seq_k + last) * kv_heads * dim) as usize] = value;
                v[((row * seq_k + last) * kv_heads * dim_v + dim_v - 1) as usize] = value;
            }
            let (q, k, v) = (
                view(&q, &[batch, heads, dim]),
                view(&k, &[batch, seq_k, kv_heads, dim]),
                view(&v, &[batch, seq_k, kv_heads, dim_v]),
            );
            let lens = view(&lens, &[batch]);
            let args = || AttentionGqaDecode::new(q, k, v).return_lse(true);
            holds!("attention.gqa.decode", attention_gqa_decode, args(), 1e-5);
            holds!("attention.gqa.decode", attention_gqa_decode, args().kv_lens(lens), 1e-5);
        }
    }
}

#[test]
fn halves_are_computed_in_f32_or_on_tiles() {
    let mut numbers = Numbers(4);
    for [m, n, h, g, d, e] in [[70, 300, 4, 2, 64, 64], [30, 200, 2, 2, 48, 20], [50, 150, 3, 1, 130, 256]] {
        let mut many = |count: i64| -> Vec<bf16> {
            numbers.many(count as usize).into_iter().map(bf16::from_f32).collect()
        };
        let (q, k, v) = (many(m * h * d), many(n * g * d), many(n * g * e));
        let mask = many(m * n);
        let slopes = vec![0.1f32; h as usize];
        let args = || {
            let (q, k, v) = (view(&q, &[1, m, h, d]), view(&k, &[1, n, g, d]), view(&v, &[1, n, g, e]));
            AttentionGqaPrefill::new(q, k, v).return_lse(true)
        };
        holds!("attention.gqa.prefill", attention_gqa_prefill, args(), 1e-2);
        holds!("attention.gqa.prefill", attention_gqa_prefill, args().causal(true), 1e-2);
        holds!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().causal(true).causal_offset(-20).soft_cap(3.0),
            1e-2
        );
        holds!("attention.gqa.prefill", attention_gqa_prefill, args().window_left(30).window_right(9), 1e-2);
        holds!("attention.gqa.prefill", attention_gqa_prefill, args().mask(view(&mask, &[m, n])), 1e-2);
        holds!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().alibi_slopes(view(&slopes, &[h])),
            1e-2
        );
    }
    let (tokens, h, n, d, e) = (2, 16, 1100, 512, 64);
    let mut many =
        |count: i64| -> Vec<bf16> { numbers.many(count as usize).into_iter().map(bf16::from_f32).collect() };
    let (nope, pe, ckv, kpe) = (many(tokens * h * d), many(tokens * h * e), many(n * d), many(n * e));
    let args = || {
        let (nope, pe) = (view(&nope, &[tokens, h, d]), view(&pe, &[tokens, h, e]));
        AttentionMlaDecode::new(nope, pe, view(&ckv, &[n, 1, d]), view(&kpe, &[n, 1, e]), 0.05)
            .return_lse(true)
    };
    holds!("attention.mla.decode", attention_mla_decode, args(), 1e-2);
}

#[test]
fn pages_are_read_in_their_order_and_long_requests_are_split() {
    let mut numbers = Numbers(5);
    let (page_size, pages, h, g, d) = (16, 200, 8, 2, 32);
    let cache = (pages * page_size * g * d) as usize;
    let (q, k, v) = (numbers.many((3 * h * d) as usize), numbers.many(cache), numbers.many(cache));
    let (indptr, last) = ([0i32, 120, 120, 170], [5i32, 0, 16]);
    let indices: Vec<i32> = (0..170).map(|place| place * 77 % pages as i32).collect();
    let shape = [pages, page_size, g, d];
    let args = || {
        AttentionGqaDecodePaged::new(
            view(&q, &[3, h, d]),
            view(&k, &shape),
            view(&v, &shape),
            view(&indptr, &[4]),
            view(&indices, &[170]),
            view(&last, &[3]),
        )
        .return_lse(true)
    };
    holds!("attention.gqa.decode.paged", attention_gqa_decode_paged, args(), 1e-5);
    holds!("attention.gqa.decode.paged", attention_gqa_decode_paged, args().window_left(1100), 1e-5);
}

#[test]
fn latents_are_keys_and_values_at_once() {
    let mut numbers = Numbers(6);
    let (tokens, h, n, d, e) = (5, 16, 1100, 512, 64);
    let (nope, pe) = (numbers.many((tokens * h * d) as usize), numbers.many((tokens * h * e) as usize));
    let (ckv, kpe) = (numbers.many((n * d) as usize), numbers.many((n * e) as usize));
    let args = || {
        AttentionMlaDecode::new(
            view(&nope, &[tokens, h, d]),
            view(&pe, &[tokens, h, e]),
            view(&ckv, &[n, 1, d]),
            view(&kpe, &[n, 1, e]),
            0.05,
        )
        .return_lse(true)
    };
    holds!("attention.mla.decode", attention_mla_decode, args(), 1e-5);
}

#[test]
fn only_listed_blocks_are_seen() {
    let mut numbers = Numbers(7);
    let (m, n, h, g, d) = (70, 300, 4, 2, 24);
    let (q, k) = (numbers.many((m * h * d) as usize), numbers.many((n * g * d) as usize));
    let mut v = numbers.many((n * g * d) as usize);
    // Block 3, which nobody lists.
    v[3 * 40 * (g * d) as usize..4 * 40 * (g * d) as usize].fill(f32::NAN);
    let (indptr, indices) = ([0i32, 3, 3, 7], [0i32, 7, 2, 1, 1, 6, 5]);
    let args = || {
        AttentionSparseBlock::new(
            view(&q, &[m, h, d]),
            view(&k, &[n, g, d]),
            view(&v, &[n, g, d]),
            view(&indptr, &[4]),
            view(&indices, &[7]),
            30,
            40,
        )
        .return_lse(true)
    };
    holds!("attention.sparse.block", attention_sparse_block, args(), 1e-5);
}
