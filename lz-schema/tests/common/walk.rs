//! The reference evaluator of expressions. Shared by tests that compare other back ends with it.

use lz_schema::expr::ast::{Arithmetic, Comparison, Logic};
use lz_schema::expr::{EvalError, Function, Node, NodeKind, Value};

/// The reference evaluator: walks the tree, with 128-bit ints and floats by the definition of each operation.
pub fn walk(node: &Node, values: &[Value]) -> Result<Value, EvalError> {
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
            Function::Sqrt | Function::Exp | Function::Log | Function::Tanh => panic!("for floats"),
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
        Function::Exp => finite(floats[0], floats[0].exp()),
        Function::Log => finite(floats[0], floats[0].ln()),
        Function::Tanh => Ok(Value::Float(floats[0].tanh())),
        Function::CeilDiv => panic!("`ceil_div` is for ints"),
    }
}

/// A result, unless it is an infinity or NaN that the operand was not.
fn finite(operand: f64, result: f64) -> Result<Value, EvalError> {
    match result {
        _ if result.is_nan() && !operand.is_nan() => Err(EvalError::NotANumber),
        _ if result.is_infinite() && operand.is_finite() => Err(EvalError::Overflow),
        _ => Ok(Value::Float(result)),
    }
}

/// Bitwise equality, except for the payload of NaNs, which is unspecified.
pub fn same(left: Result<Value, EvalError>, right: Result<Value, EvalError>) -> bool {
    match (left, right) {
        (Ok(Value::Float(a)), Ok(Value::Float(b))) => {
            a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
        }
        (left, right) => left == right,
    }
}
