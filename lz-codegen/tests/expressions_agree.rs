//! Holds the two back ends of the expression language equal: 300 random expressions were written out as Rust, which
//! is checked in and compiled here, and each is compared with the run-time program on random values.
//!
//! `LZ_BLESS=1 cargo test -p lz-codegen --test expressions_agree` writes the file anew.

#[path = "../../lz-schema/tests/common/expressions.rs"]
mod expressions;

#[rustfmt::skip]
#[path = "generated/expressions.rs"]
mod generated;

use std::collections::BTreeSet;
use std::path::Path;

use expressions::Choices;
use generated::{EXPRESSIONS, Variables};
use lz_codegen::expr::rust_tokens;
use lz_schema::expr::{EvalError, Program, Type, Value, check};
use proc_macro2::TokenStream;
use proptest::prelude::*;
use quote::{format_ident, quote};

const COUNT: usize = 300;

/// The fields of `Variables` by slot.
const FIELDS: [&str; 10] = ["a", "b", "target_sm", "x", "y", "p", "q", "layout", "mode", "given_mask"];

/// The same texts every time: bytes from a counter, mixed (the finaliser of SplitMix64).
fn texts() -> Vec<String> {
    let mut counter = 0_u64;
    let mut byte = || {
        counter = counter.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (counter ^ (counter >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 56) as u8
    };
    let (mut texts, mut seen) = (Vec::new(), BTreeSet::new());
    while texts.len() < COUNT {
        let bytes: Vec<u8> = (0..96).map(|_| byte()).collect();
        let depth = 2 + (texts.len() % 3) as u8;
        let text = expressions::expression(&mut Choices::new(&bytes), depth);
        if seen.insert(text.clone()) {
            texts.push(text);
        }
    }
    texts
}

fn render() -> String {
    let scope = expressions::scope();
    let arith = quote!(::lz_schema::expr::arith);
    let variable = |_: &str, slot: u16| -> TokenStream {
        let field = format_ident!("{}", FIELDS[usize::from(slot)]);
        quote!(v.#field)
    };
    let texts = texts();
    let mut functions = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        let typed = check(text, &scope).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
        let tokens = rust_tokens(&typed, &arith, &variable);
        let wrap = match typed.ty {
            Type::Int => quote!(Int),
            Type::Float => quote!(Float),
            Type::Bool => quote!(Bool),
            Type::Enum(_) => quote!(Enum),
        };
        let name = format_ident!("expression_{number}");
        functions.push(quote! {
            fn #name(v: &Variables) -> Result<Value, EvalError> { #tokens.map(Value::#wrap) }
        });
    }
    let names = (0..texts.len()).map(|number| format_ident!("expression_{number}"));
    let file = syn::parse_quote! {
        use lz_schema::expr::{EvalError, Value};

        pub struct Variables {
            pub a: i64,
            pub b: i64,
            pub target_sm: i64,
            pub x: f64,
            pub y: f64,
            pub p: bool,
            pub q: bool,
            pub layout: u32,
            pub mode: u32,
            pub given_mask: bool,
        }

        pub type Evaluate = fn(&Variables) -> Result<Value, EvalError>;

        pub const EXPRESSIONS: &[(&str, Evaluate)] = &[#((#texts, #names)),*];

        #(#functions)*
    };
    format!(
        "// Made by `LZ_BLESS=1 cargo test -p lz-codegen --test expressions_agree`. Do not edit.\n\n\
         #![allow(warnings, clippy::all)]\n\n{}",
        prettyplease::unparse(&file)
    )
}

fn variables(values: &[Value]) -> Variables {
    let int = |slot: usize| if let Value::Int(value) = values[slot] { value } else { panic!("slot {slot}") };
    let float =
        |slot: usize| if let Value::Float(value) = values[slot] { value } else { panic!("slot {slot}") };
    let truth =
        |slot: usize| if let Value::Bool(value) = values[slot] { value } else { panic!("slot {slot}") };
    let case =
        |slot: usize| if let Value::Enum(value) = values[slot] { value } else { panic!("slot {slot}") };
    Variables {
        a: int(0),
        b: int(1),
        target_sm: int(2),
        x: float(3),
        y: float(4),
        p: truth(5),
        q: truth(6),
        layout: case(7),
        mode: case(8),
        given_mask: truth(9),
    }
}

/// Equal bit for bit, but for the payload of a NaN, which the language does not promise.
fn same(left: Result<Value, EvalError>, right: Result<Value, EvalError>) -> bool {
    match (left, right) {
        (Ok(Value::Float(a)), Ok(Value::Float(b))) => {
            a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
        }
        (left, right) => left == right,
    }
}

#[test]
fn the_generated_expressions_are_fresh() {
    let fresh = render();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generated/expressions.rs");
    if std::env::var_os("LZ_BLESS").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let present = std::fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
    let hint = "stale: run `LZ_BLESS=1 cargo test -p lz-codegen --test expressions_agree`";
    assert!(present == fresh, "{} is {hint}", path.display());
}

/// An operation that no expression draws would be compared with nothing.
#[test]
fn the_generated_expressions_use_the_whole_language() {
    let rust = render();
    for function in ["add", "subtract", "multiply", "floor_divide", "modulo", "negate", "abs", "min", "max"] {
        assert!(rust.contains(&format!("{function}_int(")), "{function} of ints");
        assert!(rust.contains(&format!("{function}_float(")), "{function} of floats");
    }
    for word in [
        "divide_float(",
        "ceil_divide_int(",
        "sqrt_float(",
        "widen(",
        " && ",
        " || ",
        "!",
        "if ",
        "__looked_for",
        " == ",
        " != ",
        " < ",
        " <= ",
        " > ",
        " >= ",
        "v.layout",
        "v.mode",
        "v.given_mask",
        "i64::MIN",
    ] {
        assert!(rust.contains(word), "{word}");
    }
}

/// Values that make an evaluation fail at once hide what comes after, so every outcome must be seen to occur.
#[test]
fn both_back_ends_agree() {
    let scope = expressions::scope();
    let compiled: Vec<_> = EXPRESSIONS
        .iter()
        .map(|(text, generated)| (*text, *generated, Program::compile(&check(text, &scope).unwrap())))
        .collect();
    assert_eq!(compiled.len(), COUNT);
    let outcomes = std::cell::RefCell::new(BTreeSet::new());
    let config = ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(draw in proptest::collection::vec(any::<u8>(), 0..64))| {
        let values = expressions::values(&mut Choices::new(&draw));
        let fields = variables(&values);
        for (text, generated, program) in &compiled {
            let (ours, theirs) = (generated(&fields), program.eval(&values));
            prop_assert!(same(ours, theirs), "{text} of {values:?} is {ours:?} generated and {theirs:?} run");
            let outcome = match ours {
                Ok(Value::Int(_)) => "int",
                Ok(Value::Float(_)) => "float",
                Ok(Value::Bool(_)) => "bool",
                Ok(Value::Enum(_)) => "enum",
                Err(EvalError::Overflow) => "overflow",
                Err(EvalError::DivisionByZero) => "division by zero",
                Err(EvalError::NegativeSqrt) => "negative sqrt",
                Err(EvalError::NotANumber) => "not a number",
                Err(_) => "misuse",
            };
            outcomes.borrow_mut().insert(outcome);
        }
    });
    let expected =
        ["bool", "division by zero", "enum", "float", "int", "negative sqrt", "not a number", "overflow"];
    assert_eq!(outcomes.into_inner(), BTreeSet::from(expected));
}
