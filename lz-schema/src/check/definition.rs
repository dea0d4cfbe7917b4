//! `definition`: what it names exists, and what the schema does not state it says in full.

use super::Checker;
use crate::definition::{
    DTYPES, Definition, DefinitionArgument, DefinitionAxis, DefinitionConstraint, DefinitionShape, Stated,
};
use crate::diagnostics::{Code, listed, nearest};
use crate::model::Operation;
use crate::raw::definition::{RawDefinition, RawDefinitionArgument, RawDefinitionAxis, Verbatim};
use crate::raw::{Named, NamedEntry};
use crate::source::Spanned;

/// Where an argument of a definition may be stated.
type Places = Vec<(String, Stated)>;

impl Checker<'_> {
    /// Checks the section against an operation that is otherwise right.
    pub(super) fn definition(&mut self, raw: &RawDefinition, operation: &Operation) -> Option<Definition> {
        let axes = self.definition_axes(raw.axes.as_ref()?, operation);
        let tensors = operation.inputs.iter().enumerate();
        let mut inputs: Places =
            tensors.clone().map(|(at, input)| (input.name.clone(), Stated::Input(at))).collect();
        let params = operation.params.iter().enumerate();
        inputs.extend(params.map(|(at, param)| (param.name.clone(), Stated::Param(at))));
        let made = operation.outputs.iter().enumerate();
        let mut outputs: Places =
            made.map(|(at, output)| (output.name.clone(), Stated::Output(at))).collect();
        let changed = tensors.filter(|(_, input)| input.read_write);
        outputs.extend(changed.map(|(at, input)| (input.name.clone(), Stated::Input(at))));
        let inputs = self.definition_arguments("an input or parameter", raw.inputs.as_ref()?, &inputs);
        let outputs =
            self.definition_arguments("an output or changed input", raw.outputs.as_ref()?, &outputs);
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
        let places: Vec<(String, usize)> =
            operation.axes.iter().enumerate().map(|(at, axis)| (axis.name.clone(), at)).collect();
        let mut taken = Vec::new();
        let entries = raw.entries.iter().filter_map(|entry| {
            let axis = entry.value.as_ref()?;
            let stated =
                self.stated(Code::UndefinedAxis, "an axis", entry, axis.as_.as_ref(), &places, &mut taken);
            if stated.is_none() && axis.as_.is_none() && axis.type_.is_none() {
                self.only_there(&entry.name, "`type`");
            }
            let constant = axis.type_.as_ref().map(|word| match word.value.as_str() {
                "const" => true,
                "var" => false,
                other => {
                    let message = format!("`{other}` is not a type of axis");
                    self.sink
                        .error(Code::UnknownWord, word.span, message)
                        .suggest(nearest(other, ["const", "var"]))
                        .note("the choices are `const` and `var`");
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
        places: &Places,
    ) -> Vec<DefinitionArgument> {
        let mut taken = Vec::new();
        let entries = raw.entries.iter().filter_map(|entry| {
            let argument = entry.value.as_ref()?;
            let stated =
                self.stated(Code::UndefinedInput, what, entry, argument.as_.as_ref(), places, &mut taken);
            let scalar = argument.scalar.as_ref().is_some_and(|scalar| scalar.value);
            let shape = match &argument.shape {
                Some(shape) if scalar => {
                    let message = format!("`{}` is a scalar, so `shape` has no meaning", entry.name.value);
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
                self.only_there(&entry.name, "`dtype`, and `shape` or `scalar`,");
            }
            if let Some(dtype) =
                argument.dtype.as_ref().filter(|dtype| !DTYPES.contains(&dtype.value.as_str()))
            {
                let message = format!("`{}` is not a dtype of definitions", dtype.value);
                self.sink
                    .error(Code::UnknownDtype, dtype.span, message)
                    .suggest(nearest(&dtype.value, DTYPES))
                    .note(format!("they are {}", listed(DTYPES)));
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

    /// What of the schema an entry means: the thing named by `as`, or the one of its own name.
    fn stated<T, Place: Copy + PartialEq>(
        &mut self,
        code: Code,
        what: &str,
        entry: &NamedEntry<T>,
        by: Option<&Spanned<String>>,
        places: &[(String, Place)],
        taken: &mut Vec<Place>,
    ) -> Option<Place> {
        let name = by.unwrap_or(&entry.name);
        let Some((_, place)) = places.iter().find(|(known, _)| *known == name.value) else {
            if let Some(by) = by {
                let near = nearest(&by.value, places.iter().map(|(known, _)| known.as_str()));
                let message = format!("`{}` is not {what} of this operation", by.value);
                self.sink.error(code, by.span, message).suggest(near);
            }
            return None;
        };
        if taken.contains(place) {
            let message = format!("`{}` is already stated by another entry", name.value);
            self.sink.error(Code::RepeatedItem, name.span, message);
        }
        taken.push(*place);
        Some(*place)
    }

    fn only_there(&mut self, name: &Spanned<String>, needed: &str) {
        let message = format!("the schema does not state `{}`, so {needed} must be here", name.value);
        self.sink
            .error(Code::MissingKey, name.span, message)
            .note("`as: name` says what of the schema states it under another name");
    }
}

fn text(raw: Option<&Verbatim>) -> Option<String> {
    raw.map(|raw| raw.text.clone())
}
