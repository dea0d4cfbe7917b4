//! Checks kernels against the reference: same calls, same results, and no stray writes.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use lz_core::equivalence::difference;
use lz_core::plan::TransformKind;
use lz_core::run::{Run, Scratch};
use lz_core::{Cause, Context, KernelEntry, ReasonCode};
use lz_engine::Engine;
use lz_schema::model::Operation;

use crate::assign::Prepared;
use crate::call::{OwnedArg, OwnedCall, OwnedOut};
use crate::coverage::{Coverage, required_facts};
use crate::fill::Numbers;
use crate::memory::OwnedTensor;
use crate::random::Random;
use crate::suite::{Checked, Subject, focus_of, for_each_case, value_cases};
use crate::valid::{Drawing, Drawn, draw_valid};

/// Fill bytes of the outputs before the reference and the kernel run: unwritten elements differ.
const GARBAGE: [u8; 2] = [0xc3, 0x5a];

/// Every kernel that is checked against the reference. The reference is included: its results must not depend
/// on previous output contents.
pub fn registered() -> &'static [KernelEntry] {
    lz_test_kernels::runnable()
}

/// Whether a kernel claims to support a call; claimed calls must succeed.
pub type Supports = dyn Fn(&KernelEntry, &Context) -> bool;

/// Whether a kernel claims a call as it is, according to the engine's filter. Calls for which the engine copies strided tensors
/// are compared with calls of dense tensors (`tests/strided.rs`).
pub fn claims(entry: &KernelEntry, context: &Context) -> bool {
    static ENGINES: OnceLock<Mutex<HashMap<String, Engine>>> = OnceLock::new();
    let mut operations = lz_ops::OPERATIONS.into_iter().chain(lz_primitives::all().iter().copied());
    let Some(info) = operations.find(|info| info.name == entry.spec.operation) else { return false };
    let mut engines = ENGINES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let engine = engines.entry(entry.spec.id.clone()).or_insert_with(|| {
        let engine = Engine::new();
        engine.register([entry.clone()]).unwrap_or_else(|error| panic!("{error}"));
        engine
    });
    engine.which(info, context).is_ok_and(|plan| !plan.transforms.contains(TransformKind::Contiguous))
}

/// The reference of an operation.
pub fn reference(operation: &Operation) -> Option<&'static KernelEntry> {
    registered()
        .iter()
        .find(|entry| entry.spec.operation == operation.name && entry.spec.backend == "reference")
}

/// Minimum number of output elements before the zero check applies: fewer come from too few calls to decide.
const MIN_ZERO_CHECK_ELEMENTS: u64 = 512;

/// Drawing continues until a kernel has run so often: kernels of one dtype support few calls. Which ones depends on the processor, because
/// kernels for instructions that it lacks are not checked.
const MIN_RUNS: u64 = 8;

/// How many times the number of cases is drawn at most.
const MAX_ROUNDS: u64 = 32;

/// Zeros in a kernel's results.
#[derive(Debug, Default, Clone, Copy)]
struct Zeros {
    elements: u64,
    zeros: u64,
}

/// Checks every kernel of the operation against the reference.
pub fn values(subject: &dyn Subject, kernels: &[KernelEntry], supports: &Supports) {
    let operation = subject.info().schema();
    let kernels: Vec<&KernelEntry> =
        kernels.iter().filter(|entry| entry.spec.operation == operation.name).collect();
    assert!(!kernels.is_empty(), "{}: no kernel to check against the reference", operation.name);
    for entry in kernels {
        conforms(subject, entry, supports, value_cases(), true).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

/// Checks one kernel against the reference; the error reports the first failing case. With `whole`, the run
/// must also have full coverage, and the kernel must have run eight times and have produced nonzero results.
pub fn conforms(
    subject: &dyn Subject,
    entry: &KernelEntry,
    supports: &Supports,
    count: u64,
    whole: bool,
) -> Result<(), String> {
    let operation = subject.info().schema();
    let prepared = Prepared::new(operation).tame();
    let reference_entry = reference(operation).ok_or_else(|| format!("{}: no reference", operation.name))?;
    let mut coverage = Coverage::default();
    let mut zeros = vec![Zeros::default(); operation.outputs.len()];
    let ran = Cell::new(0);
    let mut check = |case, random: &mut Random, size| {
        let focus = focus_of(&prepared, case);
        let numbers = if case % 4 == 3 { Numbers::Awkward } else { Numbers::Normal };
        let drawing = Drawing { size, focus: &focus, numbers, devices: false };
        let drawn = draw_valid(&prepared, random, &drawing)?;
        let Some(found) = compare(subject, entry, reference_entry, supports, drawn, &mut |call| {
            ran.set(ran.get() + 1);
            coverage.valid(operation, call);
        })?
        else {
            return Ok(());
        };
        if numbers == Numbers::Normal && size == 100 {
            count_zeros(&found, &mut zeros);
        }
        Ok(())
    };
    let whole = whole && std::env::var_os("LZ_CASE").is_none();
    let rounds = if whole { MAX_ROUNDS } else { 1 };
    for round in 0..rounds {
        for_each_case(&operation.name, "values", round * count..(round + 1) * count, &mut check)
            .map_err(|problem| format!("{}: {problem}", entry.spec.id))?;
        if ran.get() >= MIN_RUNS {
            break;
        }
    }
    if !whole {
        return Ok(());
    }
    if ran.get() < MIN_RUNS {
        return Err(format!(
            "{}: supports only {} of {} drawn calls: not implemented, or its limits exclude nearly everything",
            entry.spec.id,
            ran.get(),
            rounds * count
        ));
    }
    for (output, zeros) in operation.outputs.iter().zip(&zeros) {
        // Many calls mask everything, or round to zero; but results that are nearly always zero are
        // suspicious. A kernel with a single dtype may have too few elements to decide.
        if zeros.elements >= MIN_ZERO_CHECK_ELEMENTS && zeros.zeros * 10 > zeros.elements * 9 {
            let Zeros { elements, zeros } = zeros;
            return Err(format!(
                "{}: {zeros} of {elements} elements of {} are zero",
                entry.spec.id, output.name
            ));
        }
    }
    let missing = coverage.missing(required_facts(operation));
    if entry.spec.backend == "reference" && count >= 256 && !missing.is_empty() {
        return Err(format!("{}: never drawn with values: {}", operation.name, missing.join(", ")));
    }
    Ok(())
}

/// Runs a drawn call with a kernel and with the reference and compares the results. `started` is called once the kernel has claimed the
/// call. The result is the call after the kernel ran; `None` if the kernel does not claim it, or both refuse it.
pub fn compare(
    subject: &dyn Subject,
    entry: &KernelEntry,
    reference_entry: &KernelEntry,
    supports: &Supports,
    mut drawn: Drawn,
    started: &mut dyn FnMut(&OwnedCall),
) -> Result<Option<OwnedCall>, String> {
    let operation = subject.info().schema();
    let context = match drawn.call.with_args(|args, outputs| subject.check(args, Some(outputs))) {
        Some(Checked::Right { context, outputs: Some(Ok(())) }) => context,
        _ => return Err("the generated check rejects a valid call".to_owned()),
    };
    if !supports(entry, &context) {
        return Ok(None);
    }
    started(&drawn.call);
    if subject.is_dynamic() {
        let values = &drawn.bound.values[operation.axes.len()..];
        for (arg, value) in drawn.call.args[operation.inputs.len()..].iter_mut().zip(values) {
            *arg = OwnedArg::Value(*value);
        }
    }
    let mut expected = drawn.call.clone();
    let refused = run(reference_entry, &mut expected, GARBAGE[0])?;
    let mut found = drawn.call;
    match (refused, run(entry, &mut found, GARBAGE[1])?) {
        (None, None) => {}
        (Some(expected), Some(found)) if expected == found => return Ok(None),
        (expected, found) => {
            return Err(format!("refuses the call with {found:?}, but the reference with {expected:?}"));
        }
    }
    same(operation, &found, &expected).map_err(|problem| format!("{problem}\n{found:?}"))?;
    Ok(Some(found))
}

/// Runs a kernel on a call whose outputs are filled with garbage; reports faults other than wrong results. The result is the reason
/// if the kernel refuses values of the caller, such as a division by zero.
fn run(entry: &KernelEntry, call: &mut OwnedCall, garbage: u8) -> Result<Option<ReasonCode>, String> {
    for output in &mut call.outputs {
        if let OwnedOut::Tensor(tensor) = output {
            tensor.bytes_mut().fill(garbage);
        }
    }
    let before = call.clone();
    let mut scratch = Scratch::default();
    let outcome = call
        .with_args(|args, outputs| entry.kernel.run(args, outputs, &mut Run::new(&mut scratch, u64::MAX)));
    if let Err(error) = outcome {
        if error.cause == Cause::Caller {
            return Ok(Some(error.reason.code));
        }
        return Err(format!("{} does not run a valid call: {error}\n{before:?}", entry.spec.id));
    }
    for (index, (now, then)) in call.args.iter().zip(&before.args).enumerate() {
        match (now, then) {
            (OwnedArg::Tensor(now), OwnedArg::Tensor(then)) if now.bytes() != then.bytes() => {
                return Err(format!(
                    "{} changed argument {index}, which is read only\n{before:?}",
                    entry.spec.id
                ));
            }
            (OwnedArg::Written(now), OwnedArg::Written(then)) => stray(entry, "argument", index, now, then)?,
            _ => {}
        }
    }
    for (index, (now, then)) in call.outputs.iter().zip(&before.outputs).enumerate() {
        if let (OwnedOut::Tensor(now), OwnedOut::Tensor(then)) = (now, then) {
            stray(entry, "output", index, now, then)?;
        }
    }
    Ok(None)
}

fn stray(
    entry: &KernelEntry,
    what: &str,
    index: usize,
    now: &OwnedTensor,
    then: &OwnedTensor,
) -> Result<(), String> {
    match now.stray_write(then.bytes()) {
        None => Ok(()),
        Some(byte) => {
            Err(format!("{} wrote byte {byte} around {what} {index}, outside its elements", entry.spec.id))
        }
    }
}

/// Compares the outputs and read-write inputs of two calls.
pub fn same(operation: &Operation, found: &OwnedCall, expected: &OwnedCall) -> Result<(), String> {
    for ((output, found), expected) in operation.outputs.iter().zip(&found.outputs).zip(&expected.outputs) {
        let differs = match (found, expected) {
            (OwnedOut::Absent, OwnedOut::Absent) => None,
            (OwnedOut::Tensor(found), OwnedOut::Tensor(expected)) => {
                difference(operation, &found.view(), &expected.view())
            }
            (OwnedOut::Dynamic(Some(found)), OwnedOut::Dynamic(Some(expected))) => {
                difference(operation, &found.view(), &expected.view())
            }
            (OwnedOut::Text(Some(found)), OwnedOut::Text(Some(expected))) if found == expected => None,
            (OwnedOut::Text(found), OwnedOut::Text(expected)) => {
                Some(format!("is {found:?}, but should be {expected:?}"))
            }
            _ => Some("was not produced".to_owned()),
        };
        if let Some(differs) = differs {
            return Err(format!("{} {differs}", output.name));
        }
    }
    for ((input, found), expected) in operation.inputs.iter().zip(&found.args).zip(&expected.args) {
        if let (OwnedArg::Written(found), OwnedArg::Written(expected)) = (found, expected)
            && let Some(differs) = difference(operation, &found.view(), &expected.view())
        {
            return Err(format!("{} {differs}", input.name));
        }
    }
    Ok(())
}

fn count_zeros(call: &OwnedCall, zeros: &mut [Zeros]) {
    for (output, zeros) in call.outputs.iter().zip(zeros) {
        let tensor = match output {
            OwnedOut::Tensor(tensor) => tensor.view(),
            OwnedOut::Dynamic(Some(tensor)) => tensor.view(),
            _ => continue,
        };
        for index in lz_core::tensor::Indices::new(tensor.shape()) {
            zeros.elements += 1;
            zeros.zeros += u64::from(tensor.at(&index) == 0.0);
        }
    }
}
