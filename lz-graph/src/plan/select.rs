//! The kernel of each step: the engine decides, from sizes, dtypes, params and strides.

use lz_core::args::{Arg, OutArg};
use lz_core::check::{self, OutputSpec};
use lz_core::context::Context;
use lz_core::kernel::Prepare;
use lz_core::plan::TransformKind;
use lz_core::tensor::Device;
use lz_core::{Error, KernelError, OperationInfo, PreparedInput, TensorMut, TensorView};
use lz_engine::{Engine, Pinned};

use super::{Location, Planner, Source, Step, StepArg};
use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId};
use crate::prepared::PreparedConstants;
use crate::strided::Strided;

/// Stands for the memory of a buffer while it does not exist: distinct, and aligned as the buffer will be.
const BUFFER_SPACING_BITS: u32 = 40;

/// Where a plan runs, and with which kernels.
pub trait Selector {
    /// What a step stores about its kernel.
    type Kernel;

    /// The device of every tensor of the plan.
    fn device(&self) -> Device;

    /// The kernel of a call.
    fn select(&self, operation: &'static OperationInfo, context: &Context) -> Result<Self::Kernel, Error>;

    /// Whether no fast kernel takes the call as it is, so that dense copies of its inputs may lead to one.
    fn is_reference(&self, kernel: &Self::Kernel) -> bool;

    /// The name of a kernel.
    fn name<'k>(&self, kernel: &'k Self::Kernel) -> &'k str;

    /// Whether policy names the kernel of this operation's calls, or of some of them.
    fn is_locked(&self, operation: &OperationInfo) -> bool;

    /// The median time of a kernel for calls like this one, in nanoseconds, if it was measured.
    fn measured(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        kernel: &Self::Kernel,
    ) -> Option<f64>;

    /// How the kernel rearranges constants, if it does.
    fn prepare<'k>(&self, kernel: &'k Self::Kernel) -> Option<&'k dyn Prepare>;
}

/// Kernels of an engine for host memory.
#[derive(Debug)]
pub struct HostKernels<'a> {
    /// The engine.
    pub engine: &'a Engine,
}

impl Selector for HostKernels<'_> {
    type Kernel = Pinned;

    fn device(&self) -> Device {
        Device::HOST
    }

    fn select(&self, operation: &'static OperationInfo, context: &Context) -> Result<Pinned, Error> {
        self.engine.pin(operation, context, &mut |_| Ok(()))
    }

    fn is_reference(&self, kernel: &Pinned) -> bool {
        // A kernel that copies strided tensors in every call is slower than a copy that is a step of the plan: that one has its
        // memory, and a constant is copied once.
        kernel.entry().spec.reference || kernel.transforms().contains(TransformKind::Contiguous)
    }

    fn name<'k>(&self, kernel: &'k Pinned) -> &'k str {
        &kernel.entry().spec.id
    }

    fn is_locked(&self, operation: &OperationInfo) -> bool {
        self.engine.policy().locks.iter().any(|lock| lock.operation.matches(&operation.name))
    }

    fn measured(&self, operation: &'static OperationInfo, context: &Context, kernel: &Pinned) -> Option<f64> {
        if !self.engine.has_measurements() {
            return None;
        }
        let explanation = self.engine.explain(operation, context);
        let own = explanation.candidates.iter().find(|one| one.kernel == kernel.entry().spec.id)?;
        own.evidence.map(|evidence| evidence.median_ns)
    }

    fn prepare<'k>(&self, kernel: &'k Pinned) -> Option<&'k dyn Prepare> {
        kernel.entry().prepare.as_deref()
    }
}

/// The constants of a step in the layout of a kernel, as [`Step::prepared`]. Of `args` only the sizes are used.
pub(crate) fn prepare_inputs<K>(
    prepare: &dyn Prepare,
    args: &[Arg<'_>],
    step: &Step<K>,
    graph: &Graph,
    prepared: &PreparedConstants,
) -> Result<Vec<Option<PreparedInput>>, KernelError> {
    let inputs = prepare.inputs(args);
    let constant = |input: usize| match step.args.get(input) {
        Some(StepArg::Read(Location { source: Source::Constant(index), view })) => {
            Some((&graph.constants[*index], view))
        }
        _ => None,
    };
    // A kernel reads either all of them prepared or none.
    if inputs.is_empty() || !inputs.iter().all(|input| constant(*input).is_some()) {
        return Ok(Vec::new());
    }
    let mut made = vec![None; inputs.iter().max().map_or(0, |last| last + 1)];
    for &input in inputs {
        let Some((constant, part)) = constant(input) else { continue };
        let data = constant.view().as_ptr().wrapping_offset(part.byte_offset());
        // SAFETY: the part is inside the constant, which outlives the view.
        let view = unsafe { TensorView::from_raw(data, part.layout) };
        made[input] = Some(prepared.get(constant, &view, prepare)?);
    }
    Ok(made)
}

impl<S: Selector> Planner<'_, S> {
    /// Sizes and dtypes of a call's outputs; `None` where it does not produce one.
    pub(super) fn output_types(
        &self,
        node: &Node,
        operation: &'static OperationInfo,
        args: &[StepArg],
    ) -> Result<Vec<Option<Strided>>, GraphError> {
        let args = self.arguments(args);
        let schema = operation.schema();
        let failed = |error| GraphError::run(&node.origin, error);
        let bound = check::check_planned_call(schema, &args, None).map_err(failed)?;
        let specs = check::infer_outputs(schema, &bound).map_err(|reason| self.invalid(node, reason))?;
        let types = specs.into_iter().map(|spec| match spec {
            OutputSpec::Absent => Ok(None),
            OutputSpec::Tensor(sizes, dtype) => match Strided::dense(&sizes, dtype) {
                Some(view) => Ok(Some(self.placed(view))),
                None => Err(self.invalid(node, format!("shape {sizes:?} is too large"))),
            },
            OutputSpec::Dynamic(_) | OutputSpec::Text => {
                let message = "an output whose size only the kernel knows cannot be part of a graph";
                Err(self.invalid(node, message))
            }
        });
        types.collect()
    }

    /// Selects a kernel for exactly these tensors.
    pub(super) fn select(
        &self,
        id: NodeId,
        operation: &'static OperationInfo,
        mut args: Vec<StepArg>,
        outputs: Vec<Option<Location>>,
    ) -> Result<Step<S::Kernel>, GraphError> {
        let origin = &self.graph.node(id).origin;
        let schema = operation.schema();
        let views = self.arguments(&args);
        let out_views: Vec<OutArg<'_>> = outputs
            .iter()
            .map(|output| match output {
                // SAFETY: the view describes no memory; only its metadata and address are used.
                Some(location) => OutArg::Tensor(unsafe {
                    TensorMut::from_raw(self.address(location).cast_mut(), location.view.layout)
                }),
                None => OutArg::Absent,
            })
            .collect();
        let failed = |error| GraphError::run(origin, error);
        let bound = check::check_planned_call(schema, &views, Some(&out_views)).map_err(failed)?;
        let context = lz_core::dynamic::context(schema, &bound, &views, Some(&out_views)).map_err(failed)?;
        let pinned = self.selector.select(operation, &context).map_err(failed)?;
        // Kernels receive every param, so that none computes its own default.
        for (param, arg) in args.iter_mut().skip(schema.inputs.len()).enumerate() {
            if let Some(value) = bound.values.get(schema.axes.len() + param) {
                *arg = StepArg::Param(Some(*value));
            }
        }
        Ok(Step {
            node: id,
            operation,
            args,
            outputs,
            pinned,
            context,
            copy: None,
            rejected: Vec::new(),
            prepared: Vec::new(),
        })
    }

    /// The constants of a step in the layout of its kernel.
    pub(super) fn prepare(&self, step: &Step<S::Kernel>) -> Result<Vec<Option<PreparedInput>>, GraphError> {
        let Some(prepare) = self.selector.prepare(&step.pinned) else { return Ok(Vec::new()) };
        let made = prepare_inputs(prepare, &self.arguments(&step.args), step, self.graph, self.prepared);
        made.map_err(|error| self.invalid(self.graph.node(step.node), error))
    }

    fn arguments(&self, args: &[StepArg]) -> Vec<Arg<'static>> {
        args.iter()
            .map(|arg| match arg {
                StepArg::Read(location) => {
                    // SAFETY: the view describes no memory; only its metadata and address are used.
                    let view = unsafe { TensorView::from_raw(self.address(location), location.view.layout) };
                    Arg::Tensor(view)
                }
                // SAFETY: as above.
                StepArg::Write(location) => Arg::TensorMut(unsafe {
                    TensorMut::from_raw(self.address(location).cast_mut(), location.view.layout)
                }),
                StepArg::Param(value) => value.map_or(Arg::Absent, Arg::Value),
            })
            .collect()
    }

    /// An address that stands for the tensor's.
    fn address(&self, location: &Location) -> *const u8 {
        let (kind, index) = match location.source {
            Source::Input(index) => (0, index),
            Source::Constant(index) => (1, index),
            Source::Sizes(index) => (2, index),
            Source::Arena(index) => (3, index),
            Source::Output(index) => (4, index),
        };
        let mut address = (index * 5 + kind + 1) << BUFFER_SPACING_BITS;
        match location.source {
            Source::Input(index) => address += self.alignment.get(index).map_or(0, |bytes| bytes % 64),
            Source::Constant(index) => address += self.graph.constants[index].view().address() % 64,
            // Vectors of integers are aligned to their elements only.
            Source::Sizes(_) => address += size_of::<i64>(),
            Source::Arena(_) | Source::Output(_) => {}
        }
        let offset = location.view.offset * location.view.layout.dtype.size() as i64;
        std::ptr::without_provenance(address.wrapping_add_signed(offset as isize))
    }
}
