//! Parts (conjuncts) of a condition, each in a form that is cheap to evaluate.
//!
//! A part has the cut points along each axis where its truth value changes, so that decisions can be cached by cell. Nothing here
//! selects.

use lz_schema::expr::{self, Limit as Shape, Program, Slots, Typed, Value};

use lz_core::context::{Field, Store};
use lz_core::expression_names::{FieldSet, MAX_VALUES};

/// One part of a condition.
#[derive(Debug)]
pub(crate) struct Part {
    pub text: String,
    program: Program,
    shortcut: Option<Shortcut>,
    pub reads: FieldSet,
    /// Whether dividing axes at `cuts` makes its truth value constant within a cell.
    pub cuttable: bool,
    /// Axes (by field) and the sizes where its truth value changes.
    pub cuts: Vec<(u16, Vec<i64>)>,
    /// `axis % modulus == remainder`, evaluated without the program.
    pub modulus: Option<Modulus>,
}

/// `axis % modulus == remainder`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modulus {
    pub axis: u8,
    pub modulus: i64,
    pub remainder: i64,
}

impl Part {
    /// The precomputed truth values, if it reads one variable.
    pub fn shortcut(&self) -> Option<&Shortcut> {
        self.shortcut.as_ref()
    }

    /// Whether it holds; a part that cannot be evaluated does not.
    #[inline]
    pub fn holds(&self, values: &(impl Slots + ?Sized)) -> bool {
        match &self.shortcut {
            Some(shortcut) => shortcut.holds(values),
            None => self.program.eval_bool_of(values) == Ok(true),
        }
    }
}

/// Precomputed truth values of a part that reads one variable. Most parts do, and a lookup is many times cheaper than running the
/// program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shortcut {
    /// One bit per interval: below the first cut, then from each cut on.
    Int { index: u16, cuts: Box<[i64]>, truths: u64 },
    /// A remainder condition.
    Remainder { index: u16, modulus: i64, remainder: i64 },
    /// One bit per bool or enum case.
    Case { index: u16, truths: u64 },
}

impl Shortcut {
    fn of(shape: &Shape, program: &Program) -> Option<Shortcut> {
        match shape {
            Shape::Cuts(one) if one.cuts.len() < 64 => {
                let index = one.variable.index;
                let below = one.cuts.first().map_or(0, |first| first.saturating_sub(1));
                let samples = std::iter::once(below).chain(one.cuts.iter().copied());
                let truths = truth_table(program, index, samples.map(Value::Int));
                Some(Shortcut::Int { index, cuts: one.cuts.clone().into(), truths })
            }
            Shape::Modulus { variable, modulus, remainder } if *modulus > 0 => {
                Some(Shortcut::Remainder { index: variable.index, modulus: *modulus, remainder: *remainder })
            }
            Shape::Category { variable } => {
                let index = variable.index;
                let truths = match &variable.ty {
                    expr::Type::Bool => truth_table(program, index, [false, true].map(Value::Bool)),
                    expr::Type::Enum(cases) if cases.len() <= 64 => {
                        truth_table(program, index, (0..cases.len() as u32).map(Value::Enum))
                    }
                    _ => return None,
                };
                Some(Shortcut::Case { index, truths })
            }
            _ => None,
        }
    }

    #[inline]
    fn holds(&self, values: &(impl Slots + ?Sized)) -> bool {
        let value = |index: &u16| values.slot(usize::from(*index));
        match self {
            Shortcut::Int { index, cuts, truths } => match value(index) {
                // There are few cuts: a linear count is faster than a binary search.
                Some(Value::Int(size)) => truths >> cuts.iter().filter(|cut| **cut <= size).count() & 1 != 0,
                _ => false,
            },
            Shortcut::Remainder { index, modulus, remainder } => match value(index) {
                Some(Value::Int(size)) => size.rem_euclid(*modulus) == *remainder,
                _ => false,
            },
            Shortcut::Case { index, truths } => {
                let case = match value(index) {
                    Some(Value::Bool(truth)) => u32::from(truth),
                    Some(Value::Enum(case)) => case,
                    _ => return false,
                };
                truths.checked_shr(case).unwrap_or(0) & 1 != 0
            }
        }
    }
}

/// Evaluates a program for each value of the one variable that it reads, one bit each.
fn truth_table(program: &Program, index: u16, values: impl IntoIterator<Item = Value>) -> u64 {
    let mut slots = vec![Value::Int(0); usize::from(index) + 1];
    let mut truths = 0;
    for (bit, value) in values.into_iter().enumerate() {
        if let Some(slot) = slots.last_mut() {
            *slot = value;
        }
        truths |= u64::from(program.eval_bool(&slots) == Ok(true)) << bit;
    }
    truths
}

/// Splits a checked bool expression into parts.
pub(crate) fn parts(typed: &Typed, fields: &[Field]) -> Vec<Part> {
    let conjuncts = expr::limits(typed).conjuncts;
    conjuncts
        .into_iter()
        .map(|conjunct| {
            let reads = reads(&conjunct.typed);
            let mut cuts = Vec::new();
            let mut modulus = None;
            let mut cuttable = true;
            match &conjunct.limit {
                Shape::Constant(_) | Shape::Category { .. } => {}
                Shape::Cuts(one) => cuts.push((one.variable.index, one.cuts.clone())),
                Shape::Combination { cuts: several, .. } => {
                    cuts.extend(several.iter().map(|one| (one.variable.index, one.cuts.clone())));
                }
                Shape::Modulus { variable, modulus: divisor, remainder } => {
                    cuttable = false;
                    if let Some(Store::Axis(axis)) =
                        fields.get(usize::from(variable.index)).map(|field| field.store)
                    {
                        modulus = Some(Modulus { axis, modulus: *divisor, remainder: *remainder });
                    }
                }
                Shape::Other { .. } => cuttable = false,
            }
            // Scalars are not part of a cell, so parts that read one are evaluated per call.
            cuttable &=
                !fields.iter().enumerate().take(MAX_VALUES).any(|(index, field)| {
                    reads & (1 << index) != 0 && matches!(field.store, Store::Scalar(_))
                });
            let span = conjunct.span();
            let text = typed.text.get(span.start..span.end).unwrap_or(&typed.text).trim().to_owned();
            let program = Program::compile(&conjunct.typed);
            let shortcut = Shortcut::of(&conjunct.limit, &program);
            Part { text, program, shortcut, reads, cuttable, cuts, modulus }
        })
        .collect()
}

/// The fields that an expression reads.
pub(crate) fn reads(typed: &Typed) -> FieldSet {
    typed
        .variables()
        .iter()
        .filter(|variable| usize::from(variable.index) < MAX_VALUES)
        .fold(0, |set, variable| set | 1 << variable.index)
}

#[cfg(test)]
mod tests {
    use lz_schema::expr::{Scope, Type, Variable};
    use proptest::prelude::*;

    use super::*;

    struct Some3;

    impl Scope for Some3 {
        fn variable(&self, name: &str) -> Option<Variable> {
            let ty = match name {
                "n" => return Some(Variable { index: 1, ty: Type::Int }),
                "flag" => Type::Bool,
                "kind" => Type::enumeration(["first", "second", "third"]),
                _ => return None,
            };
            Some(Variable { index: if name == "flag" { 0 } else { 2 }, ty })
        }

        fn names(&self) -> Vec<String> {
            ["n", "flag", "kind"].map(str::to_owned).to_vec()
        }

        fn is_given_name(&self, _: &str) -> Option<Variable> {
            None
        }

        fn given_names(&self) -> Vec<String> {
            Vec::new()
        }
    }

    fn part(text: &str) -> Part {
        let typed = expr::check_expecting(text, &Some3, &Type::Bool).expect(text);
        let mut all = parts(&typed, &[]);
        assert_eq!(all.len(), 1, "{text}");
        all.remove(0)
    }

    #[test]
    fn parts_with_one_variable_have_a_shortcut() {
        for text in ["n > 3", "n in [1, 2, 7]", "n % 8 == 3", "flag", "not flag", "kind in [first, third]"] {
            assert!(part(text).shortcut.is_some(), "{text}");
        }
        for text in ["n * n <= 9", "flag or n > 3", "n % n == 0"] {
            assert!(part(text).shortcut.is_none(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn shortcut_agrees_with_its_program(
            size in prop_oneof![-20i64..20, any::<i64>(), Just(i64::MIN), Just(i64::MAX)],
            a in -9i64..9,
            b in -9i64..9,
            divisor in 1i64..9,
            flag: bool,
            kind in 0u32..5,
        ) {
            let least = i64::MIN;
            let texts = [
                format!("n > {a}"), format!("n <= {a}"), format!("n in [{a}, {b}]"), format!("n != {b}"),
                format!("n >= {least}"), format!("n % {divisor} == {a}"), format!("n > {a} or n < {b}"),
                "flag".to_owned(), "not flag".to_owned(),
                "kind == second".to_owned(), "kind in [first, third]".to_owned(), "kind != first".to_owned(),
            ];
            let values = [Value::Bool(flag), Value::Int(size), Value::Enum(kind)];
            for text in texts {
                let part = part(&text);
                let truth = part.program.eval_bool(&values) == Ok(true);
                // Out-of-range cases do not occur; they must only not panic.
                if kind < 3 || !text.starts_with("kind") {
                    prop_assert_eq!(part.holds(values.as_slice()), truth, "{} with {:?}", text, values);
                }
            }
        }
    }
}
