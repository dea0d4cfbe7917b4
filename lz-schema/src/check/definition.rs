//! Validates `definition`: the names that it refers to exist, and entries that the schema does not define are complete.

use super::Checker;
use crate::definition::{
    DTYPES, Definition, DefinitionArgument, DefinitionAxis, DefinitionConstraint, DefinitionShape, Stated,
};
use crate::diagnostics::{Code, listed, nearest};
use crate::model::Operation;
use crate::raw::definition::{RawDefinition, RawDefinitionArgument, RawDefinitionAxis, Verbatim};
use crate::raw::{Named, NamedEntry};
use crate::source::Spanned;

/// The schema items that may correspond to an argument of a definition, by name.
type Candidates = Vec<(String, Stated)>;

impl Checker<'_> {
    /// Validates the section for an operation that is otherwise valid.
    pub(super) fn definition(&mut self, raw: &RawDefinition, operation: &Operation) -> Option<Definition> {
        let axes = self.definition_axes(raw.axes.as_ref()?, operation);
        let tensors = operation.inputs.iter().enumerate();
        let mut inputs: Candidates =
            tensors.clone().map(|(at, input)| (input.name.clone(), Stated::Input(at))).collect();
        let params = operation.params.iter().enumerate();
        inputs.extend(params.map(|(at, param)| (param.name.clone(), Stated::Param(at))));
        let produced = operation.outputs.iter().enumerate();
        let mut outputs: Candidates =
            produced.map(|(at, output)| (output.name.clone(), Stated::Output(at))).collect();
        let changed = tensors.filter(|(_, input)| input.read_write);
        outputs.extend(changed.map(|(at, input)| (input.name.clone(), Stated::Input(at))));
        let inputs = self.definition_arguments("an input or parameter", raw.inputs.as_ref()?, &inputs);
        let outputs =
            self.definition_arguments("an output or in-place input", raw.outputs.as_ref()?, &outputs);
        let constraints = raw.constraints.as_ref().map(|list| {
            let constraints = list.value.iter().filter_map(|constraint| {
                let value_dependent = constraint.value_dependent.as_ref().is_some_and(|flag| flag.value);
                Some(DefinitionConstraint { check: constraint.check.as_ref()?.text.clone(), value_dependent })
            });
            constraints.collect()
        });
        Some(Definition {
            name: raw.name.as_ref()?.text.clone(),
            op_type: raw.op_type.as_ref()?.text.clone(),
            description: text(raw.description.as_ref()),
            tags: raw.tags.as_ref().map(|tags| tags.value.iter().map(|tag| tag.text.clone()).collect()),
            axes,
            inputs,
            outputs,
            constraints,
            reference: text(raw.reference.as_ref()),
            init: text(raw.init.as_ref()),
            check: text(raw.check.as_ref()),
        })
    }

    fn definition_axes(
        &mut self,
        raw: &Named<RawDefinitionAxis>,
        operation: &Operation,
    ) -> Vec<DefinitionAxis> {
        let candidates: Vec<(String, usize)> =
            operation.axes.iter().enumerate().map(|(at, axis)| (axis.name.clone(), at)).collect();
        let mut used = Vec::new();
        let entries = raw.entries.iter().filter_map(|entry| {
            let axis = entry.value.as_ref()?;
            let stated = self.corresponding_item(
                Code::UndefinedAxis,
                "an axis",
                entry,
                axis.as_.as_ref(),
                &candidates,
                &mut used,
            );
            if stated.is_none() && axis.as_.is_none() && axis.type_.is_none() {
                self.require_key(&entry.name, "`type`");
            }
            let constant = axis.type_.as_ref().map(|word| match word.value.as_str() {
                "const" => true,
                "var" => false,
                other => {
                    let message = format!("unknown axis type `{other}`");
                    self.sink
                        .error(Code::UnknownWord, word.span, message)
                        .suggest(nearest(other, ["const", "var"]))
                        .note("expected `const` or `var`");
                    false
                }
            });
            Some(DefinitionAxis {
                name: entry.name.value.clone(),
                axis: stated,
                constant,
                value: axis.value.as_ref().map(|value| value.value),
                undefined: axis.undefined.as_ref().is_some_and(|undefined| undefined.value),
                description: text(axis.description.as_ref()),
            })
        });
        entries.collect()
    }

    fn definition_arguments(
        &mut self,
        what: &str,
        raw: &Named<RawDefinitionArgument>,
        candidates: &Candidates,
    ) -> Vec<DefinitionArgument> {
        let mut used = Vec::new();
        let entries = raw.entries.iter().filter_map(|entry| {
            let argument = entry.value.as_ref()?;
            let stated = self.corresponding_item(
                Code::UndefinedInput,
                what,
                entry,
                argument.as_.as_ref(),
                candidates,
                &mut used,
            );
            let scalar = argument.scalar.as_ref().is_some_and(|scalar| scalar.value);
            let shape = match &argument.shape {
                Some(shape) if scalar => {
                    let message = format!("`{}` is a scalar and cannot have `shape`", entry.name.value);
                    self.sink.error(Code::ConflictingKeys, shape.span, message);
                    None
                }
                Some(shape) => {
                    Some(DefinitionShape::Axes(shape.value.iter().map(|dim| dim.text.clone()).collect()))
                }
                None => scalar.then_some(DefinitionShape::Scalar),
            };
            let unstated = stated.is_none() && argument.as_.is_none();
            if unstated && (argument.dtype.is_none() || (argument.shape.is_none() && !scalar)) {
                self.require_key(&entry.name, "`dtype`, and `shape` or `scalar`,");
            }
            if let Some(dtype) =
                argument.dtype.as_ref().filter(|dtype| !DTYPES.contains(&dtype.value.as_str()))
            {
                let message = format!("`{}` is not a dtype of FlashInfer-Bench definitions", dtype.value);
                self.sink
                    .error(Code::UnknownDtype, dtype.span, message)
                    .suggest(nearest(&dtype.value, DTYPES))
                    .note(format!("expected one of {}", listed(DTYPES)));
            }
            Some(DefinitionArgument {
                name: entry.name.value.clone(),
                stated,
                shape,
                dtype: argument.dtype.as_ref().map(|dtype| dtype.value.clone()),
                optional: argument.optional.as_ref().map(|optional| optional.value),
                param: text(argument.param.as_ref()),
                description: text(argument.description.as_ref()),
            })
        });
        entries.collect()
    }

    /// The schema item that corresponds to an entry: the one named by `as`, or the one with the entry's name.
    fn corresponding_item<T, Item: Copy + PartialEq>(
        &mut self,
        code: Code,
        what: &str,
        entry: &NamedEntry<T>,
        by: Option<&Spanned<String>>,
        candidates: &[(String, Item)],
        used: &mut Vec<Item>,
    ) -> Option<Item> {
        let name = by.unwrap_or(&entry.name);
        let Some((_, item)) = candidates.iter().find(|(known, _)| *known == name.value) else {
            if let Some(by) = by {
                let near = nearest(&by.value, candidates.iter().map(|(known, _)| known.as_str()));
                let message = format!("`{}` is not {what} of this operation", by.value);
                self.sink.error(code, by.span, message).suggest(near);
            }
            return None;
        };
        if used.contains(item) {
            let message = format!("another entry already corresponds to `{}`", name.value);
            self.sink.error(Code::RepeatedItem, name.span, message);
        }
        used.push(*item);
        Some(*item)
    }

    fn require_key(&mut self, name: &Spanned<String>, needed: &str) {
        let message = format!("the schema does not define `{}`, so {needed} is required here", name.value);
        self.sink
            .error(Code::MissingKey, name.span, message)
            .note("if the schema defines it under another name, add `as: name`");
    }
}

fn text(raw: Option<&Verbatim>) -> Option<String> {
    raw.map(|raw| raw.text.clone())
}
