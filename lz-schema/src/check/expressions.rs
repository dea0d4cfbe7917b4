//! Expressions of a schema: typed over the operation's names, with mistakes shown in the file.

use super::Checker;
use super::symbols::Symbol;
use crate::diagnostics::{Code, nearest};
use crate::expr::{self, ExprError, ExprErrorKind, NodeKind, Type, Typed};
use crate::raw::Expression;
use crate::source::Span;

/// Where an expression stands, which says what it may name and how a mistake is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A dimension: axes and int params.
    Shape,
    /// The default of the parameter with this index: axes and earlier params.
    Default(usize),
    /// The condition of an output: bool params and `given`.
    When,
    /// A constraint: everything.
    Constraint,
    /// A bound of the values of an input: axes and params.
    Values,
}

impl Place {
    fn wrong_type(self) -> Code {
        match self {
            Place::When => Code::WhenNotBool,
            Place::Default(_) => Code::BadDefault,
            Place::Shape | Place::Constraint | Place::Values => Code::WrongType,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Place::Shape => "a dimension",
            Place::Default(_) => "a default",
            Place::When => "the condition of an output",
            Place::Constraint => "a constraint",
            Place::Values => "a bound of values",
        }
    }
}

impl Checker<'_> {
    /// Parses and types an expression; `None` after a mistake, which has been reported.
    pub(super) fn expression(
        &mut self,
        written: &Expression,
        place: Place,
        expected: &Type,
    ) -> Option<Typed> {
        match expr::check_expecting(&written.text, &self.symbols, expected) {
            Ok(typed) => self.visible(written, place, &typed).then_some(typed),
            Err(errors) => {
                let poisoned = errors.iter().any(|error| match &error.kind {
                    ExprErrorKind::UnknownName { name, .. } => self.symbols.is_poisoned(name),
                    _ => false,
                });
                if !poisoned {
                    errors.iter().for_each(|error| self.expression_error(written, place, error));
                }
                None
            }
        }
    }

    fn expression_error(&mut self, written: &Expression, place: Place, error: &ExprError) {
        let span = written.place(error.span.start, error.span.end);
        let whole = error.span.start == 0 && error.span.end >= written.text.trim_end().len();
        // What to write instead is said beside the underlined text.
        let full = error.kind.to_string();
        let sentence = full.split("; did you mean `").next().unwrap_or(&full);
        let sentence = sentence.split("; write `").next().unwrap_or(sentence).to_owned();
        let (code, message) = match &error.kind {
            ExprErrorKind::UnknownName { name, .. } if place == Place::Shape => {
                return self.undefined_axis(name, span);
            }
            ExprErrorKind::UnknownName { name, .. } => {
                (Code::UndefinedName, format!("`{name}` is not defined"))
            }
            ExprErrorKind::UnknownFunction { .. } => (Code::UndefinedName, sentence),
            ExprErrorKind::UnknownInput { name, .. } if self.symbols.required.contains(name) => {
                (Code::UndefinedInput, format!("input `{name}` is always given"))
            }
            ExprErrorKind::UnknownInput { .. } => (Code::UndefinedInput, sentence),
            ExprErrorKind::UnknownCase { .. } => (Code::UnknownCase, sentence),
            ExprErrorKind::TypeMismatch { found, expected, place: what }
                if whole && what == "the expression" =>
            {
                (place.wrong_type(), format!("{} must be {expected}, but this is {found}", place.name()))
            }
            ExprErrorKind::DifferentTypes { place: operator, left, right } if is_comparison(operator) => {
                let (left, right) = (with_article(left), with_article(right));
                (Code::IllTyped, format!("`{}` compares {left} with {right}", error.span.of(&written.text)))
            }
            kind if kind.is_syntax() => (Code::BadExpression, sentence),
            _ => (Code::IllTyped, sentence),
        };
        self.sink.error(code, span, message).suggest(error.kind.suggestion());
    }

    /// Reports a name that is no axis, with the axis that was probably meant.
    pub(super) fn undefined_axis(&mut self, name: &str, span: Span) {
        let axes = self.symbols.axes.iter().map(|axis| axis.name.as_str());
        let params = self.symbols.params.iter().filter(|param| param.ty == Some(Type::Int));
        let near = nearest(name, axes.chain(params.map(|param| param.name.as_str()))).map(str::to_owned);
        self.sink.error(Code::UndefinedAxis, span, format!("axis `{name}` is not defined")).suggest(near);
    }

    /// Marks the axes of an expression as used and reports names that may not stand in this place.
    fn visible(&mut self, written: &Expression, place: Place, typed: &Typed) -> bool {
        let mut uses: Vec<(u16, Span)> = Vec::new();
        typed.root.visit(&mut |node| {
            if let NodeKind::Variable { index, .. } = node.kind {
                uses.push((index, written.place(node.span.start, node.span.end)));
            }
        });
        uses.sort_by_key(|(_, span)| *span);
        uses.into_iter().fold(true, |fine, (slot, span)| self.visible_name(place, slot, span) && fine)
    }

    fn visible_name(&mut self, place: Place, slot: u16, span: Span) -> bool {
        let complaint = match self.symbols.symbol(slot) {
            Symbol::Axis(axis) => {
                let Some(symbol) = self.symbols.axes.get_mut(axis) else { return true };
                symbol.used.get_or_insert(span);
                if symbol.dynamic {
                    let (name, at) = (symbol.name.clone(), symbol.span);
                    let message = format!("axis `{name}` is known only after the run");
                    self.sink.error(Code::DynamicAxis, span, message).also(at, "it is `dynamic`");
                    return false;
                }
                (place == Place::When).then(|| "asks only for bool params and `given(input)`".to_owned())
            }
            Symbol::Param(param) => {
                let ty = self.symbols.params.get(param).and_then(|symbol| symbol.ty.clone());
                match place {
                    Place::Default(own) if param == own => Some("cannot use the parameter itself".to_owned()),
                    Place::Default(own) if param > own => {
                        Some("can use only the params before it".to_owned())
                    }
                    Place::Shape if ty != Some(Type::Int) => {
                        Some("is made of axes and int params".to_owned())
                    }
                    _ => None,
                }
            }
            Symbol::Given(_) => match place {
                Place::When | Place::Constraint => None,
                _ => Some("cannot ask whether an input is given".to_owned()),
            },
        };
        let Some(complaint) = complaint else { return true };
        self.sink.error(Code::NotVisibleHere, span, format!("{} {complaint}", place.name()));
        false
    }
}

/// Whether an error's place is an operator of comparison, in backticks.
fn is_comparison(place: &str) -> bool {
    ["`==`", "`!=`", "`<`", "`<=`", "`>`", "`>=`"].contains(&place)
}

fn with_article(ty: &Type) -> String {
    match ty {
        Type::Int => "an int".to_owned(),
        Type::Float => "a float".to_owned(),
        Type::Bool => "a bool".to_owned(),
        Type::Enum(_) => format!("an {ty}"),
    }
}
