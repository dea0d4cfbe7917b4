//! Expressions as text: errors have spans, an accepted text survives printing and parsing, and a checked one evaluates as the tree means.

use lz_schema::expr::ast::{Expr, ExprKind, Link};
use lz_schema::expr::{EvalError, ExprErrorKind, Program, check, limits, parse};

use super::expression::{drawn_values, same, scope, walk};

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let tree = match parse(&text) {
        Ok(tree) => tree,
        Err(error) => {
            let span = error.span;
            assert!(span.start <= span.end, "{error}");
            assert!(text.is_char_boundary(span.start) && text.is_char_boundary(span.end), "{error}");
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let printed = print(&tree);
    match parse(&printed) {
        Ok(again) => assert_eq!(print(&again), printed, "from {text}"),
        // Printing adds parentheses, which count as nesting.
        Err(error) => {
            let too_deep =
                matches!(error.kind, ExprErrorKind::NestingTooDeep { .. } | ExprErrorKind::TooLarge { .. });
            assert!(too_deep, "{printed}: {error}");
        }
    }
    match check(&text, &scope()) {
        Ok(typed) => {
            let program = Program::compile(&typed);
            for draw in [&[][..], input] {
                let values = drawn_values(draw);
                let (found, expected) = (program.eval(&values), walk(&typed.root, &values));
                assert!(same(found, expected), "{text} of {values:?} is {found:?}, not {expected:?}");
                assert!(!matches!(found, Err(EvalError::Malformed | EvalError::BadSlot { .. })), "{text}");
            }
            for points in limits(&typed).cut_points() {
                assert!(points.cuts.is_sorted_by(|a, b| a < b), "{text}: {points:?}");
            }
            true
        }
        Err(errors) => {
            assert!(!errors.is_empty(), "{text} is rejected without an error");
            for error in errors {
                assert!(error.span.start <= error.span.end && error.span.end <= text.len(), "{error}");
            }
            false
        }
    }
}

/// The expression with all parentheses.
fn print(tree: &Expr) -> String {
    let list = |items: &[Expr]| items.iter().map(print).collect::<Vec<_>>().join(", ");
    match &tree.kind {
        ExprKind::Int(value) => format!("({value})"),
        ExprKind::Float(value) => format!("{value:?}"),
        ExprKind::Bool(value) => value.to_string(),
        ExprKind::Text(text) if text.contains('"') => format!("'{text}'"),
        ExprKind::Text(text) => format!("\"{text}\""),
        ExprKind::Name(name) => name.clone(),
        ExprKind::Negate(operand) => format!("(-({}))", print(operand)),
        ExprKind::Not(operand) => format!("(not {})", print(operand)),
        ExprKind::Arithmetic { operator, left, right } => {
            format!("({} {operator} {})", print(left), print(right))
        }
        ExprKind::Logic { operator, left, right } => format!("({} {operator} {})", print(left), print(right)),
        ExprKind::Compare { first, links } => {
            let links: String = links
                .iter()
                .map(|link| match link {
                    Link::Compare { operator, operand } => format!(" {operator} {}", print(operand)),
                    Link::Member { negated: false, items, .. } => format!(" in [{}]", list(items)),
                    Link::Member { negated: true, items, .. } => format!(" not in [{}]", list(items)),
                })
                .collect();
            format!("({}{links})", print(first))
        }
        ExprKind::Conditional { then, condition, otherwise } => {
            format!("({} if {} else {})", print(then), print(condition), print(otherwise))
        }
        ExprKind::Call { function, arguments, .. } => format!("{function}({})", list(arguments)),
    }
}
