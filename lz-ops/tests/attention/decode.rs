//! Decode, contiguous and paged, equals the last row of prefill.

use lz_ops::{
    AttentionGqaDecode, AttentionGqaDecodeLayout, AttentionGqaDecodePaged, AttentionGqaDecodePagedLayout,
    AttentionStandardDecode, AttentionStandardDecodeLayout, AttentionStandardDecodePaged,
    AttentionStandardDecodePagedLayout, attention_gqa_decode, attention_gqa_decode_paged,
    attention_standard_decode, attention_standard_decode_paged,
};

use crate::ragged::Cache;
use crate::support::{AttentionResult, Problem, engine, random_values, swap_middle, view};

const KEYS: usize = 7;
const LENS: [i32; 4] = [7, 0, 1, 4];

/// Three queries per batch row; decode uses the last one.
fn problem(kv_heads: usize) -> Problem {
    Problem::new([4, 3, KEYS, 4, kv_heads, 3, 3], 61)
}

fn last_queries(problem: &Problem) -> Vec<f32> {
    problem.q.chunks(3 * 4 * 3).flat_map(|row| row[2 * 4 * 3..].to_vec()).collect()
}

/// The first tokens of batch row `b`.
fn first_tokens(data: &[f32], b: usize, kv_heads: usize) -> &[f32] {
    &data[b * KEYS * kv_heads * 3..][..LENS[b] as usize * kv_heads * 3]
}

/// Causal prefill of each batch row truncated to its length; the last query of each.
fn last_rows(problem: &Problem, slopes: &[f32]) -> AttentionResult {
    let mut all = AttentionResult::default();
    for b in 0..4 {
        let row = Problem {
            batch: 1,
            keys: LENS[b] as usize,
            q: problem.q[b * 36..][..36].to_vec(),
            k: first_tokens(&problem.k, b, problem.kv_heads).to_vec(),
            v: first_tokens(&problem.v, b, problem.kv_heads).to_vec(),
            ..problem.clone()
        };
        let slopes = &slopes[b * 4..][..4];
        let attention_result =
            row.gqa(|args| args.causal(true).window_left(3).soft_cap(1.5).alibi_slopes(view(slopes, &[4])));
        all.output.extend(&attention_result.output[24..]);
        all.lse.extend(&attention_result.lse[8..]);
    }
    all
}

#[test]
fn one_key_returns_its_value() {
    let (q, k, v) = ([2.0f32], [3.0f32], [5.0f32]);
    let args =
        AttentionStandardDecode::new(view(&q, &[1, 1, 1]), view(&k, &[1, 1, 1, 1]), view(&v, &[1, 1, 1, 1]));
    let result = attention_standard_decode(engine(), args.return_lse(true)).unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref())
        .assert_matches(&AttentionResult { output: vec![5.0], lse: vec![6.0] });
}

#[test]
fn decode_is_the_last_row_of_prefill() {
    let slopes = random_values(16, 71);
    for kv_heads in [1, 2, 4] {
        let mut problem = problem(kv_heads);
        let q = last_queries(&problem);
        let expected = last_rows(&problem, &slopes);
        // Keys past the lengths must be ignored.
        for (b, &length) in LENS.iter().enumerate() {
            let (start, end) = ((b * KEYS + length as usize) * kv_heads * 3, (b + 1) * KEYS * kv_heads * 3);
            problem.k[start..end].fill(f32::NAN);
            problem.v[start..end].fill(f32::NAN);
        }
        let sizes = [4, KEYS, kv_heads];
        let (k_bhsd, v_bhsd) = (swap_middle(&problem.k, sizes, 3), swap_middle(&problem.v, sizes, 3));
        let bshd = problem.k_shape();
        let bhsd = [bshd[0], bshd[2], bshd[1], bshd[3]];
        for heads_first in [false, true] {
            let (k, v) = if heads_first {
                (view(&k_bhsd, &bhsd), view(&v_bhsd, &bhsd))
            } else {
                (view(&problem.k, &bshd), view(&problem.v, &bshd))
            };
            let gqa = [AttentionGqaDecodeLayout::Bshd, AttentionGqaDecodeLayout::Bhsd];
            let args = AttentionGqaDecode::new(view(&q, &[4, 4, 3]), k, v)
                .kv_lens(view(&LENS, &[4]))
                .window_left(3)
                .soft_cap(1.5)
                .alibi_slopes(view(&slopes, &[4, 4]))
                .layout(gqa[usize::from(heads_first)])
                .return_lse(true);
            let result = attention_gqa_decode(engine(), args).unwrap();
            AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
            if kv_heads == 4 {
                let standard = [AttentionStandardDecodeLayout::Bshd, AttentionStandardDecodeLayout::Bhsd];
                let args = AttentionStandardDecode::new(args.q, k, v)
                    .kv_lens(view(&LENS, &[4]))
                    .window_left(3)
                    .soft_cap(1.5)
                    .alibi_slopes(view(&slopes, &[4, 4]))
                    .layout(standard[usize::from(heads_first)])
                    .return_lse(true);
                let result = attention_standard_decode(engine(), args).unwrap();
                AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
            }
        }
    }
}

#[test]
fn without_lengths_every_key_is_seen() {
    let problem = Problem::new([2, 1, 5, 2, 1, 3, 4], 73);
    let scale = problem.default_scale();
    let args = AttentionGqaDecode::new(
        view(&problem.q, &[2, 2, 3]),
        view(&problem.k, &problem.k_shape()),
        view(&problem.v, &problem.v_shape()),
    );
    let result = attention_gqa_decode(engine(), args.return_lse(true)).unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref())
        .assert_matches(&problem.expected(|_, _, _, _, dot| Some(scale * dot)));
}

#[test]
fn paged_decode_is_the_last_row_of_prefill() {
    let slopes = random_values(16, 79);
    for (kv_heads, page_size) in [(1, 1), (2, 3), (4, 4), (4, 16)] {
        let problem = problem(kv_heads);
        let q = last_queries(&problem);
        let expected = last_rows(&problem, &slopes);
        let rows = |data| -> Vec<&[f32]> { (0..4).map(|b| first_tokens(data, b, kv_heads)).collect() };
        let k = Cache::new(&rows(&problem.k), kv_heads * 3, page_size);
        let v = Cache::new(&rows(&problem.v), kv_heads * 3, page_size);
        let sizes = [k.page_count, page_size, kv_heads];
        let (k_hnd, v_hnd) = (swap_middle(&k.pages, sizes, 3), swap_middle(&v.pages, sizes, 3));
        let nhd = [k.page_count as i64, page_size as i64, kv_heads as i64, 3];
        let hnd = [nhd[0], nhd[2], nhd[1], 3];
        for heads_first in [false, true] {
            let (k_cache, v_cache) = if heads_first {
                (view(&k_hnd, &hnd), view(&v_hnd, &hnd))
            } else {
                (view(&k.pages, &nhd), view(&v.pages, &nhd))
            };
            let table = (
                view(&k.indptr, &[5]),
                view(&k.indices, &[k.indices.len() as i64]),
                view(&k.last_page_len, &[4]),
            );
            let gqa = [AttentionGqaDecodePagedLayout::Nhd, AttentionGqaDecodePagedLayout::Hnd];
            let args = AttentionGqaDecodePaged::new(
                view(&q, &[4, 4, 3]),
                k_cache,
                v_cache,
                table.0,
                table.1,
                table.2,
            )
            .window_left(3)
            .soft_cap(1.5)
            .alibi_slopes(view(&slopes, &[4, 4]))
            .layout(gqa[usize::from(heads_first)])
            .return_lse(true);
            let result = attention_gqa_decode_paged(engine(), args).unwrap();
            AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
            if kv_heads == 4 {
                let standard =
                    [AttentionStandardDecodePagedLayout::Nhd, AttentionStandardDecodePagedLayout::Hnd];
                let args =
                    AttentionStandardDecodePaged::new(args.q, k_cache, v_cache, table.0, table.1, table.2)
                        .window_left(3)
                        .soft_cap(1.5)
                        .alibi_slopes(view(&slopes, &[4, 4]))
                        .layout(standard[usize::from(heads_first)])
                        .return_lse(true);
                let result = attention_standard_decode_paged(engine(), args).unwrap();
                AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
            }
        }
    }
}

#[test]
fn score_expressions_of_paged_decode_have_the_indices_of_the_request() {
    const TEXT: &str = "score + 0.25 * b * h - p0 * abs(kv_idx - q_pos) + q_idx";
    let text = view(TEXT.as_bytes(), &[TEXT.len() as i64]);
    let parameters = random_values(16, 89);
    let parameters = view(&parameters, &[4, 4, 1]);
    let problem = problem(2);
    let q = last_queries(&problem);
    let q = view(&q, &[4, 4, 3]);
    let shape = [4, KEYS as i64, 2, 3];
    let contiguous = AttentionGqaDecode::new(q, view(&problem.k, &shape), view(&problem.v, &shape))
        .kv_lens(view(&LENS, &[4]))
        .window_left(3)
        .score_mod(text)
        .score_params(parameters)
        .return_lse(true);
    let expected = attention_gqa_decode(engine(), contiguous).unwrap();
    let rows = |data| -> Vec<&[f32]> { (0..4).map(|b| first_tokens(data, b, 2)).collect() };
    let k = Cache::new(&rows(&problem.k), 2 * 3, 3);
    let v = Cache::new(&rows(&problem.v), 2 * 3, 3);
    let shape = [k.page_count as i64, 3, 2, 3];
    let paged = AttentionGqaDecodePaged::new(
        q,
        view(&k.pages, &shape),
        view(&v.pages, &shape),
        view(&k.indptr, &[5]),
        view(&k.indices, &[k.indices.len() as i64]),
        view(&k.last_page_len, &[4]),
    )
    .window_left(3)
    .score_mod(text)
    .score_params(parameters)
    .return_lse(true);
    let result = attention_gqa_decode_paged(engine(), paged).unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref())
        .assert_matches(&AttentionResult::of(&expected.output, expected.lse.as_ref()));
}

#[test]
fn empty_batches_and_caches_give_empty_or_zero_results() {
    let (nothing, none): ([f32; 0], [i32; 0]) = ([], []);
    let no_batch = AttentionStandardDecodePaged::new(
        view(&nothing, &[0, 2, 3]),
        view(&nothing, &[0, 4, 2, 3]),
        view(&nothing, &[0, 4, 2, 3]),
        view(&[0i32], &[1]),
        view(&none, &[0]),
        view(&none, &[0]),
    );
    let result = attention_standard_decode_paged(engine(), no_batch.return_lse(true)).unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&AttentionResult::default());

    let q = random_values(6, 83);
    let no_keys = AttentionStandardDecode::new(
        view(&q, &[1, 2, 3]),
        view(&nothing, &[1, 0, 2, 3]),
        view(&nothing, &[1, 0, 2, 3]),
    );
    let result = attention_standard_decode(engine(), no_keys.return_lse(true)).unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref())
        .assert_matches(&AttentionResult { output: vec![0.0; 6], lse: vec![f64::NEG_INFINITY; 2] });
}
