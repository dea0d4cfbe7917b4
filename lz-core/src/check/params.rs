//! Params: their types, defaults and ranges.

use lz_schema::expr::Value;
use lz_schema::model::{Param, ParamType};

use super::Checker;
use crate::args::Arg;
use crate::reason::{Reason, ReasonCode};

impl Checker<'_, '_> {
    /// Checks the types of given params; also fills in defaults of enum params, because shapes may depend on them.
    pub(super) fn check_param_types(&mut self) {
        let operation = self.operation;
        for (index, param) in operation.params.iter().enumerate() {
            let slot = operation.axes.len() + index;
            match &self.args[operation.inputs.len() + index] {
                Arg::Absent => {
                    if let Some(Value::Enum(case)) =
                        param.default.as_ref().and_then(|default| default.fold_constant())
                    {
                        self.bound.values[slot] = Value::Enum(case);
                    }
                }
                Arg::Value(value) => match convert(param, *value) {
                    Some(value) => self.bound.values[slot] = value,
                    None => self.problems.push(
                        Reason::new(ReasonCode::ParamType)
                            .argument(&param.name)
                            .required(type_name(param))
                            .found(format!("{value:?}")),
                    ),
                },
                other => self.problems.push(
                    Reason::new(ReasonCode::ArgumentKind)
                        .argument(&param.name)
                        .required(type_name(param))
                        .found(other.kind_name()),
                ),
            }
        }
    }

    /// Fills in defaults. Adds the slots of params that are missing, have the wrong type or whose default cannot be computed to the
    /// `unknown` ones; what depends on them is not checked.
    pub(super) fn fill_defaults(&mut self, mut unknown: Vec<u16>) -> Vec<u16> {
        let operation = self.operation;
        for (index, param) in operation.params.iter().enumerate() {
            let slot = operation.axes.len() + index;
            match &self.args[operation.inputs.len() + index] {
                Arg::Absent => {}
                Arg::Value(value) if convert(param, *value).is_some() => continue,
                _ => {
                    unknown.push(slot as u16);
                    continue;
                }
            }
            let Some(default) = &param.default else {
                self.problems.push(
                    Reason::new(ReasonCode::MissingArgument)
                        .argument(&param.name)
                        .required(type_name(param))
                        .message(format!("{} must be given; it has no default", param.name)),
                );
                unknown.push(slot as u16);
                continue;
            };
            if default.variables().iter().any(|variable| unknown.contains(&variable.index)) {
                unknown.push(slot as u16);
                continue;
            }
            match self
                .evaluate(default, &format!("the default of {}", param.name))
                .and_then(|value| convert(param, value))
            {
                Some(value) => self.bound.values[slot] = value,
                None => unknown.push(slot as u16),
            }
        }
        unknown
    }

    pub(super) fn check_ranges(&mut self, unknown: &[u16]) {
        let operation = self.operation;
        for (index, param) in operation.params.iter().enumerate() {
            let Some(range) = &param.range else { continue };
            // A range is an expression over its own param, among others.
            if range.variables().iter().any(|variable| unknown.contains(&variable.index)) {
                continue;
            }
            if let Some(Value::Bool(false)) = self.evaluate(range, &format!("the range of {}", param.name)) {
                let found = self.describe_slot((operation.axes.len() + index) as u16);
                self.problems.push(
                    Reason::new(ReasonCode::ParamOutOfRange)
                        .argument(&param.name)
                        .required(param.range_text.clone())
                        .found(found.clone())
                        .message(format!("{} must be {}, but is {found}", param.name, param.range_text)),
                );
            }
        }
    }
}

/// Converts a value to the param's type; f32 is rounded as the caller's f32 would be.
fn convert(param: &Param, value: Value) -> Option<Value> {
    match (&param.ty, value) {
        (ParamType::Int, Value::Int(_)) | (ParamType::Bool, Value::Bool(_)) => Some(value),
        (ParamType::F32, Value::Float(value)) => Some(Value::Float(f64::from(value as f32))),
        (ParamType::F32, Value::Int(value)) => Some(Value::Float(f64::from(value as f32))),
        (ParamType::F64, Value::Float(_)) => Some(value),
        (ParamType::F64, Value::Int(value)) => Some(Value::Float(value as f64)),
        (ParamType::Enum(cases), Value::Enum(case)) if (case as usize) < cases.len() => Some(value),
        _ => None,
    }
}

/// The name of the type, for messages.
pub(super) fn type_name(param: &Param) -> String {
    match &param.ty {
        ParamType::Int => "an int".to_owned(),
        ParamType::F32 | ParamType::F64 => "a float".to_owned(),
        ParamType::Bool => "a bool".to_owned(),
        ParamType::Enum(cases) => format!("one of {}", cases.join(", ")),
    }
}

/// The name of an enum case.
pub(super) fn case_name(param: &Param, case: u32) -> String {
    match &param.ty {
        ParamType::Enum(cases) => cases.get(case as usize).cloned().unwrap_or_else(|| case.to_string()),
        _ => case.to_string(),
    }
}
