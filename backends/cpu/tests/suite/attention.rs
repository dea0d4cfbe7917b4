//! Sizes that the random calls of the conformance suite do not reach: several tiles, panels, tasks and
//! split-KV parts.

use half::bf16;
use lz_core::element::{Bool, Element};
use lz_core::{KernelEntry, Tensor, TensorView};
use lz_engine::Engine;
use lz_ops::*;

use lz_cpu::pool;

/// An engine with the reference kernels of all operations.
fn reference_engine() -> lz_engine::Engine {
    lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

/// Pseudo-random values, approximately normal.
struct RandomFloats(u64);

impl RandomFloats {
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

/// One engine per CPU kernel of the operation.
fn cpu_engines(operation: &str) -> Vec<(String, Engine)> {
    let entries: Vec<KernelEntry> =
        lz_cpu::kernels().into_iter().filter(|entry| entry.spec.operation == operation).collect();
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
fn assert_close(what: &str, found: &Tensor, expected: &Tensor, tolerance: f64) {
    let (found, expected) = (found.view(), expected.view());
    assert_eq!(found.shape(), expected.shape());
    for index in lz_core::tensor::Indices::new(found.shape()) {
        let (found, expected) = (found.at(&index), expected.at(&index));
        let same = found == expected
            || (found.is_nan() && expected.is_nan())
            || (found - expected).abs() <= tolerance * (1.0 + expected.abs());
        assert!(same, "{what}: {index:?} is {found}, but should be {expected}");
    }
}

/// Checks every CPU kernel against the reference, with one thread and with several: results must be
/// bit-identical.
macro_rules! check_against_reference {
    ($operation:literal, $function:ident, $args:expr, $tolerance:expr) => {{
        let expected = $function(&reference_engine(), $args).unwrap();
        let mut compared = 0;
        for (id, engine) in cpu_engines($operation) {
            let run = |threads| pool::with_threads(threads, || $function(&engine, $args));
            let found = match run(1) {
                Ok(found) => found,
                Err(error) if error.has(lz_core::ReasonCode::IsaUnsupported) => continue,
                Err(error) if error.has(lz_core::ReasonCode::DtypeUnsupported) => continue,
                Err(error) if error.has(lz_core::ReasonCode::OptionalInputUnsupported) => continue,
                Err(error) => panic!("{id}: {error}"),
            };
            compared += 1;
            assert_close(&id, &found.output, &expected.output, $tolerance);
            if let (Some(found), Some(expected)) = (&found.lse, &expected.lse) {
                assert_close(&id, found, expected, $tolerance);
            }
            let again = run(3).unwrap();
            assert_eq!(found.output.bytes(), again.output.bytes(), "{id}: threads change the result");
        }
        assert!(compared > 0, "no kernel ran the call");
    }};
}

#[test]
fn prefill_over_several_kv_tiles() {
    let mut floats = RandomFloats(1);
    // batch, queries, keys, heads, key heads, features, features of values
    for [b, m, n, h, g, d, e] in [
        [1, 70, 210, 4, 2, 64, 64],
        [2, 150, 97, 3, 3, 20, 40],
        [1, 5, 300, 8, 1, 128, 72],
        [1, 33, 100, 6, 2, 7, 5],
        [1, 300, 130, 4, 2, 16, 16],
    ] {
        let (q, k, v) = (
            floats.many((b * m * h * d) as usize),
            floats.many((b * n * g * d) as usize),
            floats.many((b * n * g * e) as usize),
        );
        let slopes = floats.many(h as usize);
        let args = || {
            AttentionGqaPrefill::new(
                view(&q, &[b, m, h, d]),
                view(&k, &[b, n, g, d]),
                view(&v, &[b, n, g, e]),
            )
            .return_lse(true)
        };
        check_against_reference!("attention.gqa.prefill", attention_gqa_prefill, args(), 1e-5);
        check_against_reference!("attention.gqa.prefill", attention_gqa_prefill, args().causal(true), 1e-5);
        check_against_reference!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().causal(true).causal_offset(-20).soft_cap(3.0),
            1e-5
        );
        check_against_reference!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().window_left(30).window_right(9),
            1e-5
        );
        let slopes = view(&slopes, &[h]);
        check_against_reference!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().causal(true).alibi_slopes(slopes),
            1e-5
        );
        let floats: Vec<f32> = floats
            .many((m * n) as usize)
            .into_iter()
            .map(|x| if x > 1.0 { f32::NEG_INFINITY } else { x })
            .collect();
        check_against_reference!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().mask(view(&floats, &[m, n])),
            1e-5
        );
        let seen: Vec<Bool> = (0..n).map(|j| Bool(u8::from(j % 3 != 1 && j < 90))).collect();
        check_against_reference!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().mask(view(&seen, &[n])),
            1e-5
        );
    }
}

#[test]
fn non_finite_values_reach_exactly_the_rows_that_see_them() {
    let (m, n, h, d) = (40, 130, 2, 16);
    let mut floats = RandomFloats(2);
    let (q, k, v) = (
        floats.many((m * h * d) as usize),
        floats.many((n * h * d) as usize),
        floats.many((n * h * d) as usize),
    );
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38] {
        for index in [0, 1000, 129 * 32 + 3] {
            let (mut q, mut k, mut v) = (q.clone(), k.clone(), v.clone());
            let seen: Vec<Bool> = (0..n).map(|j| Bool(u8::from(j != 2))).collect();
            for which in 0..3 {
                let changed = [&mut q, &mut k, &mut v];
                let Some(number) = changed.into_iter().nth(which).and_then(|tensor| tensor.get_mut(index))
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
                check_against_reference!(
                    "attention.standard.prefill",
                    attention_standard_prefill,
                    args(),
                    1e-5
                );
                check_against_reference!(
                    "attention.standard.prefill",
                    attention_standard_prefill,
                    args().causal(true),
                    1e-5
                );
                check_against_reference!(
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
fn decode_with_split_kv() {
    let mut floats = RandomFloats(3);
    for [b, n, h, g, d, e] in [[2, 2500, 8, 2, 64, 64], [1, 1025, 3, 3, 20, 40], [3, 700, 12, 1, 128, 128]] {
        let (q, k, v) = (
            floats.many((b * h * d) as usize),
            floats.many((b * n * g * d) as usize),
            floats.many((b * n * g * e) as usize),
        );
        let lens: Vec<i32> = (0..b).map(|b| [n, n.min(1024), 0][b as usize % 3] as i32).collect();
        let slopes = floats.many(h as usize);
        let args = || {
            AttentionGqaDecode::new(view(&q, &[b, h, d]), view(&k, &[b, n, g, d]), view(&v, &[b, n, g, e]))
                .return_lse(true)
        };
        check_against_reference!("attention.gqa.decode", attention_gqa_decode, args(), 1e-5);
        check_against_reference!(
            "attention.gqa.decode",
            attention_gqa_decode,
            args().kv_lens(view(&lens, &[b])).soft_cap(2.0),
            1e-5
        );
        check_against_reference!(
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
        check_against_reference!("attention.gqa.decode", attention_gqa_decode, args(), 1e-5);
    }
}

/// Adjacent heads are streamed together, and each head's result is bit-identical to running it alone or in a
/// layout where heads are not adjacent.
#[test]
fn adjacent_heads_do_not_change_results() {
    let mut floats = RandomFloats(12);
    for [n, h, g, d, e] in [[300, 37, 37, 24, 40], [130, 70, 10, 64, 7], [70, 20, 4, 33, 64]] {
        let (q, mut k, v) = (
            floats.many((h * d) as usize),
            floats.many((n * g * d) as usize),
            floats.many((n * g * e) as usize),
        );
        // The second head needs the f64 path, its neighbors do not.
        k[d as usize] = 3e4;
        let heads_first = |from: &[f32], features: i64| -> Vec<f32> {
            let row = |index: i64| ((index % n * g + index / n) * features) as usize;
            (0..g * n).flat_map(|index| from[row(index)..row(index) + features as usize].to_vec()).collect()
        };
        let (k_apart, v_apart) = (heads_first(&k, d), heads_first(&v, e));
        for (id, engine) in cpu_engines("attention.gqa.decode") {
            let run = |args: AttentionGqaDecode<'_>| attention_gqa_decode(&engine, args).unwrap().output;
            let together = AttentionGqaDecode::new(
                view(&q, &[1, h, d]),
                view(&k, &[1, n, g, d]),
                view(&v, &[1, n, g, e]),
            );
            let whole = match attention_gqa_decode(&engine, together) {
                Err(error) if error.has(lz_core::ReasonCode::IsaUnsupported) => continue,
                Err(error) if error.has(lz_core::ReasonCode::DtypeUnsupported) => continue,
                Err(error) if error.has(lz_core::ReasonCode::OptionalInputUnsupported) => continue,
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

/// Every number of keys of the short path, including none, and values that need the f64 path.
#[test]
fn short_calls_match_the_reference() {
    let (batch, heads, kv_heads) = (19i64, 6i64, 2i64);
    for (dim, dim_v) in [(64i64, 64i64), (40, 256), (1, 7)] {
        for seq_k in [1i64, 3, 16, 17] {
            let mut floats = RandomFloats(11);
            let q = floats.many((batch * heads * dim) as usize);
            let mut k = floats.many((batch * seq_k * kv_heads * dim) as usize);
            let mut v = floats.many((batch * seq_k * kv_heads * dim_v) as usize);
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
            check_against_reference!("attention.gqa.decode", attention_gqa_decode, args(), 1e-5);
            check_against_reference!(
                "attention.gqa.decode",
                attention_gqa_decode,
                args().kv_lens(lens),
                1e-5
            );
        }
    }
}

#[test]
fn bf16_runs_in_f32_or_on_amx_tiles() {
    let mut floats = RandomFloats(4);
    for [m, n, h, g, d, e] in [[70, 300, 4, 2, 64, 64], [30, 200, 2, 2, 48, 20], [50, 150, 3, 1, 130, 256]] {
        let mut many = |count: i64| -> Vec<bf16> {
            floats.many(count as usize).into_iter().map(bf16::from_f32).collect()
        };
        let (q, k, v) = (many(m * h * d), many(n * g * d), many(n * g * e));
        let mask = many(m * n);
        let slopes = vec![0.1f32; h as usize];
        let args = || {
            let (q, k, v) = (view(&q, &[1, m, h, d]), view(&k, &[1, n, g, d]), view(&v, &[1, n, g, e]));
            AttentionGqaPrefill::new(q, k, v).return_lse(true)
        };
        check_against_reference!("attention.gqa.prefill", attention_gqa_prefill, args(), 1e-2);
        check_against_reference!("attention.gqa.prefill", attention_gqa_prefill, args().causal(true), 1e-2);
        check_against_reference!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().causal(true).causal_offset(-20).soft_cap(3.0),
            1e-2
        );
        check_against_reference!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().window_left(30).window_right(9),
            1e-2
        );
        check_against_reference!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().mask(view(&mask, &[m, n])),
            1e-2
        );
        check_against_reference!(
            "attention.gqa.prefill",
            attention_gqa_prefill,
            args().alibi_slopes(view(&slopes, &[h])),
            1e-2
        );
    }
    let (tokens, h, n, d, e) = (2, 16, 1100, 512, 64);
    let mut many =
        |count: i64| -> Vec<bf16> { floats.many(count as usize).into_iter().map(bf16::from_f32).collect() };
    let (nope, pe, ckv, kpe) = (many(tokens * h * d), many(tokens * h * e), many(n * d), many(n * e));
    let args = || {
        let (nope, pe) = (view(&nope, &[tokens, h, d]), view(&pe, &[tokens, h, e]));
        AttentionMlaDecode::new(nope, pe, view(&ckv, &[n, 1, d]), view(&kpe, &[n, 1, e]), 0.05)
            .return_lse(true)
    };
    check_against_reference!("attention.mla.decode", attention_mla_decode, args(), 1e-2);
}

#[test]
fn paged_decode_follows_the_page_table_and_splits_long_requests() {
    let mut floats = RandomFloats(5);
    let (page_size, pages, h, g, d) = (16, 200, 8, 2, 32);
    let cache = (pages * page_size * g * d) as usize;
    let (q, k, v) = (floats.many((3 * h * d) as usize), floats.many(cache), floats.many(cache));
    let (indptr, last) = ([0i32, 120, 120, 170], [5i32, 0, 16]);
    let indices: Vec<i32> = (0..170).map(|index| index * 77 % pages as i32).collect();
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
    check_against_reference!("attention.gqa.decode.paged", attention_gqa_decode_paged, args(), 1e-5);
    check_against_reference!(
        "attention.gqa.decode.paged",
        attention_gqa_decode_paged,
        args().window_left(1100),
        1e-5
    );
}

#[test]
fn mla_latents_are_keys_and_values() {
    let mut floats = RandomFloats(6);
    let (tokens, h, n, d, e) = (5, 16, 1100, 512, 64);
    let (nope, pe) = (floats.many((tokens * h * d) as usize), floats.many((tokens * h * e) as usize));
    let (ckv, kpe) = (floats.many((n * d) as usize), floats.many((n * e) as usize));
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
    check_against_reference!("attention.mla.decode", attention_mla_decode, args(), 1e-5);
}

#[test]
fn sparse_attention_reads_only_listed_blocks() {
    let mut floats = RandomFloats(7);
    let (m, n, h, g, d) = (70, 300, 4, 2, 24);
    let (q, k) = (floats.many((m * h * d) as usize), floats.many((n * g * d) as usize));
    let mut v = floats.many((n * g * d) as usize);
    // Block 3 is not listed.
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
    check_against_reference!("attention.sparse.block", attention_sparse_block, args(), 1e-5);
}

/// A sink of each head, among them those that need the f64 path.
const SINKS: [[f32; 4]; 4] = [
    [0.5, -1.5, 3.0, 0.0],
    [f32::NEG_INFINITY, 1.0, f32::INFINITY, f32::NAN],
    [90.0, -90.0, 1e4, -1e4],
    [f32::MIN, f32::MAX, 40.0, -40.0],
];

#[test]
fn sinks_take_part_in_the_softmax_of_every_path() {
    let mut floats = RandomFloats(8);
    let (h, g, d) = (4, 2, 32);
    // Short, streamed, split and tiled calls; the last query sees the fewest keys without `causal`.
    for (m, n) in [(1, 9), (1, 300), (3, 40), (70, 210)] {
        let q = floats.many((m * h * d) as usize);
        let (k, mut v) = (floats.many((n * g * d) as usize), floats.many((n * g * d) as usize));
        for (at, sinks) in SINKS.iter().enumerate() {
            let sinks = view(sinks, &[h]);
            v[3] = if at == 2 { f32::INFINITY } else { 1.0 };
            let (k, v) = (view(&k, &[1, n, g, d]), view(&v, &[1, n, g, d]));
            let args =
                || AttentionGqaPrefill::new(view(&q, &[1, m, h, d]), k, v).return_lse(true).sinks(sinks);
            check_against_reference!("attention.gqa.prefill", attention_gqa_prefill, args(), 1e-5);
            // The first queries see no key.
            check_against_reference!(
                "attention.gqa.prefill",
                attention_gqa_prefill,
                args().causal(true).causal_offset(-1).soft_cap(3.0),
                1e-5
            );
            if m == 1 {
                let args =
                    || AttentionGqaDecode::new(view(&q, &[1, h, d]), k, v).return_lse(true).sinks(sinks);
                check_against_reference!("attention.gqa.decode", attention_gqa_decode, args(), 1e-5);
                check_against_reference!(
                    "attention.gqa.decode",
                    attention_gqa_decode,
                    args().kv_lens(view(&[0], &[1])),
                    1e-5
                );
            }
        }
    }
}

#[test]
fn sinks_of_bf16_calls() {
    let mut floats = RandomFloats(9);
    let (m, n, h, g, d) = (70, 300, 4, 2, 64);
    let mut many =
        |count: i64| -> Vec<bf16> { floats.many(count as usize).into_iter().map(bf16::from_f32).collect() };
    let (q, k, v) = (many(m * h * d), many(n * g * d), many(n * g * d));
    for sinks in &SINKS {
        let sinks = view(sinks, &[h]);
        let args = || {
            let (q, k, v) = (view(&q, &[1, m, h, d]), view(&k, &[1, n, g, d]), view(&v, &[1, n, g, d]));
            AttentionGqaPrefill::new(q, k, v).return_lse(true).causal(true).sinks(sinks)
        };
        check_against_reference!("attention.gqa.prefill", attention_gqa_prefill, args(), 1e-2);
    }
}

/// Pages in a buffer of fixed size, of which the requests use a part.
#[test]
fn requests_with_sinks_use_a_part_of_the_page_list() {
    let mut floats = RandomFloats(10);
    let (page_size, pages, h, g, d) = (16, 60, 4, 2, 32);
    let cache = (pages * page_size * g * d) as usize;
    let (q, k, v) = (floats.many((5 * h * d) as usize), floats.many(cache), floats.many(cache));
    let indices: Vec<i32> = (0..100).map(|index| index * 77 % pages as i32).collect();
    let (qo_indptr, last) = ([0i32, 2, 2, 5], [5i32, 0, 16]);
    let shape = [pages, page_size, g, d];
    for (used, sinks) in [0, 30, 100, 7].into_iter().zip(&SINKS) {
        let indptr = [0i32, used / 2, used / 2, used];
        let (indptr, indices, last) = (view(&indptr, &[4]), view(&indices, &[100]), view(&last, &[3]));
        let (k, v, sinks) = (view(&k, &shape), view(&v, &shape), view(sinks, &[h]));
        let args = || {
            AttentionGqaDecodePaged::new(view(&q[..3 * 4 * 32], &[3, h, d]), k, v, indptr, indices, last)
                .return_lse(true)
        };
        check_against_reference!("attention.gqa.decode.paged", attention_gqa_decode_paged, args(), 1e-5);
        check_against_reference!(
            "attention.gqa.decode.paged",
            attention_gqa_decode_paged,
            args().sinks(sinks),
            1e-5
        );
        let args = || {
            let (q, starts) = (view(&q, &[5, h, d]), view(&qo_indptr, &[4]));
            AttentionGqaPrefillPaged::new(q, k, v, starts, indptr, indices, last)
                .return_lse(true)
                .sinks(sinks)
        };
        check_against_reference!("attention.gqa.prefill.paged", attention_gqa_prefill_paged, args(), 1e-5);
    }
}

#[test]
fn fp8_caches_match_the_reference() {
    use lz_core::element::{F8E4M3, F8E5M2};
    let mut floats = RandomFloats(14);
    let (page_size, pages, h, g, d) = (16, 60, 6, 2, 40);
    let shape = [pages, page_size, g, d];
    let q = floats.many((70 * h * d) as usize);
    let code = |at: i64| ((at * 37 % 79) | (at * 11 % 2) << 7) as u8;
    let finite: Vec<u8> = (0..pages * page_size * g * d).map(code).collect();
    // The largest codes, of which some are infinite or NaN, are on the first page, which only the first request has.
    let mut codes = finite.clone();
    codes[..8].copy_from_slice(&[0x7b, 0x7c, 0x7d, 0x7e, 0x7f, 0xff, 0xfc, 0x80]);
    let indices: Vec<i32> = (0..100).map(|index| index * 77 % pages as i32).collect();
    let (indptr, last, qo_indptr) = ([0i32, 30, 30, 41], [5i32, 0, 16], [0i32, 3, 3, 70]);
    let slopes = floats.many(h as usize);
    let scales = [0.01f32, 0.3];
    for (at, codes) in [&finite, &codes].into_iter().enumerate() {
        let e4m3: Vec<F8E4M3> = codes.iter().map(|code| F8E4M3(*code)).collect();
        let e5m2: Vec<F8E5M2> = codes.iter().map(|code| F8E5M2(*code)).collect();
        for cache in [view(&e4m3, &shape), view(&e5m2, &shape)] {
            let (indptr, indices, last) = (view(&indptr, &[4]), view(&indices, &[100]), view(&last, &[3]));
            let decode = || {
                let q = view(&q[..(3 * h * d) as usize], &[3, h, d]);
                let args = AttentionGqaDecodePagedFp8::new(q, cache, cache, indptr, indices, last);
                args.return_lse(true).k_scale(view(&scales, &[2])).v_scale(view(&scales[..1], &[]))
            };
            check_against_reference!(
                "attention.gqa.decode.paged.fp8",
                attention_gqa_decode_paged_fp8,
                decode(),
                1e-5
            );
            check_against_reference!(
                "attention.gqa.decode.paged.fp8",
                attention_gqa_decode_paged_fp8,
                decode().window_left(17).soft_cap(3.0).sinks(view(&slopes, &[h])),
                1e-5
            );
            let prefill = || {
                let (q, starts) = (view(&q, &[70, h, d]), view(&qo_indptr, &[4]));
                let args = AttentionGqaPrefillPagedFp8::new(q, cache, cache, starts, indptr, indices, last);
                args.return_lse(true).k_scale(view(&scales[at..=at], &[1])).alibi_slopes(view(&slopes, &[h]))
            };
            check_against_reference!(
                "attention.gqa.prefill.paged.fp8",
                attention_gqa_prefill_paged_fp8,
                prefill().causal(true),
                1e-5
            );
        }
    }
}

/// Several tiles and tasks, every index, and every other argument that changes scores.
#[test]
fn score_expressions_over_several_tiles() {
    let mut random = RandomFloats(11);
    let (batch, heads, kv_heads, dim, dim_v) = (2i64, 6i64, 2i64, 20i64, 12i64);
    for (seq_q, seq_k) in [(1i64, 1i64), (5, 33), (40, 70)] {
        let q = random.many((batch * seq_q * heads * dim) as usize);
        let k = random.many((batch * seq_k * kv_heads * dim) as usize);
        let v = random.many((batch * seq_k * kv_heads * dim_v) as usize);
        let parameters = random.many((batch * heads * 2) as usize);
        let slopes: Vec<f32> = (0..heads).map(|head| 0.05 * head as f32).collect();
        let sinks = random.many(heads as usize);
        let mask: Vec<Bool> = (0..seq_q * seq_k).map(|at| Bool(u8::from(at % 5 != 3))).collect();
        let q = view(&q, &[batch, seq_q, heads, dim]);
        let (k, v) = (view(&k, &[batch, seq_k, kv_heads, dim]), view(&v, &[batch, seq_k, kv_heads, dim_v]));
        for text in [
            "score * 40 + b - h / 3",
            "score if (q_pos - kv_idx) % 4 != 1 or kv_idx in [0, 2] else -inf",
            "score + p0 * log(1 + kv_idx) - p1 * q_idx",
            "max(score, p1) if h % 2 == b else inf - inf",
            "-inf",
            "inf if kv_idx == 30 else score",
        ] {
            let length = text.len() as i64;
            let args = || {
                AttentionGqaPrefill::new(q, k, v)
                    .score_mod(view(text.as_bytes(), &[length]))
                    .score_params(view(&parameters, &[batch, heads, 2]))
                    .return_lse(true)
            };
            check_against_reference!("attention.gqa.prefill", attention_gqa_prefill, args(), 1e-5);
            check_against_reference!(
                "attention.gqa.prefill",
                attention_gqa_prefill,
                args().causal(true).window_left(20).soft_cap(3.0).sinks(view(&sinks, &[heads])),
                1e-5
            );
            check_against_reference!(
                "attention.gqa.prefill",
                attention_gqa_prefill,
                args().mask(view(&mask, &[seq_q, seq_k])).alibi_slopes(view(&slopes, &[heads])),
                1e-5
            );
        }
    }
}

#[test]
fn score_expressions_of_decode_steps() {
    let mut random = RandomFloats(12);
    let (batch, heads, kv_heads, dim, seq_k) = (3i64, 4i64, 2i64, 16i64, 100i64);
    let q = random.many((batch * heads * dim) as usize);
    let k = random.many((batch * seq_k * kv_heads * dim) as usize);
    let v = random.many((batch * seq_k * kv_heads * dim) as usize);
    let (sinks, lens) = (random.many(heads as usize), [0i32, 1, 100]);
    for text in
        ["score + 0.1 * (kv_idx - q_pos) * (h + b)", "score if q_idx == 0 and q_pos - kv_idx < 9 else -inf"]
    {
        let length = text.len() as i64;
        let args = || {
            AttentionGqaDecode::new(
                view(&q, &[batch, heads, dim]),
                view(&k, &[batch, seq_k, kv_heads, dim]),
                view(&v, &[batch, seq_k, kv_heads, dim]),
            )
            .score_mod(view(text.as_bytes(), &[length]))
            .return_lse(true)
        };
        check_against_reference!("attention.gqa.decode", attention_gqa_decode, args(), 1e-5);
        check_against_reference!(
            "attention.gqa.decode",
            attention_gqa_decode,
            args().kv_lens(view(&lens, &[batch])).sinks(view(&sinks, &[heads])).window_left(40),
            1e-5
        );
    }
}

/// Requests of several tasks, of several tiles, without queries and without keys.
#[test]
fn score_expressions_of_ragged_requests() {
    let mut random = RandomFloats(13);
    let (heads, kv_heads, dim, dim_v) = (6i64, 2i64, 20i64, 12i64);
    let (qo_indptr, kv_indptr) = ([0i32, 5, 5, 47, 48, 50], [0i32, 3, 12, 84, 84, 115]);
    let q = random.many((50 * heads * dim) as usize);
    let k = random.many((115 * kv_heads * dim) as usize);
    let v = random.many((115 * kv_heads * dim_v) as usize);
    let parameters = random.many((5 * heads * 2) as usize);
    let (slopes, sinks) = (random.many((5 * heads) as usize), random.many(heads as usize));
    for text in [
        "score * 40 + b - h / 3",
        "score + p0 * log(1 + kv_idx) - p1 * q_idx + 0.1 * q_pos",
        "score if (q_pos - kv_idx) % 4 != 1 or b == 2 else -inf",
        "inf if kv_idx == 30 else score",
    ] {
        let args = || {
            AttentionGqaPrefillRagged::new(
                view(&q, &[50, heads, dim]),
                view(&k, &[115, kv_heads, dim]),
                view(&v, &[115, kv_heads, dim_v]),
                view(&qo_indptr, &[6]),
                view(&kv_indptr, &[6]),
            )
            .score_mod(view(text.as_bytes(), &[text.len() as i64]))
            .score_params(view(&parameters, &[5, heads, 2]))
            .return_lse(true)
        };
        check_against_reference!(
            "attention.gqa.prefill.ragged",
            attention_gqa_prefill_ragged,
            args().alibi_slopes(view(&slopes, &[5, heads])),
            1e-5
        );
        check_against_reference!(
            "attention.gqa.prefill.ragged",
            attention_gqa_prefill_ragged,
            args().causal(true).window_left(20).soft_cap(3.0).sinks(view(&sinks, &[heads])),
            1e-5
        );
    }
}

/// Also over FP8 caches, whose heads are decoded one at a time.
#[test]
fn score_expressions_over_pages() {
    use lz_core::element::{F8E4M3, F8E5M2};
    let mut random = RandomFloats(14);
    let (page_size, pages, heads, kv_heads, dim) = (16i64, 60i64, 6i64, 2i64, 40i64);
    let shape = [pages, page_size, kv_heads, dim];
    let count = pages * page_size * kv_heads * dim;
    let q = random.many((70 * heads * dim) as usize);
    let (k, v) = (random.many(count as usize), random.many(count as usize));
    let codes = |factor: i64| (0..count).map(move |at| ((at * factor % 71) | (at * 11 % 2) << 7) as u8);
    let e4m3: Vec<F8E4M3> = codes(37).map(F8E4M3).collect();
    let e5m2: Vec<F8E5M2> = codes(29).map(F8E5M2).collect();
    let indices: Vec<i32> = (0..41).map(|index| index * 77 % pages as i32).collect();
    let (indptr, last, qo_indptr) = ([0i32, 30, 30, 41], [5i32, 0, 16], [0i32, 3, 3, 70]);
    let (indptr, indices, last) = (view(&indptr, &[4]), view(&indices, &[41]), view(&last, &[3]));
    let (parameters, sinks) = (random.many((3 * heads) as usize), random.many(heads as usize));
    let (parameters, sinks) = (view(&parameters, &[3, heads, 1]), view(&sinks, &[heads]));
    let scales = [0.01f32, 0.3];
    for text in [
        "score * 10 + b - h / 3",
        "score + p0 * (kv_idx - q_pos) * 0.05 - q_idx",
        "score if h % 2 == b or kv_idx % 3 == 0 else -inf",
    ] {
        let text = view(text.as_bytes(), &[text.len() as i64]);
        let decode = || {
            let q = view(&q[..(3 * heads * dim) as usize], &[3, heads, dim]);
            let args =
                AttentionGqaDecodePaged::new(q, view(&k, &shape), view(&v, &shape), indptr, indices, last);
            args.score_mod(text).score_params(parameters).return_lse(true)
        };
        check_against_reference!("attention.gqa.decode.paged", attention_gqa_decode_paged, decode(), 1e-5);
        let short = || decode().window_left(40).sinks(sinks);
        check_against_reference!("attention.gqa.decode.paged", attention_gqa_decode_paged, short(), 1e-5);
        let (queries, starts) = (view(&q, &[70, heads, dim]), view(&qo_indptr, &[4]));
        let prefill = || {
            let args = AttentionGqaPrefillPaged::new(
                queries,
                view(&k, &shape),
                view(&v, &shape),
                starts,
                indptr,
                indices,
                last,
            );
            args.score_mod(text).score_params(parameters).return_lse(true).causal(true).soft_cap(3.0)
        };
        check_against_reference!("attention.gqa.prefill.paged", attention_gqa_prefill_paged, prefill(), 1e-5);
        for cache in [view(&e4m3, &shape), view(&e5m2, &shape)] {
            let prefill = || {
                let args =
                    AttentionGqaPrefillPagedFp8::new(queries, cache, cache, starts, indptr, indices, last);
                let args = args.k_scale(view(&scales, &[2])).v_scale(view(&scales[..1], &[]));
                args.score_mod(text).score_params(parameters).return_lse(true).causal(true).sinks(sinks)
            };
            check_against_reference!(
                "attention.gqa.prefill.paged.fp8",
                attention_gqa_prefill_paged_fp8,
                prefill(),
                1e-5
            );
            let decode = || {
                let q = view(&q[..(3 * heads * dim) as usize], &[3, heads, dim]);
                let args = AttentionGqaDecodePagedFp8::new(q, cache, cache, indptr, indices, last);
                args.k_scale(view(&scales, &[2])).score_mod(text).score_params(parameters).return_lse(true)
            };
            check_against_reference!(
                "attention.gqa.decode.paged.fp8",
                attention_gqa_decode_paged_fp8,
                decode(),
                1e-5
            );
        }
    }
}
