//! Dimensions as names: a `Definition` has no expressions in shapes.

use lz_schema::expr::{Typed, Value};
use lz_schema::model::Dim;

use super::Exporter;
use crate::format::Axis;
use crate::naming::snake;

impl Exporter<'_> {
    /// The name of a dimension; one that is computed gets an axis of its own.
    pub(super) fn dim(&mut self, dim: &Dim) -> String {
        let name_of = |exporter: &Self, at: usize| exporter.axis_names.get(at).cloned().unwrap_or_default();
        match dim {
            Dim::Axis(at) | Dim::Pack(at) => name_of(self, *at),
            Dim::Fixed(size) => self.computed(&format!("size_{size}"), Some(*size), None),
            Dim::Offset(at, by) => {
                let axis = name_of(self, *at);
                let size = self.sizes.get(*at).copied().flatten().and_then(|size| size.checked_add(*by));
                let (sign, word) = if *by < 0 { ('-', "minus") } else { ('+', "plus") };
                let by = by.unsigned_abs();
                self.computed(&format!("{axis}_{word}_{by}"), size, Some(format!("{axis} {sign} {by}")))
            }
            Dim::Expr(typed) => {
                let size = match self.constant(typed) {
                    Some(Value::Int(size)) => Some(size),
                    _ => None,
                };
                let text = self.python(typed);
                self.computed(&spelled(typed), size, Some(text))
            }
        }
    }

    fn computed(&mut self, preferred: &str, value: Option<i64>, text: Option<String>) -> String {
        let value = value.filter(|value| *value >= 0);
        let same = |known: &&(String, Axis, Option<String>)| match (&text, &known.2) {
            (Some(text), Some(constraint)) => *constraint == format!("{} == {text}", known.0),
            (None, None) => known.1.value == value,
            _ => false,
        };
        if let Some((name, ..)) = self.computed.iter().find(same) {
            return name.clone();
        }
        let taken = |name: &String| {
            let named = [&self.axis_names, &self.input_names, &self.param_names];
            named.into_iter().any(|names| names.contains(name))
                || self.computed.iter().any(|(known, ..)| known == name)
        };
        let numbered = (2_u64..).map(|number| format!("{preferred}_{number}"));
        // The numbers never end, so there always is a free name.
        let name = std::iter::once(preferred.to_owned())
            .chain(numbered)
            .find(|name| !taken(name))
            .unwrap_or_default();
        let constraint = text.map(|text| format!("{name} == {text}"));
        self.computed.push((
            name.clone(),
            Axis { constant: value.is_some(), value, description: None },
            constraint,
        ));
        name
    }
}

/// A name that reads like the expression: `ceil_div(inner, 2) + 1` gives `ceil_div_inner_2_plus_1`.
fn spelled(typed: &Typed) -> String {
    let words = typed.text.replace("//", " div ").replace('+', " plus ").replace('-', " minus ");
    let words = words.replace('*', " times ").replace('%', " mod ");
    let parts = words.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    snake(&parts.join("_"))
}
