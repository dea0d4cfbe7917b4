//! Runs a block of operations: each consumes the first output of the previous one, converted as planned.
//!
//! A plan affects speed, never correctness: a kernel is filtered again before it runs, and a step whose kernel cannot run or fails becomes
//! an ordinary call. Operations that mutate their inputs, and those without a layout, get their input as declared.

use std::sync::Arc;

use lz_schema::DType;
use lz_schema::expr::Value;
use lz_schema::model::{Cases, DTypeRef, Kind, Operation};

use super::convert::{identity, inverse, permutation, permuted};
use super::dequantize::Dequantization;
use super::graph::mutates;
use super::plan_cache::{Form, PlanCache, Planned};
use super::{BlockPlan, DequantizedStep, Step};
use crate::dynamic::{self, Output};
use crate::engine::Engine;
use crate::registry::Registry;
use crate::selection::snapshot::Snapshot;
use lz_core::args::{Arg, OutArg};
use lz_core::check::{self, Bound, OutputSpec};
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::mode::{Mode, ModeFlag};
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::tensor::{Tensor, TensorView};

/// One operation of a block with its arguments: inputs, then params.
pub struct BlockCall<'a> {
    pub(super) operation: &'static OperationInfo,
    pub(super) args: Vec<Arg<'a>>,
    /// The input that receives the output of the previous operation.
    pub(super) takes: usize,
    dtypes: Vec<DType>,
}

impl<'a> BlockCall<'a> {
    /// A call. The output of the previous operation replaces its first tensor argument.
    pub fn new(operation: &'static OperationInfo, args: Vec<Arg<'a>>) -> BlockCall<'a> {
        let inputs = &operation.schema().inputs;
        let takes = inputs.iter().position(|input| input.kind == Kind::Tensor).unwrap_or_default();
        BlockCall { operation, args, takes, dtypes: Vec::new() }
    }

    /// Allows other element types than those of its tensors; see [`Step::or_in`].
    #[must_use]
    pub fn or_in(mut self, dtypes: &[DType]) -> BlockCall<'a> {
        self.dtypes.extend(dtypes);
        self
    }

    fn arguments<'b>(&'b mut self, flow_tensor: Option<&'b mut Tensor>) -> Vec<Arg<'b>> {
        let writes = self.operation.schema().inputs.get(self.takes).is_some_and(|input| input.read_write);
        let mut args: Vec<Arg<'b>> = self.args.iter_mut().map(Arg::reborrow).collect();
        if let (Some(tensor), Some(slot)) = (flow_tensor, args.get_mut(self.takes)) {
            *slot = if writes { Arg::TensorMut(tensor.view_mut()) } else { Arg::Tensor(tensor.view()) };
        }
        args
    }
}

/// The result of a block.
#[derive(Debug)]
pub struct BlockRun {
    /// The outputs of the last operation.
    pub outputs: Vec<Output>,
    /// Per operation the kernel that ran it as planned (the same for fused operations); `None` if it was an ordinary
    /// call.
    pub kernels: Vec<Option<String>>,
    /// The plan; `None` with `plan_mode: false`, or if an intermediate tensor has a dynamic size.
    pub plan: Option<BlockPlan>,
}

/// A tensor between two steps, with the permutation of its declared dimensions.
pub(super) struct FlowTensor {
    pub tensor: Tensor,
    order: Vec<usize>,
    declared: DType,
}

impl FlowTensor {
    pub fn as_declared(tensor: Tensor) -> FlowTensor {
        FlowTensor { order: identity(tensor.shape().len()), declared: tensor.dtype(), tensor }
    }

    fn is_as_declared(&self) -> bool {
        self.order.is_sorted() && self.tensor.dtype() == self.declared
    }

    /// Converts it to the declared form.
    pub fn into_declared(self, operation: &OperationInfo) -> Result<Tensor, Error> {
        if self.is_as_declared() {
            return Ok(self.tensor);
        }
        let tensor = permuted(&self.tensor.view(), &inverse(&self.order), self.declared);
        tensor.map_err(|reason| invalid(operation, reason))
    }
}

impl Engine {
    /// The plan with which [`Engine::run_block`] runs these calls while `plan_mode` is on, or would run them on a simulated device;
    /// `None` if an intermediate tensor has a dynamic size.
    pub fn plan_calls(&self, calls: &mut [BlockCall<'_>]) -> Result<Option<BlockPlan>, Error> {
        let (snapshot, mode) = self.thread_snapshot();
        let Some((steps, _)) = bound_steps(calls, dequantizing(&snapshot, mode))? else { return Ok(None) };
        if !snapshot.devices.are_real() {
            return self.plan_block(&steps).map(Some);
        }
        let planned = self.extension::<PlanCache>().plan(&snapshot, mode, &steps)?;
        Ok(Some(planned.plan.clone()))
    }

    /// Runs a block of operations, each of which consumes the first output of the previous one. With `plan_mode` their kernels are selected
    /// jointly; otherwise each is an ordinary call. Results are allocated in host memory.
    pub fn run_block(&self, calls: &mut [BlockCall<'_>]) -> Result<BlockRun, Error> {
        let planned = if self.policy().plan_mode.value { self.planned(calls)? } else { None };
        let (planned, bound) = planned.unzip();
        let bound = bound.unwrap_or_default();
        let mut run = BlockRun {
            outputs: Vec::new(),
            kernels: Vec::new(),
            plan: planned.as_ref().map(|planned| planned.plan.clone()),
        };
        let mut flow_tensor: Option<FlowTensor> = None;
        let count = calls.len();
        while let Some((call, later)) = calls.get_mut(run.kernels.len()..).and_then(<[_]>::split_first_mut) {
            let number = run.kernels.len();
            let form = planned.as_ref().and_then(|planned| planned.forms.get(number)?.as_ref());
            let mut before = flow_tensor.take();
            let outputs = match form {
                Some(form) if form.covers > 1 => {
                    let neighbors = later.get_mut(..form.covers - 1).unwrap_or_default();
                    let bound = bound.get(number..).unwrap_or_default();
                    self.run_fused(call, neighbors, form, bound, &mut before)?
                }
                Some(form) if form.is_dequantized => {
                    let bound = bound.get(number);
                    bound.map_or(Ok(None), |bound| self.run_dequantized(call, form, bound, &mut before))?
                }
                Some(form) => self.run_in_form(call, form, &mut before)?,
                None => None,
            };
            let ran = outputs.as_ref().and(form);
            let covers = ran.map_or(1, |form| form.covers);
            let operation = covers
                .checked_sub(2)
                .and_then(|last| later.get(last))
                .map_or(call.operation, |last| last.operation);
            run.kernels.extend(std::iter::repeat_n(ran.map(|form| form.kernel.clone()), covers));
            let mut outputs = match outputs {
                Some(outputs) => outputs,
                None => {
                    let mut tensor = before.map(|before| before.into_declared(operation)).transpose()?;
                    let outputs = dynamic::call(self, operation, &mut call.arguments(tensor.as_mut()))?;
                    outputs.into_iter().map(StepOutput::from).collect()
                }
            };
            if number + covers < count {
                flow_tensor = match outputs.drain(..).next() {
                    Some(StepOutput::Tensor(first)) => Some(first),
                    _ => return Err(not_a_tensor(operation)),
                };
            } else {
                run.outputs =
                    outputs.into_iter().map(|one| one.into_declared(operation)).collect::<Result<_, _>>()?;
            }
        }
        Ok(run)
    }

    /// The plan of a block, and its bound calls with inputs as declared; `None` if an intermediate tensor has a dynamic size.
    fn planned(&self, calls: &mut [BlockCall<'_>]) -> Result<Option<PlannedCalls>, Error> {
        let (snapshot, mode) = self.thread_snapshot();
        let Some((steps, all)) = bound_steps(calls, dequantizing(&snapshot, mode))? else { return Ok(None) };
        let planned = self.extension::<PlanCache>().plan(&snapshot, mode, &steps)?;
        Ok(Some((planned, all)))
    }

    /// Runs one operation as planned. `None` if that is not possible: the incoming tensor is unchanged.
    fn run_in_form(
        &self,
        call: &mut BlockCall<'_>,
        form: &Form,
        before: &mut Option<FlowTensor>,
    ) -> Result<Option<Vec<StepOutput>>, Error> {
        let operation = call.operation;
        let schema = operation.schema();
        let takes = call.takes;
        if mutates(operation) {
            // A converted copy would be mutated instead of the caller's tensor.
            return Ok(None);
        }
        let mut args: Vec<Arg<'_>> = call.args.iter_mut().map(Arg::reborrow).collect();
        if let (Some(flow_tensor), Some(slot)) = (before.as_ref(), args.get_mut(takes)) {
            *slot = Arg::Tensor(flow_tensor.tensor.view());
        }
        let flows = before.as_ref().map(|flow_tensor| flow_tensor.declared);
        let Some(conversion) = TensorConversion::of(schema, &args, form, takes, flows) else {
            return Ok(None);
        };
        let mut converted: Vec<Option<Tensor>> = Vec::with_capacity(schema.inputs.len());
        for (position, arg) in args.iter().enumerate().take(schema.inputs.len()) {
            let flow_tensor = before.as_ref().filter(|_| position == takes);
            converted.push(match arg.tensor() {
                Some(view) => conversion
                    .input(schema, position, &view, flow_tensor)
                    .map_err(|reason| invalid(operation, reason))?,
                None => None,
            });
        }
        for (arg, tensor) in args.iter_mut().zip(&converted) {
            if let Some(tensor) = tensor {
                *arg = Arg::Tensor(tensor.view());
            }
        }
        if let (Some((param, _, to)), inputs) = (conversion.layout, schema.inputs.len())
            && let Some(arg) = args.get_mut(inputs + param)
        {
            *arg = Arg::Value(Value::Enum(to as u32));
        }
        let Some(tensors) = self.run_ready(&form.kernel, operation, &mut args)? else { return Ok(None) };
        let outputs = tensors.into_iter().enumerate();
        Ok(Some(
            outputs
                .map(|(position, tensor)| {
                    tensor.map_or(StepOutput::Absent, |tensor| conversion.output(schema, position, tensor))
                })
                .collect(),
        ))
    }

    /// Runs one operation as planned by a kernel of the operation on dequantized inputs. `None` if that is not possible: the incoming tensor
    /// is unchanged.
    fn run_dequantized(
        &self,
        call: &mut BlockCall<'_>,
        form: &Form,
        bound: &BoundCall,
        before: &mut Option<FlowTensor>,
    ) -> Result<Option<Vec<StepOutput>>, Error> {
        let Some(dequantization) = Dequantization::of(&self.registry(), call.operation, &bound.bound) else {
            return Ok(None);
        };
        if let Some(flow_tensor) = before.take() {
            *before = Some(FlowTensor::as_declared(flow_tensor.into_declared(call.operation)?));
        }
        let mut args: Vec<Arg<'_>> = call.args.iter_mut().map(Arg::reborrow).collect();
        if let (Some(flow_tensor), Some(slot)) = (before.as_ref(), args.get_mut(call.takes)) {
            *slot = Arg::Tensor(flow_tensor.tensor.view());
        }
        let Some(inputs) = dequantization.run(self, &args, &bound.bound) else { return Ok(None) };
        let Some(mut args) = dequantization.dense_arguments(&args, &bound.bound, &inputs) else {
            return Ok(None);
        };
        let tensors = self.run_ready(&form.kernel, dequantization.dense, &mut args)?;
        let output = |tensor: Option<_>| {
            tensor.map_or(StepOutput::Absent, |tensor| StepOutput::Tensor(FlowTensor::as_declared(tensor)))
        };
        Ok(tensors.map(|tensors| tensors.into_iter().map(output).collect()))
    }

    /// Runs a call with this kernel into new outputs. `None` if that is not possible.
    fn run_ready(
        &self,
        kernel: &str,
        operation: &'static OperationInfo,
        args: &mut [Arg<'_>],
    ) -> Result<Option<Vec<Option<Tensor>>>, Error> {
        let Some((context, mut tensors)) = ready(operation, args)? else { return Ok(None) };
        let ran = {
            let mut out_args = out_args(&mut tensors);
            self.run_planned(kernel, operation, &context, &mut |entry, run| {
                entry.run(args, &mut out_args, run)
            })?
        };
        Ok(ran.then_some(tensors))
    }
}

/// The context of a call, and its allocated outputs.
type ReadyCall = (Context, Vec<Option<Tensor>>);

/// Makes a call ready to run, with all params filled in; `None` if it is invalid or an output has a dynamic size.
fn ready(operation: &'static OperationInfo, args: &mut [Arg<'_>]) -> Result<Option<ReadyCall>, Error> {
    let schema = operation.schema();
    let Ok(bound) = check::check_call(schema, args, None) else { return Ok(None) };
    let context = dynamic::context(schema, &bound, args, None)?;
    for (param, arg) in args.iter_mut().skip(schema.inputs.len()).enumerate() {
        if let Some(value) = bound.values.get(schema.axes.len() + param) {
            *arg = Arg::Value(*value);
        }
    }
    let Ok(specs) = check::infer_outputs(schema, &bound) else { return Ok(None) };
    Ok(allocated(operation, &specs)?.map(|tensors| (context, tensors)))
}

/// Whether plans may compute quantized operations on dequantized inputs; the registry with the operations if so.
fn dequantizing(snapshot: &Snapshot, mode: Mode) -> Option<Arc<Registry>> {
    let policy = &snapshot.policy;
    let is_allowed = policy.plan_dequantization.value && policy.allow_adaptation.value;
    (is_allowed && !mode.has(ModeFlag::Strict)).then(|| Arc::clone(&snapshot.registry))
}

/// A plan, and the bound calls of its block.
type PlannedCalls = (Arc<Planned>, Vec<BoundCall>);

/// The steps of a block, and its bound calls.
type BoundSteps = (Vec<Step>, Vec<BoundCall>);

/// A call of a block, bound with inputs as declared.
pub(super) struct BoundCall {
    pub context: Context,
    /// All params, defaults filled in.
    pub params: Vec<Value>,
    pub outputs: Vec<OutputSpec>,
    bound: Bound,
}

/// The call of the operation on dequantized inputs; `None` if there is none for this call.
fn dequantized_step(
    registry: &Registry,
    operation: &'static OperationInfo,
    args: &[Arg<'_>],
    bound: &Bound,
) -> Result<Option<DequantizedStep>, Error> {
    let Some(dequantization) = Dequantization::of(registry, operation, bound) else { return Ok(None) };
    let Some(tensors) = dequantization.placeholders(args, bound) else { return Ok(None) };
    let Some(mut args) = dequantization.dense_arguments(args, bound, &tensors) else { return Ok(None) };
    let ready = ready(dequantization.dense, &mut args)?;
    Ok(ready.map(|(context, _)| DequantizedStep {
        operation: dequantization.dense,
        context,
        inputs: dequantization.names().collect(),
    }))
}

/// The steps of a block and its bound calls, with inputs as declared; `None` if an intermediate tensor has a dynamic size.
///
/// `dequantizing` is the registry if quantized operations may be computed on dequantized inputs.
fn bound_steps(
    calls: &mut [BlockCall<'_>],
    dequantizing: Option<Arc<Registry>>,
) -> Result<Option<BoundSteps>, Error> {
    let mut steps = Vec::with_capacity(calls.len());
    let mut all = Vec::with_capacity(calls.len());
    let mut flow_tensor: Option<Tensor> = None;
    let count = calls.len();
    for (number, call) in calls.iter_mut().enumerate() {
        let (operation, schema) = (call.operation, call.operation.schema());
        let dtypes = call.dtypes.clone();
        let args = call.arguments(flow_tensor.as_mut());
        let bound = check::check_call(schema, &args, None)?;
        let context = dynamic::context(schema, &bound, &args, None)?;
        let dequantized =
            dequantizing.as_ref().map(|registry| dequantized_step(registry, operation, &args, &bound));
        let dequantized = dequantized.transpose()?.flatten();
        steps.push(Step { operation, context, dtypes, dequantized });
        let outputs = check::infer_outputs(schema, &bound).map_err(|reason| invalid(operation, reason))?;
        let params = bound.values.get(schema.axes.len()..).unwrap_or_default();
        let params = params.iter().take(schema.params.len()).copied().collect();
        all.push(BoundCall { context, params, outputs, bound });
        let specs = all.last().map(|bound| bound.outputs.as_slice()).unwrap_or_default();
        let outputs = match specs.first() {
            Some(OutputSpec::Tensor(sizes, dtype)) => check::allocate(operation, Some((*sizes, *dtype)))?,
            _ if number + 1 < count => return Ok(None),
            _ => break,
        };
        flow_tensor = Some(outputs);
    }
    Ok(Some((steps, all)))
}

/// Allocates outputs; `None` if one has a dynamic size.
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

/// The outputs as kernel arguments.
pub(super) fn out_args(tensors: &mut [Option<Tensor>]) -> Vec<OutArg<'_>> {
    let all = tensors.iter_mut();
    all.map(|tensor| tensor.as_mut().map_or(OutArg::Absent, |tensor| OutArg::Tensor(tensor.view_mut())))
        .collect()
}

/// The conversion of a call's tensors from the declared layout and element type to those that the kernel runs in.
struct TensorConversion {
    /// The layout param, its declared case, and the kernel's case.
    layout: Option<(usize, usize, usize)>,
    /// A dtype variable, its declared type, and the kernel's type.
    dtype: Option<(usize, DType, DType)>,
}

impl TensorConversion {
    /// `None` if the form is not possible. `flows` is the declared dtype of the incoming tensor.
    fn of(
        schema: &Operation,
        args: &[Arg<'_>],
        form: &Form,
        takes: usize,
        flows: Option<DType>,
    ) -> Option<TensorConversion> {
        let mut conversion = TensorConversion { layout: None, dtype: None };
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
            conversion.layout = Some((param, from, to));
        }
        if let (Some(dtype), Cases::One(DTypeRef::Variable(variable))) =
            (form.dtype, &schema.inputs.get(takes)?.dtype)
        {
            let declared = flows.or_else(|| Some(args.get(takes)?.tensor()?.dtype()))?;
            conversion.dtype = Some((*variable, declared, dtype));
        }
        Some(conversion)
    }

    fn order(&self, shape: &Cases<Vec<lz_schema::model::Dim>>, rank: usize) -> Vec<usize> {
        let permuted_order = self.layout.and_then(|(param, from, to)| permutation(shape, param, from, to));
        permuted_order.filter(|order| order.len() == rank).unwrap_or_else(|| identity(rank))
    }

    fn converts(&self, dtype: &Cases<DTypeRef>) -> Option<(DType, DType)> {
        let (variable, from, to) = self.dtype?;
        matches!(dtype, Cases::One(DTypeRef::Variable(own)) if *own == variable).then_some((from, to))
    }

    /// Converts an input for the kernel; `None` if it needs no conversion.
    fn input(
        &self,
        schema: &Operation,
        position: usize,
        view: &TensorView<'_>,
        flow_tensor: Option<&FlowTensor>,
    ) -> Result<Option<Tensor>, Reason> {
        let Some(input) = schema.inputs.get(position) else { return Ok(None) };
        let wanted = self.order(&input.shape, view.rank());
        let dtype = self.converts(&input.dtype).map_or(view.dtype(), |(_, to)| to);
        // Relative to the current permutation: the incoming tensor may be permuted already.
        let now =
            flow_tensor.map_or_else(|| identity(view.rank()), |flow_tensor| inverse(&flow_tensor.order));
        let steps: Vec<usize> = wanted.iter().filter_map(|dimension| now.get(*dimension).copied()).collect();
        if steps.is_sorted() && dtype == view.dtype() {
            return Ok(None);
        }
        permuted(view, &steps, dtype).map(Some)
    }

    /// An output with its difference to the declared form.
    fn output(&self, schema: &Operation, position: usize, tensor: Tensor) -> StepOutput {
        let rank = tensor.shape().len();
        let Some(output) = schema.outputs.get(position) else { return StepOutput::Absent };
        let declared = self.converts(&output.dtype).map_or(tensor.dtype(), |(from, _)| from);
        StepOutput::Tensor(FlowTensor { order: self.order(&output.shape, rank), declared, tensor })
    }
}

/// An output of one step.
pub(super) enum StepOutput {
    Absent,
    Tensor(FlowTensor),
    Text(Vec<String>),
}

impl From<Output> for StepOutput {
    fn from(output: Output) -> StepOutput {
        match output {
            Output::Absent => StepOutput::Absent,
            Output::Tensor(tensor) => StepOutput::Tensor(FlowTensor::as_declared(tensor)),
            Output::Text(text) => StepOutput::Text(text),
        }
    }
}

impl StepOutput {
    fn into_declared(self, operation: &OperationInfo) -> Result<Output, Error> {
        Ok(match self {
            StepOutput::Absent => Output::Absent,
            StepOutput::Tensor(flow_tensor) => Output::Tensor(flow_tensor.into_declared(operation)?),
            StepOutput::Text(text) => Output::Text(text),
        })
    }
}

fn invalid(operation: &OperationInfo, reason: Reason) -> Error {
    Error::Validation { operation: operation.name.to_string(), reasons: vec![reason] }
}

fn not_a_tensor(operation: &OperationInfo) -> Error {
    let reason = Reason::new(ReasonCode::TransformUnavailable)
        .required("a tensor for the next operation of the block")
        .found(format!("the first output of {}", operation.name));
    invalid(operation, reason)
}
