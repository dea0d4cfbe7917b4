//! The compiled executor: a plan with memory. A run patches the addresses of inputs and outputs and makes one call per step; the steps of
//! a wave run at the same time.

use std::sync::{Arc, Mutex, PoisonError};

use lz_core::args::{Arg, OutArg};
use lz_core::tensor::Pages;
use lz_core::{Error, TensorMut, TensorView};
use lz_engine::{Engine, dynamic};

use crate::error::GraphError;
use crate::graph::Graph;
use crate::plan::{Location, Plan, Source, Step, StepArg};

/// Memory for the buffers of plans, in huge pages. A session reuses it for every run, whatever the sizes, so that new sizes touch no new
/// memory unless they need more.
#[derive(Debug)]
pub struct Arena {
    pages: Pages,
}

impl Arena {
    /// Allocates this many bytes; `None` if there is no memory for them.
    pub fn new(bytes: usize) -> Option<Arena> {
        Some(Arena { pages: Pages::zeroed(bytes)? })
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.pages.len()
    }

    fn start(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr()
    }
}

/// A tensor of a step whose memory changes with every run.
#[derive(Debug)]
struct Patch {
    step: usize,
    slot: Slot,
    location: Location,
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Read(usize),
    Write(usize),
    Output(usize),
}

/// The arguments of one step, with addresses.
struct Arguments {
    args: Vec<Arg<'static>>,
    outputs: Vec<OutArg<'static>>,
}

/// The arguments of a plan's steps; one thread runs it at a time.
pub struct Instance {
    plan: Arc<Plan>,
    graph: Arc<Graph>,
    arguments: Vec<Arguments>,
    patches: Vec<Patch>,
    /// The arena that the arguments refer to; null before the first run.
    base: *mut u8,
}

// SAFETY: the arguments refer to the plan and the constants, which the instance shares, and to the arena, inputs and outputs of a
// run: those are replaced at its start if they differ and not used after it.
unsafe impl Send for Instance {}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Instance {
    /// Of a plan.
    pub fn new(plan: Arc<Plan>, graph: Arc<Graph>) -> Instance {
        Instance { plan, graph, arguments: Vec::new(), patches: Vec::new(), base: std::ptr::null_mut() }
    }

    /// Lets the arguments refer to this arena.
    fn bind(&mut self, base: *mut u8) {
        self.base = base;
        self.patches.clear();
        let plan = self.plan.clone();
        let mut arguments = Vec::with_capacity(plan.steps.len());
        for (index, step) in plan.steps.iter().enumerate() {
            arguments.push(self.prepare(index, step));
        }
        self.arguments = arguments;
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    fn prepare(&mut self, index: usize, step: &Step) -> Arguments {
        let mut args = Vec::with_capacity(step.args.len());
        for (position, arg) in step.args.iter().enumerate() {
            args.push(match arg {
                StepArg::Read(location) => match self.fixed_address(location) {
                    // SAFETY: the plan places the tensor inside its buffer, and no other step writes it while it is needed.
                    Some(data) => Arg::Tensor(unsafe { TensorView::from_raw(data, location.view.layout) }),
                    None => self.patched(index, Slot::Read(position), location, Arg::Absent),
                },
                StepArg::Write(location) => match self.fixed_address(location) {
                    Some(data) => {
                        // SAFETY: as above, and the arena is owned.
                        let tensor = unsafe { TensorMut::from_raw(data.cast_mut(), location.view.layout) };
                        Arg::TensorMut(tensor)
                    }
                    None => self.patched(index, Slot::Write(position), location, Arg::Absent),
                },
                StepArg::Param(value) => value.map_or(Arg::Absent, Arg::Value),
            });
        }
        let mut outputs = Vec::with_capacity(step.outputs.len());
        for (position, output) in step.outputs.iter().enumerate() {
            outputs.push(match output {
                Some(location) => match self.fixed_address(location) {
                    Some(data) => {
                        // SAFETY: as for inputs.
                        let tensor = unsafe { TensorMut::from_raw(data.cast_mut(), location.view.layout) };
                        OutArg::Tensor(tensor)
                    }
                    None => self.patched(index, Slot::Output(position), location, OutArg::Absent),
                },
                None => OutArg::Absent,
            });
        }
        Arguments { args, outputs }
    }

    fn patched<T>(&mut self, step: usize, slot: Slot, location: &Location, absent: T) -> T {
        self.patches.push(Patch { step, slot, location: *location });
        absent
    }

    /// The address of a tensor that does not change between runs.
    fn fixed_address(&self, location: &Location) -> Option<*const u8> {
        let base = match location.source {
            Source::Input(_) | Source::Output(_) => return None,
            Source::Constant(index) => self.graph.constants.get(index)?.view().as_ptr(),
            Source::Sizes(index) => self.plan.tables.get(index)?.as_ptr().cast(),
            Source::Arena(index) => {
                self.base.wrapping_add(*self.plan.placement.offsets.get(index)?).cast_const()
            }
        };
        Some(base.wrapping_offset(byte_offset(location)))
    }

    /// Runs every step.
    ///
    /// # Panics
    /// When the arena is smaller than the plan's.
    ///
    /// # Safety
    /// `inputs` and `outputs` have one address per input and output of the graph, each of a dense tensor with the sizes that the
    /// plan was made for, valid during the call; outputs and mutable inputs are not accessed by others meanwhile.
    pub unsafe fn run(
        &mut self,
        engine: &Engine,
        arena: &mut Arena,
        inputs: &[*mut u8],
        outputs: &[*mut u8],
    ) -> Result<(), GraphError> {
        assert!(arena.bytes() >= self.plan.placement.bytes, "the arena is too small");
        if self.base != arena.start() {
            self.bind(arena.start());
        }
        for patch in &self.patches {
            let base = match patch.location.source {
                Source::Input(index) => inputs[index],
                Source::Output(index) => outputs[index],
                _ => continue,
            };
            let data = base.wrapping_offset(byte_offset(&patch.location));
            let layout = patch.location.view.layout;
            let arguments = &mut self.arguments[patch.step];
            // SAFETY: the caller guarantees the memory; the plan's views stay inside it.
            unsafe {
                match patch.slot {
                    Slot::Read(position) => {
                        arguments.args[position] = Arg::Tensor(TensorView::from_raw(data, layout));
                    }
                    Slot::Write(position) => {
                        arguments.args[position] = Arg::TensorMut(TensorMut::from_raw(data, layout));
                    }
                    Slot::Output(position) => {
                        arguments.outputs[position] = OutArg::Tensor(TensorMut::from_raw(data, layout));
                    }
                }
            }
        }
        // A scope changes the mode or policy of this thread's calls only.
        if self.plan.waves.is_empty() || lz_pool::threads() == 1 || lz_engine::mode::is_scoped() {
            let mut steps = self.plan.steps.iter().zip(&mut self.arguments);
            return steps.try_for_each(|(step, arguments)| run_step(engine, &self.graph, step, arguments));
        }
        let mut start = 0;
        for &end in &self.plan.waves {
            run_wave(engine, &self.graph, &self.plan.steps[start..end], &mut self.arguments[start..end])?;
            start = end;
        }
        Ok(())
    }
}

/// Runs the steps of a wave, on the pool if there are several. If some fail, the error is that of the first one; the others of the wave
/// have run, those of later waves have not.
fn run_wave(
    engine: &Engine,
    graph: &Graph,
    steps: &[Step],
    arguments: &mut [Arguments],
) -> Result<(), GraphError> {
    if let ([step], [arguments]) = (steps, &mut *arguments) {
        return run_step(engine, graph, step, arguments);
    }
    let shared = Shared(arguments.as_mut_ptr());
    let failed: Mutex<Option<(usize, GraphError)>> = Mutex::new(None);
    lz_pool::for_each(steps.len(), &|index| {
        // SAFETY: every task has its own index, below the number of arguments. The plan's steps of a wave share no memory that one of
        // them writes.
        let arguments = unsafe { &mut *shared.at(index) };
        if let Err(error) = run_step(engine, graph, &steps[index], arguments) {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.as_ref().is_none_or(|(first, _)| index < *first) {
                *failed = Some((index, error));
            }
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

/// The arguments of a wave, for several threads.
struct Shared(*mut Arguments);

// SAFETY: every task uses the arguments of its own step, which refer to memory that may be used from any thread.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, index: usize) -> *mut Arguments {
        self.0.wrapping_add(index)
    }
}

#[inline]
fn run_step(
    engine: &Engine,
    graph: &Graph,
    step: &Step,
    Arguments { args, outputs }: &mut Arguments,
) -> Result<(), GraphError> {
    let result = engine.run_pinned(&step.pinned, &step.context, &mut |entry, run| {
        entry.kernel.run(args, outputs, &mut run.with_prepared(&step.prepared))
    });
    match result {
        Ok(()) => Ok(()),
        Err(error) => retry(engine, step, args, outputs, error)
            .map_err(|error| GraphError::run(&graph.node(step.node).origin, error)),
    }
}

/// After a failed step: an ordinary call, in which the engine may fall back to another kernel.
#[cold]
fn retry(
    engine: &Engine,
    step: &Step,
    args: &mut [Arg<'_>],
    outputs: &mut [OutArg<'_>],
    error: Error,
) -> Result<(), Error> {
    let changes_inputs = args.iter().any(|arg| matches!(arg, Arg::TensorMut(_)));
    // A stale plan has not run anything; a failed kernel may have changed its inputs.
    match error {
        Error::NoKernel { .. } => dynamic::call_into(engine, step.operation, args, outputs),
        Error::KernelExecution { .. } if !changes_inputs => {
            tracing::warn!(operation = %step.operation.name, %error, "a step of a compiled graph failed and is dispatched again");
            dynamic::call_into(engine, step.operation, args, outputs)
        }
        error => Err(error),
    }
}

fn byte_offset(location: &Location) -> isize {
    location.view.byte_offset()
}
