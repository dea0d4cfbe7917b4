//! A `Definition` as a schema: what becomes an axis, an input, a parameter or an output, and what stays a memory.
//!
//! The plan is made here; `schema` writes it down as YAML.

mod constraints;
mod schema;

use std::collections::BTreeMap;

use lz_schema::dtype::DType;
use lz_schema::expr::Value;

use crate::error::{ImportError, Problem, ProblemKind};
use crate::format::{self, Argument, Definition};
use crate::naming::{self, Names};

/// A schema made of a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedSchema {
    /// The operation's name, which is also that of its file.
    pub operation: String,
    /// The schema. Its section `definition` holds the reference and all else that the language cannot say.
    pub yaml: String,
    /// What was assumed or could not be stated, one sentence each.
    pub notes: Vec<String>,
    /// The inputs in the order of the `Definition`: its name and that of the schema, `None` where the schema has no such input.
    pub inputs: Vec<(String, Option<String>)>,
    /// Outputs of the `Definition` that are inputs changed in place in the schema.
    pub in_place_outputs: Vec<String>,
}

/// Makes a schema of the text of a `Definition`; `file` is only named in errors.
pub fn import(text: &str, file: &str) -> Result<ImportedSchema, ImportError> {
    let definition = format::read(text, file)?;
    let plan = Plan::new(&definition);
    let mut problems = Vec::new();
    if !plan.inputs.iter().any(|input| input.role == ArgumentRole::Tensor) {
        problems.push(Problem { path: "$.inputs".to_owned(), kind: ProblemKind::NoTensor });
    } else if !plan
        .axes
        .iter()
        .any(|axis| matches!(axis.role, AxisRole::Fixed(_) | AxisRole::Bound | AxisRole::Dynamic))
    {
        problems.push(Problem { path: "$.axes".to_owned(), kind: ProblemKind::NoAxis });
    }
    if plan.outputs.iter().all(|output| output.role == ArgumentRole::Nothing) {
        problems.push(Problem { path: "$.outputs".to_owned(), kind: ProblemKind::NoOutput });
    }
    if !problems.is_empty() {
        return Err(ImportError { file: file.to_owned(), problems });
    }
    let input = |input: &ArgumentPlan<'_>| {
        let ours = (input.role != ArgumentRole::Nothing).then(|| input.ours.clone());
        (input.name.to_owned(), ours)
    };
    let in_place = plan.outputs.iter().filter(|output| output.role == ArgumentRole::InPlace);
    Ok(ImportedSchema {
        operation: naming::snake(&definition.name),
        inputs: plan.inputs.iter().map(input).collect(),
        in_place_outputs: in_place.map(|output| output.name.to_owned()).collect(),
        yaml: schema::write(&definition, &plan),
        notes: plan.notes,
    })
}

/// What an axis of the `Definition` becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AxisRole {
    /// A fixed axis.
    Fixed(i64),
    /// An axis that an input binds.
    Bound,
    /// An output axis that is known only after the run.
    Dynamic,
    /// An output dimension that a constraint gives as an expression.
    Derived(String),
    /// A number that stands where an axis should.
    Number(i64),
    /// Nothing: no shape has it.
    Nothing,
}

#[derive(Debug)]
struct AxisPlan<'a> {
    name: &'a str,
    /// `None` for one that only shapes name.
    defined: Option<&'a format::Axis>,
    role: AxisRole,
    ours: String,
}

/// What an argument of the `Definition` becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArgumentRole {
    Tensor,
    Param(&'static str),
    /// An output that is an input changed in place.
    InPlace,
    /// Nothing: our language has no such thing.
    Nothing,
}

#[derive(Debug)]
struct ArgumentPlan<'a> {
    name: &'a str,
    argument: &'a Argument,
    role: ArgumentRole,
    ours: String,
    /// A dtype of ours, or a dtype variable.
    dtype: String,
}

#[derive(Debug)]
struct ConstraintPlan<'a> {
    text: &'a str,
    value_dependent: bool,
    /// The same in our language, if the schema states it.
    stated: Option<String>,
}

/// Everything that the schema will say.
#[derive(Debug)]
struct Plan<'a> {
    axes: Vec<AxisPlan<'a>>,
    inputs: Vec<ArgumentPlan<'a>>,
    outputs: Vec<ArgumentPlan<'a>>,
    constraints: Vec<ConstraintPlan<'a>>,
    /// Inputs whose dtype the `Definition` does not know, by our names: each has a dtype variable.
    variables: Vec<String>,
    /// Sizes and parameters of the example workload, by our names.
    workload: BTreeMap<String, Value>,
    notes: Vec<String>,
}

impl<'a> Plan<'a> {
    fn new(definition: &'a Definition) -> Plan<'a> {
        let mut plan = Plan {
            axes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            constraints: Vec::new(),
            variables: Vec::new(),
            workload: BTreeMap::new(),
            notes: Vec::new(),
        };
        plan.arguments(definition);
        plan.axes(definition);
        plan.name();
        plan.dtypes();
        plan.constraints(definition);
        plan
    }

    fn arguments(&mut self, definition: &'a Definition) {
        let plan = |name: &'a str, argument: &'a Argument, role| ArgumentPlan {
            name,
            argument,
            role,
            ours: String::new(),
            dtype: String::new(),
        };
        for (name, argument) in &definition.inputs {
            let role = match (&argument.shape, argument.dtype.as_str()) {
                (_, "string" | "dtype") | (None, "unknown") => ArgumentRole::Nothing,
                (None, "bool") => ArgumentRole::Param("bool"),
                (None, "float64") => ArgumentRole::Param("f64"),
                (None, dtype) if dtype.starts_with("int") || dtype.starts_with("uint") => {
                    ArgumentRole::Param("int")
                }
                (None, _) => ArgumentRole::Param("f32"),
                (Some(_), _) => ArgumentRole::Tensor,
            };
            if role == ArgumentRole::Nothing {
                self.notes.push(format!("input `{name}` is {}, which a schema cannot take", argument.dtype));
            }
            if matches!(role, ArgumentRole::Param(_)) && argument.optional == Some(true) {
                self.notes.push(format!("parameter `{name}` may be left out, but its default is not known"));
            }
            self.inputs.push(plan(name, argument, role));
        }
        for (name, argument) in &definition.outputs {
            let same = self.inputs.iter().find(|input| input.name == name);
            let role = match argument.dtype.as_str() {
                _ if same.is_some_and(|input| input.role == ArgumentRole::Tensor) => ArgumentRole::InPlace,
                "string" | "dtype" => ArgumentRole::Nothing,
                _ => ArgumentRole::Tensor,
            };
            self.outputs.push(plan(name, argument, role));
        }
    }

    fn axes(&mut self, definition: &'a Definition) {
        let shapes = |arguments: &[ArgumentPlan<'a>]| -> Vec<&'a str> {
            let tensors = arguments.iter().filter(|argument| argument.role == ArgumentRole::Tensor);
            tensors
                .flat_map(|argument| argument.argument.shape.iter().flatten())
                .map(String::as_str)
                .collect()
        };
        let (read, made) = (shapes(&self.inputs), shapes(&self.outputs));
        let role = |name: &str, axis: Option<&format::Axis>| match axis.and_then(|axis| axis.value) {
            _ if !read.contains(&name) && !made.contains(&name) => AxisRole::Nothing,
            Some(value) if value >= 1 => AxisRole::Fixed(value),
            _ if read.contains(&name) => AxisRole::Bound,
            _ => AxisRole::Dynamic,
        };
        for (name, axis) in &definition.axes {
            self.axes.push(AxisPlan {
                name,
                defined: Some(axis),
                role: role(name, Some(axis)),
                ours: String::new(),
            });
        }
        for name in read.iter().chain(&made) {
            if self.axes.iter().any(|axis| axis.name == *name) {
                continue;
            }
            let number = name.parse::<i64>().ok().filter(|number| *number >= 0);
            let role = number.map_or_else(|| role(name, None), AxisRole::Number);
            if number.is_none() {
                self.notes.push(format!("shapes name axis `{name}`, which the definition does not define"));
            }
            self.axes.push(AxisPlan { name, defined: None, role, ours: String::new() });
        }
    }

    /// Arguments get their names first, because callers write them; axes take what is left.
    fn name(&mut self) {
        let mut names = Names::default();
        let unstated =
            self.inputs.iter().chain(&self.outputs).filter(|argument| argument.role == ArgumentRole::Nothing);
        unstated.for_each(|argument| names.reserve(argument.name));
        let nothing = self.axes.iter().filter(|axis| axis.role == AxisRole::Nothing);
        nothing.for_each(|axis| names.reserve(axis.name));
        for input in self.inputs.iter_mut().filter(|input| input.role != ArgumentRole::Nothing) {
            let kind = if input.role == ArgumentRole::Tensor { "tensor" } else { "param" };
            input.ours = names.claim(input.name, kind);
        }
        for output in &mut self.outputs {
            output.ours = match output.role {
                ArgumentRole::InPlace => {
                    let input = self.inputs.iter().find(|input| input.name == output.name);
                    input.map(|input| input.ours.clone()).unwrap_or_default()
                }
                ArgumentRole::Nothing => String::new(),
                _ => names.claim(output.name, "output"),
            };
        }
        for axis in &mut self.axes {
            axis.ours = match axis.role {
                AxisRole::Nothing => String::new(),
                AxisRole::Number(number) => number.to_string(),
                _ => names.claim(axis.name, "axis"),
            };
        }
    }

    fn dtypes(&mut self) {
        let known = |argument: &Argument| our_dtype(&argument.dtype);
        for input in self.inputs.iter_mut().filter(|input| input.role == ArgumentRole::Tensor) {
            let changed = self.outputs.iter().find(|output| output.name == input.name);
            let dtype = known(input.argument).or_else(|| changed.and_then(|output| known(output.argument)));
            input.dtype = match dtype {
                Some(dtype) => dtype.name().to_owned(),
                None => {
                    self.variables.push(input.ours.clone());
                    naming::variable(&input.ours)
                }
            };
        }
        let floats = self
            .inputs
            .iter()
            .filter_map(|input| known(input.argument).filter(|_| input.argument.shape.is_some()));
        let first = floats.into_iter().find(|dtype| dtype.is_float()).unwrap_or(DType::F32);
        for output in self.outputs.iter_mut().filter(|output| output.role == ArgumentRole::Tensor) {
            let dtype = known(output.argument).unwrap_or_else(|| {
                self.notes
                    .push(format!("the dtype of output `{}` is not known; {first} is assumed", output.name));
                first
            });
            output.dtype = dtype.name().to_owned();
        }
    }

    fn axis(&self, name: &str) -> Option<&AxisPlan<'a>> {
        self.axes.iter().find(|axis| axis.name == name)
    }

    /// The dimensions of a shape in our language.
    fn dims(&self, shape: &[String]) -> Vec<String> {
        let dim = |name: &String| match self.axis(name).map(|axis| (&axis.role, &axis.ours)) {
            Some((AxisRole::Derived(text), _)) => text.clone(),
            Some((_, ours)) => ours.clone(),
            None => name.clone(),
        };
        shape.iter().map(dim).collect()
    }
}

/// Our dtype for one of a `Definition`; none for what is not known or no element.
fn our_dtype(name: &str) -> Option<DType> {
    match name {
        "float4_e2m1" => Some(DType::F4E2M1x2),
        other => DType::parse(other),
    }
}
