//! Coverage of drawn cases: a run fails if a case was never drawn, because it was then not tested.

use std::collections::BTreeSet;

use lz_core::ReasonCode;
use lz_core::expr::Value;
use lz_schema::model::{Contiguous, Kind, Operation, ParamType};

use crate::broken::Break;
use crate::call::{OwnedArg, OwnedCall, OwnedOut};
use crate::memory::Pattern;

/// Drawn facts, as text.
#[derive(Debug, Default)]
pub struct Coverage {
    seen: BTreeSet<String>,
}

impl Coverage {
    /// Records a valid call.
    pub fn valid(&mut self, operation: &Operation, call: &OwnedCall) {
        for (input, arg) in operation.inputs.iter().zip(&call.args) {
            if input.optional.is_some() {
                self.note(format!("{} given: {}", input.name, arg.is_given()));
            }
            if let Some(tensor) = arg.tensor() {
                self.note(format!("{} is {}", input.name, tensor.layout().dtype));
                self.note(format!("{} lies {:?}", input.name, tensor.pattern()));
                if tensor.layout().shape.contains(&0) {
                    self.note("an empty input".to_owned());
                }
                if !tensor.address().is_multiple_of(64) {
                    self.note("an input off a cache line".to_owned());
                }
            }
        }
        for (param, arg) in operation.params.iter().zip(&call.args[operation.inputs.len()..]) {
            match (arg, &param.ty) {
                (OwnedArg::Absent, _) => self.note(format!("{} left out", param.name)),
                (OwnedArg::Value(Value::Enum(case)), ParamType::Enum(cases)) => {
                    self.note(format!("{} = {}", param.name, cases[*case as usize]));
                }
                (OwnedArg::Value(Value::Bool(value)), _) => self.note(format!("{} = {value}", param.name)),
                _ => self.note(format!("{} given", param.name)),
            }
        }
        for (output, slot) in operation.outputs.iter().zip(&call.outputs) {
            match slot {
                OwnedOut::Absent => self.note(format!("no output {}", output.name)),
                OwnedOut::Tensor(tensor) => {
                    self.note(format!("output {}", output.name));
                    self.note(format!("output {} lies {:?}", output.name, tensor.pattern()));
                }
                _ => self.note(format!("output {}", output.name)),
            }
        }
    }

    /// Records a faulty call and its reason code.
    pub fn broken(&mut self, broken: Break, code: ReasonCode) {
        self.note(format!("{broken:?}"));
        self.note(format!("reason {code}"));
    }

    fn note(&mut self, fact: String) {
        self.seen.insert(fact);
    }

    /// Facts that should have been drawn and were not.
    pub fn missing(&self, required: impl IntoIterator<Item = String>) -> Vec<String> {
        required.into_iter().filter(|fact| !self.seen.contains(fact)).collect()
    }
}

/// Every fact that valid calls of an operation must cover.
pub fn required_facts(operation: &Operation) -> Vec<String> {
    let mut facts = Vec::new();
    let mut sized = false;
    for input in &operation.inputs {
        if input.optional.is_some() {
            facts.extend([true, false].map(|given| format!("{} given: {given}", input.name)));
        }
        if input.kind != Kind::Tensor {
            continue;
        }
        sized = true;
        for reference in input.dtype.all() {
            match reference {
                lz_schema::model::DTypeRef::Fixed(dtype) => facts.push(format!("{} is {dtype}", input.name)),
                lz_schema::model::DTypeRef::Variable(variable) => facts.extend(
                    operation.types[*variable]
                        .dtypes
                        .iter()
                        .map(|dtype| format!("{} is {dtype}", input.name)),
                ),
            }
        }
        let patterns: &[Pattern] = match input.contiguous {
            Contiguous::All => &[Pattern::Contiguous],
            Contiguous::Last => &[Pattern::Contiguous, Pattern::Padded],
            Contiguous::None if input.read_write || input.values.is_some() => &Pattern::WRITTEN,
            Contiguous::None => &Pattern::READ,
        };
        // A tensor without dimensions has only one layout.
        let patterns = if input.shape.all().iter().all(Vec::is_empty) { &[] } else { patterns };
        facts.extend(patterns.iter().map(|pattern| format!("{} lies {pattern:?}", input.name)));
    }
    if sized {
        facts.push("an input off a cache line".to_owned());
        facts.push("an empty input".to_owned());
    }
    for param in &operation.params {
        if param.default.is_some() {
            facts.push(format!("{} left out", param.name));
        }
        match &param.ty {
            ParamType::Enum(cases) => {
                facts.extend(cases.iter().map(|case| format!("{} = {case}", param.name)))
            }
            ParamType::Bool => facts.extend([true, false].map(|value| format!("{} = {value}", param.name))),
            _ => facts.push(format!("{} given", param.name)),
        }
    }
    for output in &operation.outputs {
        facts.push(format!("output {}", output.name));
        if output.when.is_some() {
            facts.push(format!("no output {}", output.name));
        }
        if !output.is_dynamic(operation) {
            facts.extend(Pattern::WRITTEN.map(|pattern| format!("output {} lies {pattern:?}", output.name)));
        }
    }
    facts
}
