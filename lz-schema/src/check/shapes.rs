//! Validates shapes, and properties that depend on the case of an enum parameter.

use super::Checker;
use super::expressions::ExprContext;
use super::types::Direction;
use crate::diagnostics::{Code, listed, nearest};
use crate::expr::ast::{Arithmetic, ExprKind};
use crate::expr::{self, Type};
use crate::model::{Cases, Dim};
use crate::raw::{Expression, RawCases};
use crate::source::{Span, Spanned};

impl Checker<'_> {
    /// One list of dimensions, or one per case.
    pub(super) fn shape(
        &mut self,
        raw: &RawCases<Spanned<Vec<Expression>>>,
        direction: Direction,
    ) -> Option<Cases<Vec<Dim>>> {
        self.cases(raw, &mut |checker, dims| checker.dims(dims, direction))
    }

    fn dims(&mut self, raw: &Spanned<Vec<Expression>>, direction: Direction) -> Option<Vec<Dim>> {
        let mut pack: Option<Span> = None;
        let mut dims = Vec::with_capacity(raw.value.len());
        for written in &raw.value {
            let dim = self.dim(written, direction);
            if let Some(Dim::Pack(_)) = dim
                && let Some(first) = pack.replace(written.span)
            {
                self.sink
                    .error(Code::PackTwice, written.span, "a shape can contain only one pack")
                    .also(first, "the first pack")
                    .note("with two packs, the boundary between them would be ambiguous");
                dims.push(None);
                continue;
            }
            dims.push(dim);
        }
        dims.into_iter().collect()
    }

    fn dim(&mut self, written: &Expression, direction: Direction) -> Option<Dim> {
        if let Some(name) = written.text.strip_suffix("...") {
            return self.pack(name.trim(), written);
        }
        let Ok(parsed) = expr::parse(&written.text) else {
            // Type checking parses the text again and reports the error.
            self.expression(written, ExprContext::Shape, &Type::Int);
            return None;
        };
        let offset = match &parsed.kind {
            ExprKind::Name(name) => self.symbols.axis(name).map(|axis| (axis, 0)),
            ExprKind::Arithmetic { operator, left, right } => match (&left.kind, operator, &right.kind) {
                (ExprKind::Name(name), Arithmetic::Add, ExprKind::Int(by))
                | (ExprKind::Int(by), Arithmetic::Add, ExprKind::Name(name)) => {
                    self.symbols.axis(name).map(|axis| (axis, *by))
                }
                (ExprKind::Name(name), Arithmetic::Subtract, ExprKind::Int(by)) => {
                    self.symbols.axis(name).zip(by.checked_neg())
                }
                _ => None,
            },
            ExprKind::Int(size) => return self.fixed(*size, written),
            _ => None,
        };
        match offset {
            Some((axis, by)) => self.axis_dim(axis, by, written, direction),
            None => self
                .expression(written, ExprContext::Shape, &Type::Int)
                .map(|typed| Dim::Expr(Box::new(typed))),
        }
    }

    fn fixed(&mut self, size: i64, written: &Expression) -> Option<Dim> {
        if size < 0 {
            self.sink.error(Code::BadNumber, written.span, "a dimension cannot be negative");
            return None;
        }
        Some(Dim::Fixed(size))
    }

    /// A bare axis, or an axis plus a constant.
    fn axis_dim(&mut self, axis: usize, by: i64, written: &Expression, direction: Direction) -> Option<Dim> {
        let symbol = self.symbols.axes.get_mut(axis)?;
        symbol.used.get_or_insert(written.span);
        let (name, defined) = (symbol.name.clone(), symbol.span);
        if symbol.broken {
            return None;
        }
        if symbol.dynamic && direction == Direction::Input {
            let message = format!("axis `{name}` is dynamic and cannot be used by an input");
            self.sink
                .error(Code::DynamicAxis, written.span, message)
                .also(defined, "declared `dynamic` here");
            return None;
        }
        if symbol.pack && by == 0 {
            self.sink
                .error(
                    Code::PackNotSpread,
                    written.span,
                    format!("`{name}` is a pack: write it with three dots"),
                )
                .suggest(Some(format!("{name}...")))
                .also(defined, "declared `pack` here");
            return None;
        }
        if symbol.pack {
            // In an expression, the value of a pack is the product of its dimensions.
            return self
                .expression(written, ExprContext::Shape, &Type::Int)
                .map(|typed| Dim::Expr(Box::new(typed)));
        }
        Some(if by == 0 { Dim::Axis(axis) } else { Dim::Offset(axis, by) })
    }

    fn pack(&mut self, name: &str, written: &Expression) -> Option<Dim> {
        let Some(axis) = self.symbols.axis(name) else {
            self.undefined_axis(name, written.span_of(0, name.len()));
            return None;
        };
        let symbol = self.symbols.axes.get_mut(axis)?;
        symbol.used.get_or_insert(written.span);
        if symbol.pack {
            return Some(Dim::Pack(axis));
        }
        if symbol.broken {
            return None;
        }
        let defined = symbol.span;
        self.sink
            .error(Code::SpreadOfSingle, written.span, format!("axis `{name}` is one dimension, not a pack"))
            .suggest(Some(name))
            .also(defined, "for any number of dimensions, add `pack: true` here");
        None
    }

    /// A property that may depend on an enum parameter. All cases are required, and no others are allowed.
    pub(super) fn cases<T, U>(
        &mut self,
        raw: &RawCases<T>,
        read: &mut dyn FnMut(&mut Self, &T) -> Option<U>,
    ) -> Option<Cases<U>> {
        let (by, cases) = match raw {
            RawCases::One(one) => return read(self, one).map(Cases::One),
            RawCases::By { by, cases } => (by, cases),
        };
        let Some(param) = self.symbols.param(&by.value) else {
            let near = nearest(&by.value, self.symbols.params.iter().map(|param| param.name.as_str()))
                .map(str::to_owned);
            self.sink
                .error(Code::UndefinedParam, by.span, format!("parameter `{}` is not defined", by.value))
                .suggest(near);
            return None;
        };
        let symbol = self.symbols.params.get(param)?;
        let values = match symbol.ty.clone()? {
            Type::Enum(values) => values,
            ty => {
                let (defined, message) =
                    (symbol.span, format!("`{}` is not an enum and has no cases", by.value));
                self.sink
                    .error(Code::ByNotEnum, by.span, message)
                    .also(defined, format!("declared {ty} here"));
                return None;
            }
        };
        for entry in cases.entries.iter().filter(|entry| !values.contains(&entry.name.value)) {
            let near = nearest(&entry.name.value, values.iter().map(String::as_str)).map(str::to_owned);
            let message = format!("`{}` is not a case of `{}`", entry.name.value, by.value);
            self.sink.error(Code::UnknownCase, entry.name.span, message).suggest(near);
        }
        let missing: Vec<&str> = values
            .iter()
            .map(String::as_str)
            .filter(|value| !cases.entries.iter().any(|entry| entry.name.value == *value))
            .collect();
        if !missing.is_empty() {
            let plural = if missing.len() == 1 { "is" } else { "are" };
            let message = format!("{} of `{}` {plural} not covered", listed(missing), by.value);
            self.sink.error(Code::MissingCase, cases.span, message);
        }
        let mut read_case = |value: &String| {
            let entry = cases.entries.iter().find(|entry| entry.name.value == *value)?;
            read(self, entry.value.as_ref()?)
        };
        // All cases are validated before the first failure is returned, so that all errors are reported.
        let read: Vec<Option<U>> = values.iter().map(&mut read_case).collect();
        read.into_iter().collect::<Option<Vec<U>>>().map(|cases| Cases::By(param, cases))
    }
}
