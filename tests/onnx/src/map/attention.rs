//! `Attention` and `FlexAttention`: softmax attention of whole sequences, by every operation that can state the case.

use super::arguments::Arguments;
use super::cache;
use super::sequences::Sequences;
use super::tensors::{bools, float, named};
use super::{MapError, Produced, Statement, unstatable};
use crate::tensor::{DataType, NamedTensor};
use lz_core::Tensor;
use lz_core::tensor::Indices;
use lz_engine::Engine;
use lz_ops::{
    AttentionCrossPrefill, AttentionCrossPrefillLayout, AttentionGqaPrefill, AttentionGqaPrefillLayout,
    AttentionStandardPrefill, AttentionStandardPrefillLayout,
};
use std::rc::Rc;

/// What is asked for, before it is known which operations can answer.
struct Question {
    q: Rc<Sequences>,
    k: Rc<Sequences>,
    v: Rc<Sequences>,
    mask: Option<Tensor>,
    /// How many keys each batch row has, if not all.
    key_counts: Option<Tensor>,
    /// The place of the first query among the keys, if later keys are hidden.
    causal_offset: Option<i64>,
    soft_cap: f32,
    scale: Option<f32>,
    /// The shape of the node's first output.
    shape: Vec<usize>,
}

/// `Attention` is each contiguous prefill that has what the node uses; its present keys and values are `kv.append`.
pub fn attention(arguments: &Arguments<'_>) -> Result<Vec<Statement>, MapError> {
    // What `qk_matmul_output_mode` chooses is an output of the node, which the skip list accounts for.
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
    let mut statements = Vec::new();
    for (output, past, new) in [(1, past_k, new_k), (2, past_v, new_v)] {
        if arguments.wants(output) {
            statements.push(cache::present(output, past, new));
        }
    }
    let mask = arguments.optional(3).map(|mask| padded_mask(mask, k.length)).transpose()?;
    let key_counts = arguments.optional(6).map(key_counts).transpose()?;
    let soft_cap = arguments.float("softcap")?.unwrap_or(0.0);
    let scale = arguments.float("scale")?;
    let shape = output_shape(&q, &v);
    let question = Question { q, k, v, mask, key_counts, causal_offset, soft_cap, scale, shape };
    statements.extend(answers(question));
    Ok(statements)
}

/// `FlexAttention` without subgraphs is attention over all keys.
pub fn flex_attention(arguments: &Arguments<'_>) -> Result<Vec<Statement>, MapError> {
    arguments.only(&["scale"], 3)?;
    let [q, k, v] = sequences(arguments, [0, 0])?;
    let (scale, shape) = (arguments.float("scale")?, output_shape(&q, &v));
    let (mask, key_counts, causal_offset) = (None, None, None);
    Ok(answers(Question { q, k, v, mask, key_counts, causal_offset, soft_cap: 0.0, scale, shape }))
}

/// Queries, keys and values; `heads` counts those of queries and of keys where the shapes do not say.
fn sequences(arguments: &Arguments<'_>, heads: [i64; 2]) -> Result<[Rc<Sequences>; 3], MapError> {
    let [q_heads, kv_heads] = heads;
    let q = Sequences::read(arguments.input(0)?, q_heads)?;
    let k = Sequences::read(arguments.input(1)?, kv_heads)?;
    let v = Sequences::read(arguments.input(2)?, kv_heads)?;
    Ok([q, k, v].map(Rc::new))
}

/// The past and then the new, which is what the queries see.
fn extended(past: Option<&Rc<Sequences>>, new: &Rc<Sequences>) -> Result<Rc<Sequences>, MapError> {
    match past {
        Some(past) => new.after(past).map(Rc::new),
        None => Ok(Rc::clone(new)),
    }
}

/// The output has the order of the queries; of three dimensions, the heads lie side by side in the last one.
fn output_shape(q: &Sequences, v: &Sequences) -> Vec<usize> {
    let sizes = if q.by_head {
        vec![q.batch, q.heads, q.length, v.size]
    } else {
        vec![q.batch, q.length, q.heads * v.size]
    };
    sizes.into_iter().map(|size| usize::try_from(size).unwrap_or(0)).collect()
}

/// A mask that is shorter than the keys hides those that it does not reach.
fn padded_mask(named: &NamedTensor, keys: i64) -> Result<Tensor, MapError> {
    let is_bool = named.data_type == DataType::Bool;
    let mask = if is_bool { bools(named)? } else { float(named)? };
    let mut shape = mask.shape().to_vec();
    let Some(last) = shape.last_mut() else { return Err(unstatable("a mask without dimensions")) };
    if *last >= keys {
        return Ok(mask);
    }
    let given = std::mem::replace(last, keys);
    let mut padded = Tensor::zeros(&shape, mask.dtype())?;
    let (source, mut target) = (mask.view(), padded.view_mut());
    for index in Indices::new(&shape) {
        let inside = index.last().is_some_and(|&place| place < given);
        let hidden = if is_bool { 0.0 } else { f64::NEG_INFINITY };
        target.set(&index, if inside { source.at(&index) } else { hidden });
    }
    Ok(padded)
}

/// Our counts have 32 bits.
fn key_counts(named: &NamedTensor) -> Result<Tensor, MapError> {
    let counts: Vec<i32> = named.to_f64().unwrap_or_default().into_iter().map(|count| count as i32).collect();
    Ok(Tensor::from_slice(&counts, &[counts.len() as i64])?)
}

/// Each operation that has what the question uses.
fn answers(question: Question) -> Vec<Statement> {
    let question = Rc::new(question);
    let mut statements = Vec::new();
    let mut answer = |operation, run: fn(&Question, &Engine) -> Result<Tensor, MapError>| {
        let question = Rc::clone(&question);
        statements.push(Statement::new(operation, move |engine| {
            let output = run(&question, engine)?;
            Ok(vec![Produced { output: 0, tensor: named(&output, &question.shape)? }])
        }));
    };
    if question.key_counts.is_none() {
        answer("attention.gqa.prefill", grouped);
        if question.q.heads == question.k.heads {
            answer("attention.standard.prefill", standard);
        }
    }
    if question.causal_offset.is_none() && question.soft_cap == 0.0 {
        answer("attention.cross.prefill", cross);
    }
    statements
}

fn grouped(question: &Question, engine: &Engine) -> Result<Tensor, MapError> {
    let by_head = question.q.by_head;
    let (q, k, v) = (question.q.view(by_head)?, question.k.view(by_head)?, question.v.view(by_head)?);
    let layout = if by_head { AttentionGqaPrefillLayout::Bhsd } else { AttentionGqaPrefillLayout::Bshd };
    let mut call = AttentionGqaPrefill::new(q, k, v).layout(layout).soft_cap(question.soft_cap);
    call.mask = question.mask.as_ref().map(Tensor::view);
    call.causal = Some(question.causal_offset.is_some());
    call.causal_offset = question.causal_offset;
    call.sm_scale = question.scale;
    Ok(lz_ops::attention_gqa_prefill(engine, call)?.output)
}

fn standard(question: &Question, engine: &Engine) -> Result<Tensor, MapError> {
    let by_head = question.q.by_head;
    let (q, k, v) = (question.q.view(by_head)?, question.k.view(by_head)?, question.v.view(by_head)?);
    let layout =
        if by_head { AttentionStandardPrefillLayout::Bhsd } else { AttentionStandardPrefillLayout::Bshd };
    let mut call = AttentionStandardPrefill::new(q, k, v).layout(layout).soft_cap(question.soft_cap);
    call.mask = question.mask.as_ref().map(Tensor::view);
    call.causal = Some(question.causal_offset.is_some());
    call.causal_offset = question.causal_offset;
    call.sm_scale = question.scale;
    Ok(lz_ops::attention_standard_prefill(engine, call)?.output)
}

fn cross(question: &Question, engine: &Engine) -> Result<Tensor, MapError> {
    let by_head = question.q.by_head;
    let (q, k, v) = (question.q.view(by_head)?, question.k.view(by_head)?, question.v.view(by_head)?);
    let layout = if by_head { AttentionCrossPrefillLayout::Bhsd } else { AttentionCrossPrefillLayout::Bshd };
    let mut call = AttentionCrossPrefill::new(q, k, v).layout(layout);
    call.mask = question.mask.as_ref().map(Tensor::view);
    call.kv_lens = question.key_counts.as_ref().map(Tensor::view);
    call.sm_scale = question.scale;
    Ok(lz_ops::attention_cross_prefill(engine, call)?.output)
}
