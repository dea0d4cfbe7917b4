//! Decides whether the recorded results of a kernel are right.
//!
//! The best kernel of another backend repeats the call, because it is fast. If it differs, or if there is none, the reference does,
//! which decides which of the two is wrong.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::measure::{Runner, Runners};
use crate::telemetry::Sample;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::kernel::KernelError;
use lz_core::operation::OperationInfo;
use lz_core::recorded::{self, RecordedCall, RecordedResult};
use lz_core::run::Scratch;
use lz_core::spec::KernelSpec;

/// A wrong result.
pub(super) struct WrongResult {
    /// The call, with the kernel that returned the wrong result.
    pub sample: Sample,
    /// The first difference.
    pub difference: String,
    /// The kernel that returned the expected results.
    pub judge: Arc<KernelSpec>,
    pub expected: Vec<RecordedResult>,
}

/// An error of a repeated call.
#[derive(Debug)]
pub(super) struct Unrepeatable(pub String);

impl From<Error> for Unrepeatable {
    fn from(error: Error) -> Unrepeatable {
        Unrepeatable(error.to_string())
    }
}

impl From<KernelError> for Unrepeatable {
    fn from(error: KernelError) -> Unrepeatable {
        Unrepeatable(error.to_string())
    }
}

/// Judges the results of a sample; `None` if no other kernel can repeat the call. If the second kernel is wrong and not the
/// sample's, its result is returned.
pub(super) fn judge(engine: &Engine, sample: Sample) -> Option<Result<(), Box<WrongResult>>> {
    let operation = sample.operation;
    let expected_by = |runner: &Runner| match repeat(runner, operation, &sample.call, false) {
        Ok(expected) => Some((Arc::clone(&runner.entry().spec), expected)),
        Err(Unrepeatable(error)) => {
            let judge = runner.entry().spec.id.as_str();
            tracing::debug!(target: "lz::verify", operation = %operation.name, judge, error, "call cannot be repeated");
            None
        }
    };
    let differs = |found: &[RecordedResult], expected: &[RecordedResult]| {
        recorded::difference(operation, found, expected)
    };
    let second = second_kernel(engine, &sample);
    let by_second = second.as_ref().and_then(|(runner, _)| expected_by(runner));
    let second_difference = match &by_second {
        Some((_, expected)) => match differs(&sample.call.results, expected) {
            None => return Some(Ok(())),
            difference => difference,
        },
        None => None,
    };
    let by_reference = engine.host_reference(operation).and_then(|runner| expected_by(&runner));
    match (by_reference, by_second, second_difference) {
        (Some((judge, expected)), by_second, _) => match differs(&sample.call.results, &expected) {
            Some(difference) => Some(Err(Box::new(WrongResult { sample, difference, judge, expected }))),
            None => {
                let Some(((_, found), (runner, runners))) = by_second.zip(second) else {
                    return Some(Ok(()));
                };
                let Some(difference) = differs(&found, &expected) else { return Some(Ok(())) };
                let call = RecordedCall { args: sample.call.args, results: found };
                let (entry, device) = (runner.entry().clone(), runners.device.uuid);
                let sample = Sample { operation, entry, bucket: runners.bucket, device, call };
                Some(Err(Box::new(WrongResult { sample, difference, judge, expected })))
            }
        },
        (None, Some((judge, expected)), Some(difference)) => {
            Some(Err(Box::new(WrongResult { sample, difference, judge, expected })))
        }
        (None, ..) => None,
    }
}

/// Repeats a call in host memory with one kernel.
pub(super) fn repeat(
    runner: &Runner,
    operation: &'static OperationInfo,
    call: &RecordedCall,
    original_layout: bool,
) -> Result<Vec<RecordedResult>, Unrepeatable> {
    call.repeat(operation, original_layout, |_, args, outputs| {
        let mut scratch = Scratch::default();
        Ok(runner.run(&mut scratch, &mut |entry, run| entry.run(args, outputs, run))?)
    })
}

/// The best kernel of another backend for this call in host memory, and what identifies the call there.
fn second_kernel(engine: &Engine, sample: &Sample) -> Option<(Runner, Runners)> {
    let context = host_context(sample.operation, &sample.call)?;
    let mut runners = engine.runners(sample.operation, &context).ok()?;
    let suits = |runner: &Runner| {
        let spec = &runner.entry().spec;
        spec.backend != sample.entry.spec.backend
            && spec.runs_in.is_none()
            && !(spec.reference || runner.cold || runner.entry().kernel.needs_caller())
    };
    let able = std::mem::take(&mut runners.able).into_iter().filter(suits);
    Some((able.max_by_key(|runner| runner.entry().spec.priority)?, runners))
}

/// The context of a call when it is repeated in host memory.
fn host_context(operation: &'static OperationInfo, call: &RecordedCall) -> Option<Context> {
    /// Ends the repeated call when its context is known.
    struct Known(Option<Box<Context>>);
    impl From<Error> for Known {
        fn from(_: Error) -> Known {
            Known(None)
        }
    }
    let stopped = call.repeat(operation, false, |context, _, _| Err(Known(Some(Box::new(*context)))));
    stopped.err().and_then(|known| known.0).map(|context| *context)
}
