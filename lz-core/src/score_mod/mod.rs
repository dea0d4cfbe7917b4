//! Expressions that modify attention scores, as callers pass them: one text over the score, its indices and parameters.
//!
//! The language is that of [`crate::expr`], with IEEE arithmetic: every number is an f64, nothing is an error, and an infinity or
//! NaN propagates. [`ScoreMod::evaluate`] is the definition; [`ScoreMod::evaluate_lanes`] is for kernels that evaluate several keys at
//! once.

mod lanes;

use std::collections::HashMap;
use std::sync::Arc;

use lz_schema::expr::ast::{Arithmetic, Comparison, Logic};
use lz_schema::expr::{self, Function, Node, NodeKind, Type, Value, VariableTable, arith};

use crate::fork::Mutex;
use crate::reason::{Reason, ReasonCode};
use crate::tensor::TensorView;

/// Maximum number of bytes of a text.
pub const MAX_BYTES: usize = 4096;

/// Maximum number of parameters.
pub const MAX_PARAMETERS: usize = 16;

/// Number of compiled expressions that are kept.
const CACHED: usize = 256;

pub use lanes::MAX_DEPTH;

/// The names, in the order of their slots; parameters `p0`, `p1`, … follow.
const NAMES: [(&str, Type); 7] = [
    ("score", Type::Float),
    ("kv_idx", Type::Int),
    ("q_idx", Type::Int),
    ("q_pos", Type::Int),
    ("h", Type::Int),
    ("b", Type::Int),
    ("inf", Type::Float),
];

/// Slots of the names.
pub mod slot {
    /// The score.
    pub const SCORE: usize = 0;
    /// Index of the key.
    pub const KV_INDEX: usize = 1;
    /// Index of the query.
    pub const Q_INDEX: usize = 2;
    /// Position of the query among the keys.
    pub const Q_POSITION: usize = 3;
    /// Index of the query head.
    pub const HEAD: usize = 4;
    /// Index in the batch.
    pub const BATCH: usize = 5;
    /// +∞.
    pub const INFINITY: usize = 6;
    /// The first parameter.
    pub const PARAMETERS: usize = 7;
    /// Number of slots.
    pub const COUNT: usize = PARAMETERS + super::MAX_PARAMETERS;
}

/// The values of all slots; unused parameters are not read.
pub type Values = [f64; slot::COUNT];

/// Checked expressions by text and number of parameters.
type Cache = HashMap<(Vec<u8>, usize), Arc<ScoreMod>>;

/// A checked expression.
#[derive(Debug)]
pub struct ScoreMod {
    root: Node,
    steps: Option<Box<[lanes::Step]>>,
}

impl ScoreMod {
    /// The expression whose text is in a tensor of bytes in host memory. Compiled expressions are cached.
    pub fn of(view: &TensorView<'_>, parameters: i64) -> Result<Arc<ScoreMod>, Reason> {
        static CACHE: Mutex<Option<Cache>> = Mutex::new(None);
        let bytes = bytes_of(view)?;
        let parameters = parameters.max(0) as usize;
        let key = (bytes, parameters);
        let cached = || CACHE.lock();
        if let Some(known) = cached().as_ref().and_then(|cache| cache.get(&key)) {
            return Ok(Arc::clone(known));
        }
        let text = std::str::from_utf8(&key.0)
            .map_err(|error| invalid("UTF-8 text", format!("an invalid byte at {}", error.valid_up_to())))?;
        let compiled = Arc::new(ScoreMod::parse(text, parameters)?);
        let mut cache = cached();
        let cache = cache.get_or_insert_with(HashMap::new);
        if cache.len() >= CACHED {
            cache.clear();
        }
        cache.insert(key, Arc::clone(&compiled));
        Ok(compiled)
    }

    /// Parses and type-checks a text.
    pub fn parse(text: &str, parameters: usize) -> Result<ScoreMod, Reason> {
        if text.len() > MAX_BYTES {
            return Err(invalid(format!("at most {MAX_BYTES} bytes"), format!("{} bytes", text.len())));
        }
        if parameters > MAX_PARAMETERS {
            return Err(invalid(format!("at most {MAX_PARAMETERS} parameters"), format!("{parameters}")));
        }
        let mut scope = VariableTable::new();
        for (name, ty) in NAMES {
            scope.add(name, ty);
        }
        for parameter in 0..parameters {
            scope.add(format!("p{parameter}"), Type::Float);
        }
        let typed = expr::check_expecting(text, &scope, &Type::Float).map_err(|errors| {
            let listed = errors.iter().map(|error| {
                format!(
                    "{} at character {}",
                    error.kind,
                    text.get(..error.span.start).map_or(0, |text| text.chars().count()) + 1
                )
            });
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            let last = parameters.checked_sub(1).map_or(String::new(), |last| format!(", p0 … p{last}"));
            invalid(
                format!("a number over {}{last}", names.join(", ")),
                listed.collect::<Vec<_>>().join("; "),
            )
        })?;
        Ok(ScoreMod { steps: lanes::compile(&typed.root), root: typed.root })
    }

    /// The modified score.
    pub fn evaluate(&self, values: &Values) -> f64 {
        number(&self.root, values)
    }

    /// Modifies the scores of the keys from `first_key` on, with the results of [`ScoreMod::evaluate`]. The other slots of `values`
    /// are the same for all of them.
    #[inline(always)]
    pub fn evaluate_lanes<const N: usize>(
        &self,
        values: &mut Values,
        first_key: usize,
        scores: &mut [f64; N],
        stack: &mut [[f64; N]; MAX_DEPTH],
    ) {
        match &self.steps {
            Some(steps) => lanes::evaluate(steps, values, first_key, scores, stack),
            None => self.evaluate_each(values, first_key, scores),
        }
    }

    /// The expression as steps of a stack machine, for evaluators in other languages: a name, and the value of a `constant` or the
    /// number of a `slot`. A step replaces its operands on the stack by its result; the operands of `select` are a condition, the
    /// value for true and the one for false. Bools are 0 and 1.
    pub fn steps(&self) -> Vec<(&'static str, f64)> {
        lanes::describe(&self.root)
    }

    #[cold]
    #[inline(never)]
    fn evaluate_each(&self, values: &mut Values, first_key: usize, scores: &mut [f64]) {
        for (key, score) in (first_key..).zip(scores) {
            (values[slot::SCORE], values[slot::KV_INDEX]) = (*score, key as f64);
            *score = self.evaluate(values);
        }
    }
}

/// The bytes of a tensor of any strides, up to one more than are allowed.
fn bytes_of(view: &TensorView<'_>) -> Result<Vec<u8>, Reason> {
    let length = view.shape().first().copied().unwrap_or(0);
    if length > MAX_BYTES as i64 {
        return Err(invalid(format!("at most {MAX_BYTES} bytes"), format!("{length} bytes")));
    }
    if let Some(bytes) = view.as_slice::<u8>() {
        return Ok(bytes.to_vec());
    }
    Ok((0..length).map(|index| view.int_at(&[index]) as u8).collect())
}

fn invalid(required: impl Into<String>, found: impl Into<String>) -> Reason {
    let (required, found) = (required.into(), found.into());
    Reason::new(ReasonCode::ScoreModInvalid)
        .message(format!(" must be {required}, but has {found}"))
        .required(required)
        .found(found)
}

/// A node as a number; bools are 0 and 1.
fn number(node: &Node, values: &Values) -> f64 {
    let value = |node: &Node| number(node, values);
    match &node.kind {
        NodeKind::Constant(Value::Int(value)) => arith::widen(*value),
        NodeKind::Constant(Value::Float(value)) => *value,
        NodeKind::Constant(Value::Bool(value)) => f64::from(u8::from(*value)),
        // There are no enums in the scope.
        NodeKind::Constant(Value::Enum(_)) => f64::NAN,
        NodeKind::Variable { index, .. } => values.get(usize::from(*index)).copied().unwrap_or(f64::NAN),
        NodeKind::Widen(operand) => value(operand),
        NodeKind::Negate(operand) => -value(operand),
        NodeKind::Not(operand) => 1.0 - value(operand),
        NodeKind::Arithmetic { operator, left, right } => arithmetic(*operator, value(left), value(right)),
        NodeKind::Logic { operator: Logic::And, left, right } => value(left) * value(right),
        NodeKind::Logic { operator: Logic::Or, left, right } => value(left).max(value(right)),
        NodeKind::Compare { operator, left, right } => {
            f64::from(u8::from(arith::compare(*operator, value(left), value(right))))
        }
        NodeKind::Member { negated, item, list } => {
            let item = value(item);
            let is_member = list.iter().any(|other| arith::compare(Comparison::Equal, item, value(other)));
            f64::from(u8::from(is_member != *negated))
        }
        NodeKind::Conditional { condition, then, otherwise } => {
            if value(condition) != 0.0 {
                value(then)
            } else {
                value(otherwise)
            }
        }
        NodeKind::Call { function, arguments } => {
            let mut arguments = arguments.iter().map(value);
            let first = arguments.next().unwrap_or(f64::NAN);
            match function {
                Function::Min => arguments.fold(first, arith::min_float),
                Function::Max => arguments.fold(first, arith::max_float),
                Function::CeilDiv => -floor_divide(-first, arguments.next().unwrap_or(f64::NAN)),
                Function::Abs => first.abs(),
                Function::Sqrt => first.sqrt(),
                Function::Exp => first.exp(),
                Function::Log => first.ln(),
                Function::Tanh => first.tanh(),
            }
        }
    }
}

/// `left operator right` with IEEE results.
#[inline(always)]
pub fn arithmetic(operator: Arithmetic, left: f64, right: f64) -> f64 {
    match operator {
        Arithmetic::Add => left + right,
        Arithmetic::Subtract => left - right,
        Arithmetic::Multiply => left * right,
        Arithmetic::Divide => left / right,
        Arithmetic::FloorDivide => floor_divide(left, right),
        Arithmetic::Modulo => modulo(left, right),
    }
}

/// `left // right`, rounded down as in Python; a division by zero is that of `/`.
#[inline(always)]
pub fn floor_divide(left: f64, right: f64) -> f64 {
    if right == 0.0 {
        return left / right;
    }
    let remainder = left % right;
    let turned = remainder != 0.0 && (remainder < 0.0) != (right < 0.0);
    let quotient = (left - remainder) / right - f64::from(u8::from(turned));
    quotient.round()
}

/// `left % right` with the sign of the divisor, as in Python; NaN for a divisor of 0.
#[inline(always)]
pub fn modulo(left: f64, right: f64) -> f64 {
    let remainder = left % right;
    let turned = remainder != 0.0 && (remainder < 0.0) != (right < 0.0);
    if turned { remainder + right } else { remainder }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        let mut values = [0.0; slot::COUNT];
        values[slot::SCORE] = 0.5;
        values[slot::KV_INDEX] = 7.0;
        values[slot::Q_INDEX] = 2.0;
        values[slot::Q_POSITION] = 9.0;
        values[slot::HEAD] = 3.0;
        values[slot::BATCH] = 1.0;
        values[slot::INFINITY] = f64::INFINITY;
        values[slot::PARAMETERS] = -4.0;
        values
    }

    #[test]
    fn expressions_have_the_values_of_python() {
        for (text, expected) in [
            ("score", 0.5),
            ("3", 3.0),
            ("score + p0 * (kv_idx - q_pos)", 8.5),
            ("score if q_pos >= kv_idx else -inf", 0.5),
            ("score if q_idx >= kv_idx else -inf", f64::NEG_INFINITY),
            ("10 * h + b", 31.0),
            ("-7 // 2 + -7 % 2 + ceil_div(7, 2)", 1.0),
            ("p0 // 3 + p0 % 3", 0.0),
            ("kv_idx // 0", f64::INFINITY),
            ("min(score, p0, kv_idx) + max(score, 1)", -3.0),
            ("sqrt(4) + exp(0) + log(1) + abs(p0) + tanh(0)", 7.0),
            ("1 if kv_idx in [1, 7] and not (h == 2 or b > 1) else 0", 1.0),
            ("1 if kv_idx not in [1, 7] else 2", 2.0),
            ("1 if 0 < h < 4 else 0", 1.0),
            ("inf - inf if score > 1 else score", 0.5),
        ] {
            let found = ScoreMod::parse(text, 1).unwrap().evaluate(&values());
            assert_eq!(found, expected, "{text}");
        }
        assert!(ScoreMod::parse("inf - inf", 0).unwrap().evaluate(&values()).is_nan());
        assert!(ScoreMod::parse("log(-1) + 0 % 0", 0).unwrap().evaluate(&values()).is_nan());
    }

    #[test]
    fn lanes_agree_with_single_scores() {
        let deep = format!("{}score{}", "1 + (2 * ".repeat(16), ")".repeat(16));
        let deeper = format!("{}score{}", "kv_idx + (2 * (".repeat(14), "))".repeat(14));
        for text in [
            "score",
            "h",
            "score + p0 * (kv_idx - q_pos)",
            "score if q_pos >= kv_idx and not kv_idx in [1, 3] or b == 0 else -inf",
            "1 if kv_idx not in [1, 2, h] else 2",
            "min(score, p0, kv_idx - 3) + max(score, kv_idx) // 2 + kv_idx % 3 - ceil_div(kv_idx, 2)",
            "sqrt(kv_idx) + exp(-score) + log(kv_idx) + abs(p0) + tanh(score) - -kv_idx / 3",
            "1 if kv_idx > 2 and kv_idx < 5 or kv_idx != 6 and kv_idx <= 1 else score",
            "kv_idx // 0 + p0 % 0",
            &deep,
            &deeper,
        ] {
            let expression = ScoreMod::parse(text, 1).unwrap();
            let mut scores: [f64; 8] = std::array::from_fn(|lane| lane as f64 * 0.75 - 2.0);
            let each = scores;
            let mut given = values();
            expression.evaluate_lanes(&mut given, 0, &mut scores, &mut [[0.0; 8]; MAX_DEPTH]);
            for (lane, score) in each.into_iter().enumerate() {
                (given[slot::SCORE], given[slot::KV_INDEX]) = (score, lane as f64);
                let expected = expression.evaluate(&given);
                assert!(
                    scores[lane].to_bits() == expected.to_bits()
                        || scores[lane].is_nan() && expected.is_nan(),
                    "{text}: key {lane}: {} and {expected}",
                    scores[lane]
                );
            }
        }
        let (deep, deeper) = (ScoreMod::parse(&deep, 0).unwrap(), ScoreMod::parse(&deeper, 0).unwrap());
        assert!(deep.steps.is_some() && deeper.steps.is_none(), "both paths are tested");
    }

    #[test]
    fn mistakes_say_what_and_where() {
        let problem = |text: &str| {
            let view = TensorView::from_slice(text.as_bytes(), &[text.len() as i64]).unwrap();
            ScoreMod::of(&view, 1).unwrap_err().to_string()
        };
        for (text, part) in [
            ("scor + 1", "`scor`"),
            ("scor + 1", "did you mean `score`"),
            ("score + p1", "p0 … p0"),
            ("score +", "at character 8"),
            ("score > 0", "bool"),
            ("score ** 2", "at character"),
            ("given(mask)", "mask"),
            ("", "empty"),
        ] {
            let found = problem(text);
            assert!(found.contains(part), "{text}: {found}");
        }
        let long = " ".repeat(MAX_BYTES + 1);
        assert!(problem(&long).contains("4097 bytes"));
        assert!(ScoreMod::parse("score", MAX_PARAMETERS + 1).is_err());
        let bytes = [0xffu8, 0x20];
        let view = TensorView::from_slice(&bytes, &[2]).unwrap();
        assert!(ScoreMod::of(&view, 0).unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn compiled_expressions_are_cached_by_text_and_parameters() {
        let text = "score + 0.125 * kv_idx";
        let view = TensorView::from_slice(text.as_bytes(), &[text.len() as i64]).unwrap();
        let (first, second) = (ScoreMod::of(&view, 0).unwrap(), ScoreMod::of(&view, 0).unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        assert!(!Arc::ptr_eq(&first, &ScoreMod::of(&view, 2).unwrap()));
        for number in 0..CACHED {
            let text = format!("score + {number}");
            let view = TensorView::from_slice(text.as_bytes(), &[text.len() as i64]).unwrap();
            assert_eq!(ScoreMod::of(&view, 0).unwrap().evaluate(&values()), 0.5 + number as f64);
        }
    }
}
