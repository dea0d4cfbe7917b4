//! Well-typed expressions: the compiled program agrees with a tree walk that computes in 128 bits.

use lz_schema::expr::{Program, check};

#[path = "../../../../lz-schema/tests/common/expressions.rs"]
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod expressions;
#[path = "../../../../lz-schema/tests/common/walk.rs"]
mod walk;

use expressions::Choices;
pub use expressions::{scope, values};
pub use walk::{same, walk};

/// Choices of values for the variables of an expression.
pub fn drawn_values(bytes: &[u8]) -> Vec<lz_schema::expr::Value> {
    values(&mut Choices::new(bytes))
}

pub fn run(input: &[u8]) -> bool {
    let (shape, draws) = input.split_at(input.len().min(64));
    let depth = 1 + shape.first().copied().unwrap_or(0) % 5;
    let text = expressions::expression(&mut Choices::new(shape), depth);
    let typed = check(&text, &scope()).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
    let program = Program::compile(&typed);
    for draw in draws.chunks(48).chain([&[][..]]) {
        let values = drawn_values(draw);
        let (found, expected) = (program.eval(&values), walk(&typed.root, &values));
        assert!(same(found, expected), "{text} of {values:?} is {found:?}, not {expected:?}");
        assert!(found.is_ok() || !typed.is_total(), "{text} was declared infallible, but is {found:?}");
    }
    if let Some(constant) = typed.constant_result() {
        let found = program.eval(&drawn_values(&[]));
        assert!(same(found, constant), "{text} is {found:?}, its constant is {constant:?}");
    }
    true
}
