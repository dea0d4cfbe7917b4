//! Position encodings: both pairings, both layouts, positions, and features that pass through.

use lz_ops::{PosencAlibi, PosencRope, PosencRopeLayout, posenc_alibi, posenc_rope};

use crate::{values, view};

/// Quarter turns: exact cosines and sines, so that results are exact too. Position 0 does not rotate, 1
/// rotates by 90°, 2 by 180°; the second frequency never rotates.
const COS: [f32; 6] = [1.0, 1.0, 0.0, 1.0, -1.0, 1.0];
const SIN: [f32; 6] = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0];

#[test]
fn rope_rotates_both_pairings() {
    let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    let positions = [1i32, 2];
    let run = |interleaved| {
        let args = PosencRope::new(view(&x, &[1, 2, 1, 5]), view(&COS, &[3, 2]), view(&SIN, &[3, 2]))
            .positions(view(&positions, &[1, 2]))
            .interleaved(interleaved);
        values::<f32>(&posenc_rope(&crate::reference_engine(), args).unwrap().output)
    };
    assert_eq!(run(false), [-3.0, 2.0, 1.0, 4.0, 5.0, -1.0, 2.0, -3.0, 4.0, 5.0]);
    assert_eq!(run(true), [-2.0, 1.0, 3.0, 4.0, 5.0, -1.0, -2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn rope_without_positions_uses_sequence_indices() {
    // Two positions, two heads; every head holds (1, 2).
    let x = [1.0f32, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0];
    let (cos, sin) = ([1.0f32, 0.0], [0.0f32, 1.0]);
    let run = |layout| {
        let args =
            PosencRope::new(view(&x, &[1, 2, 2, 2]), view(&cos, &[2, 1]), view(&sin, &[2, 1])).layout(layout);
        values::<f32>(&posenc_rope(&crate::reference_engine(), args).unwrap().output)
    };
    assert_eq!(run(PosencRopeLayout::Bshd), [1.0, 2.0, 1.0, 2.0, -2.0, 1.0, -2.0, 1.0]);
    assert_eq!(run(PosencRopeLayout::Bhsd), [1.0, 2.0, -2.0, 1.0, 1.0, 2.0, -2.0, 1.0]);
}

#[test]
fn alibi_bias_is_zero_at_the_query_position() {
    let scores = [0.0f32; 12];
    let slopes = [1.0f32, 0.5];
    let scores = view(&scores, &[1, 2, 2, 3]);
    let engine = crate::reference_engine();
    let aligned = posenc_alibi(&engine, PosencAlibi::new(scores, view(&slopes, &[2]))).unwrap();
    let expected = [-1.0, 0.0, 1.0, -2.0, -1.0, 0.0, -0.5, 0.0, 0.5, -1.0, -0.5, 0.0];
    assert_eq!(values::<f32>(&aligned.output), expected);
    let top_left =
        posenc_alibi(&engine, PosencAlibi::new(scores, view(&slopes, &[2])).causal_offset(0)).unwrap();
    let expected = [0.0, 1.0, 2.0, -1.0, 0.0, 1.0, 0.0, 0.5, 1.0, -0.5, 0.0, 0.5];
    assert_eq!(values::<f32>(&top_left.output), expected);
}
