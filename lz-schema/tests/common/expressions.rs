//! Random well-typed expressions as text, and random values for their variables. Shared by the tests of both back ends.
//!
//! All choices are derived from a list of bytes. After its end every choice is 0, the simplest one, so that shorter lists and
//! smaller bytes give simpler expressions, as proptest's shrinking requires.

use lz_schema::expr::{Type, Value, VariableTable};

/// A source of choices.
pub struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Choices derived from these bytes.
    pub fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices { bytes }
    }

    fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `bound`.
    fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    fn pick<'t>(&mut self, options: &[&'t str]) -> &'t str {
        options[usize::from(self.below(options.len() as u8))]
    }
}

const LAYOUTS: [&str; 3] = ["BSHD", "BHSD", "NHD"];
const MODES: [&str; 2] = ["fast", "exact"];

/// The variables that the expressions use: three ints, two floats, two bools, two enums, one optional input.
pub fn scope() -> VariableTable {
    let mut table = VariableTable::new();
    for name in ["a", "b", "target.sm"] {
        table.add(name, Type::Int);
    }
    for name in ["x", "y"] {
        table.add(name, Type::Float);
    }
    for name in ["p", "q"] {
        table.add(name, Type::Bool);
    }
    table.add("layout", layout_type());
    table.add("mode", mode_type());
    table.add_given("mask");
    table
}

/// The enum of `layout`.
pub fn layout_type() -> Type {
    Type::enumeration(LAYOUTS)
}

/// The enum of `mode`.
pub fn mode_type() -> Type {
    Type::enumeration(MODES)
}

/// Values for every slot of [`scope`], including edge cases of arithmetic.
pub fn values(choices: &mut Choices<'_>) -> Vec<Value> {
    let mut values = Vec::new();
    for _ in 0..3 {
        values.push(Value::Int(int(choices)));
    }
    for _ in 0..2 {
        values.push(Value::Float(float(choices)));
    }
    values.push(Value::Bool(choices.below(2) == 1));
    values.push(Value::Bool(choices.below(2) == 1));
    values.push(Value::Enum(u32::from(choices.below(LAYOUTS.len() as u8))));
    values.push(Value::Enum(u32::from(choices.below(MODES.len() as u8))));
    values.push(Value::Bool(choices.below(2) == 1));
    values
}

fn int(choices: &mut Choices<'_>) -> i64 {
    const SPECIAL: [i64; 9] = [0, 1, -1, 2, i64::MAX, i64::MIN, i64::MAX - 1, 1 << 53, (1 << 53) + 1];
    match choices.below(4) {
        0 | 1 => i64::from(choices.byte() as i8),
        2 => SPECIAL[usize::from(choices.below(SPECIAL.len() as u8))],
        _ => (0..8).fold(0, |bits, _| (bits << 8) | i64::from(choices.byte())),
    }
}

fn float(choices: &mut Choices<'_>) -> f64 {
    const SPECIAL: [f64; 10] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f64::MAX,
        f64::MIN_POSITIVE,
        9007199254740993.0,
    ];
    match choices.below(4) {
        0 | 1 => f64::from(choices.byte() as i8) / 4.0,
        2 => SPECIAL[usize::from(choices.below(SPECIAL.len() as u8))],
        _ => f64::from_bits((0..8).fold(0, |bits, _| (bits << 8) | u64::from(choices.byte()))),
    }
}

/// A random expression of a random type, at most `depth` operators deep.
pub fn expression(choices: &mut Choices<'_>, depth: u8) -> String {
    match choices.below(5) {
        0 => int_expression(choices, depth),
        1 => float_expression(choices, depth),
        2 => enum_expression(choices, depth),
        _ => bool_expression(choices, depth),
    }
}

/// A random int expression.
pub fn int_expression(choices: &mut Choices<'_>, depth: u8) -> String {
    if depth == 0 {
        return choices
            .pick(&[
                "a",
                "b",
                "target.sm",
                "0",
                "1",
                "2",
                "7",
                "-3",
                "128",
                "9223372036854775807",
                "-9223372036854775808",
            ])
            .to_owned();
    }
    let depth = depth - 1;
    match choices.below(9) {
        0 => int_expression(choices, 0),
        1..=3 => {
            let operator = choices.pick(&["+", "-", "*", "//", "%"]);
            let (left, right) = (int_expression(choices, depth), int_expression(choices, depth));
            format!("({left} {operator} {right})")
        }
        // Without parentheses, to test precedence; the result is an int in any case.
        4 => {
            let (first, second) =
                (choices.pick(&["+", "-", "*", "//", "%"]), choices.pick(&["+", "-", "*", "//", "%"]));
            format!(
                "({} {first} {} {second} {})",
                int_expression(choices, 0),
                int_expression(choices, 0),
                int_expression(choices, 0)
            )
        }
        5 => format!("-{}", int_expression(choices, depth)),
        6 => format!("ceil_div({}, {})", int_expression(choices, depth), int_expression(choices, depth)),
        7 => call(choices, depth, int_expression),
        _ => conditional(choices, depth, int_expression),
    }
}

/// A random float expression.
pub fn float_expression(choices: &mut Choices<'_>, depth: u8) -> String {
    if depth == 0 {
        return choices.pick(&["x", "y", "0.5", "1e-5", "2.5E+3", "0.0", "1e300"]).to_owned();
    }
    let depth = depth - 1;
    match choices.below(9) {
        0 => float_expression(choices, 0),
        1..=3 => {
            let operator = choices.pick(&["+", "-", "*", "/", "//", "%"]);
            let left = float_expression(choices, depth);
            format!("({left} {operator} {})", number(choices, depth))
        }
        4 => format!("({} / {})", int_expression(choices, depth), number(choices, depth)),
        5 => format!("-{}", float_expression(choices, depth)),
        6 => format!("sqrt({})", number(choices, depth)),
        7 => call(choices, depth, float_expression),
        _ => conditional(choices, depth, float_expression),
    }
}

/// A random bool expression.
pub fn bool_expression(choices: &mut Choices<'_>, depth: u8) -> String {
    if depth == 0 {
        return choices.pick(&["p", "q", "given(mask)", "true", "FALSE"]).to_owned();
    }
    let depth = depth - 1;
    match choices.below(12) {
        0 => bool_expression(choices, 0),
        1 | 2 => {
            let operator = choices.pick(&["<", "<=", ">", ">=", "==", "!="]);
            format!("({} {operator} {})", number(choices, depth), number(choices, depth))
        }
        3 => {
            let (first, second) = (choices.pick(&["<", "<=", "=="]), choices.pick(&["<", ">=", "!="]));
            format!(
                "({} {first} {} {second} {})",
                number(choices, depth),
                number(choices, depth),
                number(choices, depth)
            )
        }
        4 | 5 => {
            let operator = choices.pick(&["and", "or"]);
            format!("({} {operator} {})", bool_expression(choices, depth), bool_expression(choices, depth))
        }
        // Without parentheses, to test precedence.
        6 => {
            let (first, second) = (choices.pick(&["and", "or"]), choices.pick(&["and", "or"]));
            format!(
                "({} {first} not {} {second} {})",
                bool_expression(choices, depth),
                bool_expression(choices, 0),
                bool_expression(choices, 0)
            )
        }
        7 => format!("(not {})", bool_expression(choices, depth)),
        8 => {
            let operator = choices.pick(&["in", "not in"]);
            let item = number(choices, depth);
            format!(
                "({item} {operator} [{}, {}, {}])",
                number(choices, 0),
                number(choices, depth),
                number(choices, 0)
            )
        }
        9 => match choices.below(4) {
            0 => format!("({} == {})", enum_expression(choices, depth), enum_expression(choices, depth)),
            1 => format!("(layout != {})", layout_case(choices)),
            2 => format!(
                "({} not in [{}, {}])",
                enum_expression(choices, depth),
                layout_case(choices),
                layout_case(choices)
            ),
            _ => format!("(mode == {})", choices.pick(&["fast", "\"exact\""])),
        },
        10 => conditional(choices, depth, bool_expression),
        _ => format!("({} == {})", bool_expression(choices, depth), bool_expression(choices, depth)),
    }
}

/// A random expression of the type of `layout`. A bare case occurs only with a variable, from which its enum is inferred.
fn enum_expression(choices: &mut Choices<'_>, depth: u8) -> String {
    if depth == 0 || choices.below(2) == 0 {
        return "layout".to_owned();
    }
    let condition = bool_expression(choices, depth - 1);
    format!("(layout if {condition} else {})", layout_case(choices))
}

fn layout_case(choices: &mut Choices<'_>) -> String {
    choices.pick(&["BSHD", "BHSD", "NHD", "\"NHD\"", "'BSHD'"]).to_owned()
}

fn number(choices: &mut Choices<'_>, depth: u8) -> String {
    if choices.below(3) == 2 { float_expression(choices, depth) } else { int_expression(choices, depth) }
}

fn call(choices: &mut Choices<'_>, depth: u8, argument: fn(&mut Choices<'_>, u8) -> String) -> String {
    match choices.below(4) {
        0 => format!("abs({})", argument(choices, depth)),
        1 => format!("min({}, {})", argument(choices, depth), argument(choices, depth)),
        2 => format!(
            "max({}, {}, {})",
            argument(choices, depth),
            argument(choices, 0),
            argument(choices, depth)
        ),
        _ => format!("min({})", argument(choices, depth)),
    }
}

fn conditional(choices: &mut Choices<'_>, depth: u8, branch: fn(&mut Choices<'_>, u8) -> String) -> String {
    let (then, otherwise) = (branch(choices, depth), branch(choices, depth));
    format!("({then} if {} else {otherwise})", bool_expression(choices, depth))
}
