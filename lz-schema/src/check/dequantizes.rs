//! Validates `dequantizes`: in one file its names, and in a set that it fits the operations that it refers to.

use super::Checker;
use super::expressions::ExprContext;
use crate::diagnostics::{Code, Sink, nearest};
use crate::expr::Type;
use crate::model::{DequantizeArgument, DequantizedInput, Dequantizes, Input, Operation, ParamType};
use crate::raw::language::RawDequantizes;
use crate::raw::{Named, NamedEntry};
use crate::source::Spanned;

/// The operation that dequantizes.
const DEQUANTIZE: &str = "dequantize";

impl Checker<'_> {
    /// The relation, with the names of this file resolved.
    pub(super) fn dequantizes(
        &mut self,
        raw: &RawDequantizes,
        inputs: &[Option<Input>],
    ) -> Option<Dequantizes> {
        let when = match &raw.when {
            Some(when) => Some(self.expression(when, ExprContext::Constraint, &Type::Bool)?),
            None => None,
        };
        let entries = &raw.inputs.as_ref()?.entries;
        if entries.is_empty() {
            self.empty("dequantizes.inputs", raw.inputs.as_ref()?.span);
        }
        let inputs =
            entries.iter().map(|entry| self.dequantized_input(entry, inputs)).collect::<Option<_>>()?;
        Some(Dequantizes { operation: raw.operation.as_ref()?.value.clone(), when, inputs })
    }

    fn dequantized_input(
        &mut self,
        entry: &NamedEntry<Named<Spanned<String>>>,
        inputs: &[Option<Input>],
    ) -> Option<DequantizedInput> {
        let arguments = entry.value.as_ref()?.entries.iter().filter_map(|argument| {
            let source = self.dequantize_argument(argument.value.as_ref()?, inputs);
            Some((argument.name.value.clone(), source))
        });
        Some(DequantizedInput { name: entry.name.value.clone(), arguments: arguments.collect() })
    }

    /// A name of this operation, or otherwise the case of an enum, which is checked together with the other operations.
    fn dequantize_argument(&self, written: &Spanned<String>, inputs: &[Option<Input>]) -> DequantizeArgument {
        let name = written.value.as_str();
        let input = inputs.iter().position(|input| input.as_ref().is_some_and(|input| input.name == name));
        let param = || self.symbols.params.iter().position(|param| param.name == name);
        let axis = || self.symbols.axes.iter().position(|axis| axis.name == name);
        let variable = || self.symbols.types.iter().position(|variable| variable.name == name);
        input
            .map(DequantizeArgument::Input)
            .or_else(|| param().map(DequantizeArgument::Param))
            .or_else(|| axis().map(DequantizeArgument::Axis))
            .or_else(|| variable().map(DequantizeArgument::Type))
            .unwrap_or_else(|| DequantizeArgument::Case(written.value.clone()))
    }
}

/// Reports a relation that does not fit: `find` returns other operations of the set.
pub(crate) fn report_mismatch<'a>(
    raw: &RawDequantizes,
    operation: &Operation,
    find: impl Fn(&str) -> Option<&'a Operation>,
    sink: &mut Sink,
) {
    let (Some(stated), Some(written), Some(relation)) = (&raw.operation, &raw.inputs, &operation.dequantizes)
    else {
        return;
    };
    let Some(other) = find(&stated.value) else {
        let message = format!("operation `{}` does not exist", stated.value);
        sink.error(Code::DequantizesMismatch, stated.span, message);
        return;
    };
    let Some(dequantize) = find(DEQUANTIZE) else {
        let message = format!("operation `{DEQUANTIZE}` does not exist");
        sink.error(Code::DequantizesMismatch, stated.span, message);
        return;
    };
    for (entry, input) in written.entries.iter().zip(&relation.inputs) {
        if !other.inputs.iter().any(|known| known.name == input.name) {
            let near = nearest(&input.name, other.inputs.iter().map(|known| known.name.as_str()));
            let message = format!("`{}` is not an input of `{}`", input.name, other.name);
            sink.error(Code::DequantizesMismatch, entry.name.span, message).suggest(near);
        }
        let arguments = entry.value.iter().flat_map(|arguments| &arguments.entries);
        for (argument, (_, source)) in arguments.zip(&input.arguments) {
            report_argument(argument, source, dequantize, sink);
        }
    }
    for input in &other.inputs {
        let is_made = relation.inputs.iter().any(|made| made.name == input.name);
        if !is_made && input.optional.is_none() && !operation.inputs.iter().any(|own| own.name == input.name)
        {
            let message = format!("input `{}` of `{}` is missing", input.name, other.name);
            sink.error(Code::DequantizesMismatch, stated.span, message)
                .note("it must be dequantized, or be an input of this operation too");
        }
    }
    for input in &operation.inputs {
        let uses = |source: &DequantizeArgument| matches!(source, DequantizeArgument::Input(index) if operation.inputs.get(*index).is_some_and(|used| used.name == input.name));
        let is_dequantized =
            relation.inputs.iter().any(|made| made.arguments.iter().any(|(_, source)| uses(source)));
        if !is_dequantized && !other.inputs.iter().any(|known| known.name == input.name) {
            let message = format!("input `{}` is not used by `{}`", input.name, other.name);
            sink.error(Code::DequantizesMismatch, stated.span, message)
                .note("pass it to `dequantize`, or exclude calls that have it by `when`");
        }
    }
}

fn report_argument(
    entry: &NamedEntry<Spanned<String>>,
    source: &DequantizeArgument,
    dequantize: &Operation,
    sink: &mut Sink,
) {
    let name = &entry.name;
    let param = dequantize.params.iter().find(|param| param.name == name.value);
    let is_input = dequantize.inputs.iter().any(|input| input.name == name.value);
    let problem = match (source, param) {
        (_, None) if !is_input => {
            let known = dequantize.inputs.iter().map(|input| input.name.as_str());
            let known = known.chain(dequantize.params.iter().map(|param| param.name.as_str()));
            let near = nearest(&name.value, known);
            let message = format!("`{}` is not an argument of `{DEQUANTIZE}`", name.value);
            sink.error(Code::DequantizesMismatch, name.span, message).suggest(near);
            return;
        }
        (DequantizeArgument::Input(_), None) => return,
        (DequantizeArgument::Case(case), Some(param)) => match &param.ty {
            ParamType::Enum(cases) if cases.contains(case) => return,
            _ => format!("`{case}` is neither a name of this operation nor a case of `{}`", param.name),
        },
        (DequantizeArgument::Input(_), Some(param)) => {
            format!("`{}` is a param of `{DEQUANTIZE}`, but this is an input", param.name)
        }
        (_, None) => format!("`{}` is an input of `{DEQUANTIZE}`, but this is no input", name.value),
        _ => return,
    };
    let span = entry.value.as_ref().map_or(name.span, |value| value.span);
    sink.error(Code::DequantizesMismatch, span, problem);
}
