//! Properties of the expression language: parsing never panics, the program agrees with a reference evaluator, and the cut
//! points of limits are sound.

#[path = "common/expressions.rs"]
mod expressions;

use expressions::Choices;
use lz_schema::expr::ast::{Arithmetic, Comparison, Logic};
use lz_schema::expr::{
    EvalError, Function, Limit, Node, NodeKind, Program, Type, Typed, Value, check, limits, parse,
};
use proptest::prelude::*;

/// The reference evaluator: walks the tree, with 128-bit ints and floats by the definition of each operation.
fn walk(node: &Node, values: &[Value]) -> Result<Value, EvalError> {
    let truth = |node: &Node| match walk(node, values)? {
        Value::Bool(value) => Ok(value),
        other => panic!("{other} is not a bool"),
    };
    match &node.kind {
        NodeKind::Constant(value) => Ok(*value),
        NodeKind::Variable { index, .. } => Ok(values[usize::from(*index)]),
        NodeKind::Widen(operand) => match walk(operand, values)? {
            Value::Int(value) => Ok(Value::Float(value as f64)),
            other => panic!("{other} is not an int"),
        },
        NodeKind::Negate(operand) => match walk(operand, values)? {
            Value::Int(value) => narrow(-i128::from(value)),
            Value::Float(value) => Ok(Value::Float(-value)),
            other => panic!("{other} is not a number"),
        },
        NodeKind::Not(operand) => Ok(Value::Bool(!truth(operand)?)),
        NodeKind::Arithmetic { operator, left, right } => match (walk(left, values)?, walk(right, values)?) {
            (Value::Int(a), Value::Int(b)) => int_arithmetic(*operator, a.into(), b.into()),
            (Value::Float(a), Value::Float(b)) => float_arithmetic(*operator, a, b),
            other => panic!("{other:?} is not a pair of numbers"),
        },
        NodeKind::Logic { operator: Logic::And, left, right } => {
            Ok(Value::Bool(if truth(left)? { truth(right)? } else { false }))
        }
        NodeKind::Logic { operator: Logic::Or, left, right } => {
            Ok(Value::Bool(if truth(left)? { true } else { truth(right)? }))
        }
        NodeKind::Compare { operator, left, right } => {
            let (left, right) = (walk(left, values)?, walk(right, values)?);
            let order = match (left, right) {
                (Value::Int(a), Value::Int(b)) => a.partial_cmp(&b),
                (Value::Float(a), Value::Float(b)) => a.partial_cmp(&b),
                (Value::Bool(a), Value::Bool(b)) => a.partial_cmp(&b),
                (Value::Enum(a), Value::Enum(b)) => a.partial_cmp(&b),
                other => panic!("{other:?} have different types"),
            };
            Ok(Value::Bool(match operator {
                Comparison::Equal => order.is_some_and(|order| order.is_eq()),
                Comparison::NotEqual => !order.is_some_and(|order| order.is_eq()),
                Comparison::Less => order.is_some_and(|order| order.is_lt()),
                Comparison::LessOrEqual => order.is_some_and(|order| order.is_le()),
                Comparison::Greater => order.is_some_and(|order| order.is_gt()),
                Comparison::GreaterOrEqual => order.is_some_and(|order| order.is_ge()),
            }))
        }
        NodeKind::Member { negated, item, list } => {
            let item = walk(item, values)?;
            for other in list {
                // The derived equality of values follows IEEE 754 for floats.
                if walk(other, values)? == item {
                    return Ok(Value::Bool(!negated));
                }
            }
            Ok(Value::Bool(*negated))
        }
        NodeKind::Conditional { condition, then, otherwise } => {
            walk(if truth(condition)? { then } else { otherwise }, values)
        }
        NodeKind::Call { function, arguments } => {
            let arguments: Vec<Value> =
                arguments.iter().map(|argument| walk(argument, values)).collect::<Result<_, _>>()?;
            call(*function, &arguments)
        }
    }
}

fn narrow(value: i128) -> Result<Value, EvalError> {
    i64::try_from(value).map(Value::Int).map_err(|_| EvalError::Overflow)
}

fn int_arithmetic(operator: Arithmetic, a: i128, b: i128) -> Result<Value, EvalError> {
    let divides = matches!(operator, Arithmetic::FloorDivide | Arithmetic::Modulo);
    if divides && b == 0 {
        return Err(EvalError::DivisionByZero);
    }
    // The Euclidean quotient rounds down for a positive divisor; for a negative divisor, both signs are changed first.
    let floor = |a: i128, b: i128| if b > 0 { a.div_euclid(b) } else { (-a).div_euclid(-b) };
    narrow(match operator {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::FloorDivide => floor(a, b),
        Arithmetic::Modulo => a - b * floor(a, b),
        Arithmetic::Divide => panic!("`/` is for floats"),
    })
}

fn float_arithmetic(operator: Arithmetic, a: f64, b: f64) -> Result<Value, EvalError> {
    let divides = !matches!(operator, Arithmetic::Add | Arithmetic::Subtract | Arithmetic::Multiply);
    if divides && b == 0.0 {
        return Err(EvalError::DivisionByZero);
    }
    let remainder = a % b;
    let turned = remainder != 0.0 && remainder.is_sign_negative() != b.is_sign_negative();
    let result = match operator {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide => a / b,
        Arithmetic::Modulo if remainder == 0.0 => 0.0_f64.copysign(b),
        Arithmetic::Modulo if turned => remainder + b,
        Arithmetic::Modulo => remainder,
        Arithmetic::FloorDivide => {
            let quotient = (a - remainder) / b - f64::from(u8::from(turned));
            if quotient == 0.0 { 0.0_f64.copysign(a / b) } else { quotient.round() }
        }
    };
    match result {
        _ if result.is_nan() && !a.is_nan() && !b.is_nan() => Err(EvalError::NotANumber),
        _ if result.is_infinite() && a.is_finite() && b.is_finite() => Err(EvalError::Overflow),
        _ => Ok(Value::Float(result)),
    }
}

fn call(function: Function, arguments: &[Value]) -> Result<Value, EvalError> {
    let ints: Vec<i64> = arguments
        .iter()
        .filter_map(|value| if let Value::Int(value) = value { Some(*value) } else { None })
        .collect();
    let floats: Vec<f64> = arguments
        .iter()
        .filter_map(|value| if let Value::Float(value) = value { Some(*value) } else { None })
        .collect();
    if let [first, ..] = ints[..] {
        return match function {
            Function::Min => Ok(Value::Int(ints.into_iter().min().unwrap())),
            Function::Max => Ok(Value::Int(ints.into_iter().max().unwrap())),
            Function::Abs => narrow(i128::from(first).abs()),
            Function::CeilDiv if ints[1] == 0 => Err(EvalError::DivisionByZero),
            Function::CeilDiv => {
                match int_arithmetic(Arithmetic::FloorDivide, -i128::from(first), ints[1].into()) {
                    Ok(Value::Int(floor)) => narrow(-i128::from(floor)),
                    // The floor of the negated quotient may be out of range even if the quotient is not.
                    _ if first == i64::MIN && ints[1] == 1 => Ok(Value::Int(i64::MIN)),
                    other => other,
                }
            }
            Function::Sqrt => panic!("`sqrt` is for floats"),
        };
    }
    let extreme = |better: fn(f64, f64) -> bool| {
        let nan = floats.iter().find(|value| value.is_nan()).copied();
        let best = floats.iter().copied().reduce(|best, next| if better(next, best) { next } else { best });
        Ok(Value::Float(nan.or(best).unwrap()))
    };
    match function {
        Function::Min => extreme(|next, best| next < best),
        Function::Max => extreme(|next, best| next > best),
        Function::Abs => Ok(Value::Float(f64::from_bits(floats[0].to_bits() & !(1 << 63)))),
        Function::Sqrt if floats[0] < 0.0 => Err(EvalError::NegativeSqrt),
        Function::Sqrt => Ok(Value::Float(floats[0].sqrt())),
        Function::CeilDiv => panic!("`ceil_div` is for ints"),
    }
}

/// Bitwise equality, except for the payload of NaNs, which is unspecified.
fn same(left: Result<Value, EvalError>, right: Result<Value, EvalError>) -> bool {
    match (left, right) {
        (Ok(Value::Float(a)), Ok(Value::Float(b))) => {
            a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
        }
        (left, right) => left == right,
    }
}

fn well_typed(bytes: &[u8], depth: u8) -> Typed {
    let text = expressions::expression(&mut Choices::new(bytes), depth);
    check(&text, &expressions::scope()).unwrap_or_else(|errors| panic!("{text}: {errors:?}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*") {
        if let Err(error) = parse(&text) {
            prop_assert!(text.is_char_boundary(error.span.start) && text.is_char_boundary(error.span.end));
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn any_row_of_tokens_is_checked_or_refused(
        words in proptest::collection::vec(proptest::sample::select(WORDS.to_vec()), 0..24),
    ) {
        let text = words.join(" ");
        match check(&text, &expressions::scope()) {
            Ok(typed) => {
                let values = expressions::values(&mut Choices::new(&[]));
                let outcome = Program::compile(&typed).eval(&values);
                let broken = matches!(outcome, Err(EvalError::Malformed | EvalError::BadSlot { .. }));
                prop_assert!(!broken, "{} gave {:?}", text, outcome);
            }
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                for error in errors {
                    prop_assert!(error.span.start <= error.span.end && error.span.end <= text.len());
                }
            }
        }
    }

    #[test]
    fn the_program_computes_what_the_tree_means(
        shape in proptest::collection::vec(any::<u8>(), 0..96),
        draws in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 1..8),
    ) {
        let typed = well_typed(&shape, 4);
        let program = Program::compile(&typed);
        for draw in draws {
            let values = expressions::values(&mut Choices::new(&draw));
            let (ours, theirs) = (program.eval(&values), walk(&typed.root, &values));
            prop_assert!(same(ours, theirs), "{} of {values:?} is {ours:?}, not {theirs:?}", typed.text);
            if typed.is_total() {
                prop_assert!(ours.is_ok(), "{} was declared infallible", typed.text);
            }
        }
    }

    #[test]
    fn truth_does_not_change_between_cuts(
        shape in proptest::collection::vec(any::<u8>(), 0..48),
        draw in proptest::collection::vec(any::<u8>(), 0..64),
        other in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let text = expressions::bool_expression(&mut Choices::new(&shape), 3);
        let typed = check(&text, &expressions::scope()).unwrap();
        let values = expressions::values(&mut Choices::new(&draw));
        let mut moved = expressions::values(&mut Choices::new(&other));
        for conjunct in limits(&typed).conjuncts {
            let program = Program::compile(&conjunct.typed);
            let (cuts, categories) = match conjunct.limit {
                Limit::Cuts(cuts) => (vec![cuts], vec![]),
                Limit::Combination { cuts, categories } => (cuts, categories),
                Limit::Category { variable } => (vec![], vec![variable]),
                Limit::Constant(truth) => {
                    prop_assert_eq!(program.eval_bool(&values), Ok(truth));
                    continue;
                }
                Limit::Modulus { variable, modulus, remainder } => {
                    let Value::Int(value) = values[usize::from(variable.index)] else { panic!("no int") };
                    let truth = (i128::from(value) - i128::from(remainder)) % i128::from(modulus) == 0
                        && (if modulus > 0 { 0..modulus } else { modulus + 1..1 }).contains(&remainder);
                    prop_assert_eq!(program.eval_bool(&values), Ok(truth));
                    continue;
                }
                Limit::Other { .. } => continue,
            };
            for category in categories {
                let slot = usize::from(category.index);
                moved[slot] = values[slot];
            }
            // The ends of the cell that contains a value must give the same result as the value.
            let truth = program.eval_bool(&values);
            prop_assert!(truth.is_ok(), "{text} has conjuncts that fail but are not guards");
            for last in [false, true] {
                for one in &cuts {
                    let slot = usize::from(one.variable.index);
                    let Value::Int(value) = values[slot] else { panic!("no int") };
                    prop_assert!(one.cuts.is_sorted_by(|a, b| a < b));
                    let above = one.cuts.iter().copied().find(|cut| *cut > value);
                    let below = one.cuts.iter().copied().rfind(|cut| *cut <= value);
                    let end = if last { above.map_or(i64::MAX, |cut| cut - 1) } else { below.unwrap_or(i64::MIN) };
                    moved[slot] = Value::Int(end);
                }
                prop_assert_eq!(program.eval_bool(&moved), truth, "{}", &text);
            }
        }
    }
}

const WORDS: [&str; 36] = [
    "a",
    "b",
    "x",
    "p",
    "layout",
    "BSHD",
    "\"NHD\"",
    "unknown",
    "0",
    "1",
    "2.5",
    "true",
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "<",
    "<=",
    "==",
    "!=",
    "and",
    "or",
    "not",
    "in",
    "if",
    "else",
    "(",
    ")",
    "[",
    "]",
    ",",
    "min(",
    "given(mask)",
    "sqrt(",
];

#[test]
fn cut_points_of_float_limits_respect_rounding() {
    // 2^53 + 1 rounds down to 2^53, so the comparison with it as a float changes only at 2^53 + 2.
    let typed = check("a > 9007199254740992.0", &expressions::scope()).unwrap();
    let cuts: Vec<_> = limits(&typed).cut_points().into_iter().map(|points| points.cuts).collect();
    assert_eq!(cuts, [[9007199254740994]]);
    assert_eq!(typed.ty, Type::Bool);
}
