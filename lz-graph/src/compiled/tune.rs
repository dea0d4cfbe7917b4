//! Measures the kernels of a plan's steps; selection uses the results when the model is planned again.

use std::ops::ControlFlow;

use lz_core::args::{Arg, OutArg};
use lz_core::tensor::Layout;
use lz_core::{DType, KernelEntry, KernelError, PreparedInput, Tensor, TensorMut, TensorView};
use lz_engine::tune::{Progress, TuneOptions, TuningResult};

use super::CompiledModel;
use crate::error::GraphError;
use crate::plan::{self, HostKernels, Location, Parts, Plan, Source, Step, StepArg};
use crate::sizes::{self, InputShape};

/// The measurements of one step, or of several with the same sizes, dtypes and params.
#[derive(Debug)]
pub struct TunedStep {
    /// The operation.
    pub operation: &'static str,
    /// Where the first of the steps came from.
    pub origin: String,
    /// How many steps of the plan are like this one; 0 for a part of a fused step.
    pub steps: usize,
    /// The kernel that was selected before.
    pub selected: String,
    /// The measurements.
    pub result: TuningResult,
}

impl CompiledModel {
    /// Measures every kernel that can run a step of the plan for inputs of these shapes, or a part of a fused step, with the strides and the
    /// constants of the plan.
    /// `on_progress` may stop it; finished measurements are kept.
    pub fn tune(
        &self,
        shapes: &[InputShape],
        options: &TuneOptions,
        on_progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
    ) -> Result<Vec<TunedStep>, GraphError> {
        let mut tuned: Vec<(lz_core::context::Context, TunedStep)> = Vec::new();
        // Fused calls, and their parts: the next plan compares both.
        let plans = [self.split_plan(shapes, Parts::Never)?, self.split_plan(shapes, Parts::Always)?];
        let steps =
            plans.iter().enumerate().flat_map(|(plan, all)| all.steps.iter().map(move |step| (plan, step)));
        for (plan, step) in steps {
            let known = tuned
                .iter_mut()
                .find(|(context, one)| *context == step.context && one.operation == &*step.operation.name);
            if let Some((_, one)) = known {
                one.steps += usize::from(plan == 0);
                continue;
            }
            let origin = &self.graph().node(step.node).origin;
            let mut memory = Vec::new();
            let mut arguments = self.arguments(step, &mut memory)?;
            let mut prepared: Vec<(String, Vec<Option<PreparedInput>>)> = Vec::new();
            let result = self
                .session()
                .engine()
                .tune(
                    step.operation,
                    &step.context,
                    options,
                    &mut |entry, run| {
                        let known = prepared.iter().position(|(kernel, _)| *kernel == entry.spec.id);
                        let index = known.unwrap_or(prepared.len());
                        if known.is_none() {
                            let made = self.prepared(entry, &arguments.0, step)?;
                            prepared.push((entry.spec.id.clone(), made));
                        }
                        let mut run = run.with_prepared(&prepared[index].1);
                        entry.kernel.run(&mut arguments.0, &mut arguments.1, &mut run)
                    },
                    on_progress,
                )
                .map_err(|error| GraphError::run(origin, error))?;
            let cancelled = result.cancelled;
            let one = TunedStep {
                operation: &step.operation.name,
                origin: origin.to_string(),
                steps: usize::from(plan == 0),
                selected: step.pinned.entry().spec.id.clone(),
                result,
            };
            tuned.push((step.context, one));
            if cancelled {
                break;
            }
        }
        Ok(tuned.into_iter().map(|(_, one)| one).collect())
    }

    /// A plan of its own, which splits fused operations or does not.
    fn split_plan(&self, shapes: &[InputShape], parts: Parts) -> Result<Plan, GraphError> {
        let values = sizes::bind(self.graph(), shapes)?;
        let alignment = vec![crate::memory::ALIGNMENT; shapes.len()];
        let (engine, prepared) = (self.session().engine(), self.session().prepared());
        plan::plan_split(&HostKernels { engine }, self.graph(), &values, &alignment, prepared, parts)
    }

    /// The constants of a step as a kernel reads them in a run of the model.
    fn prepared(
        &self,
        entry: &KernelEntry,
        args: &[Arg<'_>],
        step: &Step,
    ) -> Result<Vec<Option<PreparedInput>>, KernelError> {
        let Some(prepare) = entry.prepare.as_deref() else { return Ok(Vec::new()) };
        plan::prepare_inputs(prepare, args, step, self.graph(), self.session().prepared())
    }

    /// The arguments of a step with memory of their own; constants are the model's.
    fn arguments(
        &self,
        step: &Step,
        memory: &mut Vec<Tensor>,
    ) -> Result<(Vec<Arg<'static>>, Vec<OutArg<'static>>), GraphError> {
        let mut args = Vec::with_capacity(step.args.len());
        for arg in &step.args {
            args.push(match arg {
                StepArg::Read(location) => {
                    let data = self.memory(location, memory)?;
                    // SAFETY: `memory` covers every element of the layout, and lives as long as the arguments are used.
                    Arg::Tensor(unsafe { TensorView::from_raw(data, location.view.layout) })
                }
                StepArg::Write(location) => {
                    let data = self.memory(location, memory)?;
                    // SAFETY: as above; a plan never writes to constants, so the memory is this call's own.
                    Arg::TensorMut(unsafe { TensorMut::from_raw(data, location.view.layout) })
                }
                StepArg::Param(value) => value.map_or(Arg::Absent, Arg::Value),
            });
        }
        let mut outputs = Vec::with_capacity(step.outputs.len());
        for output in &step.outputs {
            outputs.push(match output {
                Some(location) => {
                    let data = self.memory(location, memory)?;
                    // SAFETY: as above.
                    OutArg::Tensor(unsafe { TensorMut::from_raw(data, location.view.layout) })
                }
                None => OutArg::Absent,
            });
        }
        Ok((args, outputs))
    }

    fn memory(&self, location: &Location, memory: &mut Vec<Tensor>) -> Result<*mut u8, GraphError> {
        let layout = &location.view.layout;
        let size = layout.dtype.size() as isize;
        if let Source::Constant(index) = location.source {
            let base = self.graph().constants[index].view().as_ptr().cast_mut();
            return Ok(base.wrapping_offset(location.view.offset as isize * size));
        }
        let (before, after) = extent(layout);
        let bytes = (before + after + 1) * size as i64;
        let mut own =
            Tensor::zeros(&[bytes], DType::U8).map_err(|reason| GraphError::input("", reason.to_string()))?;
        let data = own.bytes_mut().as_mut_ptr().wrapping_offset(before as isize * size);
        memory.push(own);
        Ok(data)
    }
}

/// How many elements before and after the first one a layout reaches.
fn extent(layout: &Layout) -> (i64, i64) {
    let mut extent = (0, 0);
    for (&size, &stride) in layout.shape.iter().zip(layout.strides.iter()) {
        let reach = stride * (size - 1).max(0);
        if reach < 0 {
            extent.0 -= reach;
        } else {
            extent.1 += reach;
        }
    }
    extent
}
