//! Exports an operation with chosen sizes as a `Definition`.
//!
//! A `Definition` has names for dimensions, no expressions, no packs, no enums: a computed dimension becomes an axis of
//! its own with a constraint, a pack becomes one dimension, an enum is fixed to one case and named in the tags.
//! Fields in the schema's section `definition` take precedence.

mod conditions;
mod options;
mod reference;
mod shapes;
mod workload;

use std::collections::BTreeMap;

use lz_codegen::python_expr::python;
use lz_schema::definition::{DefinitionArgument, DefinitionShape, Stated};
use lz_schema::dtype::DType;
use lz_schema::expr::{Program, Typed, Value};
use lz_schema::model::{Cases, DTypeRef, Kind, Operation, ParamType, Slot};

use crate::error::ExportError;
use crate::format::{self, Argument, Axis, Definition};

pub use workload::{CallArguments, ExportedWorkload, export_workload};

/// What is fixed for an export. What is not named here: axes stay variable; dtype variables and enums are what the
/// first workload says, or else the default, or else the first of their list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportOptions {
    /// Sizes of axes that become constant.
    pub axes: BTreeMap<String, i64>,
    /// Dtypes of dtype variables.
    pub dtypes: BTreeMap<String, DType>,
    /// Cases of enum parameters.
    pub cases: BTreeMap<String, String>,
}

/// The `Definition` of an operation, as JSON text in canonical form.
pub fn export(operation: &Operation, options: &ExportOptions) -> Result<String, ExportError> {
    let mut exporter = Exporter::new(operation, options)?;
    Ok(format::write(&exporter.definition()?))
}

/// The name that definitions have for a dtype. Scales of e8m0 travel as bytes, as they do in the wild.
pub(super) fn dtype_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F4E2M1x2 => Some("float4_e2m1"),
        DType::F8E8M0 => Some("uint8"),
        DType::U64 | DType::U16 => None,
        other => Some(other.long_name()),
    }
}

struct Exporter<'a> {
    operation: &'a Operation,
    options: &'a ExportOptions,
    slots: Vec<Slot>,
    /// The size of each axis that is constant.
    sizes: Vec<Option<i64>>,
    /// The dtype of each variable.
    dtypes: Vec<DType>,
    /// The case of each enum parameter.
    cases: Vec<Option<u32>>,
    axis_names: Vec<String>,
    input_names: Vec<String>,
    param_names: Vec<String>,
    /// Axes for computed dimensions, each with the constraint that says how it is computed.
    computed: Vec<(String, Axis, Option<String>)>,
}

impl<'a> Exporter<'a> {
    fn new(operation: &'a Operation, options: &'a ExportOptions) -> Result<Exporter<'a>, ExportError> {
        let inputs = operation.inputs.iter().map(|input| (&input.name, input.kind));
        let outputs = operation.outputs.iter().map(|output| (&output.name, output.kind));
        if let Some((name, _)) = inputs.chain(outputs).find(|(_, kind)| *kind != Kind::Tensor) {
            return Err(ExportError::NotTensors { argument: name.clone() });
        }
        let mut exporter = Exporter {
            operation,
            options,
            slots: operation.slots(),
            sizes: options::sizes(operation, options)?,
            dtypes: options::dtypes(operation, options)?,
            cases: options::cases(operation, options)?,
            axis_names: operation.axes.iter().map(|axis| axis.name.clone()).collect(),
            input_names: operation.inputs.iter().map(|input| input.name.clone()).collect(),
            param_names: operation.params.iter().map(|param| param.name.clone()).collect(),
            computed: Vec::new(),
        };
        exporter.remember_names();
        exporter.hold_constraints()?;
        Ok(exporter)
    }

    /// Takes the names of the remembered `Definition` where there is one.
    fn remember_names(&mut self) {
        let Some(memory) = &self.operation.definition else { return };
        for axis in &memory.axes {
            if let Some(name) = axis.axis.and_then(|at| self.axis_names.get_mut(at)) {
                name.clone_from(&axis.name);
            }
        }
        for input in &memory.inputs {
            let name = match input.stated {
                Some(Stated::Input(at)) => self.input_names.get_mut(at),
                Some(Stated::Param(at)) => self.param_names.get_mut(at),
                _ => None,
            };
            if let Some(name) = name {
                name.clone_from(&input.name);
            }
        }
    }

    /// The value of an expression that reads nothing but constant axes and chosen enums.
    fn constant(&self, typed: &Typed) -> Option<Value> {
        let values = self.slots.iter().map(|slot| match slot {
            Slot::Axis(at) => self.sizes.get(*at).copied().flatten().map(Value::Int),
            Slot::Param(at) => self.cases.get(*at).copied().flatten().map(Value::Enum),
            Slot::Given(_) => None,
        });
        let values: Vec<Option<Value>> = values.collect();
        let known = |slot: u16| values.get(usize::from(slot)).is_some_and(Option::is_some);
        if !typed.variables().iter().all(|variable| known(variable.index)) {
            return None;
        }
        let filled: Vec<Value> = values.iter().map(|value| value.unwrap_or(Value::Int(0))).collect();
        Program::compile(typed).eval(&filled).ok()
    }

    fn hold_constraints(&self) -> Result<(), ExportError> {
        for constraint in &self.operation.constraints {
            if self.constant(&constraint.check) == Some(Value::Bool(false)) {
                let check = constraint.check.text.clone();
                return Err(ExportError::Violates { message: constraint.message.clone(), check });
            }
        }
        Ok(())
    }

    fn python(&self, typed: &Typed) -> String {
        python(&typed.root, &|slot| match self.slots.get(usize::from(slot)) {
            Some(Slot::Axis(at)) => self.axis_names.get(*at).cloned().unwrap_or_default(),
            Some(Slot::Param(at)) => match self.case(*at) {
                Some(case) => format!("'{case}'"),
                None => self.param_names.get(*at).cloned().unwrap_or_default(),
            },
            Some(Slot::Given(at)) => {
                format!("({} is not None)", self.input_names.get(*at).map_or("", String::as_str))
            }
            None => String::new(),
        })
    }

    /// The chosen case of an enum parameter.
    fn case(&self, param: usize) -> Option<&'a str> {
        let case = usize::try_from(self.cases.get(param).copied().flatten()?).ok()?;
        match &self.operation.params.get(param)?.ty {
            ParamType::Enum(cases) => cases.get(case).map(String::as_str),
            _ => None,
        }
    }

    fn chosen<'b, T>(&self, cases: &'b Cases<T>) -> Option<&'b T> {
        match cases {
            Cases::One(only) => Some(only),
            Cases::By(param, cases) => {
                let case = self.cases.get(*param).copied().flatten()?;
                cases.get(usize::try_from(case).ok()?)
            }
        }
    }

    fn definition(&mut self) -> Result<Definition, ExportError> {
        let operation = self.operation;
        let memory = operation.definition.as_ref();
        let tensors = (0..operation.inputs.len()).map(Stated::Input);
        // A statistic belongs to selection, which the format knows nothing of.
        let scalars =
            (0..operation.kernel_params().count()).filter(|at| self.case(*at).is_none()).map(Stated::Param);
        let ordered: Vec<Stated> = tensors.chain(scalars).collect();
        let inputs = self.arguments(memory.map(|memory| &memory.inputs), &ordered, false)?;
        let made = (0..operation.outputs.len()).map(Stated::Output);
        let changed = operation.inputs.iter().enumerate().filter(|(_, input)| input.read_write);
        let ordered: Vec<Stated> = made.chain(changed.map(|(at, _)| Stated::Input(at))).collect();
        let outputs = self.arguments(memory.map(|memory| &memory.outputs), &ordered, true)?;
        let constraints = self.constraints();
        let axes = self.axes(&inputs, &outputs, &constraints);
        Ok(Definition {
            name: self.name(),
            description: match memory {
                Some(memory) => memory.description.clone(),
                None => Some(operation.summary.clone()),
            },
            op_type: memory.map_or_else(|| operation.flat_name(), |memory| memory.op_type.clone()),
            tags: match memory {
                Some(memory) => memory.tags.clone(),
                None => Some(self.tags()),
            },
            axes,
            constraints: match memory {
                Some(memory) if memory.constraints.is_none() && constraints.is_empty() => None,
                _ => Some(constraints),
            },
            reference: match memory {
                Some(memory) => memory.reference.clone(),
                None => Some(self.reference(&inputs)),
            },
            inputs,
            outputs,
            init: memory.and_then(|memory| memory.init.clone()),
            check: memory.and_then(|memory| memory.check.clone()),
        })
    }

    /// Says which sizes and dtypes were chosen, so that two exports of one operation have two names.
    fn name(&self) -> String {
        let memory = self.operation.definition.as_ref();
        let mut name = memory.map_or_else(|| self.operation.flat_name(), |memory| memory.name.clone());
        for (at, _) in self.operation.axes.iter().enumerate().filter(|(_, axis)| axis.value.is_none()) {
            if let (Some(Some(size)), Some(axis_name)) = (self.sizes.get(at), self.axis_names.get(at)) {
                name.push_str(&format!("_{axis_name}{size}"));
            }
        }
        let variables = self.operation.types.iter().zip(&self.dtypes);
        let named = variables
            .filter(|(variable, _)| memory.is_none() || self.options.dtypes.contains_key(&variable.name));
        let mut dtypes: Vec<&str> = named.map(|(_, dtype)| dtype.name()).collect();
        if dtypes.windows(2).all(|pair| pair[0] == pair[1]) {
            dtypes.truncate(1);
        }
        dtypes.iter().for_each(|dtype| name.push_str(&format!("_{dtype}")));
        name
    }

    fn tags(&self) -> Vec<String> {
        let mut tags = vec![format!("layerzero:{}", self.operation.name)];
        for (at, param) in self.operation.params.iter().enumerate() {
            tags.extend(self.case(at).map(|case| format!("param:{}={case}", param.name)));
        }
        tags
    }

    /// Remembered arguments first, in their order, then those that the schema has beyond them.
    fn arguments(
        &mut self,
        memory: Option<&Vec<DefinitionArgument>>,
        ordered: &[Stated],
        outputs: bool,
    ) -> Result<Vec<(String, Argument)>, ExportError> {
        let remembered: &[DefinitionArgument] = memory.map_or(&[], Vec::as_slice);
        let mut arguments = Vec::new();
        for entry in remembered {
            // An enum parameter that was fixed is no argument any more.
            if matches!(entry.stated, Some(Stated::Param(at)) if self.case(at).is_some()) {
                continue;
            }
            arguments.push((entry.name.clone(), self.argument(entry.stated, Some(entry), outputs)?));
        }
        for stated in ordered {
            if remembered.iter().any(|entry| entry.stated == Some(*stated)) {
                continue;
            }
            let names = match stated {
                Stated::Input(at) => self.input_names.get(*at).cloned(),
                Stated::Param(at) => self.param_names.get(*at).cloned(),
                Stated::Output(at) => self.operation.outputs.get(*at).map(|output| output.name.clone()),
            };
            arguments.push((names.unwrap_or_default(), self.argument(Some(*stated), None, outputs)?));
        }
        Ok(arguments)
    }

    fn argument(
        &mut self,
        stated: Option<Stated>,
        entry: Option<&DefinitionArgument>,
        outputs: bool,
    ) -> Result<Argument, ExportError> {
        let operation = self.operation;
        let (name, form, scalar, optional, doc) = match stated {
            Some(Stated::Input(at)) => match operation.inputs.get(at) {
                Some(input) => {
                    let optional = !outputs && input.optional.is_some();
                    let doc = if outputs { "" } else { input.doc.as_str() };
                    (input.name.as_str(), Some((&input.shape, &input.dtype)), None, optional, doc)
                }
                None => ("", None, None, false, ""),
            },
            Some(Stated::Param(at)) => match operation.params.get(at) {
                Some(param) => {
                    (param.name.as_str(), None, Some(&param.ty), param.default.is_some(), param.doc.as_str())
                }
                None => ("", None, None, false, ""),
            },
            Some(Stated::Output(at)) => match operation.outputs.get(at) {
                Some(output) => {
                    let form = Some((&output.shape, &output.dtype));
                    (output.name.as_str(), form, None, output.when.is_some(), output.doc.as_str())
                }
                None => ("", None, None, false, ""),
            },
            None => ("", None, None, false, ""),
        };
        let shape = match (entry.and_then(|entry| entry.shape.as_ref()), form) {
            (Some(DefinitionShape::Scalar), _) | (None, None) => None,
            (Some(DefinitionShape::Axes(axes)), _) => Some(axes.clone()),
            (None, Some((shape, _))) => Some(match self.chosen(shape) {
                Some(dims) => dims.iter().map(|dim| self.dim(dim)).collect(),
                None => Vec::new(),
            }),
        };
        let chosen_dtype = form.and_then(|(_, dtype)| self.chosen(dtype)).copied();
        let asked = matches!(chosen_dtype, Some(DTypeRef::Variable(at))
            if operation.types.get(at).is_some_and(|variable| self.options.dtypes.contains_key(&variable.name)));
        let remembered = entry.and_then(|entry| entry.dtype.as_ref()).filter(|_| !asked);
        let dtype = match (remembered, chosen_dtype, scalar) {
            (Some(dtype), ..) => dtype.clone(),
            (None, Some(dtype), _) => {
                let dtype = match dtype {
                    DTypeRef::Fixed(dtype) => dtype,
                    DTypeRef::Variable(at) => self.dtypes.get(at).copied().unwrap_or(DType::F32),
                };
                let unsupported =
                    || ExportError::UnsupportedDtype { argument: name.to_owned(), dtype: dtype.name() };
                dtype_name(dtype).ok_or_else(unsupported)?.to_owned()
            }
            (None, None, Some(ParamType::Int)) => "int64".to_owned(),
            (None, None, Some(ParamType::F64)) => "float64".to_owned(),
            (None, None, Some(ParamType::Bool)) => "bool".to_owned(),
            (None, None, _) => "float32".to_owned(),
        };
        Ok(Argument {
            shape,
            dtype,
            optional: entry.and_then(|entry| entry.optional).or(optional.then_some(true)),
            param: entry.and_then(|entry| entry.param.clone()),
            description: entry
                .and_then(|entry| entry.description.clone())
                .or_else(|| (!doc.is_empty()).then(|| doc.to_owned())),
        })
    }
}
