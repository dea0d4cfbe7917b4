//! Constraints in Python, and the axes that shapes and constraints are about.

use lz_schema::expr::Typed;
use lz_schema::model::{Slot, ValueRule};

use super::Exporter;
use crate::format::{Argument, Axis};

impl Exporter<'_> {
    /// A condition that holds too where a parameter that it reads is left to its default.
    fn condition(&self, typed: &Typed) -> String {
        let read = typed.variables();
        let read = read.iter().filter_map(|variable| match self.slots.get(usize::from(variable.index)) {
            Some(Slot::Param(at)) if self.case(*at).is_none() => Some(*at),
            _ => None,
        });
        let optional =
            read.filter(|at| self.operation.params.get(*at).is_some_and(|param| param.default.is_some()));
        let absent: String = optional
            .filter_map(|at| self.param_names.get(at))
            .map(|name| format!("{name} is None or "))
            .collect();
        let condition = self.python(typed);
        // What binds more loosely than `or` needs parentheses behind one.
        if absent.is_empty() || !condition.contains(" if ") {
            absent + &condition
        } else {
            format!("{absent}({condition})")
        }
    }

    /// Remembered constraints as they were, then what the schema says beyond them.
    pub(super) fn constraints(&self) -> Vec<String> {
        let memory = self.operation.definition.as_ref();
        let remembered = memory.iter().flat_map(|memory| memory.constraints.iter().flatten());
        let mut texts: Vec<String> = remembered.map(|constraint| constraint.check.clone()).collect();
        texts.extend(self.computed.iter().filter_map(|(.., constraint)| constraint.clone()));
        for constraint in &self.operation.constraints {
            // Messages of schemas have no space around them.
            if !texts.iter().any(|text| text.split_whitespace().eq(constraint.message.split_whitespace())) {
                texts.push(self.condition(&constraint.check));
            }
        }
        for (at, param) in self.operation.kernel_params().enumerate() {
            if let (Some(range), None) = (&param.range, self.case(at)) {
                texts.push(self.condition(range));
            }
        }
        for (at, input) in self.operation.inputs.iter().enumerate() {
            let Some(name) = self.input_names.get(at) else { continue };
            let rule = match &input.values {
                None => continue,
                Some(ValueRule::IndptrOf(size)) => format!("{} == {name}[-1].item()", self.python(size)),
                Some(ValueRule::IndptrWithin(size)) => format!("{} >= {name}[-1].item()", self.python(size)),
                Some(ValueRule::IndexInto(size)) => {
                    format!("(({name} >= 0) & ({name} < {})).all().item()", self.python(size))
                }
                Some(ValueRule::Between(low, high)) => {
                    let (low, high) = (self.python(low), self.python(high));
                    format!("(({name} >= {low}) & ({name} <= {high})).all().item()")
                }
                Some(ValueRule::ScoreMod(_)) => continue,
                Some(ValueRule::PartitionOf(size)) => {
                    format!("({name}.sum(-1) == {}).all().item()", self.python(size))
                }
            };
            texts.push(if input.optional.is_some() { format!("{name} is None or {rule}") } else { rule });
        }
        texts
    }

    /// Remembered axes first, in their order, then those that shapes or constraints name beyond them.
    pub(super) fn axes(
        &self,
        inputs: &[(String, Argument)],
        outputs: &[(String, Argument)],
        constraints: &[String],
    ) -> Vec<(String, Axis)> {
        let remembered = self.operation.definition.iter().flat_map(|memory| &memory.axes);
        let mut axes: Vec<(String, Axis)> = Vec::new();
        let mut covered: Vec<usize> = Vec::new();
        for entry in remembered {
            covered.extend(entry.axis);
            if entry.undefined {
                continue;
            }
            let size = entry.axis.and_then(|at| self.sizes.get(at).copied().flatten());
            let doc = entry.axis.and_then(|at| self.operation.axes.get(at)).map(|axis| axis.doc.clone());
            let constant = entry.constant == Some(true) || size.is_some();
            axes.push((
                entry.name.clone(),
                Axis {
                    constant,
                    value: size.or(entry.value).filter(|_| constant),
                    description: entry.description.clone().or(doc.filter(|doc| !doc.is_empty())),
                },
            ));
        }
        let shapes = inputs.iter().chain(outputs).flat_map(|(_, argument)| argument.shape.iter().flatten());
        let shapes: Vec<&String> = shapes.collect();
        let mentioned = |name: &String| {
            let word = |character: char| !(character.is_alphanumeric() || character == '_');
            shapes.contains(&name)
                || constraints.iter().any(|text| text.split(word).any(|found| found == name))
        };
        for (at, (axis, name)) in self.operation.axes.iter().zip(&self.axis_names).enumerate() {
            if covered.contains(&at) || !mentioned(name) {
                continue;
            }
            let value = self.sizes.get(at).copied().flatten();
            let description = (!axis.doc.is_empty()).then(|| axis.doc.clone());
            axes.push((name.clone(), Axis { constant: value.is_some(), value, description }));
        }
        axes.extend(self.computed.iter().map(|(name, axis, _)| (name.clone(), axis.clone())));
        axes
    }
}
