//! Attention in its spellings, masks, grouped heads, layouts.

use super::*;
use crate::build::ParamValue;

/// How attention is written out.
struct Spelling {
    /// Query heads per key head.
    group: i64,
    /// Whether heads repeat one after the other; the other order is not grouped attention.
    interleaved: bool,
    mask: Mask,
    dtype: DType,
    soft_cap: bool,
    /// Whether something else uses the probabilities.
    shared: bool,
    softmax_axis: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Mask {
    None,
    /// `where(j <= i, 0, min)` as a sum.
    Causal(f64),
    /// `where(mask, scores, number)` with a comparison of positions.
    Selected(f64),
    /// A triangular constant buffer that is sliced.
    Buffer,
    /// Causal and padding.
    Padded,
    /// The upper triangle is visible.
    Reversed,
}

impl Default for Spelling {
    fn default() -> Self {
        Spelling {
            group: 1,
            interleaved: true,
            mask: Mask::None,
            dtype: DType::F32,
            soft_cap: false,
            shared: false,
            softmax_axis: 3,
        }
    }
}

/// `j <= i` (or `j >= i`) over `[length, length]`.
pub(super) fn causal(build: &mut Builder, length: &Dim, reversed: bool) -> Built {
    let queries = build.arange(Dim::from(0), 1, length.clone(), DType::I64)?;
    let keys = build.arange(Dim::from(0), 1, length.clone(), DType::I64)?;
    let queries = build.unsqueeze(queries, 1)?;
    let keys = build.unsqueeze(keys, 0)?;
    build.compare(if reversed { "ge" } else { "le" }, keys, queries)
}

/// The naive form as Hugging Face writes it: heads split and exchanged, keys and values repeated, eleven operations.
fn attention(build: &mut Builder, spelling: &Spelling) -> Built {
    let length = Dim::from(build.graph_mut().symbol("length", 1, 8));
    let batch = Dim::from(2);
    let (heads, features) = (4i64, 8i64);
    let kv_heads = heads / spelling.group;
    let operand = |build: &mut Builder, name: &str, heads: i64| -> Built {
        let shape = vec![batch.clone(), length.clone(), Dim::from(heads * features)];
        let x = build.input(name, shape, spelling.dtype);
        let split =
            build.reshape(x, vec![batch.clone(), length.clone(), Dim::from(heads), Dim::from(features)])?;
        build.transpose(split, 1, 2)
    };
    let q = operand(build, "q", heads)?;
    let k = operand(build, "k", kv_heads)?;
    let v = operand(build, "v", kv_heads)?;
    let repeat = |build: &mut Builder, x: NodeId| -> Built {
        if spelling.group == 1 {
            return Ok(x);
        }
        let mut shape = build.shape(x).to_vec();
        let axis = if spelling.interleaved { 2 } else { 1 };
        let five = build.unsqueeze(x, axis)?;
        let mut expanded = build.shape(five).to_vec();
        expanded[axis] = Dim::from(spelling.group);
        let five = build.expand(five, &expanded)?;
        shape[1] = Dim::from(heads);
        build.reshape(five, shape)
    };
    let (k, v) = (repeat(build, k)?, repeat(build, v)?);
    let turned = build.transpose(k, 2, 3)?;
    let scores = build.matmul(q, turned)?;
    let mut scores = build.binary_scalar("mul", scores, 1.0 / 8f64.sqrt(), false)?;
    if spelling.soft_cap {
        scores = build.binary_scalar("div", scores, 30.0, false)?;
        scores = build.unary("tanh", scores)?;
        scores = build.binary_scalar("mul", scores, 30.0, false)?;
    }
    scores = masked(build, scores, spelling, &length)?;
    let scores = build.cast(scores, DType::F32)?;
    let weights = build.softmax(scores, spelling.softmax_axis, false)?;
    let weights = build.cast(weights, spelling.dtype)?;
    let result = build.matmul(weights, v)?;
    let result = build.transpose(result, 1, 2)?;
    let result = build.reshape(result, vec![batch, length, Dim::from(heads * features)])?;
    if spelling.shared {
        build.output("weights", weights);
    }
    Ok(result)
}

fn masked(build: &mut Builder, scores: NodeId, spelling: &Spelling, length: &Dim) -> Built {
    let dtype = spelling.dtype;
    match spelling.mask {
        Mask::None => Ok(scores),
        Mask::Causal(number) => {
            let visible = causal(build, length, false)?;
            let (zero, least) = (build.scalar(0.0, dtype)?, build.scalar(number, dtype)?);
            let mask = build.select_where(visible, zero, least)?;
            build.binary("add", scores, mask)
        }
        Mask::Selected(number) => {
            let visible = causal(build, length, false)?;
            let least = build.scalar(number, dtype)?;
            build.select_where(visible, scores, least)
        }
        Mask::Reversed => {
            let visible = causal(build, length, true)?;
            let least = build.scalar(f64::NEG_INFINITY, dtype)?;
            build.select_where(visible, scores, least)
        }
        Mask::Buffer => {
            let mut buffer = Tensor::zeros(&[1, 1, 16, 16], DType::Bool).unwrap();
            let mut view = buffer.view_mut();
            for index in lz_core::tensor::Indices::new(&[1, 1, 16, 16]) {
                view.set_int(&index, i64::from(index[3] <= index[2]));
            }
            let buffer = build.owned(buffer);
            let rows = build.slice(buffer, 2, Dim::from(0), length.clone(), 1)?;
            let visible = build.slice(rows, 3, Dim::from(0), length.clone(), 1)?;
            let least = build.scalar(f64::from(f32::MIN), dtype)?;
            build.select_where(visible, scores, least)
        }
        Mask::Padded => {
            let visible = causal(build, length, false)?;
            let padding = build.input("padding", vec![Dim::from(2), length.clone()], DType::Bool);
            let padding =
                build.reshape(padding, vec![Dim::from(2), Dim::from(1), Dim::from(1), length.clone()])?;
            let visible = build.binary("bitwise_and", visible, padding)?;
            let least = build.scalar(f64::NEG_INFINITY, dtype)?;
            build.select_where(visible, scores, least)
        }
    }
}

fn after(spelling: &Spelling) -> Graph {
    let before = graph(|build| attention(build, spelling));
    // Rows without visible keys are NaN when they are written out, and 0 in attention.
    if spelling.mask != Mask::Padded {
        return optimized(&before, &[]).0;
    }
    let engine = engine();
    let mut after = before;
    optimize(&mut after, &Options { disabled: vec![], engine: Some(&engine) }).unwrap();
    after
}

#[test]
fn naive_attention_with_grouped_heads_is_one_call() {
    let before = graph(|build| {
        attention(
            build,
            &Spelling { group: 2, mask: Mask::Causal(f64::from(f32::MIN)), ..Spelling::default() },
        )
    });
    insta::assert_snapshot!(both(&before));
}

#[test]
fn attention_in_bf16_with_a_soft_cap_is_one_call() {
    let spelling = Spelling { dtype: DType::BF16, soft_cap: true, group: 4, ..Spelling::default() };
    assert_eq!(calls(&after(&spelling)), ["attention.gqa.prefill"]);
}

#[test]
fn causal_masks_become_a_flag() {
    for mask in [
        Mask::Causal(f64::NEG_INFINITY),
        Mask::Causal(f64::from(f32::MIN)),
        Mask::Selected(f64::NEG_INFINITY),
        Mask::Selected(f64::from(f32::MIN)),
        Mask::Buffer,
    ] {
        let after = after(&Spelling { mask, ..Spelling::default() });
        assert_eq!(calls(&after), ["attention.gqa.prefill"], "{after}");
        assert!(after.to_string().contains("causal=true, causal_offset=0"), "{after}");
    }
}

#[test]
fn padding_stays_a_mask() {
    let after = after(&Spelling { mask: Mask::Padded, ..Spelling::default() });
    assert_eq!(calls(&after), ["attention.gqa.prefill"], "{after}");
    assert!(after.to_string().contains("causal=true"), "{after}");
}

#[test]
fn a_window_without_causality_is_a_window() {
    let after = after(&Spelling { mask: Mask::Reversed, ..Spelling::default() });
    assert_eq!(calls(&after), ["attention.gqa.prefill"], "{after}");
    let text = after.to_string();
    assert!(!text.contains("causal=true") && text.contains("window_left=0"), "{text}");
}

#[test]
fn shared_probabilities_prevent_attention() {
    let after = after(&Spelling { shared: true, ..Spelling::default() });
    assert!(calls(&after).contains(&"primitive.softmax".to_owned()), "{after}");
}

#[test]
fn a_softmax_over_queries_is_no_attention() {
    let after = after(&Spelling { softmax_axis: 2, ..Spelling::default() });
    assert!(calls(&after).contains(&"primitive.softmax".to_owned()), "{after}");
}

#[test]
fn heads_that_repeat_as_a_whole_are_not_grouped() {
    let after = after(&Spelling { group: 2, interleaved: false, ..Spelling::default() });
    let text = after.to_string();
    assert!(text.contains("expand"), "{text}");
}

/// A call as the front end imports scaled dot product attention, with a mask.
fn imported(build: &mut Builder, mask: impl FnOnce(&mut Builder, &Dim, &Dim) -> Built) -> Built {
    let past = Dim::from(build.graph_mut().symbol("past", 0, i64::MAX));
    let length = Dim::from(build.graph_mut().symbol("length", 0, i64::MAX));
    let keys = past.plus(&length);
    let _ = build.input("past", vec![past.clone()], DType::F32);
    let q = build.input("q", vec![Dim::from(1), Dim::from(2), length.clone(), Dim::from(4)], DType::F32);
    let k = build.input("k", vec![Dim::from(1), Dim::from(2), keys.clone(), Dim::from(4)], DType::F32);
    let v = build.input("v", vec![Dim::from(1), Dim::from(2), keys.clone(), Dim::from(4)], DType::F32);
    let mask = mask(build, &past, &length)?;
    build.call(
        "attention.standard.prefill",
        &[Some(q), Some(k), Some(v), Some(mask)],
        &[("layout", ParamValue::from("BHSD"))],
    )
}

/// `kv <= q + past`, and `kv > q + past - window` if there is a window, as Transformers builds masks.
fn position_mask(build: &mut Builder, past: &Dim, length: &Dim, window: Option<i64>) -> Built {
    let positions = build.arange(past.clone(), 1, length.clone(), DType::I64)?;
    let queries = build.reshape(positions, vec![Dim::from(1), Dim::from(1), length.clone(), Dim::from(1)])?;
    let keys_length = past.plus(length);
    let keys = build.arange(Dim::from(0), 1, keys_length.clone(), DType::I64)?;
    let keys = build.reshape(keys, vec![Dim::from(1), Dim::from(1), Dim::from(1), keys_length])?;
    let causal = build.compare("le", keys, queries)?;
    let all = build.scalar(1.0, DType::Bool)?;
    let causal = build.binary("bitwise_and", causal, all)?;
    let Some(window) = window else { return Ok(causal) };
    let first = build.binary_size("sub", queries, Dim::from(window), false)?;
    let recent = build.compare("gt", keys, first)?;
    build.binary("bitwise_and", causal, recent)
}

#[test]
fn masks_of_positions_become_params() {
    let before =
        graph(|build| imported(build, |build, past, length| position_mask(build, past, length, Some(3))));
    insta::assert_snapshot!(both(&before));
    let before =
        graph(|build| imported(build, |build, past, length| position_mask(build, past, length, None)));
    let (after, _) = optimized(&before, &[]);
    assert!(after.to_string().contains("causal=true, causal_offset=s0"), "{after}");
}

#[test]
fn masks_of_values_stay() {
    let before = graph(|build| {
        imported(build, |build, past, length| {
            let keys = past.plus(length);
            let mask = build.input(
                "mask",
                vec![Dim::from(1), Dim::from(1), length.clone(), keys.clone()],
                DType::F32,
            );
            build.expand(mask, &[Dim::from(1), Dim::from(2), length.clone(), keys])
        })
    });
    let (after, report) = optimized(&before, &[]);
    assert_eq!(report.counts(), [("masks", 1)], "{after}");
    assert!(!after.to_string().contains("causal"), "{after}");
}

#[test]
fn masks_that_hide_nothing_disappear() {
    let before = graph(|build| {
        imported(build, |build, past, length| {
            let positions = build.arange(past.clone(), 1, length.clone(), DType::I64)?;
            let positions =
                build.reshape(positions, vec![Dim::from(1), Dim::from(1), length.clone(), Dim::from(1)])?;
            let all = build.compare_scalar("ge", positions, 0.0)?;
            build.expand(all, &[Dim::from(1), Dim::from(2), length.clone(), past.plus(length)])
        })
    });
    let (after, _) = optimized(&before, &[]);
    assert_eq!(calls(&after), ["attention.standard.prefill"], "{after}");
    assert!(!after.to_string().contains("causal"), "{after}");
}

/// Transformers looks for jumps in positions, which start new sequences. A range of positions has none.
#[test]
fn sequences_without_jumps_are_not_masked() {
    let before = graph(|build| {
        imported(build, |build, past, length| {
            let keys = past.plus(length);
            let positions = build.arange(Dim::from(0), 1, keys.clone(), DType::I64)?;
            let first = build.python_slice(positions, 0, Dim::from(0), Some(Dim::from(1)), 1)?;
            let before = build.binary_size("sub", first, Dim::from(1), false)?;
            let all = build.concat(&[before, positions], 0)?;
            let count = build.shape(all)[0].minus(&Dim::from(1));
            let later = build.slice(all, 0, Dim::from(1), count.clone(), 1)?;
            let earlier = build.slice(all, 0, Dim::from(0), count.clone(), 1)?;
            let difference = build.binary("sub", later, earlier)?;
            let jumps = build.compare_scalar("ne", difference, 1.0)?;
            let jumps = build.cast(jumps, DType::I64)?;
            let sequence = build.cumsum(jumps, 0, false, false)?;
            let indices = build.arange(past.clone(), 1, length.clone(), DType::I64)?;
            let negative = build.compare_scalar("lt", indices, 0.0)?;
            let wrapped = build.binary_size("add", indices, count, false)?;
            let indices = build.select_where(negative, wrapped, indices)?;
            let queries = build.take(sequence, 0, indices)?;
            let queries = build.unsqueeze(queries, 1)?;
            let sequences = build.slice(sequence, 0, Dim::from(0), keys, 1)?;
            let same = build.compare("eq", queries, sequences)?;
            let causal = position_mask(build, past, length, None)?;
            build.binary("bitwise_and", causal, same)
        })
    });
    let (after, _) = optimized(&before, &[]);
    assert_eq!(calls(&after), ["attention.standard.prefill"], "{after}");
    assert!(after.to_string().contains("causal=true, causal_offset=s0"), "{after}");
}

#[test]
fn positions_with_a_jump_stay_masked() {
    let before = graph(|build| {
        imported(build, |build, past, length| {
            let keys = past.plus(length);
            let positions = build.arange(Dim::from(0), 1, keys, DType::I64)?;
            let doubled = build.binary_size("mul", positions, Dim::from(2), false)?;
            let limited = build.binary_scalar("minimum", doubled, 4.0, false)?;
            build.compare_scalar("le", limited, 3.0)
        })
    });
    let (after, _) = optimized(&before, &[]);
    assert!(calls(&after).contains(&"primitive.compare_scalar".to_owned()), "{after}");
}

#[test]
fn scaled_queries_scale_the_scores() {
    let before = graph(|build| {
        let length = Dim::from(build.graph_mut().symbol("length", 1, i64::MAX));
        let mut tensor =
            |name, heads| build.input(name, vec![Dim::from(2), length.clone(), Dim::from(heads)], DType::F32);
        let (q, k, v) = (tensor("q", 8), tensor("k", 8), tensor("v", 8));
        let scaled = build.binary_scalar("mul", q, 0.25, false)?;
        let mut heads = |x| {
            let x = build.reshape(x, vec![Dim::from(2), length.clone(), Dim::from(2), Dim::from(4)])?;
            build.transpose(x, 1, 2)
        };
        let (q, k, v) = (heads(scaled)?, heads(k)?, heads(v)?);
        build.call(
            "attention.gqa.prefill",
            &[Some(q), Some(k), Some(v)],
            &[("layout", ParamValue::from("BHSD"))],
        )
    });
    let (after, _) = optimized(&before, &[]);
    assert_eq!(calls(&after), ["attention.gqa.prefill"], "{after}");
    assert!(after.to_string().contains("sm_scale=0.125"), "{after}");
}
