//! The expression language as documented: values, precedence, short-circuit evaluation, cases, and all error messages.

#[path = "common/expressions.rs"]
#[expect(dead_code, reason = "these tests use only the scope")]
mod expressions;

use lz_schema::expr::{
    EvalError, Limit, MAX_NESTING, MAX_NODES, Program, Type, Value, check, check_expecting, limits, parse,
};

/// Evaluates with a = 6, b = 4, target.sm = 90, x = 0.5, y = -2.0, p, not q, layout BSHD, mode fast, mask given.
fn eval(text: &str) -> Result<Value, EvalError> {
    let typed = check(text, &expressions::scope()).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
    Program::compile(&typed).eval(&[
        Value::Int(6),
        Value::Int(4),
        Value::Int(90),
        Value::Float(0.5),
        Value::Float(-2.0),
        Value::Bool(true),
        Value::Bool(false),
        Value::Enum(0),
        Value::Enum(0),
        Value::Bool(true),
    ])
}

/// All errors of a text, each with the underlined text.
fn errors(text: &str) -> String {
    let errors = check(text, &expressions::scope()).expect_err(text);
    let lines = errors.iter().map(|error| format!("{:?}: {error}", error.span.of(text)));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn values_and_precedence() {
    for (text, value) in [
        ("1 + 2 * 3", Value::Int(7)),
        ("(1 + 2) * 3", Value::Int(9)),
        ("10 - 3 - 2", Value::Int(5)),
        ("-7 // 2", Value::Int(-4)),
        ("-7 % 3", Value::Int(2)),
        ("7 % -3", Value::Int(-2)),
        ("-2 * -3", Value::Int(6)),
        ("- -a", Value::Int(6)),
        ("1 / 2", Value::Float(0.5)),
        ("1 / sqrt(b)", Value::Float(0.5)),
        ("a * x", Value::Float(3.0)),
        ("ceil_div(a, b) + 1", Value::Int(3)),
        ("ceil_div(-a, b)", Value::Int(-1)),
        ("min(a, b, 5)", Value::Int(4)),
        ("max(a, 6.5)", Value::Float(6.5)),
        ("min(a, b,)", Value::Int(4)),
        ("abs(-3) + abs(-0.5)", Value::Float(3.5)),
        ("-9223372036854775808", Value::Int(i64::MIN)),
        ("1e-5", Value::Float(1e-5)),
        ("2.5E+3", Value::Float(2500.0)),
        ("a if p else b", Value::Int(6)),
        ("1 if q else 2 if q else 3", Value::Int(3)),
        ("a if p else x", Value::Float(6.0)),
        ("target.sm >= 90", Value::Bool(true)),
        ("not p or p", Value::Bool(true)),
        ("not (p or p)", Value::Bool(false)),
        ("q and q or p", Value::Bool(true)),
        ("q AND (q OR p)", Value::Bool(false)),
        ("not a == b", Value::Bool(true)),
        ("0 < b < a <= 6", Value::Bool(true)),
        ("0 < a < b", Value::Bool(false)),
        ("a in [1, 6]", Value::Bool(true)),
        ("a not in [1, 6.0]", Value::Bool(false)),
        ("1 < a in [5, 6]", Value::Bool(true)),
        ("a == 6.0", Value::Bool(true)),
        ("layout == BSHD", Value::Bool(true)),
        ("'BHSD' == layout", Value::Bool(false)),
        ("layout in [BHSD, \"BSHD\"]", Value::Bool(true)),
        ("layout != (NHD if p else BHSD)", Value::Bool(true)),
        ("given(mask) and not q", Value::Bool(true)),
        ("p == given(mask)", Value::Bool(true)),
        ("true != FALSE", Value::Bool(true)),
    ] {
        assert_eq!(eval(text), Ok(value), "{text}");
    }
}

#[test]
fn failing_evaluations_return_errors() {
    for (text, error) in [
        ("9223372036854775807 + a", EvalError::Overflow),
        ("-(-9223372036854775808)", EvalError::Overflow),
        ("abs(-9223372036854775808)", EvalError::Overflow),
        ("1e308 * a", EvalError::Overflow),
        ("a // (b - 4)", EvalError::DivisionByZero),
        ("a % 0", EvalError::DivisionByZero),
        ("a / 0", EvalError::DivisionByZero),
        ("ceil_div(a, 0)", EvalError::DivisionByZero),
        ("sqrt(y)", EvalError::NegativeSqrt),
    ] {
        assert_eq!(eval(text), Err(error), "{text}");
    }
}

#[test]
fn evaluation_short_circuits() {
    for (text, value) in [
        ("q and 1 // 0 == 1", Value::Bool(false)),
        ("p or 1 // 0 == 1", Value::Bool(true)),
        ("a if p else a // 0", Value::Int(6)),
        ("a // 0 if q else b", Value::Int(4)),
        ("a in [6, 1 // 0]", Value::Bool(true)),
        ("a < b < 1 // 0", Value::Bool(false)),
        ("b != 0 and a % b == 2", Value::Bool(true)),
    ] {
        assert_eq!(eval(text), Ok(value), "{text}");
    }
}

#[test]
fn error_messages() {
    let texts = [
        "",
        "a +",
        "(a",
        "min(a, b",
        "a in [1, 2",
        "a b",
        "a )",
        "1 + * 2",
        "12abc",
        "1.",
        "0x10",
        "1.2.3",
        "9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999",
        "1e999",
        "'BSHD",
        "a = 1",
        "p && q",
        "p || q",
        "!p",
        "a $ b",
        "a ≤ b",
        "[1, 2]",
        "a == [1]",
        "a in []",
        "a in b",
        "a in [1] == p",
        "a not b",
        "1 if p",
        "head_dims",
        "Mask",
        "aa + xx",
        "True",
        "sqroot(a)",
        "abss(x)",
        "given(maks)",
        "given(a + 1)",
        "given()",
        "min()",
        "sqrt(1, 2)",
        "ceil_div(a)",
        "ceil_div(a, x)",
        "a and p",
        "not a",
        "-p",
        "p + 1",
        "layout < BHSD",
        "layout == BSDH",
        "layout == 'bshd'",
        "layuot == BSHD",
        "BSHD",
        "'BSHD' == 'BSHD'",
        "layout == mode",
        "a == p",
        "a in [1, p]",
        "1 if a else 2",
        "1 if p else p",
        "a == BSHD",
        "a == 'BSHD'",
        "(foo if p else bar) == a",
        "zzz + (p * 2) + ceil_div(1, 0.5)",
    ];
    let report: Vec<String> = texts.iter().map(|text| format!("{text}\n{}\n", errors(text))).collect();
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn expected_type_is_used_for_inference_and_checked() {
    let scope = expressions::scope();
    let layout = expressions::layout_type();
    let constant =
        |text: &str, ty: &Type| check_expecting(text, &scope, ty).map(|typed| typed.fold_constant());
    assert_eq!(constant("BHSD", &layout), Ok(Some(Value::Enum(1))));
    assert_eq!(constant("NHD if 1 < 2 else BSHD", &layout), Ok(Some(Value::Enum(2))));
    assert_eq!(constant("3", &Type::Float), Ok(Some(Value::Float(3.0))));
    assert_eq!(constant("1 // 0", &Type::Int), Ok(None), "an error is not a constant");
    assert!(constant("3.0", &Type::Int).is_err(), "a float is not converted to an int");
    assert!(constant("fast", &layout).is_err(), "a case of another enum");
    let typed = check("a", &scope).unwrap().expect(&Type::Float).unwrap();
    assert_eq!(Program::compile(&typed).eval(&[Value::Int(3)]), Ok(Value::Float(3.0)));
    let text = "given(mask) and a > b and a < 9";
    let names: Vec<_> =
        check(text, &scope).unwrap().variables().into_iter().map(|v| (v.name, v.index)).collect();
    assert_eq!(names, [("a".into(), 0), ("b".into(), 1), ("given(mask)".into(), 9)]);
}

#[test]
fn wrong_values_are_errors() {
    let program = Program::compile(&check("a + 1", &expressions::scope()).unwrap());
    assert_eq!(program.eval(&[]), Err(EvalError::BadSlot { slot: 0 }));
    assert_eq!(program.eval(&[Value::Bool(true)]), Err(EvalError::BadSlot { slot: 0 }));
    assert_eq!(program.eval_bool(&[Value::Int(1)]), Err(EvalError::WrongType));
    assert_eq!(program.eval_float(&[Value::Int(1)]), Ok(2.0));
}

/// Runs on a thread with half of the default stack size, so that the limits have a safety margin.
#[test]
fn huge_expressions_are_rejected_without_stack_overflow() {
    let job = || {
        let deep = 100_000;
        for text in [
            "(".repeat(deep),
            "[".repeat(deep),
            "not ".repeat(deep),
            "-".repeat(deep),
            "min(".repeat(deep),
            "a in [".repeat(deep),
            "1 if p else ".repeat(deep),
            "1 if ".repeat(deep),
            format!("a{}", " + a".repeat(deep)),
            format!("p{}", " and p".repeat(deep)),
            format!("a{}", " < a".repeat(deep)),
            format!("{}a{}", "(".repeat(MAX_NESTING + 1), ")".repeat(MAX_NESTING + 1)),
            format!("a in [{}]", "1, ".repeat(deep)),
        ] {
            assert!(parse(&text).is_err(), "{}", &text[..20]);
        }
        let scope = expressions::scope();
        // Each level duplicates the one inside it, so that the tree would have 2^60 nodes.
        let mut doubling = "p".to_owned();
        for _ in 0..60 {
            doubling = format!("p == ({doubling}) == p");
        }
        assert!(check(&doubling, &scope).is_err());
        // Expressions within the limits are accepted.
        let wide = format!("a{}", " + a".repeat(MAX_NODES / 2 - 1));
        assert_eq!(eval(&wide), Ok(Value::Int(6 * (MAX_NODES as i64 / 2))));
        let nested = format!("{}a{}", "(1 + ".repeat(MAX_NESTING - 2), ")".repeat(MAX_NESTING - 2));
        assert_eq!(eval(&nested), Ok(Value::Int(6 + MAX_NESTING as i64 - 2)));
        let stack = format!("{}a{}", "(1 < 1 + 1 * ".repeat(40), ")".repeat(40));
        assert!(check(&stack, &scope).is_err());
    };
    std::thread::Builder::new().stack_size(1024 * 1024).spawn(job).unwrap().join().unwrap();
}

#[test]
fn limits_are_split_into_conjuncts() {
    let scope = expressions::scope();
    let report = |text: &str| {
        let parts = limits(&check(text, &scope).unwrap()).conjuncts;
        let lines = parts.iter().map(|part| {
            let limit = match &part.limit {
                Limit::Constant(value) => format!("always {value}"),
                Limit::Cuts(points) => format!("{} cut at {:?}", points.variable.name, points.cuts),
                Limit::Modulus { variable, modulus, remainder } => {
                    format!("{} modulo {modulus} is {remainder}", variable.name)
                }
                Limit::Category { variable } => format!("category {}", variable.name),
                Limit::Combination { cuts, categories } => {
                    let cuts = cuts
                        .iter()
                        .map(|points| format!("{} cut at {:?}", points.variable.name, points.cuts));
                    let categories = categories.iter().map(|variable| format!("category {}", variable.name));
                    cuts.chain(categories).collect::<Vec<_>>().join(" with ")
                }
                Limit::Other { variables } => {
                    format!(
                        "guard over {}",
                        variables.iter().map(|v| v.name.as_str()).collect::<Vec<_>>().join(", ")
                    )
                }
            };
            format!("{} -> {limit}", part.span().of(text))
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(
        [
            "a <= 256 and a % 8 == 0 and 0 == b % -4 and 16 < b",
            "a in [64, 128, 256]",
            "8 <= a < 4 * 1024 and a != 100",
            "a == -1 or a >= 128",
            "not (a < 4) and a < 2.5 and a >= 9223372036854775807",
            "layout == BSHD and p and given(mask) == q and layout in [NHD]",
            "q or a <= 128 or b > 3",
            "a * b <= 65535 and x > 0 and a % 0 == 1 and 1 < 2",
            "a <= 7 if p else a <= 9",
        ]
        .map(report)
        .join("\n\n")
    );
}
