//! `MultiHeadAttention` of ONNX Runtime: queries, keys and values separate or packed, with a bias, a mask and a past.

use lz_core::DType;

use super::super::op::{Handler, Op, Outputs};
use super::attention::{merge_heads, split_heads};
use super::constant::positions;
use crate::build::ParamValue;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const MICROSOFT: &[(&str, Handler)] = &[("MultiHeadAttention", multi_head_attention)];

fn multi_head_attention(op: &mut Op<'_>) -> Outputs {
    if op.has(8) || op.has(9) {
        return Err(op.error(
            "past keys in a shared buffer (`past_sequence_length`, `cache_indirection`) are not supported",
        ));
    }
    if op.wants(3) {
        return Err(op.error("the output of scores is not supported"));
    }
    let heads = op.int("num_heads", 0)?;
    let bias = op.maybe(3)?;
    let (past_key, past_value) = (op.maybe(6)?, op.maybe(7)?);
    let [q, mut k, mut v] = projections(op, heads, bias)?;
    let mut past_length = Dim::from(0);
    match (past_key, past_value) {
        (Some(past_key), Some(past_value)) => {
            past_length = op.build.shape(past_key).get(2).cloned().unwrap_or_default();
            k = op.build.concat(&[past_key, k], 2)?;
            v = op.build.concat(&[past_value, v], 2)?;
        }
        (None, None) => {}
        _ => return Err(op.error("past keys and past values must be given together")),
    }
    let mask = mask(op, q, k)?;
    let causal = op.flag("unidirectional", false)?;
    let mut params: Vec<(&str, ParamValue<'_>)> = vec![("layout", "BHSD".into()), ("causal", causal.into())];
    if causal {
        params.push(("causal_offset", past_length.into()));
    }
    // 0 is the default, too.
    if let Some(scale) = op.maybe_float("scale")?.filter(|scale| *scale != 0.0) {
        params.push(("sm_scale", scale.into()));
    }
    let y = op.build.call("attention.gqa.prefill", &[Some(q), Some(k), Some(v), mask], &params)?;
    let y = op.build.transpose(y, 1, 2)?;
    Ok(vec![merge_heads(op, y)?.into(), k.into(), v.into()])
}

/// Queries, keys and values with their biases, heads before positions.
fn projections(op: &mut Op<'_>, heads: i64, bias: Option<NodeId>) -> Result<[NodeId; 3], GraphError> {
    let query = op.x(0)?;
    let (key, value) = (op.maybe(1)?, op.maybe(2)?);
    let packed = |op: &mut Op<'_>, x: NodeId, part: i64| op.build.select(x, 3, Dim::from(part));
    // Positions before heads, except keys and values of another layer, which are in the other order and have no bias.
    let is_cross = key.is_some_and(|key| op.build.rank(key) == 4);
    let separate = match (key, value) {
        (None, None) if op.build.rank(query) == 5 => {
            [packed(op, query, 0)?, packed(op, query, 1)?, packed(op, query, 2)?]
        }
        (Some(key), None) if op.build.rank(key) == 5 => {
            [split_heads(op, query, heads)?, packed(op, key, 0)?, packed(op, key, 1)?]
        }
        (Some(key), Some(value)) if is_cross => [split_heads(op, query, heads)?, key, value],
        (Some(key), Some(value)) => {
            [split_heads(op, query, heads)?, split_heads(op, key, heads)?, split_heads(op, value, heads)?]
        }
        _ => return Err(op.error("keys and values are required unless the queries or keys are packed")),
    };
    let mut start = Dim::from(0);
    let mut all = separate;
    for (number, x) in all.iter_mut().enumerate() {
        let heads_first = is_cross && number > 0;
        if let Some(bias) = bias {
            if heads_first {
                return Err(op.error("a bias together with keys of four dimensions is not supported"));
            }
            let [.., heads, size] = op.build.shape(*x) else { return Err(op.error("no heads")) };
            let (heads, size) = (heads.clone(), size.clone());
            let length = heads.times(&size);
            let part = op.build.slice(bias, 0, start.clone(), length.clone(), 1)?;
            start = start.plus(&length);
            let part = op.build.reshape(part, vec![heads, size])?;
            *x = op.build.binary("add", *x, part)?;
        }
        if !heads_first {
            *x = op.build.transpose(*x, 1, 2)?;
        }
    }
    if let Some(bias) = bias {
        let given = Dim::product(op.build.shape(bias));
        op.build.require_equal(given, start, "the bias has an element for each feature")?;
    }
    Ok(all)
}

/// What is added to the scores: `attention_bias`, and `mask_filter_value` for padded keys.
fn mask(op: &mut Op<'_>, q: NodeId, k: NodeId) -> Result<Option<NodeId>, GraphError> {
    let added = op.maybe(5)?;
    let hidden = op.float("mask_filter_value", -10_000.0)?;
    let Some(padding) = op.maybe(4)? else { return Ok(added) };
    let batch = op.build.shape(q)[0].clone();
    let keys = op.build.shape(k)[2].clone();
    let shape = op.build.shape(padding).to_vec();
    let one = || Dim::from(1);
    let visible = match shape.as_slice() {
        [lengths] if *lengths == batch => {
            let lengths = op.build.cast(padding, DType::I64)?;
            let lengths = op.build.reshape(lengths, vec![batch, one(), one(), one()])?;
            let columns = positions(op, keys, 3, 4)?;
            op.build.compare("lt", columns, lengths)?
        }
        [_, _] => {
            let rows = op.build.reshape(padding, vec![batch, one(), one(), keys])?;
            op.build.compare_scalar("gt", rows, 0.0)?
        }
        [_, queries, _] => {
            let rows = op.build.reshape(padding, vec![batch, one(), queries.clone(), keys])?;
            op.build.compare_scalar("gt", rows, 0.0)?
        }
        _ => {
            return Err(op.error(format!(
                "a mask of shape {shape:?}, expected [batch], [batch, keys] or [batch, queries, keys]"
            )));
        }
    };
    let dtype = op.build.dtype(q);
    let (shown, hidden) = (op.build.scalar(0.0, dtype)?, op.build.scalar(hidden, dtype)?);
    let padded = op.build.select_where(visible, shown, hidden)?;
    Ok(Some(match added {
        None => padded,
        Some(added) => op.build.binary("add", added, padded)?,
    }))
}
