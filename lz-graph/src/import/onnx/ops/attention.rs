//! `Attention` and `RotaryEmbedding`: operations of the catalog.

use lz_core::DType;

use super::super::op::{Handler, Op, Outputs, one};
use super::constant::positions;
use crate::build::ParamValue;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[("Attention", attention), ("RotaryEmbedding", rotary_embedding)];

pub const PREVIEW: &[(&str, Handler)] = &[("FlexAttention", flex_attention)];

/// Without graphs that change scores, this is attention over all keys.
fn flex_attention(op: &mut Op<'_>) -> Outputs {
    let inputs = [Some(op.x(0)?), Some(op.x(1)?), Some(op.x(2)?)];
    let mut params: Vec<(&str, ParamValue<'_>)> = vec![("layout", "BHSD".into())];
    if let Some(scale) = op.maybe_float("scale")? {
        params.push(("sm_scale", scale.into()));
    }
    one(op.build.call("attention.gqa.prefill", &inputs, &params)?)
}

/// `[batch, length, heads * size]` as `[batch, length, heads, size]`.
pub fn split_heads(op: &mut Op<'_>, x: NodeId, heads: i64) -> Result<NodeId, GraphError> {
    let [batch, length, features] = op.build.shape(x) else {
        return Err(op.error(format!("a tensor with {} dimensions, expected 3 or 4", op.build.rank(x))));
    };
    if heads < 1 {
        return Err(op.error("the number of heads is required with three dimensions"));
    }
    let size = features.floor_div(&Dim::from(heads));
    let shape = vec![batch.clone(), length.clone(), Dim::from(heads), size];
    op.build.reshape(x, shape)
}

/// `[batch, length, heads, size]` as `[batch, length, heads * size]`.
pub fn merge_heads(op: &mut Op<'_>, x: NodeId) -> Result<NodeId, GraphError> {
    let shape = op.build.shape(x).to_vec();
    let merged = vec![shape[0].clone(), shape[1].clone(), shape[2].times(&shape[3])];
    op.build.reshape(x, merged)
}

/// Queries, keys or values with heads before positions if `heads_first`, after them otherwise.
fn sequence(op: &mut Op<'_>, x: NodeId, heads: i64, heads_first: bool) -> Result<NodeId, GraphError> {
    match (op.build.rank(x), heads_first) {
        (4, true) => Ok(x),
        (4, false) => Err(op.error("queries, keys and values differ in their number of dimensions")),
        (_, true) => {
            let split = split_heads(op, x, heads)?;
            op.build.transpose(split, 1, 2)
        }
        (_, false) => split_heads(op, x, heads),
    }
}

fn attention(op: &mut Op<'_>) -> Outputs {
    let (q, k, v) = (op.x(0)?, op.x(1)?, op.x(2)?);
    let (past_key, past_value) = (op.maybe(4)?, op.maybe(5)?);
    let (heads, kv_heads) = (op.int("q_num_heads", 0)?, op.int("kv_num_heads", 0)?);
    // The accumulation type of the softmax; ours is at least f32.
    op.attribute("softmax_precision");
    // Which scores the fourth output has; that output is refused.
    op.attribute("qk_matmul_output_mode");
    if op.wants(3) {
        return Err(op.error("the output of scores is not supported"));
    }
    let flat = op.build.rank(q) == 3;
    let heads_first = !flat || past_key.is_some() || op.wants(1);
    let q = sequence(op, q, heads, heads_first)?;
    let mut k = sequence(op, k, kv_heads, heads_first)?;
    let mut v = sequence(op, v, kv_heads, heads_first)?;
    let length_axis = if heads_first { 2 } else { 1 };
    let mut past_length = Dim::from(0);
    if let (Some(past_key), Some(past_value)) = (past_key, past_value) {
        past_length = op.build.shape(past_key).get(2).cloned().unwrap_or_default();
        k = op.build.concat(&[past_key, k], 2)?;
        v = op.build.concat(&[past_value, v], 2)?;
    } else if past_key.is_some() || past_value.is_some() {
        return Err(op.error("past keys and past values must be given together"));
    }
    let keys = op.build.shape(k)[length_axis].clone();
    let causal = op.flag("is_causal", false)?;
    let mask = mask(op, &keys, causal)?;
    let mut params: Vec<(&str, ParamValue<'_>)> =
        vec![("layout", if heads_first { "BHSD" } else { "BSHD" }.into()), ("causal", causal.into())];
    if causal {
        params.push(("causal_offset", past_length.into()));
    }
    let soft_cap = op.float("softcap", 0.0)?;
    params.push(("soft_cap", soft_cap.into()));
    if let Some(scale) = op.maybe_float("scale")? {
        params.push(("sm_scale", scale.into()));
    }
    let mut y = op.build.call("attention.gqa.prefill", &[Some(q), Some(k), Some(v), mask], &params)?;
    if flat {
        if heads_first {
            y = op.build.transpose(y, 1, 2)?;
        }
        y = merge_heads(op, y)?;
    }
    Ok(vec![y.into(), k.into(), v.into()])
}

/// The mask, padded to the number of keys, and restricted to the keys that are no padding.
fn mask(op: &mut Op<'_>, keys: &Dim, causal: bool) -> Result<Option<NodeId>, GraphError> {
    let mut mask = op.maybe(3)?;
    if let Some(short) = mask
        && let Some(missing) = op.build.shape(short).last().and_then(|last| keys.minus(last).constant())
        && missing > 0
        && !op.build.shape(short).last().is_some_and(|last| last.is(1))
    {
        let mut padding = vec![(Dim::from(0), Dim::from(0)); op.build.rank(short)];
        if let Some(last) = padding.last_mut() {
            last.1 = Dim::from(missing);
        }
        let hidden = if op.build.dtype(short) == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
        mask = Some(op.build.pad(short, &padding, hidden)?);
    }
    let Some(counts) = op.maybe(6)? else { return Ok(mask) };
    if causal {
        return Err(op.error("key counts together with a causal mask are not supported"));
    }
    let counts = op.build.cast(counts, DType::I64)?;
    let batch = Dim::product(op.build.shape(counts));
    let counts = op.build.reshape(counts, vec![batch, Dim::from(1), Dim::from(1), Dim::from(1)])?;
    let columns = positions(op, keys.clone(), 3, 4)?;
    let visible = op.build.compare("lt", columns, counts)?;
    Ok(Some(match mask {
        None => visible,
        Some(mask) if op.build.dtype(mask) == DType::Bool => op.build.binary("bitwise_and", mask, visible)?,
        Some(mask) => {
            let dtype = op.build.dtype(mask);
            let hidden = op.build.scalar(f64::NEG_INFINITY, dtype)?;
            op.build.select_where(visible, mask, hidden)?
        }
    }))
}

/// Tables by position; without positions they have a row per token of each batch row.
fn rotary_embedding(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let (mut cos, mut sin) = (op.x(1)?, op.x(2)?);
    let heads = op.int("num_heads", 0)?;
    let interleaved = op.flag("interleaved", false)?;
    let shape = op.build.shape(x).to_vec();
    let heads_first = shape.len() == 4;
    let input = if heads_first { x } else { split_heads(op, x, heads)? };
    let tokens = if heads_first { [0, 2] } else { [0, 1] }.map(|axis| shape[axis].clone());
    let half = op.build.shape(cos).last().cloned().unwrap_or_default();
    let rotary = op.int("rotary_embedding_dim", 0)?;
    if rotary != 0 {
        op.build.require_equal(Dim::from(rotary), half.times(&Dim::from(2)), "rotary_embedding_dim")?;
    }
    let positions = match op.maybe(3)? {
        Some(positions) => positions,
        None => {
            let rows = tokens[0].times(&tokens[1]);
            for table in [&mut cos, &mut sin] {
                *table = op.build.reshape(*table, vec![rows.clone(), half.clone()])?;
            }
            let numbers = op.build.arange(Dim::from(0), 1, rows, DType::I64)?;
            op.build.reshape(numbers, tokens.to_vec())?
        }
    };
    let layout = if heads_first { "BHSD" } else { "BSHD" };
    let params = [("interleaved", interleaved.into()), ("layout", layout.into())];
    let inputs = [Some(input), Some(cos), Some(sin), Some(positions)];
    let rotated = op.build.call("posenc.rope", &inputs, &params)?;
    one(op.build.reshape(rotated, shape)?)
}
