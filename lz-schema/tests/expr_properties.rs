//! Properties of the expression language: parsing never panics, the program agrees with a reference evaluator, and the cut
//! points of limits are sound.

#[path = "common/expressions.rs"]
mod expressions;
#[path = "common/walk.rs"]
mod walk;

use expressions::Choices;
use lz_schema::expr::{EvalError, Limit, Program, Type, Typed, Value, check, limits, parse};
use proptest::prelude::*;
use walk::{same, walk};

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
