//! Functions that kernels are made of.

use lz_core::TensorView;
use lz_cpu::internals::{Assignment, E4M3_VALUES, SCRATCH_PAGE, exp, order, words};
use proptest::prelude::*;

#[test]
fn tokens_are_sorted_by_expert_and_repeated_choices_are_merged() {
    let indices = [2, 0, -1, 2, 1, 1, 2, 0];
    let weights = [0.5f32, 0.25, 9.0, 1.0, 0.125, 0.5, 2.0, 4.0];
    let indices = TensorView::from_slice(&indices, &[4, 2]).unwrap();
    let mut memory = vec![77; words(8, 3)];
    let weights = TensorView::from_slice(&weights, &[4, 2]).unwrap();
    let found = Assignment::new(&indices, &weights, 3, &mut memory).unwrap();
    assert_eq!(found.of(0), (&[0u32, 3][..], &[0.25f32, 4.0][..]));
    assert_eq!(found.of(1), (&[2u32][..], &[0.625f32][..]));
    assert_eq!(found.of(2), (&[0u32, 1, 3][..], &[0.5f32, 1.0, 2.0][..]));
}

#[test]
fn e4m3_table_matches_the_format() {
    for code in 0..=255u8 {
        let (found, expected) =
            (E4M3_VALUES[usize::from(code)], lz_core::element::f8_e4m3_to_f64(code) as f32);
        assert!(found == expected || (found.is_nan() && expected.is_nan()), "{code}");
    }
}

#[test]
fn exp_matches_std() {
    for step in 0..70_000 {
        let x = -f64::from(step) / 100.0;
        let (found, expected) = (exp(x), x.exp());
        assert!((found - expected).abs() <= 2e-15 * expected, "{x}: {found} is not {expected}");
    }
    assert_eq!(exp(0.0), 1.0);
    for x in [f64::NAN, f64::NEG_INFINITY, -1e300] {
        assert!(exp(x) < 1e-300, "{x}");
    }
}

proptest! {
    #[test]
    fn ordered_moves_equal_simultaneous_moves(
        moves in proptest::collection::vec((0i32..9, 0i32..9), 0..30),
    ) {
        let mut words = vec![0; 2 * 9 + 4 * moves.len()];
        let steps = order(moves.iter().copied(), &mut words, 9);
        let before: Vec<i32> = (100..109).collect();
        let mut expected = before.clone();
        for &(source, target) in &moves {
            expected[target as usize] = before[source as usize];
        }
        let (mut pages, mut scratch) = (before, 0);
        for &[from, to] in steps {
            let value = if from == SCRATCH_PAGE { scratch } else { pages[from as usize] };
            if to == SCRATCH_PAGE { scratch = value } else { pages[to as usize] = value }
        }
        prop_assert_eq!(pages, expected);
    }
}
