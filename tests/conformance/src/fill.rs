//! Values of drawn tensors: by the schema's value rules, otherwise ordinary or special values.

use lz_core::DType;
use lz_core::expr::{Program, Value};
use lz_core::tensor::{Dims, Indices};
use lz_schema::model::{Input, ValueRule};

use crate::memory::OwnedTensor;
use crate::random::Random;

/// Kinds of values for tensors without a value rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// None: only rules are met. Sufficient for validation, which reads nothing else.
    None,
    /// Approximately normal.
    Normal,
    /// Normal, mixed with NaN, infinities, zeros of both signs, denormals and very large values.
    Awkward,
}

/// A value rule with evaluated bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// `0 <= v < end`.
    Index(i64),
    /// `low <= v <= high`.
    Between(i64, i64),
    /// The same for floats.
    Range(f64, f64),
    /// From 0, non-decreasing, to the total.
    Indptr(i64),
    /// From 0, non-decreasing, to at most the total.
    IndptrWithin(i64),
    /// Sums along the last dimension to the total.
    Partition(i64),
    /// The text of a score expression with this many parameters.
    ScoreMod(i64),
}

/// The rule of an input in a call; `None` if it has none or its bounds cannot be evaluated.
pub fn rule(input: &Input, values: &[Value]) -> Option<Rule> {
    let int = |typed| Program::compile(typed).eval_int(values).ok();
    Some(match input.values.as_ref()? {
        ValueRule::IndexInto(end) => Rule::Index(int(end)?),
        ValueRule::Between(low, high) => {
            let bound = |typed| Program::compile(typed).eval(values).ok();
            match (bound(low)?, bound(high)?) {
                (Value::Int(low), Value::Int(high)) => Rule::Between(low, high),
                (Value::Float(low), Value::Float(high)) => Rule::Range(low, high),
                _ => return None,
            }
        }
        ValueRule::IndptrOf(total) => Rule::Indptr(int(total)?),
        ValueRule::IndptrWithin(total) => Rule::IndptrWithin(int(total)?),
        ValueRule::PartitionOf(total) => Rule::Partition(int(total)?),
        ValueRule::ScoreMod(parameters) => Rule::ScoreMod(int(parameters)?),
    })
}

/// Fills by a rule; `false` if no values satisfy it.
pub fn fill_by_rule(random: &mut Random, tensor: &mut OwnedTensor, rule: Rule) -> bool {
    let shape = tensor.layout().shape;
    let empty = shape.contains(&0);
    match rule {
        Rule::Index(end) => {
            if end <= 0 && !empty {
                return false;
            }
            set_all(tensor, |_| random.between(0, end - 1));
        }
        Rule::Between(low, high) => {
            if low > high && !empty {
                return false;
            }
            set_all(tensor, |_| match random.below(6) {
                0 => low,
                1 => high,
                2 => random.between(low, high.min(low.saturating_add(300))),
                _ => random.between(low, high.min(low.saturating_add(9))),
            });
        }
        Rule::Range(low, high) => {
            if low > high && !empty {
                return false;
            }
            let mut view = tensor.view_mut();
            for index in Indices::new(&shape) {
                let edge = if random.one_in(8) { random.below(2) as f64 } else { random.unit() };
                view.set(&index, low + (high - low) * edge);
            }
        }
        Rule::Indptr(total) => {
            let count = shape.first().copied().unwrap_or(0);
            if count == 0 || total < 0 || (count == 1 && total != 0) {
                return false;
            }
            let mut cuts: Vec<i64> = (0..count).map(|_| random.between(0, total)).collect();
            cuts.sort_unstable();
            if let Some(first) = cuts.first_mut() {
                *first = 0;
            }
            if let Some(last) = cuts.last_mut() {
                *last = total;
            }
            set_all(tensor, |index| cuts[index[0] as usize]);
        }
        Rule::IndptrWithin(total) => {
            // Half of them use the whole buffer.
            let used = if random.one_in(2) { total } else { random.between(0, total.max(0)) };
            let used = if shape.first() == Some(&1) { 0 } else { used };
            return fill_by_rule(random, tensor, Rule::Indptr(used)) && total >= 0;
        }
        Rule::Partition(total) => {
            let Some((&parts, rows)) = shape.split_last() else { return false };
            if total < 0 || (parts == 0 && total != 0 && !rows.contains(&0)) {
                return false;
            }
            let mut view = tensor.view_mut();
            for row in Indices::new(rows) {
                let mut cuts: Vec<i64> = (1..parts).map(|_| random.between(0, total)).collect();
                cuts.sort_unstable();
                cuts.push(total);
                let mut before = 0;
                for (part, cut) in (0..parts).zip(cuts) {
                    let mut index = row;
                    let _fits = index.push(part);
                    view.set_int(&index, cut - before);
                    before = cut;
                }
            }
        }
        Rule::ScoreMod(parameters) => {
            let fits = |(text, needed): &&(&str, i64)| {
                shape.contains(&0) || text.len() as i64 <= shape[0] && *needed <= parameters
            };
            let fitting: Vec<_> = SCORE_MODS.iter().filter(fits).collect();
            let Some((text, _)) = fitting.get(random.below(fitting.len().max(1))) else { return false };
            if empty {
                return false;
            }
            set_all(tensor, |index| {
                i64::from(text.as_bytes().get(index[0] as usize).copied().unwrap_or(b' '))
            });
        }
    }
    true
}

/// Score expressions and the number of parameters that each reads. Batch and head indices are absent: promises about the batch and
/// about tensor parallelism compare calls that have other ones.
const SCORE_MODS: [(&str, i64); 9] = [
    ("score", 0),
    ("-score / 2", 0),
    ("tanh(score / 4) * 4", 0),
    ("score if (q_pos - kv_idx) % 3 != 1 else -inf", 0),
    ("min(score, 1.5) - 0.1 * abs(q_idx - kv_idx)", 0),
    ("score + log(1 + kv_idx) * 0.25", 0),
    ("score + p0", 1),
    ("score * exp(-abs(p0) * 0.5)", 1),
    ("max(score, p1) if kv_idx // 2 in [0, 2] else p0", 2),
];

fn set_all(tensor: &mut OwnedTensor, mut value: impl FnMut(&Dims) -> i64) {
    let shape = tensor.layout().shape;
    let mut view = tensor.view_mut();
    for index in Indices::new(&shape) {
        view.set_int(&index, value(&index));
    }
}

/// Fills a tensor without a rule. The name hints at typical values.
pub fn fill_freely(random: &mut Random, name: &str, tensor: &mut OwnedTensor, numbers: Numbers) {
    if numbers == Numbers::None {
        return;
    }
    if tensor.layout().dtype == DType::F4E2M1x2 {
        // Two values per byte, and every byte is valid.
        tensor.relabel(|layout| layout.dtype = DType::U8);
        fill_freely(random, name, tensor, numbers);
        tensor.relabel(|layout| layout.dtype = DType::F4E2M1x2);
        return;
    }
    let (shape, dtype) = (tensor.layout().shape, tensor.layout().dtype);
    let mut view = tensor.view_mut();
    let spread = if random.one_in(4) { 8.0 } else { 1.0 };
    for index in Indices::new(&shape) {
        if !dtype.is_float() {
            let value = match dtype {
                DType::Bool => i64::from(!random.one_in(3)),
                DType::U8 => random.between(0, 255),
                DType::I64 => random.bits() as i64,
                _ => random.between(-9, 9),
            };
            view.set_int(&index, value);
            continue;
        }
        let plain = if name.contains("probs") {
            random.unit() * if random.one_in(6) { 0.0 } else { 1.0 }
        } else if name.contains("scale") {
            (random.normal() * 2.0).exp2()
        } else if name.contains("mask") {
            if random.one_in(4) { f64::NEG_INFINITY } else { random.normal() }
        } else {
            random.normal() * spread
        };
        let value = if numbers == Numbers::Awkward && random.one_in(12) {
            let awkward = [
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                0.0,
                -0.0,
                1e-42,
                -3e-8,
                65504.0,
                -3.0e38,
                lz_core::element::largest_finite(dtype),
            ];
            awkward[random.below(awkward.len())]
        } else {
            plain
        };
        view.set(&index, value);
    }
}
