//! Parses and type-checks the expressions of a schema, and reports errors with their location in the file.

use super::Checker;
use super::symbols::Symbol;
use crate::diagnostics::{Code, nearest};
use crate::expr::{self, ExprError, ExprErrorKind, NodeKind, Type, Typed};
use crate::raw::Expression;
use crate::source::Span;

/// The context of an expression, which determines the names it may use and the text of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExprContext {
    /// A dimension: axes and int params.
    Shape,
    /// The default of the parameter with this index: axes and earlier params.
    Default(usize),
    /// The condition of an output: bool params and `given`.
    When,
    /// A constraint: all names.
    Constraint,
    /// A bound of the values of an input: axes and params.
    Values,
}

impl ExprContext {
    fn wrong_type(self) -> Code {
        match self {
            ExprContext::When => Code::WhenNotBool,
            ExprContext::Default(_) => Code::BadDefault,
            ExprContext::Shape | ExprContext::Constraint | ExprContext::Values => Code::WrongType,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ExprContext::Shape => "a dimension",
            ExprContext::Default(_) => "a default",
            ExprContext::When => "the condition of an output",
            ExprContext::Constraint => "a constraint",
            ExprContext::Values => "a bound of values",
        }
    }
}

impl Checker<'_> {
    /// Parses and type-checks an expression. Returns `None` after an error, which has been reported.
    pub(super) fn expression(
        &mut self,
        written: &Expression,
        context: ExprContext,
        expected: &Type,
    ) -> Option<Typed> {
        match expr::check_expecting(&written.text, &self.symbols, expected) {
            Ok(typed) => self.visible(written, context, &typed).then_some(typed),
            Err(errors) => {
                let has_errors = errors.iter().any(|error| match &error.kind {
                    ExprErrorKind::UnknownName { name, .. } => self.symbols.has_invalid_type(name),
                    _ => false,
                });
                if !has_errors {
                    errors.iter().for_each(|error| self.expression_error(written, context, error));
                }
                None
            }
        }
    }

    fn expression_error(&mut self, written: &Expression, context: ExprContext, error: &ExprError) {
        let span = written.span_of(error.span.start, error.span.end);
        let whole = error.span.start == 0 && error.span.end >= written.text.trim_end().len();
        // The suggestion is shown as a label of the underlined text.
        let full = error.kind.to_string();
        let sentence = full.split("; did you mean `").next().unwrap_or(&full);
        let sentence = sentence.split("; write `").next().unwrap_or(sentence).to_owned();
        let (code, message) = match &error.kind {
            ExprErrorKind::UnknownName { name, .. } if context == ExprContext::Shape => {
                return self.undefined_axis(name, span);
            }
            ExprErrorKind::UnknownName { name, .. } => {
                (Code::UndefinedName, format!("`{name}` is not defined"))
            }
            ExprErrorKind::UnknownFunction { .. } => (Code::UndefinedName, sentence),
            ExprErrorKind::UnknownInput { name, .. } if self.symbols.required.contains(name) => {
                (Code::UndefinedInput, format!("input `{name}` is required, so `given` is always true"))
            }
            ExprErrorKind::UnknownInput { .. } => (Code::UndefinedInput, sentence),
            ExprErrorKind::UnknownCase { .. } => (Code::UnknownCase, sentence),
            ExprErrorKind::TypeMismatch { found, expected, context: what }
                if whole && what == "the expression" =>
            {
                (context.wrong_type(), format!("{} must be {expected}, but this is {found}", context.name()))
            }
            ExprErrorKind::DifferentTypes { context: operator, left, right } if is_comparison(operator) => {
                let (left, right) = (with_article(left), with_article(right));
                (Code::IllTyped, format!("`{}` compares {left} with {right}", error.span.of(&written.text)))
            }
            kind if kind.is_syntax() => (Code::BadExpression, sentence),
            _ => (Code::IllTyped, sentence),
        };
        self.sink.error(code, span, message).suggest(error.kind.suggestion());
    }

    /// Reports an undefined axis, with the most similar axis as suggestion.
    pub(super) fn undefined_axis(&mut self, name: &str, span: Span) {
        let axes = self.symbols.axes.iter().map(|axis| axis.name.as_str());
        let params = self.symbols.params.iter().filter(|param| param.ty == Some(Type::Int));
        let near = nearest(name, axes.chain(params.map(|param| param.name.as_str()))).map(str::to_owned);
        self.sink.error(Code::UndefinedAxis, span, format!("axis `{name}` is not defined")).suggest(near);
    }

    /// Marks the axes of an expression as used and reports names that are not allowed in this context.
    fn visible(&mut self, written: &Expression, context: ExprContext, typed: &Typed) -> bool {
        let mut uses: Vec<(u16, Span)> = Vec::new();
        typed.root.visit(&mut |node| {
            if let NodeKind::Variable { index, .. } = node.kind {
                uses.push((index, written.span_of(node.span.start, node.span.end)));
            }
        });
        uses.sort_by_key(|(_, span)| *span);
        uses.into_iter().fold(true, |valid, (slot, span)| self.visible_name(context, slot, span) && valid)
    }

    fn visible_name(&mut self, context: ExprContext, slot: u16, span: Span) -> bool {
        let problem = match self.symbols.symbol(slot) {
            Symbol::Axis(axis) => {
                let Some(symbol) = self.symbols.axes.get_mut(axis) else { return true };
                symbol.used.get_or_insert(span);
                if symbol.dynamic {
                    let (name, at) = (symbol.name.clone(), symbol.span);
                    let message = format!("the size of axis `{name}` is known only after the call");
                    self.sink.error(Code::DynamicAxis, span, message).also(at, "declared `dynamic` here");
                    return false;
                }
                (context == ExprContext::When)
                    .then(|| "may use only bool params and `given(input)`".to_owned())
            }
            Symbol::Param(param) => {
                let symbol = self.symbols.params.get(param);
                let ty = symbol.and_then(|symbol| symbol.ty.clone());
                match context {
                    _ if symbol.is_some_and(|symbol| symbol.is_statistic) => {
                        Some("cannot use a statistic, which affects only which kernel is selected".to_owned())
                    }
                    ExprContext::Default(own) if param == own => {
                        Some("cannot use the parameter itself".to_owned())
                    }
                    ExprContext::Default(own) if param > own => {
                        Some("may use only earlier params".to_owned())
                    }
                    ExprContext::Shape if ty != Some(Type::Int) => {
                        Some("may use only axes and int params".to_owned())
                    }
                    _ => None,
                }
            }
            Symbol::Given(_) => match context {
                ExprContext::When | ExprContext::Constraint => None,
                _ => Some("cannot use `given`".to_owned()),
            },
        };
        let Some(problem) = problem else { return true };
        self.sink.error(Code::NotVisibleHere, span, format!("{} {problem}", context.name()));
        false
    }
}

/// Whether an error's location is a comparison operator, in backticks.
fn is_comparison(location: &str) -> bool {
    ["`==`", "`!=`", "`<`", "`<=`", "`>`", "`>=`"].contains(&location)
}

fn with_article(ty: &Type) -> String {
    match ty {
        Type::Int => "an int".to_owned(),
        Type::Float => "a float".to_owned(),
        Type::Bool => "a bool".to_owned(),
        Type::Enum(_) => format!("an {ty}"),
    }
}
