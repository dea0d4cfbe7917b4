//! `attention.standard.prefill` and `attention.gqa.prefill`: formula, layouts, strides, dtypes, empty rows
//! and NaN.

use half::{bf16, f16};
use lz_ops::{
    AttentionGqaPrefillLayout, AttentionStandardPrefill, AttentionStandardPrefillLayout,
    attention_gqa_prefill, attention_standard_prefill,
};

use crate::support::{AttentionResult, Problem, engine, random_values, strided, swap_middle, view};

#[test]
fn two_keys_by_hand() {
    // Scores 0 and ln 3 give weights 1/4 and 3/4.
    let (q, k, v) = ([1.0f32], [0.0, 3f32.ln()], [4.0f32, -1.0, 8.0, 3.0]);
    let args = AttentionStandardPrefill::new(
        view(&q, &[1, 1, 1, 1]),
        view(&k, &[1, 2, 1, 1]),
        view(&v, &[1, 2, 1, 2]),
    )
    .return_lse(true);
    let result = attention_standard_prefill(engine(), args).unwrap();
    assert_eq!(result.output.shape(), [1, 1, 1, 2]);
    let expected = AttentionResult { output: vec![7.0, 2.0], lse: vec![4f64.ln()] };
    AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
}

#[test]
fn lse_is_absent_unless_requested() {
    let problem = Problem::new([1, 2, 2, 1, 1, 2, 2], 1);
    let args = AttentionStandardPrefill::new(
        view(&problem.q, &problem.q_shape()),
        view(&problem.k, &problem.k_shape()),
        view(&problem.v, &problem.v_shape()),
    );
    assert!(attention_standard_prefill(engine(), args).unwrap().lse.is_none());
}

#[test]
fn gqa_groups_share_keys_and_default_scale_is_inverse_sqrt_of_head_dim() {
    for kv_heads in [1, 2, 6] {
        let problem = Problem::new([2, 3, 5, 6, kv_heads, 4, 3], 7);
        let scale = problem.default_scale();
        problem.gqa(|args| args).assert_matches(&problem.expected(|_, _, _, _, dot| Some(scale * dot)));
        problem
            .gqa(|args| args.sm_scale(0.25))
            .assert_matches(&problem.expected(|_, _, _, _, dot| Some(0.25 * dot)));
    }
}

#[test]
fn gqa_with_one_kv_head_per_query_head_is_standard() {
    let problem = Problem::new([2, 4, 5, 3, 3, 4, 2], 3);
    let slopes = random_values(3, 9);
    let args = AttentionStandardPrefill::new(
        view(&problem.q, &problem.q_shape()),
        view(&problem.k, &problem.k_shape()),
        view(&problem.v, &problem.v_shape()),
    )
    .causal(true)
    .window_left(2)
    .soft_cap(1.5)
    .alibi_slopes(view(&slopes, &[3]))
    .return_lse(true);
    let standard = attention_standard_prefill(engine(), args).unwrap();
    problem
        .gqa(|args| args.causal(true).window_left(2).soft_cap(1.5).alibi_slopes(view(&slopes, &[3])))
        .assert_matches(&AttentionResult::of(&standard.output, standard.lse.as_ref()));
}

#[test]
fn bhsd_is_bshd_transposed() {
    let problem = Problem::new([2, 3, 4, 6, 3, 4, 5], 5);
    let bshd = problem.gqa(|args| args.causal(true));
    let expected = AttentionResult {
        output: swap_middle(&bshd.output, [2, 3, 6], 5),
        lse: swap_middle(&bshd.lse, [2, 3, 6], 1),
    };
    let q = swap_middle(&problem.q, [2, 3, 6], 4);
    let k = swap_middle(&problem.k, [2, 4, 3], 4);
    let v = swap_middle(&problem.v, [2, 4, 3], 5);
    let gqa = lz_ops::AttentionGqaPrefill::new(
        view(&q, &[2, 6, 3, 4]),
        view(&k, &[2, 3, 4, 4]),
        view(&v, &[2, 3, 4, 5]),
    );
    let options = gqa.causal(true).layout(AttentionGqaPrefillLayout::Bhsd).return_lse(true);
    let dense = attention_gqa_prefill(engine(), options).unwrap();
    assert_eq!(dense.output.shape(), [2, 6, 3, 5]);
    AttentionResult::of(&dense.output, dense.lse.as_ref()).assert_matches(&expected);

    // The same through strides: BHSD views of BSHD memory.
    let views = lz_ops::AttentionGqaPrefill {
        q: strided(&problem.q, 0, &[2, 6, 3, 4], &[72, 4, 24, 1]),
        k: strided(&problem.k, 0, &[2, 3, 4, 4], &[48, 4, 12, 1]),
        v: strided(&problem.v, 0, &[2, 3, 4, 5], &[60, 5, 15, 1]),
        ..options
    };
    let through_strides = attention_gqa_prefill(engine(), views).unwrap();
    AttentionResult::of(&through_strides.output, through_strides.lse.as_ref()).assert_matches(&expected);
}

#[test]
fn standard_reads_both_layouts_and_negative_and_zero_strides() {
    let problem = Problem::new([1, 2, 3, 2, 2, 2, 2], 21);
    let (mut reversed, mut shared) = (problem.clone(), problem.clone());
    reversed.k = problem.k.chunks(4).rev().flatten().copied().collect();
    shared.v = problem.v[..4].repeat(3);
    let run_bhsd = |k, v| {
        let q = strided(&problem.q, 0, &[1, 2, 2, 2], &[8, 2, 4, 1]);
        let args = AttentionStandardPrefill::new(q, k, v).layout(AttentionStandardPrefillLayout::Bhsd);
        let result = attention_standard_prefill(engine(), args.return_lse(true)).unwrap();
        let attention_result = AttentionResult::of(&result.output, result.lse.as_ref());
        AttentionResult {
            output: swap_middle(&attention_result.output, [1, 2, 2], 2),
            lse: swap_middle(&attention_result.lse, [1, 2, 2], 1),
        }
    };
    let k = strided(&problem.k, 0, &[1, 2, 3, 2], &[12, 2, 4, 1]);
    let v = strided(&problem.v, 0, &[1, 2, 3, 2], &[12, 2, 4, 1]);
    run_bhsd(k, v).assert_matches(&problem.gqa(|args| args));
    let backwards = strided(&problem.k, 8, &[1, 2, 3, 2], &[12, 2, -4, 1]);
    run_bhsd(backwards, v).assert_matches(&reversed.gqa(|args| args));
    let one_value = strided(&problem.v, 0, &[1, 2, 3, 2], &[12, 2, 0, 1]);
    run_bhsd(k, one_value).assert_matches(&shared.gqa(|args| args));
}

#[test]
fn half_precision_is_the_exact_result_rounded_once() {
    let mut problem = Problem::new([1, 3, 5, 2, 1, 4, 4], 13);
    for tensor in [&mut problem.q, &mut problem.k, &mut problem.v] {
        // Values that f16 and bf16 represent exactly.
        tensor.iter_mut().for_each(|number| *number = (*number * 32.0).round() / 32.0);
    }
    let exact = problem.expected(|_, _, _, _, dot| Some(0.5 * dot));
    let narrow: Vec<Vec<f16>> = [&problem.q, &problem.k, &problem.v]
        .map(|data| data.iter().map(|&x| f16::from_f32(x)).collect())
        .into();
    let brain: Vec<Vec<bf16>> = [&problem.q, &problem.k, &problem.v]
        .map(|data| data.iter().map(|&x| bf16::from_f32(x)).collect())
        .into();
    let run = |q, k, v| {
        let args = lz_ops::AttentionGqaPrefill::new(q, k, v).return_lse(true);
        let result = attention_gqa_prefill(engine(), args).unwrap();
        AttentionResult::of(&result.output, result.lse.as_ref())
    };
    let (q, k, v) = (problem.q_shape(), problem.k_shape(), problem.v_shape());
    let half = run(view(&narrow[0], &q), view(&narrow[1], &k), view(&narrow[2], &v));
    let brain = run(view(&brain[0], &q), view(&brain[1], &k), view(&brain[2], &v));
    let rounded = |round: fn(f64) -> f64| -> Vec<f64> { exact.output.iter().map(|&x| round(x)).collect() };
    assert_eq!(half.output, rounded(|x| f16::from_f64(x).to_f64()));
    assert_eq!(brain.output, rounded(|x| bf16::from_f64(x).to_f64()));
    for lse in [half.lse, brain.lse] {
        assert_eq!(lse, exact.lse.iter().map(|&lse| f64::from(lse as f32)).collect::<Vec<_>>());
    }
}

#[test]
fn rows_without_keys_are_zero() {
    let problem = Problem::new([2, 3, 4, 2, 1, 2, 3], 17);
    let nothing = AttentionResult { output: vec![0.0; 36], lse: vec![f64::NEG_INFINITY; 12] };
    problem.gqa(|args| args.causal(true).causal_offset(-3)).assert_matches(&nothing);
    problem.gqa(|args| args.window_left(0).causal_offset(100)).assert_matches(&nothing);
    Problem::new([2, 3, 0, 2, 1, 2, 3], 17).gqa(|args| args).assert_matches(&nothing);
    let scale = problem.default_scale();
    // Bottom-right causality with more queries than keys leaves the first queries without keys.
    let wide = Problem::new([1, 5, 2, 1, 1, 2, 2], 19);
    wide.gqa(|args| args.causal(true))
        .assert_matches(&wide.expected(|_, _, i, j, dot| (j + 3 <= i).then_some(scale * dot)));
}

#[test]
fn zero_sizes_give_empty_results() {
    for sizes in [[0, 3, 4, 2, 1, 2, 3], [2, 0, 4, 2, 1, 2, 3], [2, 0, 0, 2, 1, 2, 3], [2, 3, 4, 0, 1, 2, 3]]
    {
        Problem::new(sizes, 1).gqa(|args| args).assert_matches(&AttentionResult::default());
    }
    let no_values = Problem::new([1, 1, 2, 1, 1, 2, 0], 1).gqa(|args| args);
    assert!(no_values.output.is_empty() && no_values.lse[0].is_finite());
}

#[test]
fn masked_keys_never_affect_results() {
    let clean = Problem::new([1, 3, 3, 1, 1, 2, 2], 23);
    let expected = clean.gqa(|args| args.causal(true));
    let mut dirty = clean.clone();
    // Only query 2 sees key 2.
    dirty.k[4] = f32::NAN;
    dirty.v[4..6].fill(f32::INFINITY);
    let found = dirty.gqa(|args| args.causal(true));
    assert_eq!((&found.output[..4], &found.lse[..2]), (&expected.output[..4], &expected.lse[..2]));
    assert!(found.output[4..].iter().chain(&found.lse[2..]).all(|number| number.is_nan()));
}

#[test]
fn nan_value_affects_its_feature_and_infinite_score_the_row() {
    let mut problem = Problem::new([1, 1, 2, 1, 1, 1, 2], 29);
    problem.v[3] = f32::NAN;
    let attention_result = problem.gqa(|args| args);
    assert!(
        attention_result.output[0].is_finite()
            && attention_result.output[1].is_nan()
            && attention_result.lse[0].is_finite()
    );

    (problem.q, problem.v) = (vec![1.0], vec![1.0; 4]);
    problem.k = vec![f32::INFINITY, 0.0];
    let attention_result = problem.gqa(|args| args);
    assert!(attention_result.output.iter().chain(&attention_result.lse).all(|number| number.is_nan()));

    // A key with score -∞ is ignored too, whatever its value is.
    problem.k = vec![f32::NEG_INFINITY, 0.0];
    problem.v = vec![f32::NAN, f32::NAN, 5.0, 6.0];
    problem.gqa(|args| args).assert_matches(&AttentionResult { output: vec![5.0, 6.0], lse: vec![0.0] });
}
