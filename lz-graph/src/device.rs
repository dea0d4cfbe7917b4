//! Plans for another executor than this crate's: the caller runs the steps, on a device or through a framework.
//!
//! The graph, the passes, the memory plan and the selection are the same. A step is a kernel of the engine that takes the caller's own
//! objects, or, for primitives and where no engine selects, a function of the executor. *Architecture invariant:* nothing here reads or
//! allocates memory of a device.

use lz_core::context::Context;
use lz_core::kernel::{KernelError, Prepare};
use lz_core::tensor::Device;
use lz_core::{Error, OperationInfo};
use lz_engine::{Engine, Pinned};

use crate::error::GraphError;
use crate::graph::Graph;
use crate::memory::{self, ALIGNMENT};
use crate::plan::{self, HostKernels, Plan, Selector};
use crate::prepared::PreparedConstants;
use crate::sizes::{self, InputShape};

/// The kernel of a step.
#[derive(Debug)]
pub enum DeviceKernel {
    /// A kernel of the engine, which needs the caller's objects.
    Selected(Box<Pinned>),
    /// The executor's own function of the operation.
    Executor,
}

/// Who selects kernels of catalog operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The engine, as for any call with tensors of the device.
    Engine,
    /// Nobody: every step is the executor's own function.
    Executor,
}

/// Kernels for tensors of one device.
#[derive(Debug)]
struct DeviceKernels<'a> {
    engine: &'a Engine,
    device: Device,
    choice: Choice,
}

impl Selector for DeviceKernels<'_> {
    type Kernel = DeviceKernel;

    fn device(&self) -> Device {
        self.device
    }

    fn select(&self, operation: &'static OperationInfo, context: &Context) -> Result<DeviceKernel, Error> {
        if self.choice == Choice::Executor || is_primitive(operation) {
            return Ok(DeviceKernel::Executor);
        }
        let pinned = self.engine.pin(operation, context, &mut |entry| {
            if entry.kernel.needs_caller() {
                return Ok(());
            }
            Err(KernelError::declined(
                "a step of a device's plan needs a kernel that takes the caller's tensors",
            ))
        })?;
        Ok(DeviceKernel::Selected(Box::new(pinned)))
    }

    fn is_reference(&self, kernel: &DeviceKernel) -> bool {
        matches!(kernel, DeviceKernel::Selected(pinned) if pinned.entry().spec.reference)
    }

    fn name<'k>(&self, kernel: &'k DeviceKernel) -> &'k str {
        match kernel {
            DeviceKernel::Selected(pinned) => &pinned.entry().spec.id,
            DeviceKernel::Executor => "the executor's function",
        }
    }

    fn is_locked(&self, operation: &OperationInfo) -> bool {
        HostKernels { engine: self.engine }.is_locked(operation)
    }

    fn measured(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        kernel: &DeviceKernel,
    ) -> Option<f64> {
        let DeviceKernel::Selected(pinned) = kernel else { return None };
        HostKernels { engine: self.engine }.measured(operation, context, pinned)
    }

    fn prepare<'k>(&self, _kernel: &'k DeviceKernel) -> Option<&'k dyn Prepare> {
        None
    }
}

/// Whether it is a primitive of graphs: no backend has kernels of those for devices.
pub fn is_primitive(operation: &OperationInfo) -> bool {
    operation.name.starts_with("primitive.")
}

/// Plans a normalized graph for inputs of these shapes on a device, and checks that live buffers do not overlap.
pub fn plan(
    engine: &Engine,
    graph: &Graph,
    shapes: &[InputShape],
    device: Device,
    choice: Choice,
) -> Result<Plan<DeviceKernel>, GraphError> {
    let values = sizes::bind(graph, shapes)?;
    let kernels = DeviceKernels { engine, device, choice };
    let alignment = vec![ALIGNMENT; shapes.len()];
    let plan = plan::plan_by(&kernels, graph, &values, &alignment, &PreparedConstants::default())?;
    memory::check(&plan.lifetimes, &plan.placement)
        .map_err(|overlap| GraphError::Invalid { stage: "planning", findings: vec![overlap.to_string()] })?;
    Ok(plan)
}

/// The calls of a plan for which the engine selected a kernel.
pub fn selected_calls(plan: &Plan<DeviceKernel>) -> Vec<(&'static OperationInfo, Context)> {
    let selected = plan.steps.iter().filter(|step| matches!(step.pinned, DeviceKernel::Selected(_)));
    selected.map(|step| (step.operation, step.context)).collect()
}

/// The calls for which the engine selects kernels in the plans for all of these sizes, each once.
pub fn calls(
    engine: &Engine,
    graph: &Graph,
    sizes: &[Vec<InputShape>],
    device: Device,
    choice: Choice,
) -> Result<Vec<(&'static OperationInfo, Context)>, GraphError> {
    let mut calls: Vec<(&'static OperationInfo, Context)> = Vec::new();
    for shapes in sizes {
        for call in selected_calls(&plan(engine, graph, shapes, device, choice)?) {
            if !calls.iter().any(|known| known.0.name == call.0.name && known.1 == call.1) {
                calls.push(call);
            }
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use lz_core::DType;

    use super::*;
    use crate::build::Builder;
    use crate::dim::Dim;
    use crate::plan::Source;

    fn graph() -> Graph {
        let mut build = Builder::new();
        let rows = Dim::from(build.graph_mut().symbol("rows", 0, 100));
        let x = build.input("x", vec![rows, Dim::from(8)], DType::F32);
        let y = build.unary("exp", x).unwrap();
        let z = build.call("norm.rms", &[Some(y), None], &[]).unwrap();
        let sum = build.binary("add", y, z).unwrap();
        build.output("sum", sum);
        build.finish().unwrap()
    }

    #[test]
    fn executor_runs_every_step_of_its_own_plan() {
        let engine = crate::testing::engine();
        let shapes = [InputShape { shape: vec![3, 8], dtype: DType::F32 }];
        let plan = plan(&engine, &graph(), &shapes, Device::HOST, Choice::Executor).unwrap();
        let names: Vec<&str> = plan.steps.iter().map(|step| &*step.operation.name).collect();
        assert_eq!(names, ["primitive.unary", "norm.rms", "primitive.binary"]);
        assert!(plan.steps.iter().all(|step| matches!(step.pinned, DeviceKernel::Executor)));
        assert!(selected_calls(&plan).is_empty());
        assert_eq!(plan.steps[2].outputs[0].unwrap().source, Source::Output(0));
    }

    #[test]
    fn native_kernels_are_not_part_of_a_device_plan() {
        let engine = crate::testing::engine();
        let shapes = [InputShape { shape: vec![3, 8], dtype: DType::F32 }];
        let error = plan(&engine, &graph(), &shapes, Device::HOST, Choice::Engine).unwrap_err();
        assert!(error.to_string().contains("norm.rms"), "{error}");
    }
}
