//! Runs a canary next to the stable version on the same arguments and compares their results. The caller gets the results of
//! the stable version.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lz_schema::model::Equivalence;

use crate::compiled::CompiledKernel;
use lz_core::args::{Arg, OutArg};
use lz_core::device::Platform;
use lz_core::fork::Mutex;
use lz_core::kernel::{Kernel, KernelEntry, KernelError};
use lz_core::operation::OperationInfo;
use lz_core::plan::Transforms;
use lz_core::recorded::{self, ResultView};
use lz_core::run::{Run, Scratch};
use lz_core::tensor::Tensor;

/// The outcome of one call of a canary.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// Whether the results were compared.
    pub is_compared: bool,
    /// How the results differ.
    pub difference: Option<String>,
    pub version_error: Option<KernelError>,
    pub version_time: Option<Duration>,
    pub stable_time: Option<Duration>,
}

/// A kernel with the workspace and conversions of one call.
#[derive(Debug, Clone)]
pub(crate) struct RunWith {
    pub kernel: Arc<CompiledKernel>,
    pub workspace: u64,
    pub transforms: Transforms,
}

/// Compares results that only the caller can read, such as objects of Python.
pub trait CompareResults: Send + Sync {
    /// The same kernel, which also keeps its results; `None` if its results are not such objects.
    fn keeping_results(&self, operation: &OperationInfo, entry: &KernelEntry) -> Option<KeptResults>;

    /// How the results of two runs differ.
    fn difference(
        &self,
        operation: &OperationInfo,
        found: &KeptResults,
        expected: &KeptResults,
    ) -> Option<String>;
}

/// A kernel that keeps its results, for one call.
pub struct KeptResults {
    /// The kernel.
    pub entry: KernelEntry,
    /// The results, once it has run; for the code that compares them.
    pub results: Box<dyn Any + Send + Sync>,
}

/// The comparison of an engine; none by default.
#[derive(Default)]
pub(crate) struct Comparer(pub Mutex<Option<Arc<dyn CompareResults>>>);

/// How the results of a call can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparable {
    /// In host memory, by kernels that need no objects of the caller.
    Native,
    /// By code of the caller.
    ByCaller,
    /// Not at all: the kernels run on a device, or the results are random.
    Not,
}

impl Comparable {
    pub fn of(operation: &OperationInfo, kernels: [&CompiledKernel; 2]) -> Comparable {
        let schema = operation.schema();
        let needs_caller = kernels.map(|kernel| kernel.entry.kernel.needs_caller());
        let is_on_host = kernels.iter().all(|kernel| kernel.spec().platform == Platform::Cpu);
        if matches!(schema.equivalence, Equivalence::Distribution(_)) {
            Comparable::Not
        } else if needs_caller == [true, true] && !schema.inputs.iter().any(|input| input.read_write) {
            Comparable::ByCaller
        } else if needs_caller == [false, false] && is_on_host {
            Comparable::Native
        } else {
            Comparable::Not
        }
    }
}

/// Both versions as one kernel, for one call.
#[derive(Debug)]
pub(crate) struct ComparedRun {
    version: RunWith,
    stable: RunWith,
    /// Which one runs first; the second one finds the arguments in the processor's caches.
    is_version_first: bool,
    outcome: Mutex<Comparison>,
}

impl ComparedRun {
    pub fn new(version: RunWith, stable: RunWith, is_version_first: bool) -> Arc<ComparedRun> {
        Arc::new(ComparedRun { version, stable, is_version_first, outcome: Mutex::default() })
    }

    /// The entry to run in place of the stable version.
    pub fn entry(self: &Arc<ComparedRun>) -> KernelEntry {
        let entry = self.stable.kernel.entry.clone();
        let kernel: Arc<dyn Kernel> = Arc::new(Shared(Arc::clone(self)));
        KernelEntry { kernel, compile: None, fused: None, judge: None, prepare: None, ..entry }
    }

    /// The outcome of the run.
    pub fn outcome(&self) -> Comparison {
        std::mem::take(&mut *self.outcome.lock())
    }
}

struct Shared(Arc<ComparedRun>);

impl Kernel for Shared {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        _: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let run = &*self.0;
        let mut own = OwnResults::new(args, outputs)?;
        let (version, stable);
        if run.is_version_first {
            version = own.run(&run.version, args);
            stable = timed(&run.stable, args, outputs);
        } else {
            stable = timed(&run.stable, args, outputs);
            version = own.run(&run.version, args);
        }
        let mut outcome = Comparison::default();
        let finished = stable.0.is_ok();
        outcome.stable_time = finished.then_some(stable.1);
        match version.0 {
            Ok(()) => {
                outcome.version_time = Some(version.1);
                // A stable version that fails says nothing about the other.
                outcome.is_compared = finished;
                if finished {
                    let expected = ResultView::all(args, outputs);
                    outcome.difference =
                        recorded::difference(run.stable.kernel.info, own.results(), expected);
                }
            }
            Err(error) => outcome.version_error = Some(error),
        }
        *run.outcome.lock() = outcome;
        stable.0
    }
}

/// Runs a kernel; a panic inside it is returned as its error.
fn timed(
    run: &RunWith,
    args: &mut [Arg<'_>],
    outputs: &mut [OutArg<'_>],
) -> (Result<(), KernelError>, Duration) {
    let mut scratch = Scratch::default();
    let mut with = Run::new(&mut scratch, run.workspace);
    with.transforms = run.transforms;
    let kernel = &run.kernel.entry.kernel;
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| kernel.run(args, outputs, &mut with)));
    let panicked = |_| KernelError::failed(format!("{} panicked", run.kernel.spec().id));
    (outcome.unwrap_or_else(|panic| Err(panicked(panic))), start.elapsed())
}

/// Memory for the results of the canary: outputs, and copies of what it changes in place.
struct OwnResults {
    /// By argument.
    changed: Vec<Option<Tensor>>,
    outputs: Vec<OwnOutput>,
}

enum OwnOutput {
    Absent,
    Tensor(Tensor),
    Dynamic(Option<Tensor>),
    Text(Option<Vec<String>>),
}

impl OwnResults {
    fn new(args: &[Arg<'_>], outputs: &[OutArg<'_>]) -> Result<OwnResults, KernelError> {
        let changed = args.iter().map(|arg| match arg {
            Arg::TensorMut(tensor) => {
                let copy = recorded::dense_copy(tensor.view());
                copy.map(Some).ok_or_else(|| KernelError::failed("no memory for a copy of an argument"))
            }
            _ => Ok(None),
        });
        let own = outputs.iter().map(|output| {
            Ok(match output {
                OutArg::Absent => OwnOutput::Absent,
                OutArg::Tensor(tensor) => {
                    let zeros = Tensor::zeros(tensor.shape(), tensor.dtype());
                    OwnOutput::Tensor(zeros.map_err(KernelError::because)?)
                }
                OutArg::Dynamic(_) => OwnOutput::Dynamic(None),
                OutArg::Text(_) => OwnOutput::Text(None),
            })
        });
        Ok(OwnResults {
            changed: changed.collect::<Result<_, KernelError>>()?,
            outputs: own.collect::<Result<_, KernelError>>()?,
        })
    }

    fn run(&mut self, run: &RunWith, args: &mut [Arg<'_>]) -> (Result<(), KernelError>, Duration) {
        let own = args.iter_mut().zip(&mut self.changed).map(|(arg, changed)| match changed {
            Some(tensor) => Arg::TensorMut(tensor.view_mut()),
            None => arg.reborrow(),
        });
        let mut own: Vec<Arg<'_>> = own.collect();
        let outputs = self.outputs.iter_mut().map(|output| match output {
            OwnOutput::Absent => OutArg::Absent,
            OwnOutput::Tensor(tensor) => OutArg::Tensor(tensor.view_mut()),
            OwnOutput::Dynamic(slot) => OutArg::Dynamic(slot),
            OwnOutput::Text(slot) => OutArg::Text(slot),
        });
        let mut outputs: Vec<OutArg<'_>> = outputs.collect();
        timed(run, &mut own, &mut outputs)
    }

    /// The outputs, then the inputs that were changed in place.
    fn results(&self) -> Vec<ResultView<'_>> {
        let outputs = self.outputs.iter().map(|output| match output {
            OwnOutput::Tensor(tensor) | OwnOutput::Dynamic(Some(tensor)) => ResultView::Tensor(tensor.view()),
            OwnOutput::Text(Some(texts)) => ResultView::Text(texts),
            OwnOutput::Absent | OwnOutput::Dynamic(None) | OwnOutput::Text(None) => ResultView::Absent,
        });
        let changed = self.changed.iter().flatten().map(|tensor| ResultView::Tensor(tensor.view()));
        outputs.chain(changed).collect()
    }
}
