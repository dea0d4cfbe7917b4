//! Masks, windows, causality, soft cap and ALiBi of dense prefill, each compared with the explicit formula.

use half::f16;
use lz_core::TensorView;

use crate::support::{AttentionResult, Problem, bools, random_values, view};

fn problem() -> Problem {
    Problem::new([2, 3, 5, 4, 2, 3, 2], 31)
}

#[test]
fn causality_and_windows_are_masks() {
    let problem = problem();
    let mut distinct = 0;
    let all = problem.gqa(|args| args);
    for causal in [false, true] {
        for offset in [None, Some(0), Some(-2), Some(3)] {
            for (left, right) in [(-1, -1), (0, -1), (1, 1), (-1, 0), (2, -1), (0, 0)] {
                let position = |i: i64| i + offset.unwrap_or(2);
                let seen = |i: i64, j: i64| {
                    (!causal || j <= position(i))
                        && (left < 0 || j >= position(i) - left)
                        && (right < 0 || j <= position(i) + right)
                };
                let mask = bools((0..15).map(|at| seen(at / 5, at % 5)));
                let found = problem.gqa(|args| {
                    let args = args.causal(causal).window_left(left).window_right(right);
                    offset.map_or(args, |offset| args.causal_offset(offset))
                });
                found.assert_matches(&problem.gqa(|args| args.mask(view(&mask, &[3, 5]))));
                let scale = problem.default_scale();
                found.assert_matches(
                    &problem.expected(|_, _, i, j, dot| seen(i as i64, j as i64).then_some(scale * dot)),
                );
                distinct += usize::from(found.lse != all.lse);
            }
        }
    }
    assert!(distinct > 30, "the options masked keys in only {distinct} cases");
}

#[test]
fn masks_broadcast_from_every_rank() {
    let problem = problem();
    let scale = problem.default_scale();
    let added = random_values(120, 37);
    let seen = bools(added.iter().map(|&number| number > -0.3));
    let half: Vec<f16> = added.iter().map(|&number| f16::from_f32(number)).collect();
    let shapes: [&[i64]; 9] =
        [&[], &[5], &[1], &[3, 5], &[3, 1], &[4, 3, 5], &[4, 1, 5], &[2, 1, 3, 5], &[2, 4, 3, 5]];
    for shape in shapes {
        // The index of [b, h, i, j] in a tensor of that shape, computed independently.
        let at = |b: usize, h: usize, i: usize, j: usize| {
            let full = [b, h, i, j];
            shape.iter().enumerate().fold(0, |flat, (dimension, &size)| {
                let position = if size == 1 { 0 } else { full[4 - shape.len() + dimension] };
                flat * size as usize + position
            })
        };
        problem.gqa(|args| args.mask(view(&added, shape))).assert_matches(
            &problem.expected(|b, h, i, j, dot| Some(scale * dot + f64::from(added[at(b, h, i, j)]))),
        );
        problem.gqa(|args| args.mask(view(&half, shape))).assert_matches(
            &problem.expected(|b, h, i, j, dot| Some(scale * dot + half[at(b, h, i, j)].to_f64())),
        );
        problem.gqa(|args| args.mask(view(&seen, shape))).assert_matches(
            &problem.expected(|b, h, i, j, dot| (seen[at(b, h, i, j)].0 != 0).then_some(scale * dot)),
        );
    }
}

#[test]
fn false_bool_masks_like_minus_infinity() {
    let problem = problem();
    let seen: Vec<bool> = random_values(15, 41).iter().map(|&number| number > 0.0).collect();
    let added: Vec<f32> = seen.iter().map(|&seen| if seen { 0.0 } else { f32::NEG_INFINITY }).collect();
    let seen = bools(seen);
    problem
        .gqa(|args| args.mask(view(&seen, &[3, 5])))
        .assert_matches(&problem.gqa(|args| args.mask(view(&added, &[3, 5]))));
}

#[test]
fn mask_and_causality_combine() {
    let problem = problem();
    let scale = problem.default_scale();
    let seen = bools([true, false, true, true, true]);
    problem
        .gqa(|args| args.causal(true).causal_offset(0).mask(view(&seen, &[5])))
        .assert_matches(&problem.expected(|_, _, i, j, dot| (j <= i && j != 1).then_some(scale * dot)));
}

#[test]
fn nan_mask_affects_rows_only_where_the_key_is_visible() {
    let problem = problem();
    let mut added = vec![0f32; 15];
    added[4] = f32::NAN;
    let seen = problem.gqa(|args| args.mask(view(&added, &[3, 5])));
    assert!(
        seen.lse[..4].iter().all(|lse| lse.is_nan()) && seen.lse[4..12].iter().all(|lse| lse.is_finite())
    );
    problem
        .gqa(|args| args.causal(true).mask(view(&added, &[3, 5])))
        .assert_matches(&problem.gqa(|args| args.causal(true)));
}

#[test]
fn soft_cap_applies_before_mask_and_bias() {
    let problem = problem();
    let added = random_values(5, 43);
    problem.gqa(|args| args.soft_cap(0.75).sm_scale(2.0).mask(view(&added, &[5]))).assert_matches(
        &problem.expected(|_, _, _, j, dot| Some(0.75 * (2.0 * dot / 0.75).tanh() + f64::from(added[j]))),
    );
}

#[test]
fn alibi_bias_is_proportional_to_key_query_distance() {
    let problem = problem();
    let scale = problem.default_scale();
    let slopes = random_values(8, 47);
    let check = |shape: &[i64], slope: &dyn Fn(usize, usize) -> f32| {
        let slopes: TensorView<'_> = view(&slopes, shape);
        for offset in [2, 0, -4] {
            let expected: AttentionResult = problem.expected(|b, h, i, j, dot| {
                Some(scale * dot + f64::from(slope(b, h)) * (j as f64 - (i as f64 + offset as f64)))
            });
            problem.gqa(|args| args.alibi_slopes(slopes).causal_offset(offset)).assert_matches(&expected);
        }
    };
    check(&[2, 4], &|b, h| slopes[b * 4 + h]);
    check(&[4], &|_, h| slopes[h]);
    check(&[2, 1], &|b, _| slopes[b]);
    check(&[], &|_, _| slopes[0]);
}
