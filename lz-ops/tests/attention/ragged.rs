//! Ragged and paged prefill must equal contiguous prefill of the same requests.

use lz_ops::{
    AttentionGqaPrefillPaged, AttentionGqaPrefillPagedLayout, AttentionGqaPrefillRagged,
    AttentionStandardPrefillPaged, AttentionStandardPrefillPagedLayout, AttentionStandardPrefillRagged,
    attention_gqa_prefill_paged, attention_gqa_prefill_ragged, attention_standard_prefill_paged,
    attention_standard_prefill_ragged,
};

use crate::support::{AttentionResult, Problem, engine, random_values, swap_middle, view};

/// Numbers of queries and keys of each request: a usual one, more queries than keys, no keys, no queries, one
/// of each.
const LENGTHS: [(usize, usize); 5] = [(3, 7), (4, 2), (2, 0), (0, 3), (1, 1)];

/// The requests as separate problems with `kv_heads` KV heads.
fn requests(kv_heads: usize) -> Vec<Problem> {
    LENGTHS
        .iter()
        .zip(0..)
        .map(|(&(queries, keys), seed)| Problem::new([1, queries, keys, 4, kv_heads, 3, 3], 100 + 3 * seed))
        .collect()
}

fn indptr(lengths: impl Iterator<Item = usize>) -> Vec<i32> {
    let mut total = 0;
    std::iter::once(0)
        .chain(lengths.map(|length| {
            total += length as i32;
            total
        }))
        .collect()
}

fn concatenated(requests: &[Problem], part: impl Fn(&Problem) -> &Vec<f32>) -> Vec<f32> {
    requests.iter().flat_map(|request| part(request).clone()).collect()
}

/// Contiguous prefill of each request, with causality, windows, soft cap and its own slopes.
fn separately(requests: &[Problem], slopes: &[f32]) -> AttentionResult {
    let mut all = AttentionResult::default();
    for (request, slopes) in requests.iter().zip(slopes.chunks(4)) {
        let attention_result = request.gqa(|args| {
            args.causal(true).window_left(3).window_right(5).soft_cap(1.25).alibi_slopes(view(slopes, &[4]))
        });
        all.output.extend(attention_result.output);
        all.lse.extend(attention_result.lse);
    }
    all
}

#[test]
fn ragged_requests_do_not_see_each_other() {
    let slopes = random_values(20, 3);
    for kv_heads in [2, 4] {
        let requests = requests(kv_heads);
        let (q, k, v) = (
            concatenated(&requests, |r| &r.q),
            concatenated(&requests, |r| &r.k),
            concatenated(&requests, |r| &r.v),
        );
        let qo_indptr = indptr(LENGTHS.iter().map(|lengths| lengths.0));
        let kv_indptr = indptr(LENGTHS.iter().map(|lengths| lengths.1));
        let (q, qo_indptr) = (view(&q, &[10, 4, 3]), view(&qo_indptr, &[6]));
        let (k, v) = (view(&k, &[13, kv_heads as i64, 3]), view(&v, &[13, kv_heads as i64, 3]));
        let kv_indptr = view(&kv_indptr, &[6]);
        let args = AttentionGqaPrefillRagged::new(q, k, v, qo_indptr, kv_indptr)
            .causal(true)
            .window_left(3)
            .window_right(5)
            .soft_cap(1.25)
            .alibi_slopes(view(&slopes, &[5, 4]))
            .return_lse(true);
        let result = attention_gqa_prefill_ragged(engine(), args).unwrap();
        let expected = separately(&requests, &slopes);
        assert!(expected.lse.contains(&f64::NEG_INFINITY), "expected a row without visible keys");
        AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
        if kv_heads == 4 {
            let args = AttentionStandardPrefillRagged::new(q, k, v, qo_indptr, kv_indptr)
                .causal(true)
                .window_left(3)
                .window_right(5)
                .soft_cap(1.25)
                .alibi_slopes(view(&slopes, &[5, 4]))
                .return_lse(true);
            let result = attention_standard_prefill_ragged(engine(), args).unwrap();
            AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
        }
    }
}

/// Keys or values on pages in a permuted order; unused slots are NaN.
pub struct Cache {
    pub pages: Vec<f32>,
    pub page_count: usize,
    pub indptr: Vec<i32>,
    pub indices: Vec<i32>,
    pub last_page_len: Vec<i32>,
}

impl Cache {
    /// `rows[b]` are the tokens of request b, `width` elements each.
    pub fn new(rows: &[&[f32]], width: usize, page_size: usize) -> Cache {
        let counts: Vec<usize> = rows.iter().map(|row| (row.len() / width).div_ceil(page_size)).collect();
        let total: usize = counts.iter().sum();
        let page_count = total + 1;
        let mut cache = Cache {
            pages: vec![f32::NAN; page_count * page_size * width],
            page_count,
            indptr: indptr(counts.iter().copied()),
            // Pages in reverse order.
            indices: (0..total as i32).rev().map(|page| page + 1).collect(),
            last_page_len: Vec::new(),
        };
        let mut next = 0;
        for row in rows {
            let tokens = row.len() / width;
            cache.last_page_len.push(if tokens == 0 { 0 } else { ((tokens - 1) % page_size + 1) as i32 });
            for page in row.chunks(page_size * width) {
                let start = cache.indices[next] as usize * page_size * width;
                cache.pages[start..start + page.len()].copy_from_slice(page);
                next += 1;
            }
        }
        cache
    }
}

#[test]
fn paged_requests_equal_contiguous_ones() {
    let slopes = random_values(20, 5);
    for (kv_heads, page_size) in [(2, 1), (2, 3), (4, 2), (4, 16)] {
        let requests = requests(kv_heads);
        let q = concatenated(&requests, |request| &request.q);
        let qo_indptr = indptr(LENGTHS.iter().map(|lengths| lengths.0));
        let rows = |part: fn(&Problem) -> &Vec<f32>| -> Vec<&[f32]> {
            requests.iter().map(|request| part(request).as_slice()).collect()
        };
        let k = Cache::new(&rows(|request| &request.k), kv_heads * 3, page_size);
        let v = Cache::new(&rows(|request| &request.v), kv_heads * 3, page_size);
        let sizes = [k.page_count, page_size, kv_heads];
        let (k_hnd, v_hnd) = (swap_middle(&k.pages, sizes, 3), swap_middle(&v.pages, sizes, 3));
        let nhd = [k.page_count as i64, page_size as i64, kv_heads as i64, 3];
        let hnd = [nhd[0], nhd[2], nhd[1], 3];
        let expected = separately(&requests, &slopes);
        for heads_first in [false, true] {
            let (k_cache, v_cache) = if heads_first {
                (view(&k_hnd, &hnd), view(&v_hnd, &hnd))
            } else {
                (view(&k.pages, &nhd), view(&v.pages, &nhd))
            };
            let args = AttentionGqaPrefillPaged::new(
                view(&q, &[10, 4, 3]),
                k_cache,
                v_cache,
                view(&qo_indptr, &[6]),
                view(&k.indptr, &[6]),
                view(&k.indices, &[k.indices.len() as i64]),
                view(&k.last_page_len, &[5]),
            )
            .causal(true)
            .window_left(3)
            .window_right(5)
            .soft_cap(1.25)
            .alibi_slopes(view(&slopes, &[5, 4]))
            .return_lse(true)
            .layout(if heads_first {
                AttentionGqaPrefillPagedLayout::Hnd
            } else {
                AttentionGqaPrefillPagedLayout::Nhd
            });
            let result = attention_gqa_prefill_paged(engine(), args).unwrap();
            AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
            if kv_heads == 4 {
                let args = AttentionStandardPrefillPaged {
                    layout: Some(if heads_first {
                        AttentionStandardPrefillPagedLayout::Hnd
                    } else {
                        AttentionStandardPrefillPagedLayout::Nhd
                    }),
                    causal: args.causal,
                    window_left: args.window_left,
                    window_right: args.window_right,
                    soft_cap: args.soft_cap,
                    alibi_slopes: args.alibi_slopes,
                    return_lse: args.return_lse,
                    ..AttentionStandardPrefillPaged::new(
                        args.q,
                        args.k_cache,
                        args.v_cache,
                        args.qo_indptr,
                        args.kv_indptr,
                        args.kv_indices,
                        args.kv_last_page_len,
                    )
                };
                let result = attention_standard_prefill_paged(engine(), args).unwrap();
                AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
            }
        }
    }
}

/// `b` is the request; indices and positions count from its beginning, and parameters are those of the request and head.
#[test]
fn score_expressions_have_the_indices_of_the_request() {
    const TEXT: &str = "score + 0.25 * b * h - p0 * abs(kv_idx - q_pos) + p1 * q_idx * kv_idx";
    let text = view(TEXT.as_bytes(), &[TEXT.len() as i64]);
    let parameters = random_values(5 * 4 * 2, 7);
    let slopes = random_values(20, 9);
    let requests = requests(2);
    let mut expected = AttentionResult::default();
    for ((b, request), (slopes, parameters)) in
        requests.iter().enumerate().zip(slopes.chunks(4).zip(parameters.chunks(8)))
    {
        // The only batch row of the separate call is row 0.
        let own = TEXT.replace(" b ", &format!(" {b} "));
        let result = request.gqa(|args| {
            args.causal(true)
                .window_left(3)
                .soft_cap(1.25)
                .alibi_slopes(view(slopes, &[4]))
                .score_mod(view(own.as_bytes(), &[own.len() as i64]))
                .score_params(view(parameters, &[1, 4, 2]))
        });
        expected.output.extend(result.output);
        expected.lse.extend(result.lse);
    }
    let (q, k, v) = (
        concatenated(&requests, |request| &request.q),
        concatenated(&requests, |request| &request.k),
        concatenated(&requests, |request| &request.v),
    );
    let qo_indptr = indptr(LENGTHS.iter().map(|lengths| lengths.0));
    let kv_indptr = indptr(LENGTHS.iter().map(|lengths| lengths.1));
    let (q, qo_indptr, kv_indptr) = (view(&q, &[10, 4, 3]), view(&qo_indptr, &[6]), view(&kv_indptr, &[6]));
    let (slopes, parameters) = (view(&slopes, &[5, 4]), view(&parameters, &[5, 4, 2]));
    let ragged =
        AttentionGqaPrefillRagged::new(q, view(&k, &[13, 2, 3]), view(&v, &[13, 2, 3]), qo_indptr, kv_indptr)
            .causal(true)
            .window_left(3)
            .soft_cap(1.25)
            .alibi_slopes(slopes)
            .score_mod(text)
            .score_params(parameters)
            .return_lse(true);
    let result = attention_gqa_prefill_ragged(engine(), ragged).unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);

    let rows = |part: fn(&Problem) -> &Vec<f32>| -> Vec<&[f32]> {
        requests.iter().map(|request| part(request).as_slice()).collect()
    };
    let k = Cache::new(&rows(|request| &request.k), 2 * 3, 2);
    let v = Cache::new(&rows(|request| &request.v), 2 * 3, 2);
    let shape = [k.page_count as i64, 2, 2, 3];
    let paged = AttentionGqaPrefillPaged::new(
        q,
        view(&k.pages, &shape),
        view(&v.pages, &shape),
        qo_indptr,
        view(&k.indptr, &[6]),
        view(&k.indices, &[k.indices.len() as i64]),
        view(&k.last_page_len, &[5]),
    )
    .causal(true)
    .window_left(3)
    .soft_cap(1.25)
    .alibi_slopes(slopes)
    .score_mod(text)
    .score_params(parameters)
    .return_lse(true);
    let result = attention_gqa_prefill_paged(engine(), paged).unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
}

#[test]
fn requests_may_share_pages() {
    let shared = Problem::new([1, 2, 4, 2, 2, 3, 3], 51);
    let twice = shared.gqa(|args| args);
    let q = shared.q.repeat(2);
    let result = attention_standard_prefill_paged(
        engine(),
        AttentionStandardPrefillPaged::new(
            view(&q, &[4, 2, 3]),
            view(&shared.k, &[2, 2, 2, 3]),
            view(&shared.v, &[2, 2, 2, 3]),
            view(&[0i32, 2, 4], &[3]),
            view(&[0i32, 2, 4], &[3]),
            view(&[0i32, 1, 0, 1], &[4]),
            view(&[2i32, 2], &[2]),
        )
        .return_lse(true),
    )
    .unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref())
        .assert_matches(&AttentionResult { output: twice.output.repeat(2), lse: twice.lse.repeat(2) });
}

#[test]
fn empty_batch_gives_empty_output() {
    let nothing: [f32; 0] = [];
    let (none, empty): ([i32; 0], [i32; 1]) = ([], [0]);
    let q = view(&nothing, &[0, 2, 3]);
    let ragged = AttentionStandardPrefillRagged::new(q, q, q, view(&empty, &[1]), view(&empty, &[1]));
    assert_eq!(attention_standard_prefill_ragged(engine(), ragged).unwrap().output.shape(), [0, 2, 3]);
    let cache = view(&nothing, &[0, 4, 2, 3]);
    let (table, none) = (view(&empty, &[1]), view(&none, &[0]));
    let paged = AttentionStandardPrefillPaged::new(q, cache, cache, table, table, none, none);
    assert_eq!(attention_standard_prefill_paged(engine(), paged).unwrap().output.shape(), [0, 2, 3]);
}
