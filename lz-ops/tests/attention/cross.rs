//! Cross attention: GQA with a mask, without causality.

use lz_ops::{
    AttentionCrossDecode, AttentionCrossDecodeLayout, AttentionCrossPrefill, AttentionCrossPrefillLayout,
    attention_cross_decode, attention_cross_prefill,
};

use crate::support::{AttentionResult, Problem, bools, engine, random_values, strided, swap_middle, view};

#[test]
fn lengths_and_masks_mask_keys() {
    let problem = Problem::new([3, 2, 5, 4, 2, 3, 2], 501);
    let (lens, added) = ([5i32, 0, 2], random_values(40, 503));
    let scale = problem.default_scale();
    let args = AttentionCrossPrefill::new(
        view(&problem.q, &problem.q_shape()),
        view(&problem.k, &problem.k_shape()),
        view(&problem.v, &problem.v_shape()),
    )
    .kv_lens(view(&lens, &[3]))
    .mask(view(&added, &[4, 2, 5]))
    .return_lse(true);
    let result = attention_cross_prefill(engine(), args).unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&problem.expected(
        |b, h, i, j, dot| (j < lens[b] as usize).then(|| scale * dot + f64::from(added[(h * 2 + i) * 5 + j])),
    ));
}

#[test]
fn both_layouts_agree() {
    let problem = Problem::new([2, 3, 4, 2, 1, 2, 3], 507);
    let seen = bools([true, true, false, true]);
    let bshd = problem.gqa(|args| args.mask(view(&seen, &[4])));
    let args = AttentionCrossPrefill::new(
        strided(&problem.q, 0, &[2, 2, 3, 2], &[12, 2, 4, 1]),
        strided(&problem.k, 0, &[2, 1, 4, 2], &[8, 2, 2, 1]),
        strided(&problem.v, 0, &[2, 1, 4, 3], &[12, 3, 3, 1]),
    )
    .mask(view(&seen, &[4]))
    .layout(AttentionCrossPrefillLayout::Bhsd)
    .return_lse(true);
    let result = attention_cross_prefill(engine(), args).unwrap();
    AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&AttentionResult {
        output: swap_middle(&bshd.output, [2, 3, 2], 3),
        lse: swap_middle(&bshd.lse, [2, 3, 2], 1),
    });
}

#[test]
fn decode_is_prefill_of_one_query() {
    let problem = Problem::new([3, 1, 5, 4, 2, 3, 2], 509);
    let (lens, added) = ([4i32, 0, 5], random_values(20, 511));
    let scale = problem.default_scale();
    let expected = problem.expected(|b, h, _, j, dot| {
        (j < lens[b] as usize).then(|| scale * dot + f64::from(added[h * 5 + j]))
    });
    let (k, v) = (swap_middle(&problem.k, [3, 5, 2], 3), swap_middle(&problem.v, [3, 5, 2], 2));
    let bshd = AttentionCrossDecode::new(
        view(&problem.q, &[3, 4, 3]),
        view(&problem.k, &problem.k_shape()),
        view(&problem.v, &problem.v_shape()),
    )
    .kv_lens(view(&lens, &[3]))
    .mask(view(&added, &[4, 5]))
    .return_lse(true);
    let bhsd = AttentionCrossDecode {
        k: view(&k, &[3, 2, 5, 3]),
        v: view(&v, &[3, 2, 5, 2]),
        ..bshd.layout(AttentionCrossDecodeLayout::Bhsd)
    };
    for args in [bshd, bhsd] {
        let result = attention_cross_decode(engine(), args).unwrap();
        AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
    }
}
