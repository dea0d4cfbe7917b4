//! A kernel that records the call it runs.

use std::any::Any;
use std::sync::Arc;

use super::run::Run;
use super::{Kernel, KernelEntry, KernelError};
use crate::args::{Arg, OutArg};
use crate::fork::Mutex;
use crate::recorded::{RecordedCall, ResultView};

/// Records one call. Kernels that need objects of the caller are recorded by the caller, which alone has their results.
pub trait CallRecorder {
    /// Records the arguments, before the kernel runs.
    fn record_arguments(&self, args: &[Arg<'_>]);

    /// Records the results, after the kernel ran: the outputs, and the arguments that it changed.
    fn record_results(&self, args: &[Arg<'_>], outputs: &[ResultView<'_>]);
}

/// Runs another kernel once and records the call.
pub struct RecordingKernel {
    inner: Arc<dyn Kernel>,
    max_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Empty,
    Arguments(RecordedCall),
    Complete(RecordedCall),
    TooLarge,
}

impl RecordingKernel {
    /// Records a call whose tensor arguments have at most this many bytes.
    pub fn new(inner: Arc<dyn Kernel>, max_bytes: u64) -> RecordingKernel {
        RecordingKernel { inner, max_bytes, state: Mutex::default() }
    }

    /// The entry of a kernel with this one in its place.
    pub fn entry(self: &Arc<RecordingKernel>, entry: &KernelEntry) -> KernelEntry {
        KernelEntry { kernel: Arc::<RecordingKernel>::clone(self), ..entry.clone() }
    }

    /// The recorded call: `None` if there is none, an error if its arguments were too large.
    pub fn take(&self) -> Option<Result<RecordedCall, TooLarge>> {
        match std::mem::take(&mut *self.state.lock()) {
            State::Complete(call) => Some(Ok(call)),
            State::TooLarge => Some(Err(TooLarge)),
            State::Empty | State::Arguments(_) => None,
        }
    }
}

/// The arguments of a call were too large to be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

impl Kernel for RecordingKernel {
    fn as_any(&self) -> &dyn Any {
        // The caller recognizes its own kernels by their type.
        if self.inner.needs_caller() { self.inner.as_any() } else { self }
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        self.record_arguments(args);
        self.inner.run(args, outputs, run)?;
        let results: Vec<ResultView<'_>> = outputs.iter().map(ResultView::of).collect();
        self.record_results(args, &results);
        Ok(())
    }

    fn needs_caller(&self) -> bool {
        self.inner.needs_caller()
    }

    fn recorder(&self) -> Option<&dyn CallRecorder> {
        Some(self)
    }
}

impl CallRecorder for RecordingKernel {
    fn record_arguments(&self, args: &[Arg<'_>]) {
        let bytes = args.iter().filter_map(Arg::tensor).map(|view| {
            u64::try_from(view.elements()).unwrap_or(0).saturating_mul(view.dtype().size() as u64)
        });
        *self.state.lock() = if bytes.fold(0, u64::saturating_add) > self.max_bytes {
            State::TooLarge
        } else {
            RecordedCall::arguments(args).map_or(State::Empty, State::Arguments)
        };
    }

    fn record_results(&self, args: &[Arg<'_>], outputs: &[ResultView<'_>]) {
        let mut state = self.state.lock();
        *state = match std::mem::take(&mut *state) {
            State::Arguments(mut call) => {
                if call.add_results(args, outputs) {
                    State::Complete(call)
                } else {
                    State::Empty
                }
            }
            other => other,
        };
    }
}
