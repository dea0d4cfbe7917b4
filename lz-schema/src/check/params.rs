//! Validates `params`: types, defaults and ranges, and the values that workloads and aliases give to parameters.

use super::Checker;
use super::expressions::ExprContext;
use super::symbols::Symbol;
use crate::diagnostics::{Code, listed, nearest};
use crate::expr::{self, Program, Type, Typed, Value, VariableTable};
use crate::model::{Constant, Param, ParamType};
use crate::raw::Expression;
use crate::raw::language::{RawOperation, RawParam, TypeWord};
use crate::source::{Scalar, Spanned};

impl Checker<'_> {
    /// All params in order; `None` for a param with errors.
    pub(super) fn params(&mut self, raw: &RawOperation) -> Vec<Option<Param>> {
        let entries = raw.params.iter().flat_map(|named| &named.entries);
        let params = entries
            .enumerate()
            .map(|(index, entry)| self.param(raw, index, &entry.name, entry.value.as_ref()?))
            .collect();
        self.statistics_are_last(raw);
        params
    }

    fn param(
        &mut self,
        operation: &RawOperation,
        index: usize,
        name: &Spanned<String>,
        raw: &RawParam,
    ) -> Option<Param> {
        let ty = self.param_type(name, raw)?;
        if let Some(statistic) = &raw.statistic {
            return self.statistic_param(operation, name, &ty, raw, statistic);
        }
        if raw.range.is_some() && matches!(ty, ParamType::Bool | ParamType::Enum(_)) {
            self.conflict(name, format!("`{}` is not a number and cannot have a range", name.value));
            return None;
        }
        let range = match &raw.range {
            Some(range) => Some(self.range(index, name, &ty, range)?),
            None => None,
        };
        let default = match &raw.default {
            Some(default) => Some(self.default(index, &ty, range.as_ref(), default)?),
            None => None,
        };
        Some(Param {
            name: name.value.clone(),
            ty,
            default,
            range,
            range_text: raw.range.as_ref().map(|range| range.text.trim().to_owned()).unwrap_or_default(),
            statistic: None,
            doc: raw.doc.as_ref().map(|doc| doc.value.clone()).unwrap_or_default(),
        })
    }

    fn param_type(&mut self, name: &Spanned<String>, raw: &RawParam) -> Option<ParamType> {
        let word = raw.type_.as_ref()?.value;
        if word != TypeWord::Enum && raw.values.is_some() {
            self.conflict(name, format!("`{}` is not an enum and cannot have `values`", name.value));
        }
        Some(match word {
            TypeWord::Int => ParamType::Int,
            TypeWord::F32 => ParamType::F32,
            TypeWord::F64 => ParamType::F64,
            TypeWord::Bool => ParamType::Bool,
            TypeWord::Enum => {
                let Some(values) = &raw.values else {
                    self.missing(name, "values");
                    return None;
                };
                if values.value.is_empty() {
                    self.empty("values", values.span);
                }
                self.repeated(values.value.iter().map(|case| (case.value.as_str(), case.span)));
                ParamType::Enum(values.value.iter().map(|case| case.value.clone()).collect())
            }
        })
    }

    /// Parses a range, which is written without the parameter's name, as an expression over the parameter.
    fn range(
        &mut self,
        index: usize,
        name: &Spanned<String>,
        ty: &ParamType,
        written: &Expression,
    ) -> Option<Typed> {
        let parts: Vec<&str> = written.text.split(" and ").map(str::trim).collect();
        let valid = parts.len() <= 2 && parts.iter().all(|part| comparison(part, ty).is_some());
        if valid && is_empty_range(&parts, ty) {
            let message = format!("the range `{}` is empty", written.text);
            self.sink.error(Code::BadRange, written.span, message);
            return None;
        }

        let rewritten =
            parts.iter().map(|part| format!("{} {part}", name.value)).collect::<Vec<_>>().join(" and ");
        let typed =
            if valid { expr::check_expecting(&rewritten, &self.symbols, &Type::Bool).ok() } else { None };
        let own = self.symbols.slot(Symbol::Param(index));
        match typed {
            Some(typed) if typed.variables().iter().all(|variable| variable.index == own) => Some(typed),
            _ => {
                let message = format!("`{}` is not a valid range of `{}`", written.text, name.value);
                self.sink.error(Code::BadRange, written.span, message).note(
                    "expected one or two comparisons with constants, joined by `and`: \"> 0\", \">= 0 and < 1\"; \
                     what depends on axes or other params is a constraint",
                );
                None
            }
        }
    }

    fn default(
        &mut self,
        index: usize,
        ty: &ParamType,
        range: Option<&Typed>,
        written: &Expression,
    ) -> Option<Typed> {
        let typed = self.expression(written, ExprContext::Default(index), &expression_type(ty))?;
        match typed.constant_result() {
            Some(Err(error)) => {
                self.sink.error(
                    Code::BadDefault,
                    written.span,
                    format!("the default cannot be evaluated: {error}"),
                );
                None
            }
            Some(Ok(value)) => match self.value_problem(index, ty, range, value) {
                Some(problem) => {
                    self.sink.error(Code::BadDefault, written.span, format!("the default {problem}"));
                    None
                }
                None => Some(typed),
            },
            None => Some(typed),
        }
    }

    /// Why a parameter cannot have a value of its type; `None` if it can.
    pub(super) fn value_problem(
        &self,
        index: usize,
        ty: &ParamType,
        range: Option<&Typed>,
        value: Value,
    ) -> Option<String> {
        if let (ParamType::F32, Value::Float(value)) = (ty, value)
            && (value as f32).is_infinite()
        {
            return Some(format!("{value:?} is out of range for f32"));
        }
        let range = range?;
        let slot = usize::from(self.symbols.slot(Symbol::Param(index)));
        let mut values = vec![value; slot + 1];
        values[slot] = value;
        match Program::compile(range).eval(&values) {
            Ok(Value::Bool(true)) => None,
            _ => Some(format!("{value} is not in the range `{}`", bare_range(range))),
        }
    }

    /// The value that a workload or an alias gives to a parameter, or why it is invalid.
    pub(super) fn constant(
        &self,
        index: usize,
        param: &Param,
        written: &Scalar,
    ) -> Result<Constant, InvalidValue> {
        let text = written.text.as_str();
        let number = written.plain.then_some(text);
        let constant = match &param.ty {
            ParamType::Int => number.and_then(|text| text.parse().ok()).map(Constant::Int),
            ParamType::F32 | ParamType::F64 => number
                .and_then(|text| text.parse::<f64>().ok())
                .filter(|value| value.is_finite())
                .map(Constant::Float),
            ParamType::Bool => number.and_then(|text| text.parse().ok()).map(Constant::Bool),
            ParamType::Enum(cases) => cases
                .iter()
                .position(|case| case == text)
                .and_then(|case| u32::try_from(case).ok())
                .map(Constant::Enum),
        };
        let Some(constant) = constant else {
            let suggestion = match &param.ty {
                ParamType::Enum(cases) => nearest(text, cases.iter().map(String::as_str)).map(str::to_owned),
                _ => None,
            };
            return Err(InvalidValue {
                problem: format!("must be {}, not `{text}`", describe(&param.ty)),
                suggestion,
            });
        };
        match self.value_problem(index, &param.ty, param.range.as_ref(), value_of(&constant)) {
            Some(problem) => {
                Err(InvalidValue { problem: format!("is invalid: {problem}"), suggestion: None })
            }
            None => Ok(constant),
        }
    }
}

/// Why a value is invalid for a parameter.
pub(super) struct InvalidValue {
    pub problem: String,
    pub suggestion: Option<String>,
}

pub(super) fn value_of(constant: &Constant) -> Value {
    match constant {
        Constant::Int(value) => Value::Int(*value),
        Constant::Float(value) => Value::Float(*value),
        Constant::Bool(value) => Value::Bool(*value),
        Constant::Enum(case) => Value::Enum(*case),
    }
}

pub(super) fn expression_type(ty: &ParamType) -> Type {
    match ty {
        ParamType::Int => Type::Int,
        ParamType::F32 | ParamType::F64 => Type::Float,
        ParamType::Bool => Type::Bool,
        ParamType::Enum(cases) => Type::enumeration(cases.iter().cloned()),
    }
}

fn describe(ty: &ParamType) -> String {
    match ty {
        ParamType::Int => "an int".to_owned(),
        ParamType::F32 | ParamType::F64 => "a number".to_owned(),
        ParamType::Bool => "`true` or `false`".to_owned(),
        ParamType::Enum(cases) => format!("one of {}", listed(cases.iter().map(String::as_str))),
    }
}

/// The operator and constant of a part of a range, if it is a comparison with a constant of the parameter's type.
fn comparison(part: &str, ty: &ParamType) -> Option<(&'static str, f64)> {
    let operators = ["<=", ">=", "==", "!=", "<", ">"];
    let (operator, constant) =
        operators.into_iter().find_map(|operator| Some((operator, part.strip_prefix(operator)?)))?;
    let typed = expr::check_expecting(constant, &VariableTable::new(), &expression_type(ty)).ok()?;
    match typed.fold_constant()? {
        Value::Int(value) => Some((operator, value as f64)),
        Value::Float(value) => Some((operator, value)),
        Value::Bool(_) | Value::Enum(_) => None,
    }
}

/// Whether a range is empty. A bound is an operator with its constant.
fn is_empty_range(parts: &[&str], ty: &ParamType) -> bool {
    let mut low = (f64::NEG_INFINITY, false);
    let mut high = (f64::INFINITY, false);
    for part in parts {
        let Some((operator, bound)) = comparison(part, ty) else { continue };
        // For integers, a strict bound is equivalent to the next integer.
        let step = if *ty == ParamType::Int { 1.0 } else { 0.0 };
        let strict = *ty != ParamType::Int;
        match operator {
            ">" => low = (bound + step, strict),
            ">=" => low = (bound, false),
            "<" => high = (bound - step, strict),
            "<=" => high = (bound, false),
            _ => {}
        }
    }
    low.0 > high.0 || (low.0 == high.0 && (low.1 || high.1))
}

/// The range as written, without the parameter's name.
fn bare_range(range: &Typed) -> String {
    let name = range.text.split(' ').next().unwrap_or("");
    range.text.replace(&format!("{name} "), "")
}
