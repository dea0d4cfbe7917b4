//! Which constraints the schema can state, and the sizes that satisfy them.

use lz_schema::expr::{Program, Type, Value, VariableTable, check_expecting};

use super::{ArgumentRole, AxisRole, ConstraintPlan, Definition, Plan};
use crate::constraint::{Meaning, translate};
use crate::solve::{self, Condition, Unknown};

impl<'a> Plan<'a> {
    fn meaning(&self, name: &str) -> Option<Meaning> {
        if let Some(axis) = self.axis(name) {
            return match (&axis.role, axis.defined.and_then(|axis| axis.value)) {
                (AxisRole::Nothing, Some(value)) => Some(Meaning::Readable(value.to_string())),
                (AxisRole::Nothing, None) => None,
                _ => Some(Meaning::Readable(axis.ours.clone())),
            };
        }
        let input = self.inputs.iter().find(|input| input.name == name)?;
        Some(match (input.role, &input.argument.shape) {
            (ArgumentRole::Tensor, Some(shape)) => {
                let given = (input.argument.optional == Some(true)).then(|| input.ours.clone());
                Meaning::Tensor { dims: self.dims(shape), given }
            }
            (ArgumentRole::Param(_), _) => Meaning::Readable(input.ours.clone()),
            _ => Meaning::Opaque,
        })
    }

    /// The names that expressions may read, in the order of their slots.
    fn table(&self) -> (VariableTable, Vec<String>) {
        let mut table = VariableTable::new();
        let mut slots = Vec::new();
        for axis in self.axes.iter().filter(|axis| matches!(axis.role, AxisRole::Fixed(_) | AxisRole::Bound))
        {
            slots.extend(table.add(axis.ours.clone(), Type::Int).map(|_| axis.ours.clone()));
        }
        for input in &self.inputs {
            let ty = match input.role {
                ArgumentRole::Param("int") => Type::Int,
                ArgumentRole::Param("bool") => Type::Bool,
                ArgumentRole::Param(_) => Type::Float,
                _ => continue,
            };
            slots.extend(table.add(input.ours.clone(), ty).map(|_| input.ours.clone()));
        }
        for input in self.inputs.iter().filter(|input| input.role == ArgumentRole::Tensor) {
            if input.argument.optional == Some(true) {
                slots.extend(table.add_given(input.ours.clone()).map(|_| format!("given({})", input.ours)));
            }
        }
        (table, slots)
    }

    pub(super) fn constraints(&mut self, definition: &'a Definition) {
        let texts: Vec<&'a str> = definition.constraints.iter().flatten().map(String::as_str).collect();
        let (table, slots) = self.table();
        self.derive(&texts, &table);
        let mut conditions: Vec<Condition> = Vec::new();
        let mut of: Vec<usize> = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let translated = translate(text, &|name| self.meaning(name));
            let condition = translated.text.as_ref().and_then(|text| Condition::new(text, &table));
            let stated = translated.text.filter(|_| condition.is_some());
            if let Some(condition) = condition {
                conditions.push(condition);
                of.push(at);
            }
            self.constraints.push(ConstraintPlan {
                text,
                value_dependent: translated.value_dependent,
                stated,
            });
        }
        let (unknowns, start) = self.unknowns(&slots, &texts);
        let (values, holds) = solve::solve(&unknowns, &start, &conditions);
        for (at, _) in of.into_iter().zip(holds).filter(|(_, holds)| !holds) {
            if let Some(constraint) = self.constraints.get_mut(at) {
                constraint.stated = None;
                self.notes.push(format!(
                    "no sizes were found that satisfy `{}`, so it is kept but not stated",
                    constraint.text
                ));
            }
        }
        self.keep_derived_sizes(&table, &values);
        self.workload = slots.into_iter().zip(values).collect();
    }

    /// Makes axes dynamic again whose expression has no size for the example workload, such as a division by zero.
    fn keep_derived_sizes(&mut self, table: &VariableTable, values: &[Value]) {
        for axis in &mut self.axes {
            let AxisRole::Derived(text) = &axis.role else { continue };
            let size = check_expecting(text, table, &Type::Int).ok().map(|typed| Program::compile(&typed));
            if size.and_then(|size| size.eval_int(values).ok()).is_none_or(|size| size < 0) {
                self.notes.push(format!(
                    "`{text}` is no size in the example workload, so axis `{}` is dynamic",
                    axis.name
                ));
                axis.role = AxisRole::Dynamic;
            }
        }
    }

    /// Output axes that a constraint gives as an expression over what inputs bind.
    fn derive(&mut self, texts: &[&str], table: &VariableTable) {
        for at in 0..self.axes.len() {
            let Some(axis) = self.axes.get(at).filter(|axis| axis.role == AxisRole::Dynamic) else {
                continue;
            };
            let derived = texts.iter().find_map(|text| {
                let translated = translate(text, &|name| self.meaning(name)).text?;
                let (name, other) = solve::sides(&translated)?;
                (name == axis.ours && check_expecting(&other, table, &Type::Int).is_ok()).then_some(other)
            });
            let name = axis.name;
            if let Some(axis) = self.axes.get_mut(at) {
                match derived {
                    Some(text) => axis.role = AxisRole::Derived(text),
                    None => {
                        self.notes.push(format!("no input says how large axis `{name}` is, so it is dynamic"))
                    }
                }
            }
        }
    }

    fn unknowns(&self, slots: &[String], texts: &[&str]) -> (Vec<Unknown>, Vec<Value>) {
        let mut mentioned: Vec<i64> = Vec::new();
        for text in texts {
            let numbers = text.split(|character: char| !character.is_ascii_digit());
            mentioned.extend(numbers.filter_map(|number| number.parse::<i64>().ok()));
        }
        mentioned.extend(self.axes.iter().filter_map(|axis| axis.defined?.value));
        let mut unknowns = Vec::new();
        let mut start = Vec::new();
        for (slot, name) in slots.iter().enumerate() {
            let axis = self.axes.iter().find(|axis| axis.ours == *name);
            let param = self.inputs.iter().find(|input| input.ours == *name).map(|input| input.role);
            let candidates = match (axis.map(|axis| &axis.role), param) {
                (Some(AxisRole::Fixed(value)), _) => vec![Value::Int(*value)],
                (Some(_), _) => solve::sizes(&mentioned),
                (_, Some(ArgumentRole::Param("int"))) => {
                    let mut sizes = vec![Value::Int(1), Value::Int(-1)];
                    sizes.extend(solve::sizes(&mentioned));
                    sizes
                }
                (_, Some(ArgumentRole::Param("bool"))) => vec![Value::Bool(false), Value::Bool(true)],
                (_, Some(ArgumentRole::Param(_))) => {
                    [1.0, 0.5, 0.0, -1.0, 2.0, 1e-6].map(Value::Float).to_vec()
                }
                _ => vec![Value::Bool(true)],
            };
            start.extend(candidates.first().copied());
            if candidates.len() > 1 {
                unknowns.push(Unknown { slot, candidates });
            }
        }
        (unknowns, start)
    }
}
