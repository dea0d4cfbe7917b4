//! Validates a parsed schema and builds the model, reporting all errors at once.
//!
//! Each submodule validates one section of the language. A section is validated even if an earlier one has errors. Entries
//! with errors are left out of the symbol tables and are not reported twice.

mod aliases;
mod arguments;
mod axes;
mod binding;
mod definition;
mod dequantizes;
mod equivalence;
mod evaluation;
mod expressions;
mod names;
mod params;
mod shapes;
mod statistics;
mod symbols;
mod types;
mod workloads;

use sha2::{Digest, Sha256};

use crate::diagnostics::{Code, Sink};
use crate::expr::Type;
use crate::model::{Constraint, Operation};
use crate::raw::Named;
use crate::raw::language::{RawConstraint, RawOperation};
use crate::reasons::Reasons;
use crate::source::Span;

pub(crate) use dequantizes::report_mismatch;
use expressions::ExprContext;
use symbols::Symbols;
use workloads::Sections;

pub(crate) use names::is_dotted_name;
pub use names::is_free_name;

/// Validates one operation. Returns the model only if the file has no errors.
pub(crate) fn operation(raw: &RawOperation, reasons: &Reasons, sink: &mut Sink) -> Option<Operation> {
    let mut checker = Checker { sink, reasons, symbols: Symbols::default() };
    checker.operation(raw)
}

struct Checker<'a> {
    sink: &'a mut Sink,
    reasons: &'a Reasons,
    symbols: Symbols,
}

impl Checker<'_> {
    fn operation(&mut self, raw: &RawOperation) -> Option<Operation> {
        self.identity(raw);
        self.names(raw);
        let mut axes = self.axes(raw);
        let mut types = self.types(raw);
        let params = self.params(raw);
        let inputs = self.inputs(raw, &types);
        self.statistics(raw, &types, &params, &inputs);
        let outputs = self.outputs(raw, &inputs);
        let constraints = self.constraints(raw);
        self.bind_axes(&mut axes, &inputs);
        self.bind_types(&mut types, &inputs);
        let equivalence = self.equivalence(raw, &types, &inputs, &outputs);
        let aliases = self.aliases(raw, &params);
        let dequantizes = raw.dequantizes.as_ref().and_then(|raw| self.dequantizes(raw, &inputs));
        let sections = Sections { axes: &axes, types: &types, params: &params, inputs: &inputs };
        let workloads = self.workloads(raw, &sections);
        if !self.sink.diagnostics.is_empty() {
            return None;
        }
        let mut operation = Operation {
            name: raw.operation.as_ref()?.value.clone(),
            version: u32::try_from(raw.version.as_ref()?.value).ok()?,
            summary: raw.summary.as_ref()?.value.clone(),
            doc: raw.doc.as_ref()?.value.clone(),
            specializes: None,
            dequantizes,
            aliases,
            axes,
            types,
            inputs: inputs.into_iter().collect::<Option<_>>()?,
            params: params.into_iter().collect::<Option<_>>()?,
            outputs: outputs.into_iter().collect::<Option<_>>()?,
            constraints,
            semantics: raw
                .semantics
                .iter()
                .flat_map(|semantics| &semantics.entries)
                .map(|(key, value)| (key.value.clone(), value.value.clone()))
                .collect(),
            equivalence: equivalence?,
            workloads,
            definition: None,
            digest: digest(&self.sink.source.text),
        };
        // Evaluating the workloads requires an operation that is otherwise valid.
        self.evaluate_workloads(raw, &operation);
        if let Some(definition) = &raw.definition {
            operation.definition = self.definition(definition, &operation);
        }
        self.sink.diagnostics.is_empty().then_some(operation)
    }

    fn identity(&mut self, raw: &RawOperation) {
        if let Some(name) = &raw.operation
            && !is_dotted_name(&name.value)
        {
            self.sink
                .error(Code::BadName, name.span, format!("`{}` is not a valid operation name", name.value))
                .note("expected words of lower-case letters, digits and underscores, joined by dots: `attention.mla.decode`");
        }
        if let Some(version) = &raw.version
            && !(1..=i64::from(u32::MAX)).contains(&version.value)
        {
            self.sink.error(Code::BadNumber, version.span, "a version must be an integer >= 1");
        }
        if let Some(summary) = &raw.summary
            && summary.value.contains('\n')
        {
            self.sink.error(Code::WrongForm, summary.span, "a summary must be one sentence on one line");
        }
        self.not_empty("axes", raw.axes.as_ref());
        self.not_empty("inputs", raw.inputs.as_ref());
        self.not_empty("workloads", raw.workloads.as_ref());
    }

    fn not_empty<T>(&mut self, what: &str, section: Option<&Named<T>>) {
        if let Some(section) = section.filter(|section| section.entries.is_empty()) {
            self.empty(what, section.span);
        }
    }

    fn empty(&mut self, what: &str, span: Span) {
        self.sink.error(Code::Empty, span, format!("`{what}` is empty"));
    }

    fn constraints(&mut self, raw: &RawOperation) -> Vec<Constraint> {
        let constraints = raw.constraints.iter().flat_map(|list| &list.value);
        constraints.filter_map(|constraint| self.constraint(constraint)).collect()
    }

    fn constraint(&mut self, raw: &RawConstraint) -> Option<Constraint> {
        if let Some(code) = &raw.code
            && self.reasons.get(&code.value).is_none()
        {
            let near = self.reasons.nearest(&code.value).map(str::to_owned);
            self.sink
                .error(Code::UnknownReason, code.span, format!("unknown reason code `{}`", code.value))
                .suggest(near)
                .note("`lz docs operating` lists all reason codes");
        }
        let check = self.expression(raw.check.as_ref()?, ExprContext::Constraint, &Type::Bool)?;
        Some(Constraint {
            check,
            code: raw.code.as_ref()?.value.clone(),
            message: raw.message.as_ref()?.value.clone(),
        })
    }
}

/// SHA-256 of a text, lower-case hex.
pub(crate) fn digest(text: &str) -> String {
    use std::fmt::Write;
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
