//! Sparse attention equals dense attention with a block mask.

use lz_ops::{
    AttentionSparseBlock, AttentionSparseVariableBlock, attention_sparse_block,
    attention_sparse_variable_block,
};

use crate::support::{AttentionResult, Problem, bools, engine, swap_middle, view};

fn blocks(problem: &Problem, indptr: &[i32], indices: &[i32], rows: i64, columns: i64) -> AttentionResult {
    let args = AttentionSparseBlock::new(
        view(&problem.q, &problem.q_shape()[1..]),
        view(&problem.k, &problem.k_shape()[1..]),
        view(&problem.v, &problem.v_shape()[1..]),
        view(indptr, &[indptr.len() as i64]),
        view(indices, &[indices.len() as i64]),
        rows,
        columns,
    );
    let result = attention_sparse_block(engine(), args.soft_cap(2.0).return_lse(true)).unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref())
}

#[test]
fn all_blocks_are_dense_attention() {
    let problem = Problem::new([1, 5, 7, 4, 2, 3, 3], 401);
    let dense = problem.gqa(|args| args.soft_cap(2.0));
    blocks(&problem, &[0, 3, 6, 9], &[0, 1, 2, 2, 1, 0, 1, 0, 2], 2, 3).assert_matches(&dense);
    // Blocks may be larger than the whole problem.
    blocks(&problem, &[0, 1], &[0], 100, 2_147_483_647).assert_matches(&dense);
}

#[test]
fn listed_blocks_are_a_mask() {
    let problem = Problem::new([1, 5, 7, 4, 2, 3, 3], 403);
    // Block rows: {2}, {} and {0, 1}; the last key block has one key, the last query block one query.
    let listed = [vec![2], vec![], vec![0, 1]];
    let mask = bools((0..35).map(|at| listed[at / 7 / 2].contains(&(at % 7 / 3))));
    blocks(&problem, &[0, 1, 1, 3], &[2, 1, 0], 2, 3)
        .assert_matches(&problem.gqa(|args| args.soft_cap(2.0).mask(view(&mask, &[5, 7]))));
}

#[test]
fn a_block_listed_twice_counts_twice() {
    let problem = Problem::new([1, 2, 4, 1, 1, 2, 2], 405);
    let twice = 2f32.ln();
    let added = [twice, twice, 0.0, 0.0];
    blocks(&problem, &[0, 3], &[0, 1, 0], 2, 2)
        .assert_matches(&problem.gqa(|args| args.soft_cap(2.0).mask(view(&added, &[4]))));
}

#[test]
fn empty_sparse_attention() {
    let empty = Problem::new([1, 0, 4, 2, 1, 2, 2], 407);
    blocks(&empty, &[0], &[], 2, 2).assert_matches(&AttentionResult::default());
    let no_keys = Problem::new([1, 1, 0, 2, 1, 2, 2], 409);
    blocks(&no_keys, &[0, 0], &[], 2, 2)
        .assert_matches(&AttentionResult { output: vec![0.0; 4], lse: vec![f64::NEG_INFINITY; 2] });
}

/// Runs `attention.sparse.variable_block` (heads before tokens) and converts the result back.
fn variable(problem: &Problem, mask: &[bool], rows: &[i32], columns: &[i32]) -> AttentionResult {
    let (m, n, h, g) = (problem.queries, problem.keys, problem.heads, problem.kv_heads);
    let q = swap_middle(&problem.q, [1, m, h], problem.dim);
    let k = swap_middle(&problem.k, [1, n, g], problem.dim);
    let v = swap_middle(&problem.v, [1, n, g], problem.dim);
    let [_, m_size, h_size, dim] = problem.q_shape();
    let [_, n_size, g_size, _] = problem.k_shape();
    let (row_blocks, column_blocks) = ((rows.len() / g) as i64, (columns.len() / g) as i64);
    let mask = bools(mask.iter().copied());
    let args = AttentionSparseVariableBlock::new(
        view(&q, &[h_size, m_size, dim]),
        view(&k, &[g_size, n_size, dim]),
        view(&v, &[g_size, n_size, dim]),
        view(&mask, &[g_size, row_blocks, column_blocks]),
        view(rows, &[g_size, row_blocks]),
        view(columns, &[g_size, column_blocks]),
    );
    let result = attention_sparse_variable_block(engine(), args.soft_cap(2.0).return_lse(true)).unwrap();
    let attention_result = AttentionResult::of(&result.output, result.lse.as_ref());
    AttentionResult {
        output: swap_middle(&attention_result.output, [1, h, m], problem.dim),
        lse: swap_middle(&attention_result.lse, [1, h, m], 1),
    }
}

#[test]
fn variable_blocks_are_a_mask_for_each_key_head() {
    let problem = Problem::new([1, 5, 7, 4, 2, 3, 3], 411);
    // Blocks of size 0 are skipped.
    let (rows, columns) = ([2, 0, 3, 1, 1, 3], [3, 4, 0, 0, 0, 6, 1, 0]);
    let mask: Vec<bool> = (0..24).map(|at| [0, 5, 8, 10, 13, 18, 19, 20].contains(&at)).collect();
    let block_of = |sizes: &[i32], position: usize| {
        let mut end = 0;
        sizes.iter().position(|&size| {
            end += size as usize;
            position < end
        })
    };
    let mut dense = Vec::new();
    for h in 0..4 {
        let g = h / 2;
        for i in 0..5 {
            for j in 0..7 {
                let r = block_of(&rows[g * 3..][..3], i).unwrap();
                let c = block_of(&columns[g * 4..][..4], j).unwrap();
                dense.push(mask[(g * 3 + r) * 4 + c]);
            }
        }
    }
    assert!(dense.contains(&true) && dense.contains(&false));
    let dense = bools(dense);
    let expected = problem.gqa(|args| args.soft_cap(2.0).mask(view(&dense, &[4, 5, 7])));
    variable(&problem, &mask, &rows, &columns).assert_matches(&expected);
}

#[test]
fn variable_blocks_that_are_all_seen_are_dense() {
    let problem = Problem::new([1, 5, 7, 2, 2, 3, 3], 413);
    let everything = variable(&problem, &[true; 8], &[1, 4, 5, 0], &[7, 0, 2, 5]);
    everything.assert_matches(&problem.gqa(|args| args.soft_cap(2.0)));
}

#[test]
fn empty_variable_blocks() {
    let empty = Problem::new([1, 0, 0, 2, 1, 2, 2], 415);
    variable(&empty, &[], &[], &[]).assert_matches(&AttentionResult::default());
    let no_keys = Problem::new([1, 1, 0, 2, 1, 2, 2], 417);
    variable(&no_keys, &[], &[1], &[])
        .assert_matches(&AttentionResult { output: vec![0.0; 4], lse: vec![f64::NEG_INFINITY; 2] });
}
