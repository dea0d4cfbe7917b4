//! Runs a block of operations: each takes the first output of the one before it, converted where the plan says so.
//!
//! A plan can make a step faster or slower, never wrong: a kernel passes the filter afresh before it runs, and a step whose
//! kernel cannot run or fails is a call like any other. Operations that change their inputs, and those without a layout, get
//! what flows in as the block declares it.

use std::sync::Arc;

use lz_schema::DType;
use lz_schema::expr::Value;
use lz_schema::model::{Cases, DTypeRef, Kind, Operation};

use super::convert::{arranged, as_it_is, order, undone};
use super::graph::mutates;
use super::plan_cache::{Form, KeptPlans, Planned};
use super::{BlockPlan, Step};
use crate::dynamic::{self, Output};
use crate::engine::Engine;
use lz_core::args::{Arg, OutArg};
use lz_core::check::{self, OutputSpec};
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::tensor::{Tensor, TensorView};

/// One operation of a block with its arguments: inputs, then params.
pub struct BlockCall<'a> {
    pub(super) operation: &'static OperationInfo,
    pub(super) args: Vec<Arg<'a>>,
    /// The input that the operation before it fills.
    pub(super) takes: usize,
    dtypes: Vec<DType>,
}

impl<'a> BlockCall<'a> {
    /// A call. What the operation before it makes goes into its first tensor, whatever was passed there.
    pub fn new(operation: &'static OperationInfo, args: Vec<Arg<'a>>) -> BlockCall<'a> {
        let inputs = &operation.schema().inputs;
        let takes = inputs.iter().position(|input| input.kind == Kind::Tensor).unwrap_or_default();
        BlockCall { operation, args, takes, dtypes: Vec::new() }
    }

    /// Allows it to be run in other element types than those of its tensors; see [`Step::or_in`].
    #[must_use]
    pub fn or_in(mut self, dtypes: &[DType]) -> BlockCall<'a> {
        self.dtypes.extend(dtypes);
        self
    }

    fn arguments<'b>(&'b mut self, flowing: Option<&'b mut Tensor>) -> Vec<Arg<'b>> {
        let writes = self.operation.schema().inputs.get(self.takes).is_some_and(|input| input.read_write);
        let mut args: Vec<Arg<'b>> = self.args.iter_mut().map(Arg::reborrow).collect();
        if let (Some(tensor), Some(place)) = (flowing, args.get_mut(self.takes)) {
            *place = if writes { Arg::TensorMut(tensor.view_mut()) } else { Arg::Tensor(tensor.view()) };
        }
        args
    }
}

/// What a block made, and how.
#[derive(Debug)]
pub struct BlockRun {
    /// The outputs of the last operation.
    pub outputs: Vec<Output>,
    /// For each operation the kernel that ran it as planned, the same for several that were run at once; `None` where it was a
    /// call like any other.
    pub kernels: Vec<Option<String>>,
    /// The plan; `None` where policy has kernels chosen one by one (`plan_mode: false`), or what flows has no size beforehand.
    pub plan: Option<BlockPlan>,
}

/// What flows between two steps: a tensor, and which of the declared dimensions stands at each of its places.
pub(super) struct Flowing {
    pub tensor: Tensor,
    order: Vec<usize>,
    declared: DType,
}

impl Flowing {
    pub fn as_declared(tensor: Tensor) -> Flowing {
        Flowing { order: as_it_is(tensor.shape().len()), declared: tensor.dtype(), tensor }
    }

    fn is_as_declared(&self) -> bool {
        self.order.is_sorted() && self.tensor.dtype() == self.declared
    }

    /// As the block declares it.
    pub fn settled(self, operation: &OperationInfo) -> Result<Tensor, Error> {
        if self.is_as_declared() {
            return Ok(self.tensor);
        }
        let tensor = arranged(&self.tensor.view(), &undone(&self.order), self.declared);
        tensor.map_err(|reason| invalid(operation, reason))
    }
}

impl Engine {
    /// Runs a block of operations, each of which takes the first output of the one before it. With `plan_mode` their kernels are
    /// chosen together; otherwise each is a call of its own. Results come in host memory of their own.
    pub fn run_block(&self, calls: &mut [BlockCall<'_>]) -> Result<BlockRun, Error> {
        let planned = if self.policy().plan_mode.value { self.planned(calls)? } else { None };
        let (planned, bound) = planned.unzip();
        let bound = bound.unwrap_or_default();
        let mut run = BlockRun {
            outputs: Vec::new(),
            kernels: Vec::new(),
            plan: planned.as_ref().map(|planned| planned.plan.clone()),
        };
        let mut flowing: Option<Flowing> = None;
        let count = calls.len();
        while let Some((call, later)) = calls.get_mut(run.kernels.len()..).and_then(<[_]>::split_first_mut) {
            let number = run.kernels.len();
            let form = planned.as_ref().and_then(|planned| planned.forms.get(number)?.as_ref());
            let mut before = flowing.take();
            let made = match form {
                Some(form) if form.covers > 1 => {
                    let neighbours = later.get_mut(..form.covers - 1).unwrap_or_default();
                    let bound = bound.get(number..).unwrap_or_default();
                    self.run_fused(call, neighbours, form, bound, &mut before)?
                }
                Some(form) => self.run_in_form(call, form, &mut before)?,
                None => None,
            };
            let ran = made.as_ref().and(form);
            let covers = ran.map_or(1, |form| form.covers);
            let operation = covers
                .checked_sub(2)
                .and_then(|last| later.get(last))
                .map_or(call.operation, |last| last.operation);
            run.kernels.extend(std::iter::repeat_n(ran.map(|form| form.kernel.clone()), covers));
            let mut made = match made {
                Some(made) => made,
                None => {
                    let mut tensor = before.map(|before| before.settled(operation)).transpose()?;
                    let outputs = dynamic::call(self, operation, &mut call.arguments(tensor.as_mut()))?;
                    outputs.into_iter().map(Made::from).collect()
                }
            };
            if number + covers < count {
                flowing = match made.drain(..).next() {
                    Some(Made::Tensor(first)) => Some(first),
                    _ => return Err(not_a_tensor(operation)),
                };
            } else {
                run.outputs = made.into_iter().map(|one| one.settled(operation)).collect::<Result<_, _>>()?;
            }
        }
        Ok(run)
    }

    /// The plan of a block, and what each of its calls says when what flows is as declared; `None` where something that flows
    /// has no size before it is made.
    fn planned(&self, calls: &mut [BlockCall<'_>]) -> Result<Option<PlannedCalls>, Error> {
        let mut steps = Vec::with_capacity(calls.len());
        let mut all = Vec::with_capacity(calls.len());
        let mut flowing: Option<Tensor> = None;
        let count = calls.len();
        for (number, call) in calls.iter_mut().enumerate() {
            let (operation, schema) = (call.operation, call.operation.schema());
            let dtypes = call.dtypes.clone();
            let args = call.arguments(flowing.as_mut());
            let bound = check::check_call(schema, &args, None)?;
            let context = dynamic::context(schema, &bound, &args, None)?;
            steps.push(Step { operation, context, dtypes });
            let outputs =
                check::infer_outputs(schema, &bound).map_err(|reason| invalid(operation, reason))?;
            let params = bound.values.get(schema.axes.len()..).unwrap_or_default();
            let params = params.iter().take(schema.params.len()).copied().collect();
            all.push(BoundCall { context, params, outputs });
            let specs = all.last().map(|bound| bound.outputs.as_slice()).unwrap_or_default();
            let made = match specs.first() {
                Some(OutputSpec::Tensor(sizes, dtype)) => check::allocate(operation, Some((*sizes, *dtype)))?,
                _ if number + 1 < count => return Ok(None),
                _ => break,
            };
            flowing = Some(made);
        }
        let (world, mode) = self.world_of_thread();
        let planned = self.extension::<KeptPlans>().plan(&world, mode, &steps)?;
        Ok(Some((planned, all)))
    }

    /// Runs one operation as planned. `None` when that is not possible: then what flows in is as it was.
    fn run_in_form(
        &self,
        call: &mut BlockCall<'_>,
        form: &Form,
        before: &mut Option<Flowing>,
    ) -> Result<Option<Vec<Made>>, Error> {
        let operation = call.operation;
        let schema = operation.schema();
        let takes = call.takes;
        if mutates(operation) {
            // What a conversion made would be changed in place of what the caller passed.
            return Ok(None);
        }
        let mut args: Vec<Arg<'_>> = call.args.iter_mut().map(Arg::reborrow).collect();
        if let (Some(flowing), Some(place)) = (before.as_ref(), args.get_mut(takes)) {
            *place = Arg::Tensor(flowing.tensor.view());
        }
        let flows = before.as_ref().map(|flowing| flowing.declared);
        let Some(turn) = Turn::of(schema, &args, form, takes, flows) else { return Ok(None) };
        let mut converted: Vec<Option<Tensor>> = Vec::with_capacity(schema.inputs.len());
        for (position, arg) in args.iter().enumerate().take(schema.inputs.len()) {
            let flowing = before.as_ref().filter(|_| position == takes);
            converted.push(match arg.tensor() {
                Some(view) => turn
                    .input(schema, position, &view, flowing)
                    .map_err(|reason| invalid(operation, reason))?,
                None => None,
            });
        }
        for (arg, tensor) in args.iter_mut().zip(&converted) {
            if let Some(tensor) = tensor {
                *arg = Arg::Tensor(tensor.view());
            }
        }
        if let (Some((param, _, to)), inputs) = (turn.layout, schema.inputs.len())
            && let Some(arg) = args.get_mut(inputs + param)
        {
            *arg = Arg::Value(Value::Enum(to as u32));
        }
        let Ok(bound) = check::check_call(schema, &args, None) else { return Ok(None) };
        let context = dynamic::context(schema, &bound, &args, None)?;
        for (param, arg) in args.iter_mut().skip(schema.inputs.len()).enumerate() {
            if let Some(value) = bound.values.get(schema.axes.len() + param) {
                *arg = Arg::Value(*value);
            }
        }
        let Ok(specs) = check::infer_outputs(schema, &bound) else { return Ok(None) };
        let Some(mut tensors) = allocated(operation, &specs)? else { return Ok(None) };
        let ran = {
            let mut places = places(&mut tensors);
            self.run_planned(&form.kernel, operation, &context, &mut |entry, run| {
                entry.kernel.run(&mut args, &mut places, run)
            })?
        };
        if !ran {
            return Ok(None);
        }
        let made = tensors.into_iter().enumerate();
        Ok(Some(
            made.map(|(position, tensor)| {
                tensor.map_or(Made::Absent, |tensor| turn.output(schema, position, tensor))
            })
            .collect(),
        ))
    }
}

/// A plan, and what each call of its block says.
type PlannedCalls = (Arc<Planned>, Vec<BoundCall>);

/// What one call of a block says when what flows in is as declared.
pub(super) struct BoundCall {
    pub context: Context,
    /// All of them, defaults filled in.
    pub params: Vec<Value>,
    pub outputs: Vec<OutputSpec>,
}

/// Tensors for outputs; `None` where one has no size beforehand.
pub(super) fn allocated(
    operation: &'static OperationInfo,
    specs: &[OutputSpec],
) -> Result<Option<Vec<Option<Tensor>>>, Error> {
    let mut tensors: Vec<Option<Tensor>> = Vec::with_capacity(specs.len());
    for spec in specs {
        tensors.push(match spec {
            OutputSpec::Absent => None,
            OutputSpec::Tensor(sizes, dtype) => Some(check::allocate(operation, Some((*sizes, *dtype)))?),
            OutputSpec::Dynamic(_) | OutputSpec::Text => return Ok(None),
        });
    }
    Ok(Some(tensors))
}

/// The same as a kernel takes them.
pub(super) fn places(tensors: &mut [Option<Tensor>]) -> Vec<OutArg<'_>> {
    let all = tensors.iter_mut();
    all.map(|tensor| tensor.as_mut().map_or(OutArg::Absent, |tensor| OutArg::Tensor(tensor.view_mut())))
        .collect()
}

/// How the tensors of one call are turned: from the declared layout into another, and from the declared element type.
struct Turn {
    /// The layout param, its declared case, and the case that the kernel runs in.
    layout: Option<(usize, usize, usize)>,
    /// A dtype variable, its declared type, and the type that the kernel runs in.
    dtype: Option<(usize, DType, DType)>,
}

impl Turn {
    /// `None` when the form cannot be had. `flows` is the declared element type of what flows in.
    fn of(
        schema: &Operation,
        args: &[Arg<'_>],
        form: &Form,
        takes: usize,
        flows: Option<DType>,
    ) -> Option<Turn> {
        let mut turn = Turn { layout: None, dtype: None };
        if let (Some(name), Some(param)) =
            (&form.layout, schema.params.iter().position(|param| param.name == "layout"))
        {
            let lz_schema::model::ParamType::Enum(cases) = &schema.params.get(param)?.ty else { return None };
            let to = cases.iter().position(|case| case == name)?;
            let from = match args.get(schema.inputs.len() + param)? {
                Arg::Value(Value::Enum(case)) => *case as usize,
                _ => cases.iter().position(|case| {
                    let default = schema.params.get(param).and_then(|param| param.default.as_ref());
                    default.is_some_and(|default| default.text.trim() == case)
                })?,
            };
            turn.layout = Some((param, from, to));
        }
        if let (Some(dtype), Cases::One(DTypeRef::Variable(variable))) =
            (form.dtype, &schema.inputs.get(takes)?.dtype)
        {
            let declared = flows.or_else(|| Some(args.get(takes)?.tensor()?.dtype()))?;
            turn.dtype = Some((*variable, declared, dtype));
        }
        Some(turn)
    }

    fn order(&self, shape: &Cases<Vec<lz_schema::model::Dim>>, rank: usize) -> Vec<usize> {
        let turned = self.layout.and_then(|(param, from, to)| order(shape, param, from, to));
        turned.filter(|order| order.len() == rank).unwrap_or_else(|| as_it_is(rank))
    }

    fn converts(&self, dtype: &Cases<DTypeRef>) -> Option<(DType, DType)> {
        let (variable, from, to) = self.dtype?;
        matches!(dtype, Cases::One(DTypeRef::Variable(own)) if *own == variable).then_some((from, to))
    }

    /// An input as the kernel takes it; `None` where it is so already.
    fn input(
        &self,
        schema: &Operation,
        position: usize,
        view: &TensorView<'_>,
        flowing: Option<&Flowing>,
    ) -> Result<Option<Tensor>, Reason> {
        let Some(input) = schema.inputs.get(position) else { return Ok(None) };
        let wanted = self.order(&input.shape, view.rank());
        let dtype = self.converts(&input.dtype).map_or(view.dtype(), |(_, to)| to);
        // From where the dimensions stand now: what flows may have been turned already.
        let now = flowing.map_or_else(|| as_it_is(view.rank()), |flowing| undone(&flowing.order));
        let steps: Vec<usize> = wanted.iter().filter_map(|dimension| now.get(*dimension).copied()).collect();
        if steps.is_sorted() && dtype == view.dtype() {
            return Ok(None);
        }
        arranged(view, &steps, dtype).map(Some)
    }

    /// An output and how it differs from what is declared.
    fn output(&self, schema: &Operation, position: usize, tensor: Tensor) -> Made {
        let rank = tensor.shape().len();
        let Some(output) = schema.outputs.get(position) else { return Made::Absent };
        let declared = self.converts(&output.dtype).map_or(tensor.dtype(), |(from, _)| from);
        Made::Tensor(Flowing { order: self.order(&output.shape, rank), declared, tensor })
    }
}

/// An output of one step.
pub(super) enum Made {
    Absent,
    Tensor(Flowing),
    Text(Vec<String>),
}

impl From<Output> for Made {
    fn from(output: Output) -> Made {
        match output {
            Output::Absent => Made::Absent,
            Output::Tensor(tensor) => Made::Tensor(Flowing::as_declared(tensor)),
            Output::Text(text) => Made::Text(text),
        }
    }
}

impl Made {
    fn settled(self, operation: &OperationInfo) -> Result<Output, Error> {
        Ok(match self {
            Made::Absent => Output::Absent,
            Made::Tensor(flowing) => Output::Tensor(flowing.settled(operation)?),
            Made::Text(text) => Output::Text(text),
        })
    }
}

fn invalid(operation: &OperationInfo, reason: Reason) -> Error {
    Error::Validation { operation: operation.name.to_string(), reasons: vec![reason] }
}

fn not_a_tensor(operation: &OperationInfo) -> Error {
    let reason = Reason::new(ReasonCode::TransformUnavailable)
        .required("a tensor for the next operation of the block")
        .found(format!("what {} makes first", operation.name));
    invalid(operation, reason)
}
