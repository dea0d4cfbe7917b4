//! Validates a call against its schema and reports all problems.
//!
//! This is the slow, complete and only source of validation messages. Generated code has a fast yes-or-no check of the same rules
//! (built from [`fast`] and [`values`]) and calls this one on failure; run-time operations always use this one. A property test
//! checks that the two agree.

mod device_values;
pub mod fast;
mod inputs;
mod outputs;
mod params;
mod produced;
pub mod values;

use std::sync::atomic::{AtomicU64, Ordering};

use lz_schema::DType;
use lz_schema::expr::{Program, Typed, Value};
use lz_schema::model::{Cases, DTypeRef, Dim, Operation, Slot};

use crate::args::{Arg, OutArg};
use crate::error::Error;
use crate::reason::{Reason, ReasonCode};
use crate::tensor::Dims;

pub use outputs::replace_inputs;
pub use produced::{Produced, check_dynamic_outputs, check_produced};

/// The bound axes, dtypes and params of a call.
#[derive(Debug, Clone)]
pub struct Bound {
    /// Per axis; for a pack the product. `None` if only absent inputs or the kernel determine it.
    pub axes: Vec<Option<i64>>,
    /// Per axis; the sizes of a pack.
    pub packs: Vec<Option<Dims>>,
    /// Per dtype variable.
    pub types: Vec<Option<DType>>,
    /// Per expression slot: axes, params with defaults filled in, `given`.
    pub values: Vec<Value>,
}

/// The inferred form of an output.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputSpec {
    /// This call does not produce it.
    Absent,
    /// A tensor to fill.
    Tensor(Dims, DType),
    /// A tensor whose size the kernel determines.
    Dynamic(DType),
    /// Strings.
    Text,
}

/// Validates a call, and `outputs` if given; they are in the schema's order, [`OutArg::Absent`] where the caller passes none.
pub fn check_call(
    operation: &Operation,
    args: &[Arg<'_>],
    outputs: Option<&[OutArg<'_>]>,
) -> Result<Bound, Error> {
    check(operation, args, outputs, true)
}

fn check(
    operation: &Operation,
    args: &[Arg<'_>],
    outputs: Option<&[OutArg<'_>]>,
    read_values: bool,
) -> Result<Bound, Error> {
    let mut checker = Checker::new(operation, args);
    if args.len() == operation.inputs.len() + operation.params.len() {
        checker.run(outputs, read_values);
    } else {
        let required = operation.inputs.len() + operation.params.len();
        checker.problems.push(
            Reason::new(ReasonCode::MissingArgument)
                .required(format!("{required} arguments: inputs, then params"))
                .found(format!("{}", args.len())),
        );
    }
    let Checker { problems, bound, .. } = checker;
    if problems.is_empty() {
        Ok(bound)
    } else {
        count_errors(&problems);
        Err(Error::Validation { operation: operation.name.clone(), reasons: problems })
    }
}

/// Validates a call before its memory exists: everything except the values of elements. Addresses only have to be aligned as the
/// memory will be, and distinct.
pub fn check_planned_call(
    operation: &Operation,
    args: &[Arg<'_>],
    outputs: Option<&[OutArg<'_>]>,
) -> Result<Bound, Error> {
    check(operation, args, outputs, false)
}

/// Validation errors of this process by code, in the order of [`ReasonCode::ALL`]: validation precedes any engine.
static ERRORS: [AtomicU64; ReasonCode::ALL.len()] = [const { AtomicU64::new(0) }; ReasonCode::ALL.len()];

/// Counts the reasons of a rejected call.
#[cold]
pub fn count_errors(reasons: &[Reason]) {
    for reason in reasons {
        if let Some(counter) = ERRORS.get(reason.code as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// How often calls of this process were rejected, by code; codes that never occurred are left out.
pub fn error_counts() -> impl Iterator<Item = (ReasonCode, u64)> {
    let counts = ERRORS.iter().map(|counter| counter.load(Ordering::Relaxed));
    ReasonCode::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0)
}

/// Infers all outputs of a valid call.
pub fn infer_outputs(operation: &Operation, bound: &Bound) -> Result<Vec<OutputSpec>, Reason> {
    operation.outputs.iter().map(|output| outputs::infer(operation, output, bound)).collect()
}

/// The error of generated code if its fast check fails and the complete one finds no problem. A property test shows that this does
/// not happen; if it did, the caller would get an error and not an invalid run.
#[cold]
pub fn disagreement(operation: &crate::operation::OperationInfo) -> Error {
    Error::Validation {
        operation: operation.name.to_string(),
        reasons: vec![
            Reason::new(ReasonCode::ConstraintFailed).message(
                "the generated check rejects a call that the schema allows; run `cargo xtask codegen`",
            ),
        ],
    }
}

/// Allocates a host tensor for an inferred output.
pub fn allocate(
    operation: &crate::operation::OperationInfo,
    spec: Option<(Dims, DType)>,
) -> Result<crate::tensor::Tensor, Error> {
    let refuse = |reason| Error::Validation { operation: operation.name.to_string(), reasons: vec![reason] };
    let (sizes, dtype) = spec.ok_or_else(|| {
        refuse(Reason::new(ReasonCode::ExpressionFailed).message("the size of an output cannot be computed"))
    })?;
    crate::tensor::Tensor::zeros(&sizes, dtype).map_err(refuse)
}

/// The value that a kernel produced for an output whose size it determines.
pub fn produced<T>(
    operation: &crate::operation::OperationInfo,
    output: &str,
    value: Option<T>,
) -> Result<T, Error> {
    value.ok_or_else(|| Error::KernelExecution {
        operation: operation.name.to_string(),
        kernel: String::new(),
        reasons: vec![
            Reason::new(ReasonCode::KernelFailed).message(format!("the kernel produced no {output}")),
        ],
    })
}

/// Where an axis was bound, for messages.
#[derive(Debug, Clone, Copy)]
struct Origin {
    input: usize,
    dimension: usize,
}

struct Checker<'c, 'a> {
    operation: &'c Operation,
    args: &'c [Arg<'a>],
    bound: Bound,
    axis_origin: Vec<Option<Origin>>,
    type_origin: Vec<Option<usize>>,
    problems: Vec<Reason>,
}

impl<'c, 'a> Checker<'c, 'a> {
    fn new(operation: &'c Operation, args: &'c [Arg<'a>]) -> Checker<'c, 'a> {
        let bound = Bound {
            axes: operation.axes.iter().map(|axis| axis.value).collect(),
            packs: vec![None; operation.axes.len()],
            types: vec![None; operation.types.len()],
            values: vec![Value::Int(0); operation.slots().len()],
        };
        Checker {
            operation,
            args,
            bound,
            axis_origin: vec![None; operation.axes.len()],
            type_origin: vec![None; operation.types.len()],
            problems: Vec::new(),
        }
    }

    fn run(&mut self, outputs: Option<&[OutArg<'_>]>, read_values: bool) {
        self.check_param_types();
        self.check_kinds();
        self.check_dtypes();
        self.bind_shapes();
        if !self.everything_is_bound() {
            return;
        }
        self.fill_slots();
        let unknown = self.fill_defaults(self.axes_of_missing_inputs());
        self.check_ranges(&unknown);
        if unknown.is_empty() {
            self.check_computed_dimensions();
        }
        self.check_constraints(&unknown);
        self.check_memory();
        if let Some(outputs) = outputs
            && self.problems.is_empty()
        {
            self.check_outputs(outputs);
        }
        // Last, because it reads data: calls with invalid shapes have been rejected by now.
        if read_values && self.problems.is_empty() {
            self.check_values();
        }
    }

    /// Whether every axis that a passed input binds has a size; a wrong rank leaves some without.
    fn everything_is_bound(&self) -> bool {
        self.operation.axes.iter().zip(&self.bound.axes).all(|(axis, size)| {
            size.is_some()
                || axis.dynamic
                || axis.bound_by.as_ref().is_none_or(|binding| !self.args[binding.input].is_given())
        })
    }

    /// The slots of axes that a missing required input would bind. What depends on them is not checked: the missing argument is
    /// the only problem.
    fn axes_of_missing_inputs(&self) -> Vec<u16> {
        let is_missing = |axis: &lz_schema::model::Axis| {
            let input = axis.bound_by.as_ref().map(|binding| binding.input);
            input.is_some_and(|input| {
                self.operation.inputs[input].optional.is_none() && !self.args[input].is_given()
            })
        };
        let axes = self.operation.axes.iter().zip(&self.bound.axes).enumerate();
        axes.filter(|(_, (axis, size))| size.is_none() && is_missing(axis))
            .map(|(slot, _)| slot as u16)
            .collect()
    }

    fn fill_slots(&mut self) {
        for (index, slot) in self.operation.slots().into_iter().enumerate() {
            match slot {
                Slot::Axis(axis) => self.bound.values[index] = Value::Int(self.bound.axes[axis].unwrap_or(0)),
                Slot::Param(_) => {}
                Slot::Given(input) => self.bound.values[index] = Value::Bool(self.args[input].is_given()),
            }
        }
    }

    fn evaluate(&mut self, expression: &Typed, what: &str) -> Option<Value> {
        match Program::compile(expression).eval(&self.bound.values) {
            Ok(value) => Some(value),
            Err(error) => {
                self.problems.push(
                    Reason::new(ReasonCode::ExpressionFailed)
                        .message(format!("{what}: `{}` cannot be computed: {error}", expression.text)),
                );
                None
            }
        }
    }

    /// Checks every constraint that does not depend on `unknown`, the slots without a value.
    fn check_constraints(&mut self, unknown: &[u16]) {
        let operation = self.operation;
        for constraint in &operation.constraints {
            // Listing the variables takes longer than evaluating most constraints.
            if !unknown.is_empty()
                && constraint.check.variables().iter().any(|variable| unknown.contains(&variable.index))
            {
                continue;
            }
            if let Some(Value::Bool(false)) = self.evaluate(&constraint.check, "a constraint") {
                let code = ReasonCode::parse(&constraint.code).unwrap_or(ReasonCode::ConstraintFailed);
                let found = constraint
                    .check
                    .variables()
                    .iter()
                    .map(|variable| format!("{} = {}", variable.name, self.describe_slot(variable.index)))
                    .collect::<Vec<_>>()
                    .join(", ");
                self.problems.push(
                    Reason::new(code)
                        .required(constraint.check.text.clone())
                        .found(found.clone())
                        .message(format!("{} ({found})", constraint.message)),
                );
            }
        }
    }

    fn describe_slot(&self, slot: u16) -> String {
        let value = self.bound.values.get(usize::from(slot)).copied().unwrap_or(Value::Int(0));
        match (value, self.operation.slots().get(usize::from(slot))) {
            (Value::Enum(case), Some(Slot::Param(param))) => {
                params::case_name(&self.operation.params[*param], case)
            }
            (Value::Int(value), _) => value.to_string(),
            (Value::Float(value), _) => value.to_string(),
            (Value::Bool(value), _) => value.to_string(),
            (Value::Enum(case), _) => case.to_string(),
        }
    }
}

impl Bound {
    /// The alternative that this call's enum param selects.
    pub(crate) fn pick<'t, T>(&self, operation: &Operation, cases: &'t Cases<T>) -> Option<&'t T> {
        match cases {
            Cases::One(only) => Some(only),
            Cases::By(param, alternatives) => match self.values.get(operation.axes.len() + param) {
                Some(Value::Enum(case)) => alternatives.get(*case as usize),
                _ => None,
            },
        }
    }

    pub(crate) fn dtype(&self, reference: DTypeRef) -> Option<DType> {
        match reference {
            DTypeRef::Fixed(dtype) => Some(dtype),
            DTypeRef::Variable(variable) => self.types.get(variable).copied().flatten(),
        }
    }

    /// The sizes of a shape in this call; `Err` names the expression that cannot be computed.
    pub(crate) fn sizes(&self, dims: &[Dim]) -> Result<Dims, Reason> {
        let mut sizes = Dims::empty();
        let mut full = true;
        for dim in dims {
            match dim {
                Dim::Axis(axis) => full &= sizes.push(self.axes[*axis].unwrap_or(0)),
                Dim::Fixed(size) => full &= sizes.push(*size),
                Dim::Offset(axis, offset) => {
                    full &= sizes.push(self.axes[*axis].unwrap_or(0).saturating_add(*offset))
                }
                Dim::Pack(axis) => {
                    for &size in self.packs[*axis].iter().flat_map(|dims| dims.iter()) {
                        full &= sizes.push(size);
                    }
                }
                Dim::Expr(expression) => match Program::compile(expression).eval_int(&self.values) {
                    Ok(size) => full &= sizes.push(size),
                    Err(error) => {
                        return Err(Reason::new(ReasonCode::ExpressionFailed)
                            .message(format!("`{}` cannot be computed: {error}", expression.text)));
                    }
                },
            }
        }
        if full {
            Ok(sizes)
        } else {
            Err(Reason::new(ReasonCode::RankMismatch)
                .required(format!("at most {} dimensions", crate::tensor::MAX_RANK))
                .found("more".to_owned()))
        }
    }
}
