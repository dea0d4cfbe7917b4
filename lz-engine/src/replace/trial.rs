//! Tries kernels before they are installed: runs them on calls that are made up from the workloads of their operation, and
//! compares the results with those of the reference.

use std::time::{Duration, Instant};

use lz_schema::DType;
use lz_schema::model::{Equivalence, Role};

use crate::engine::Engine;
use crate::engine::measure::Runner;
use crate::solver::workload;
use lz_core::args::{Arg, OutArg};
use lz_core::check;
use lz_core::context::{Context, FieldKind};
use lz_core::device::Platform;
use lz_core::dynamic;
use lz_core::error::Error;
use lz_core::kernel::{KernelEntry, KernelError};
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::recorded::{self, ResultView};
use lz_core::run::Scratch;
use lz_core::synthetic::SyntheticCall;
use lz_core::tensor::Device;

/// Calls that are tried with each kernel.
const CALLS_PER_KERNEL: usize = 4;
/// Memory for the arguments of one call: larger workloads are tried with smaller batches.
const MAX_BYTES: u64 = 16 << 20;
/// No further call of a kernel is tried after this time.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Sizes of batches and sequences in smaller calls.
const SMALL_BATCH: u64 = 2;
const SMALL_LENGTH: u64 = 16;

/// What was tried.
#[derive(Debug, Clone, Default)]
pub struct Trial {
    /// Number of calls that ran.
    pub calls: usize,
    /// Number of calls whose results were compared with those of the reference.
    pub compared: usize,
    /// Kernels that could not be tried, because they need a device, the caller's objects, or a call that cannot be made up.
    pub untried: Vec<String>,
    /// Kernels that are compiled for these calls now.
    pub(crate) warm: Vec<(String, &'static OperationInfo, Context)>,
}

/// Tries all kernels; the first one that fails is an error.
pub(super) fn run(engine: &Engine, entries: &[KernelEntry]) -> Result<Trial, Error> {
    let registry = engine.registry();
    let operation =
        |entry: &KernelEntry| entry.operation.or_else(|| registry.operation(&entry.spec.operation));
    let operations: Vec<&'static OperationInfo> = entries.iter().filter_map(operation).collect();
    let is_tried = |known: &KernelEntry| {
        let matches = |entry: &KernelEntry| {
            entry.spec.id == known.spec.id && entry.spec.operation == known.spec.operation
        };
        entries.iter().any(matches)
    };
    let references = registry.kernels().filter(|known| {
        let of_operation = operations.iter().any(|info| info.name == known.spec.operation.as_str());
        known.spec.reference && of_operation && !is_tried(known)
    });
    // An engine of its own: nothing that happens here counts in health, metrics or measurements.
    let bench = Engine::new();
    bench.register_operations(registry.operations())?;
    bench.register(references.cloned().chain(entries.iter().cloned()))?;
    let mut trial = Trial::default();
    for entry in entries {
        let before = trial.calls;
        if let Some(info) = operation(entry) {
            try_one(&bench, entry, info, &mut trial)?;
        }
        if trial.calls == before {
            trial.untried.push(entry.spec.id.clone());
        }
    }
    Ok(trial)
}

fn try_one(
    bench: &Engine,
    entry: &KernelEntry,
    info: &'static OperationInfo,
    trial: &mut Trial,
) -> Result<(), Error> {
    if entry.spec.platform != Platform::Cpu || entry.kernel.needs_caller() {
        return Ok(());
    }
    let (start, mut calls) = (Instant::now(), 0);
    for made_up in contexts(info) {
        if calls >= CALLS_PER_KERNEL || start.elapsed() > MAX_TIME {
            break;
        }
        let Some(mut call) = SyntheticCall::new(info, &made_up, MAX_BYTES) else { continue };
        let Some(context) = call.with_arguments(|args, outputs| valid_context(info, args, outputs)) else {
            continue;
        };
        let runners = bench.runners(info, &context)?;
        let find = |is_wanted: &dyn Fn(&KernelEntry) -> bool| {
            runners.able.iter().find(|runner| is_wanted(runner.entry()))
        };
        let Some(runner) = find(&|one| one.spec.id == entry.spec.id) else { continue };
        let reference = find(&|one| one.spec.reference && one.spec.id != entry.spec.id);
        match run_call(runner, &mut call) {
            Ok(()) => {}
            Err(error) if error.reason.code == ReasonCode::KernelDeclined => continue,
            Err(error) => return Err(rejected(entry, &error.reason.to_string())),
        }
        calls += 1;
        trial.calls += 1;
        if runner.cold {
            trial.warm.push((entry.spec.id.clone(), info, context));
        }
        let Some(reference) = reference else { continue };
        let Some(mut expected) = SyntheticCall::new(info, &made_up, MAX_BYTES) else { continue };
        if run_call(reference, &mut expected).is_err() {
            continue;
        }
        if let Some(difference) = difference(info, &mut call, &mut expected) {
            return Err(rejected(entry, &difference));
        }
        trial.compared += 1;
    }
    Ok(())
}

fn run_call(runner: &Runner, call: &mut SyntheticCall) -> Result<(), KernelError> {
    call.with_arguments(|args, outputs| {
        let mut scratch = Scratch::default();
        runner.run(&mut scratch, &mut |entry, run| entry.run(args, outputs, run))
    })
}

/// The context of a call; `None` if it is invalid, because sizes that were made smaller no longer fit together.
fn valid_context(info: &OperationInfo, args: &[Arg<'_>], outputs: &[OutArg<'_>]) -> Option<Context> {
    let schema = info.schema();
    let bound = check::check_call(schema, args, Some(outputs)).ok()?;
    dynamic::context(schema, &bound, args, Some(outputs)).ok()
}

/// The workloads of an operation, with small batches and sequences first, and also in f32, which most kernels support.
fn contexts(info: &'static OperationInfo) -> Vec<Context> {
    let workloads = workload::contexts(info, Device::HOST).unwrap_or_default();
    let mut all: Vec<Context> = Vec::new();
    for (small_length, small_batch) in [(true, true), (false, true), (false, false)] {
        for in_f32 in [false, true] {
            for context in &workloads {
                let mut variant = *context;
                change(info, &mut variant, small_batch, small_length, in_f32);
                if !all.contains(&variant) {
                    all.push(variant);
                }
            }
        }
    }
    all
}

fn change(info: &OperationInfo, context: &mut Context, small_batch: bool, small_length: bool, in_f32: bool) {
    let schema = info.schema();
    for field in info.fields.iter() {
        let raw = context.raw(field.store);
        let changed = match field.kind {
            FieldKind::Axis { .. } => {
                let role = schema.axes.iter().find(|axis| axis.name == field.name).map(|axis| axis.role);
                match role {
                    Some(Role::Batch) if small_batch => raw.min(SMALL_BATCH),
                    Some(Role::Length) if small_length => raw.min(SMALL_LENGTH),
                    _ => raw,
                }
            }
            FieldKind::DType if in_f32 && raw != 0 => {
                let allows = |variable: &lz_schema::model::TypeVariable| {
                    variable.name == field.name && variable.dtypes.contains(&DType::F32)
                };
                if schema.types.iter().any(allows) { DType::F32 as u64 } else { raw }
            }
            _ => raw,
        };
        context.set(field.store, changed);
    }
}

/// How the results of two calls differ.
fn difference(
    info: &OperationInfo,
    found: &mut SyntheticCall,
    expected: &mut SyntheticCall,
) -> Option<String> {
    if matches!(info.schema().equivalence, Equivalence::Distribution(_)) {
        return None;
    }
    found.with_arguments(|found_args, found| {
        expected.with_arguments(|expected_args, expected| {
            let found = ResultView::all(found_args, found);
            recorded::difference(info, found, ResultView::all(expected_args, expected))
        })
    })
}

fn rejected(entry: &KernelEntry, why: &str) -> Error {
    let spec = &entry.spec;
    let message = format!("{} version {} of {}: {why}", spec.id, spec.version, spec.operation);
    let reasons = vec![Reason::new(ReasonCode::VersionRejected).message(message.clone())];
    Error::Configuration { subject: spec.id.clone(), message, reasons }
}
