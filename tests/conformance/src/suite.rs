//! The tests of every operation: generated code calls them with its operation.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lz_core::context::{FRESH_OUTPUT, Field, FieldKind, device_bits, dtype_of, stride_class};
use lz_core::expr::Value;
use lz_core::tensor::Device;
use lz_core::{Arg, Context, Error, OperationInfo, OutArg};
use lz_schema::model::{Kind, Slot};

use crate::assign::{Focus, Prepared};
use crate::broken::{Break, breaks, draw_broken};
use crate::call::{OwnedArg, OwnedCall, OwnedOut};
use crate::coverage::{Coverage, required_facts};
use crate::fill::Numbers;
use crate::random::{Random, case_seed};
use crate::valid::{Drawing, Drawn, draw_valid};
use crate::{wild, workload};

/// An operation as generated code exposes it.
pub trait Subject: Sync {
    /// Its description.
    fn info(&self) -> &'static OperationInfo;

    /// Runs the generated check; `None` if generated arguments cannot represent the call. Outputs are checked
    /// if they are given and the inputs are valid.
    fn check(&self, args: &mut [Arg<'_>], outputs: Option<&mut [OutArg<'_>]>) -> Option<Checked>;

    /// Whether its kernels take dynamic arguments, which have every param, as the engine passes them.
    fn is_dynamic(&self) -> bool {
        false
    }
}

/// Result of a generated check.
pub enum Checked {
    /// The inputs are invalid.
    Refused(Error),
    /// The inputs are valid.
    Right {
        /// The selection context.
        context: Box<Context>,
        /// Whether the outputs are valid; `None` if they were not checked.
        outputs: Option<Result<(), Error>>,
    },
}

/// Number of cases of a test: from an environment variable, or the default.
pub fn cases(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Cases of metadata tests.
pub fn metadata_cases() -> u64 {
    cases("LZ_CASES_METADATA", 10_000)
}

/// Cases of value tests.
pub fn value_cases() -> u64 {
    cases("LZ_CASES_VALUES", 256)
}

/// Runs cases of a test. The first failure is shrunk by size and reported with instructions to reproduce
/// it. `LZ_CASE` runs a single case.
pub fn for_each_case(
    operation: &str,
    test: &str,
    cases: Range<u64>,
    mut run: impl FnMut(u64, &mut Random, u8) -> Result<(), String>,
) -> Result<(), String> {
    let only: Option<u64> = std::env::var("LZ_CASE").ok().and_then(|text| text.parse().ok());
    for case in only.map_or(cases, |case| case..case + 1) {
        let mut guarded = |size: u8| {
            let mut random = Random::new(case_seed(operation, test, case));
            catch_unwind(AssertUnwindSafe(|| run(case, &mut random, size)))
                .unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic))))
        };
        let Err(mut problem) = guarded(100) else { continue };
        let mut smallest = 100;
        for size in [0, 10, 25, 50, 75] {
            if let Err(smaller) = guarded(size) {
                (problem, smallest) = (smaller, size);
                break;
            }
        }
        return Err(format!(
            "{operation}: {test} fails at size {smallest}\n{problem}\nreproduce: LZ_CASE={case} cargo test -p lz-conformance {}::tests::{test} (seed {:#018x})",
            operation.replace('.', "_"),
            case_seed(operation, test, case)
        ));
    }
    Ok(())
}

/// Fails the test on an error.
fn fail_on_error(outcome: Result<(), String>) {
    if let Err(problem) = outcome {
        panic!("{problem}");
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// The focus of a case, such that each is drawn equally often.
pub fn focus_of(prepared: &Prepared, case: u64) -> Vec<Focus> {
    let count = prepared.focuses.len() as u64;
    if count == 0 {
        Vec::new()
    } else {
        prepared.focuses.get((case % count) as usize).copied().into_iter().collect()
    }
}

/// Checks that the generated check and the interpreter agree, for inputs and outputs.
pub fn agreement(subject: &dyn Subject, call: &mut OwnedCall) -> Result<(), String> {
    let operation = subject.info().schema();
    let with_outputs = !call.outputs.is_empty();
    let inputs = call.interpret(operation, false);
    let all = call.interpret(operation, with_outputs);
    let checked = call.with_args(|args, outputs| subject.check(args, with_outputs.then_some(outputs)));
    let disagreement = |what: &str, fast: String, slow: String| {
        Err(format!("{what}: the generated check returns {fast}, the interpreter {slow}\n{call:?}"))
    };
    let describe =
        |result: Result<(), &Error>| result.map_or_else(|error| error.to_string(), |()| "yes".to_owned());
    match (checked, inputs) {
        (None, _) => Ok(()),
        (Some(Checked::Refused(_)), Err(_)) => Ok(()),
        (Some(Checked::Refused(error)), Ok(_)) => {
            disagreement("inputs", describe(Err(&error)), describe(Ok(())))
        }
        (Some(Checked::Right { .. }), Err(error)) => {
            disagreement("inputs", describe(Ok(())), describe(Err(&error)))
        }
        (Some(Checked::Right { outputs, .. }), Ok(_)) => match (outputs, all) {
            (None, _) | (Some(Ok(())), Ok(_)) | (Some(Err(_)), Err(_)) => Ok(()),
            (Some(Err(error)), Ok(_)) => disagreement("outputs", describe(Err(&error)), describe(Ok(()))),
            (Some(Ok(())), Err(error)) => disagreement("outputs", describe(Ok(())), describe(Err(&error))),
        },
    }
}

/// Valid, faulty and wild metadata: the checks agree, valid calls are accepted, and nothing panics.
pub fn metadata(subject: &dyn Subject) {
    let operation = subject.info().schema();
    let prepared = Prepared::new(operation);
    let breaks = breaks(&prepared);
    let mut coverage = Coverage::default();
    let outcome = for_each_case(&operation.name, "metadata", 0..metadata_cases(), |case, random, size| {
        match case % 4 {
            0 | 1 => {
                // Two of four cases are valid; numbered separately, they cover every focus.
                let focus = focus_of(&prepared, case / 4 * 2 + case % 4);
                let drawing = Drawing { size, focus: &focus, numbers: Numbers::None, devices: true };
                let mut call = draw_valid(&prepared, random, &drawing)?.call;
                coverage.valid(operation, &call);
                // A writable tensor may be passed where it is only read.
                for arg in &mut call.args {
                    if let OwnedArg::Tensor(tensor) = arg
                        && random.one_in(16)
                    {
                        *arg = OwnedArg::Written(tensor.clone());
                    }
                }
                call.interpret(operation, true).map_err(|error| {
                    format!("a valid call with its outputs is rejected: {error}\n{call:?}")
                })?;
                match call.with_args(|args, outputs| subject.check(args, Some(outputs))) {
                    Some(Checked::Right { outputs: Some(Ok(())), .. }) => Ok(()),
                    Some(Checked::Right { outputs: Some(Err(error)), .. } | Checked::Refused(error)) => {
                        Err(format!("the generated check rejects a valid call: {error}\n{call:?}"))
                    }
                    _ => Err(format!("generated arguments cannot represent a valid call\n{call:?}")),
                }
            }
            2 => {
                let broken = breaks[(case / 4) as usize % breaks.len()];
                match draw_broken(&prepared, random, broken, size) {
                    Some(mut wrong) if !broken.is_untyped() => agreement(subject, &mut wrong.call),
                    Some(mut wrong) => untyped(subject, broken, &mut wrong.call),
                    None => Ok(()),
                }
            }
            _ => agreement(subject, &mut wild::draw_wild(&prepared, random, size)?),
        }
    });
    fail_on_error(outcome);
    assert_covered(&operation.name, metadata_cases() >= 10_000, coverage.missing(required_facts(operation)));
}

/// A fault that types rule out: the interpreter rejects it, and so do the types or the generated check.
fn untyped(subject: &dyn Subject, broken: Break, call: &mut OwnedCall) -> Result<(), String> {
    if call.interpret(subject.info().schema(), broken.is_of_outputs()).is_ok() {
        return Err(format!("{broken:?} was not rejected\n{call:?}"));
    }
    let passes = !broken.is_of_outputs()
        && matches!(call.with_args(|args, _| subject.check(args, None)), Some(Checked::Right { .. }));
    if passes { Err(format!("{broken:?} passes as typed arguments\n{call:?}")) } else { Ok(()) }
}

/// Every fault gives its reason code, from the interpreter and from generated code.
pub fn broken(subject: &dyn Subject) {
    let operation = subject.info().schema();
    let prepared = Prepared::new(operation);
    let breaks = breaks(&prepared);
    let mut coverage = Coverage::default();
    let count = (metadata_cases() / 10).max(1);
    let outcome = for_each_case(
        &operation.name,
        "broken",
        0..count.max(breaks.len() as u64 * 4),
        |case, random, size| {
            let broken = breaks[case as usize % breaks.len()];
            let Some(mut wrong) = draw_broken(&prepared, random, broken, size) else { return Ok(()) };
            let disagreement = |who: &str, error: &Error| {
                if error.has(wrong.expected) {
                    Ok(())
                } else {
                    Err(format!("{broken:?} should give {}, {who} gives {error}", wrong.expected))
                }
            };
            match wrong.call.interpret(operation, broken.is_of_outputs()) {
                Ok(_) => {
                    return Err(format!(
                        "{broken:?} passes; it should give {}\n{:?}",
                        wrong.expected, wrong.call
                    ));
                }
                Err(error) => disagreement("the interpreter", &error)?,
            }
            coverage.broken(broken, wrong.expected);
            if broken.is_untyped() {
                return Ok(());
            }
            let with_outputs = broken.is_of_outputs();
            match wrong.call.with_args(|args, outputs| subject.check(args, with_outputs.then_some(outputs))) {
                // A required output cannot be omitted from a typed call.
                None => Ok(()),
                Some(Checked::Refused(error) | Checked::Right { outputs: Some(Err(error)), .. }) => {
                    disagreement("the generated check", &error)
                }
                Some(Checked::Right { .. }) => {
                    Err(format!("{broken:?} passes the generated check\n{:?}", wrong.call))
                }
            }
        },
    );
    fail_on_error(outcome);
    let expected = breaks.iter().map(|broken| format!("{broken:?}"));
    assert_covered(&operation.name, true, coverage.missing(expected));
}

fn assert_covered(operation: &str, enough: bool, missing: Vec<String>) {
    let whole = std::env::var_os("LZ_CASE").is_none() && enough;
    assert!(!whole || missing.is_empty(), "{operation}: never drawn: {}", missing.join(", "));
}

/// The selection context matches the call.
pub fn context(subject: &dyn Subject) {
    let operation = subject.info().schema();
    let prepared = Prepared::new(operation);
    let outcome =
        for_each_case(&operation.name, "context", 0..(metadata_cases() / 10).max(1), |case, random, size| {
            let focus = focus_of(&prepared, case);
            let drawing = Drawing { size, focus: &focus, numbers: Numbers::None, devices: true };
            let mut drawn = draw_valid(&prepared, random, &drawing)?;
            let checked = drawn.call.with_args(|args, outputs| subject.check(args, Some(outputs)));
            let Some(Checked::Right { context, outputs: Some(Ok(())) }) = checked else {
                return Err(format!("the generated check rejects a valid call\n{:?}", drawn.call));
            };
            for (index, field) in subject.info().fields.iter().enumerate() {
                check_field(&prepared, &drawn, &context, index, field)
                    .map_err(|problem| format!("field {}: {problem}\n{:?}", field.name, drawn.call))?;
            }
            Ok(())
        });
    fail_on_error(outcome);
}

fn check_field(
    prepared: &Prepared,
    drawn: &Drawn,
    context: &Context,
    index: usize,
    field: &Field,
) -> Result<(), String> {
    let operation = prepared.operation;
    let found = context.value(field);
    if let Some(slot) = prepared.slots.get(index) {
        let expected = match (slot, drawn.bound.values[index]) {
            (Slot::Axis(axis), _) => Value::Int(drawn.bound.axes[*axis].unwrap_or(0)),
            (_, value) => value,
        };
        let same = match (expected, found) {
            (Value::Float(expected), Value::Float(found)) => expected.to_bits() == found.to_bits(),
            _ => expected == found,
        };
        return if same { Ok(()) } else { Err(format!("holds {found:?}, the call has {expected:?}")) };
    }
    let raw = context.raw(field.store);
    let arg_of = |prefix: &str| {
        let name = field.name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(')'));
        let index = operation.inputs.iter().position(|input| Some(input.name.as_str()) == name);
        index.map(|index| &drawn.call.args[index])
    };
    let output_of = |prefix: &str| {
        let name = field.name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(')'));
        let index = operation.outputs.iter().position(|output| Some(output.name.as_str()) == name);
        index.map(|index| &drawn.call.outputs[index])
    };
    let expected = match &field.kind {
        FieldKind::DType => {
            let variable = operation.types.iter().position(|variable| variable.name == field.name);
            let dtype = variable.and_then(|variable| drawn.bound.types[variable]);
            return if dtype_of(raw) == dtype {
                Ok(())
            } else {
                Err(format!("holds {:?}, the call has {dtype:?}", dtype_of(raw)))
            };
        }
        FieldKind::Strides => match (arg_of("strides("), output_of("strides(")) {
            (Some(arg), _) => arg.tensor().map_or(0, |tensor| stride_class(&tensor.view())),
            (None, Some(OwnedOut::Tensor(tensor))) => stride_class(&tensor.view()),
            _ => FRESH_OUTPUT,
        },
        FieldKind::Digest => {
            let handles = drawn.call.args.iter().filter_map(|arg| match arg {
                OwnedArg::Handle(handle) => Some(handle),
                _ => None,
            });
            handles.map(|handle| lz_core::context::digest_bits(&handle.digest())).next().unwrap_or(0)
        }
        FieldKind::Device => {
            let required = operation.inputs.iter().zip(&drawn.call.args);
            let first = required
                .filter(|(input, _)| input.kind == Kind::Tensor && input.optional.is_none())
                .find_map(|(_, arg)| arg.tensor());
            device_bits(first.map_or(Device::HOST, |tensor| tensor.layout().device))
        }
        other => return Err(format!("unexpected kind {other:?} after the slots")),
    };
    if raw == expected { Ok(()) } else { Err(format!("holds {raw:#x}, the call has {expected:#x}")) }
}

/// Every workload of the schema is accepted by the check.
pub fn workloads(subject: &dyn Subject) {
    let operation = subject.info().schema();
    let prepared = Prepared::new(operation);
    assert!(!operation.workloads.is_empty(), "{}: no workloads", operation.name);
    for workload in &operation.workloads {
        let mut call = workload::call(&prepared, workload)
            .unwrap_or_else(|problem| panic!("{} {}: {problem}", operation.name, workload.name));
        if let Err(error) = call.interpret(operation, true) {
            panic!("{} {}: {error}", operation.name, workload.name);
        }
        match call.with_args(|args, outputs| subject.check(args, Some(outputs))) {
            Some(Checked::Right { outputs: Some(Ok(())), .. }) => {}
            Some(Checked::Right { outputs: Some(Err(error)), .. } | Checked::Refused(error)) => {
                panic!("{} {}: the generated check returns {error}", operation.name, workload.name)
            }
            _ => panic!("{} {}: generated arguments cannot represent it", operation.name, workload.name),
        }
    }
}
