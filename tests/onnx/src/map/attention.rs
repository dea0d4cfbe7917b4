//! `Attention` and `FlexAttention`: mapped to every attention operation that supports the case.

use super::arguments::Arguments;
use super::cache;
use super::sequences::Sequences;
use super::tensors::{bools, float, named};
use super::{MapError, MappedCall, MappedOutput, unsupported};
use crate::tensor::{DataType, NamedTensor, ToF64};
use lz_core::Tensor;
use lz_core::tensor::Indices;
use lz_engine::Engine;
use lz_ops::{
    AttentionCrossPrefill, AttentionCrossPrefillLayout, AttentionGqaPrefill, AttentionGqaPrefillLayout,
    AttentionStandardPrefill, AttentionStandardPrefillLayout,
};
use std::rc::Rc;

/// The attention problem of a node.
struct AttentionProblem {
    q: Rc<Sequences>,
    k: Rc<Sequences>,
    v: Rc<Sequences>,
    mask: Option<Tensor>,
    /// Number of keys of each batch row, if not all.
    key_counts: Option<Tensor>,
    /// Position of the first query among the keys, if causal.
    causal_offset: Option<i64>,
    soft_cap: f32,
    scale: Option<f32>,
    /// Shape of the node's first output.
    shape: Vec<usize>,
}

/// `Attention` maps to each contiguous prefill that supports the node's options; its present keys and values
/// map to `kv.append`.
pub fn attention(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    // `qk_matmul_output_mode` selects an output of the node, which the skip list covers.
    let known = ["is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap"];
    arguments.only(&known, 7)?;
    let heads = [arguments.int("q_num_heads", 0)?, arguments.int("kv_num_heads", 0)?];
    let [q, new_k, new_v] = sequences(arguments, heads)?;
    let past_k = arguments.optional(4).map(|past| Sequences::read(past, 0)).transpose()?.map(Rc::new);
    let past_v = arguments.optional(5).map(|past| Sequences::read(past, 0)).transpose()?.map(Rc::new);
    let causal_offset = match arguments.int("is_causal", 0)? {
        0 => None,
        _ => Some(past_k.as_ref().map_or(0, |past| past.length)),
    };
    let k = extended(past_k.as_ref(), &new_k)?;
    let v = extended(past_v.as_ref(), &new_v)?;
    let mut calls = Vec::new();
    for (output, past, new) in [(1, past_k, new_k), (2, past_v, new_v)] {
        if arguments.has_output(output) {
            calls.push(cache::present(output, past, new));
        }
    }
    let mask = arguments.optional(3).map(|mask| padded_mask(mask, k.length)).transpose()?;
    let key_counts = arguments.optional(6).map(key_counts).transpose()?;
    let soft_cap = arguments.float("softcap")?.unwrap_or(0.0);
    let scale = arguments.float("scale")?;
    let shape = output_shape(&q, &v);
    let problem = AttentionProblem { q, k, v, mask, key_counts, causal_offset, soft_cap, scale, shape };
    calls.extend(mapped_calls(problem));
    Ok(calls)
}

/// `FlexAttention` without subgraphs is attention over all keys.
pub fn flex_attention(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["scale"], 3)?;
    let [q, k, v] = sequences(arguments, [0, 0])?;
    let (scale, shape) = (arguments.float("scale")?, output_shape(&q, &v));
    let (mask, key_counts, causal_offset) = (None, None, None);
    Ok(mapped_calls(AttentionProblem {
        q,
        k,
        v,
        mask,
        key_counts,
        causal_offset,
        soft_cap: 0.0,
        scale,
        shape,
    }))
}

/// Queries, keys and values; `heads` are the numbers of query and KV heads, if the shapes do not determine
/// them.
fn sequences(arguments: &Arguments<'_>, heads: [i64; 2]) -> Result<[Rc<Sequences>; 3], MapError> {
    let [q_heads, kv_heads] = heads;
    let q = Sequences::read(arguments.input(0)?, q_heads)?;
    let k = Sequences::read(arguments.input(1)?, kv_heads)?;
    let v = Sequences::read(arguments.input(2)?, kv_heads)?;
    Ok([q, k, v].map(Rc::new))
}

/// Past keys (or values) followed by the new ones.
fn extended(past: Option<&Rc<Sequences>>, new: &Rc<Sequences>) -> Result<Rc<Sequences>, MapError> {
    match past {
        Some(past) => new.after(past).map(Rc::new),
        None => Ok(Rc::clone(new)),
    }
}

/// The output has the order of the queries; with three dimensions, heads are concatenated in the last one.
fn output_shape(q: &Sequences, v: &Sequences) -> Vec<usize> {
    let sizes = if q.heads_first {
        vec![q.batch, q.heads, q.length, v.size]
    } else {
        vec![q.batch, q.length, q.heads * v.size]
    };
    sizes.into_iter().map(|size| usize::try_from(size).unwrap_or(0)).collect()
}

/// A mask shorter than the keys masks the remaining ones out.
fn padded_mask(named: &NamedTensor, keys: i64) -> Result<Tensor, MapError> {
    let is_bool = named.data_type == DataType::Bool;
    let mask = if is_bool { bools(named)? } else { float(named)? };
    let mut shape = mask.shape().to_vec();
    let Some(last) = shape.last_mut() else { return Err(unsupported("a mask without dimensions")) };
    if *last >= keys {
        return Ok(mask);
    }
    let mask_keys = std::mem::replace(last, keys);
    let mut padded = Tensor::zeros(&shape, mask.dtype())?;
    let (source, mut target) = (mask.view(), padded.view_mut());
    for index in Indices::new(&shape) {
        let inside = index.last().is_some_and(|&position| position < mask_keys);
        let hidden = if is_bool { 0.0 } else { f64::NEG_INFINITY };
        target.set(&index, if inside { source.at(&index) } else { hidden });
    }
    Ok(padded)
}

/// Converts the counts to i32.
fn key_counts(named: &NamedTensor) -> Result<Tensor, MapError> {
    let counts: Vec<i32> = named.to_f64().unwrap_or_default().into_iter().map(|count| count as i32).collect();
    Ok(Tensor::from_slice(&counts, &[counts.len() as i64])?)
}

/// A call of each operation that supports the problem.
fn mapped_calls(problem: AttentionProblem) -> Vec<MappedCall> {
    let problem = Rc::new(problem);
    let mut calls = Vec::new();
    let mut map_to = |operation, run: fn(&AttentionProblem, &Engine) -> Result<Tensor, MapError>| {
        let problem = Rc::clone(&problem);
        calls.push(MappedCall::new(operation, move |engine| {
            let output = run(&problem, engine)?;
            Ok(vec![MappedOutput { output: 0, tensor: named(&output, &problem.shape)? }])
        }));
    };
    if problem.key_counts.is_none() {
        map_to("attention.gqa.prefill", grouped);
        if problem.q.heads == problem.k.heads {
            map_to("attention.standard.prefill", standard);
        }
    }
    if problem.causal_offset.is_none() && problem.soft_cap == 0.0 {
        map_to("attention.cross.prefill", cross);
    }
    calls
}

fn grouped(problem: &AttentionProblem, engine: &Engine) -> Result<Tensor, MapError> {
    let heads_first = problem.q.heads_first;
    let (q, k, v) =
        (problem.q.view(heads_first)?, problem.k.view(heads_first)?, problem.v.view(heads_first)?);
    let layout = if heads_first { AttentionGqaPrefillLayout::Bhsd } else { AttentionGqaPrefillLayout::Bshd };
    let mut call = AttentionGqaPrefill::new(q, k, v).layout(layout).soft_cap(problem.soft_cap);
    call.mask = problem.mask.as_ref().map(Tensor::view);
    call.causal = Some(problem.causal_offset.is_some());
    call.causal_offset = problem.causal_offset;
    call.sm_scale = problem.scale;
    Ok(lz_ops::attention_gqa_prefill(engine, call)?.output)
}

fn standard(problem: &AttentionProblem, engine: &Engine) -> Result<Tensor, MapError> {
    let heads_first = problem.q.heads_first;
    let (q, k, v) =
        (problem.q.view(heads_first)?, problem.k.view(heads_first)?, problem.v.view(heads_first)?);
    let layout =
        if heads_first { AttentionStandardPrefillLayout::Bhsd } else { AttentionStandardPrefillLayout::Bshd };
    let mut call = AttentionStandardPrefill::new(q, k, v).layout(layout).soft_cap(problem.soft_cap);
    call.mask = problem.mask.as_ref().map(Tensor::view);
    call.causal = Some(problem.causal_offset.is_some());
    call.causal_offset = problem.causal_offset;
    call.sm_scale = problem.scale;
    Ok(lz_ops::attention_standard_prefill(engine, call)?.output)
}

fn cross(problem: &AttentionProblem, engine: &Engine) -> Result<Tensor, MapError> {
    let heads_first = problem.q.heads_first;
    let (q, k, v) =
        (problem.q.view(heads_first)?, problem.k.view(heads_first)?, problem.v.view(heads_first)?);
    let layout =
        if heads_first { AttentionCrossPrefillLayout::Bhsd } else { AttentionCrossPrefillLayout::Bshd };
    let mut call = AttentionCrossPrefill::new(q, k, v).layout(layout);
    call.mask = problem.mask.as_ref().map(Tensor::view);
    call.kv_lens = problem.key_counts.as_ref().map(Tensor::view);
    call.sm_scale = problem.scale;
    Ok(lz_ops::attention_cross_prefill(engine, call)?.output)
}
