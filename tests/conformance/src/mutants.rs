//! Kernels with deliberate faults (mutation testing). The suite must reject every one: a surviving mutant
//! shows a gap in the tests.
//!
//! A mutant runs the reference and corrupts its inputs or outputs. Faults of params and optional inputs show
//! that results depend on each of them: an ignored mask, a causal offset off by one, another scale, another
//! layout.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lz_core::check::check_call;
use lz_core::expr::Value;
use lz_core::tensor::{Indices, TensorMut, TensorView};
use lz_core::{Arg, DType, Kernel, KernelEntry, KernelError, OutArg, Run};
use lz_schema::model::{Operation, ParamType};

use crate::suite::Subject;
use crate::values::{conforms, reference};

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mutation {
    /// Returns an error.
    Fails,
    /// Does not write the last element of an output.
    DropsLast(usize),
    /// Does not write an output.
    Skips(usize),
    /// Writes zeros.
    Zeroes(usize),
    /// Results are 3 % too large, integers one too large.
    Scales(usize),
    /// The last dimension is reversed.
    Mirrors(usize),
    /// f32 results are truncated to 12 bits of mantissa.
    Rounds(usize),
    /// Writes past the end.
    Strays(usize),
    /// Modifies a read-only input.
    Scribbles(usize),
    /// Does not modify a read-write input.
    Leaves(usize),
    /// Modifies one element too many of a read-write input.
    Overdoes(usize),
    /// Ignores an optional input.
    Ignores(usize),
    /// Uses another value for a param.
    Misreads(usize),
}

/// Every fault that kernels of an operation can have.
pub fn mutations(operation: &Operation) -> Vec<Mutation> {
    let mut found = vec![Mutation::Fails];
    for (index, output) in operation.outputs.iter().enumerate() {
        if output.is_dynamic(operation) {
            continue;
        }
        let shapes = output.shape.all();
        found.extend([
            Mutation::DropsLast(index),
            Mutation::Skips(index),
            Mutation::Zeroes(index),
            Mutation::Scales(index),
            Mutation::Strays(index),
        ]);
        if shapes.iter().any(|dims| !dims.is_empty()) {
            found.push(Mutation::Mirrors(index));
        }
        let dtypes = output.dtype.all().iter().flat_map(|reference| match reference {
            lz_schema::model::DTypeRef::Fixed(dtype) => vec![*dtype],
            lz_schema::model::DTypeRef::Variable(variable) => operation.types[*variable].dtypes.clone(),
        });
        if dtypes.into_iter().any(|dtype| dtype == DType::F32) {
            found.push(Mutation::Rounds(index));
        }
    }
    for (index, input) in operation.inputs.iter().enumerate() {
        if input.kind == lz_schema::model::Kind::Tensor && !input.read_write {
            found.push(Mutation::Scribbles(index));
        }
        if input.read_write {
            found.extend([Mutation::Leaves(index), Mutation::Overdoes(index)]);
        }
        if input.optional.is_some() {
            found.push(Mutation::Ignores(index));
        }
    }
    // Another statistic changes no result.
    found.extend((0..operation.kernel_params().count()).map(Mutation::Misreads));
    found
}

/// Params whose other values are equivalent, and why.
const EQUIVALENT: [(&str, &str, &str); 9] = [
    ("quantize", "granularity", "`channel` and `head` group alike; other cases have other shapes"),
    ("dequantize", "granularity", "`channel` and `head` group alike; other cases have other shapes"),
    (
        "mlp.linear.int8",
        "x_granularity",
        "of a call without rows' dimensions both are one number; else shapes differ",
    ),
    ("kv.compact", "layout", "whole pages move, in whatever order their elements lie"),
    (
        "mlp.linear.fp8",
        "x_granularity",
        "of a call without rows' dimensions both are one number; else shapes differ",
    ),
    (
        "norm.rms.quantize",
        "granularity",
        "a given scale of one row is also one of all rows; else shapes differ",
    ),
    (
        "norm.rms.add.quantize",
        "granularity",
        "a given scale of one row is also one of all rows; else shapes differ",
    ),
    ("norm.rms.quantize", "block_size", "sizes with as many blocks move few elements to a neighboring block"),
    (
        "norm.rms.add.quantize",
        "block_size",
        "sizes with as many blocks move few elements to a neighboring block",
    ),
];

/// Optional inputs whose absence changes no valid call, and why.
const WITHOUT_EFFECT: [(&str, &str); 1] =
    [("score_params", "an expression that reads a parameter is invalid without them; others ignore them")];

/// Outputs whose tolerance includes a fault, and why.
const TOLERATED: [(&str, Mutation, &str); 4] = [
    ("norm.rms.quantize", Mutation::Scales(0), "a code may differ by the steps of two roundings before it"),
    ("norm.rms.quantize", Mutation::Rounds(1), "the largest element of a bf16 row may round to a neighbor"),
    (
        "norm.rms.add.quantize",
        Mutation::Scales(0),
        "a code may differ by the steps of two roundings before it",
    ),
    (
        "norm.rms.add.quantize",
        Mutation::Rounds(1),
        "the largest element of a bf16 row may round to a neighbor",
    ),
];

fn is_equivalent(operation: &Operation, mutation: Mutation) -> bool {
    if TOLERATED.iter().any(|(of, tolerated, _)| *of == operation.name && *tolerated == mutation) {
        return true;
    }
    if let Mutation::Ignores(input) = mutation {
        return WITHOUT_EFFECT.iter().any(|(name, _)| *name == operation.inputs[input].name);
    }
    let Mutation::Misreads(param) = mutation else { return false };
    let name = &operation.params[param].name;
    EQUIVALENT.iter().any(|(of, param, _)| *of == operation.name && param == name)
}

/// Every mutant of the reference must be rejected.
pub fn mutants(subject: &dyn Subject) {
    let operation = subject.info().schema();
    let Some(reference_entry) = reference(operation) else { panic!("{}: no reference", operation.name) };
    if let Err(problem) = conforms(subject, reference_entry, &|_, _| true, 32, false) {
        panic!("the reference itself does not conform, so its mutants say nothing: {problem}");
    }
    let survivors: Vec<Mutation> = mutations(operation)
        .into_iter()
        .filter(|mutation| {
            let triggered = Arc::new(AtomicBool::new(false));
            let mutant = Mutant {
                operation,
                reference_entry: reference_entry.clone(),
                mutation: *mutation,
                triggered: Arc::clone(&triggered),
            };
            let mut spec = (*reference_entry.spec).clone();
            spec.id = format!("mutant.{mutation:?}");
            let entry = KernelEntry::new(spec, mutant);
            if is_equivalent(operation, *mutation) {
                return false;
            }
            let survived = conforms(subject, &entry, &|_, _| true, 256, false).is_ok();
            // A fault that no call can trigger does not count, such as another format of the same memory.
            survived && triggered.load(Ordering::Relaxed)
        })
        .collect();
    assert!(survivors.is_empty(), "{}: these faults were not detected: {survivors:?}", operation.name);
}

struct Mutant {
    operation: &'static Operation,
    reference_entry: KernelEntry,
    mutation: Mutation,
    /// Whether the fault was ever triggered.
    triggered: Arc<AtomicBool>,
}

impl Mutant {
    /// Runs the reference with another argument. If that call is invalid or the same, the mutant behaves
    /// correctly.
    fn run_with(
        &self,
        argument: usize,
        other: Arg<'static>,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let bound_values =
            |args: &[Arg<'_>]| check_call(self.operation, args, None).ok().map(|bound| bound.values);
        let right = bound_values(args);
        let mut changed: Vec<Arg<'_>> = args.iter_mut().map(Arg::reborrow).collect();
        changed[argument] = other;
        let differs = bound_values(&changed).is_some_and(|values| Some(values) != right);
        if differs && self.reference_entry.kernel.run(&mut changed, outputs, run).is_ok() {
            self.triggered.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.reference_entry.kernel.run(args, outputs, run)
    }
}

impl Kernel for Mutant {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        match self.mutation {
            Mutation::Fails => return Err(KernelError::failed("fails on purpose")),
            Mutation::Ignores(input) => return self.run_with(input, Arg::Absent, args, outputs, run),
            Mutation::Misreads(param) => {
                let argument = self.operation.inputs.len() + param;
                let other = Arg::Value(misread(&self.operation.params[param].ty, &args[argument]));
                return self.run_with(argument, other, args, outputs, run);
            }
            _ => self.triggered.store(true, Ordering::Relaxed),
        }
        let before = saved(self.mutation, outputs);
        let written = match self.mutation {
            Mutation::Leaves(input) => args.get(input).and_then(Arg::tensor).map(|view| elements(&view)),
            _ => None,
        };
        self.reference_entry.kernel.run(args, outputs, run)?;
        if let Mutation::Leaves(input) | Mutation::Overdoes(input) = self.mutation
            && let Some(Arg::TensorMut(tensor)) = args.get_mut(input)
        {
            corrupt_input(tensor, written);
        }
        if let Mutation::Scribbles(input) = self.mutation {
            corrupt_read_only_input(&args[input]);
        }
        if let Some(argument) = corrupted_output(self.mutation)
            && let Some(OutArg::Tensor(tensor)) = outputs.get_mut(argument)
        {
            corrupt(self.mutation, tensor, &before);
        }
        Ok(())
    }
}

/// The output that a fault corrupts.
fn corrupted_output(mutation: Mutation) -> Option<usize> {
    match mutation {
        Mutation::DropsLast(output)
        | Mutation::Skips(output)
        | Mutation::Zeroes(output)
        | Mutation::Scales(output)
        | Mutation::Mirrors(output)
        | Mutation::Rounds(output)
        | Mutation::Strays(output) => Some(output),
        _ => None,
    }
}

/// The elements of the corrupted output before the run.
fn saved(mutation: Mutation, outputs: &[OutArg<'_>]) -> Vec<f64> {
    match corrupted_output(mutation).and_then(|argument| outputs.get(argument)) {
        Some(OutArg::Tensor(tensor)) => elements(&tensor.as_view()),
        _ => Vec::new(),
    }
}

/// Restores the previous contents of an input, or modifies its last element.
fn corrupt_input(tensor: &mut TensorMut<'_>, before: Option<Vec<f64>>) {
    let shape = tensor.layout().shape;
    match before {
        Some(before) => {
            for (index, value) in Indices::new(&shape).zip(before) {
                tensor.set(&index, value);
            }
        }
        None => {
            if let Some(last) = Indices::new(&shape).last() {
                let value = if tensor.as_view().at(&last) == 1.0 { 2.0 } else { 1.0 };
                tensor.set(&last, value);
            }
        }
    }
}

fn elements(view: &TensorView<'_>) -> Vec<f64> {
    Indices::new(view.shape()).map(|index| view.at(&index)).collect()
}

fn corrupt(mutation: Mutation, tensor: &mut TensorMut<'_>, before: &[f64]) {
    let now = elements(&tensor.as_view());
    let shape = tensor.layout().shape;
    let float = tensor.dtype().is_float();
    let last = shape.last().copied().unwrap_or(1);
    for (argument, index) in Indices::new(&shape).enumerate() {
        let corrupted_output = match mutation {
            Mutation::Skips(_) => before[argument],
            Mutation::DropsLast(_) if argument + 1 == now.len() => before[argument],
            Mutation::Zeroes(_) => 0.0,
            Mutation::Scales(_) if float => now[argument] * 1.03,
            Mutation::Scales(_) => now[argument] + 1.0,
            Mutation::Mirrors(_) => {
                let along = index.last().copied().unwrap_or(0);
                now[argument.wrapping_add_signed((last - 1 - 2 * along) as isize)]
            }
            Mutation::Rounds(_) if tensor.dtype() == DType::F32 => {
                f64::from(f32::from_bits((now[argument] as f32).to_bits() & !0xfff))
            }
            _ => continue,
        };
        tensor.set(&index, corrupted_output);
    }
    if let Mutation::Strays(_) = mutation
        && let Some((_, highest)) = tensor.layout().reach()
    {
        let beyond = (highest + 1) as isize * tensor.dtype().size() as isize;
        let address = tensor.as_mut_ptr().wrapping_offset(beyond);
        // SAFETY: every drawn output has guard bytes after its last element, in the same allocation.
        unsafe { address.write(address.read() ^ 0xff) };
    }
}

/// Modifies the first element of an input, like a kernel that wrongly works in index_.
fn corrupt_read_only_input(arg: &Arg<'_>) {
    let Some(view) = arg.tensor() else { return };
    if view.elements() > 0 {
        let address = view.as_ptr().cast_mut();
        // SAFETY: drawn tensors consist of cells, and nothing else accesses them while the mutant runs.
        unsafe { address.write(address.read() ^ 0xff) };
    }
}

/// A value other than the given one.
fn misread(ty: &ParamType, given: &Arg<'_>) -> Value {
    match (ty, given) {
        (ParamType::Int, Arg::Value(Value::Int(value))) if *value >= 1 << 31 => Value::Int(value - 1),
        (ParamType::Int, Arg::Value(Value::Int(value))) => Value::Int(value + 1),
        (ParamType::Int, _) => Value::Int(1),
        (ParamType::F32 | ParamType::F64, Arg::Value(Value::Float(value))) => {
            Value::Float(value * 0.5 + 0.125)
        }
        (ParamType::F32 | ParamType::F64, _) => Value::Float(0.375),
        (ParamType::Bool, Arg::Value(Value::Bool(value))) => Value::Bool(!value),
        (ParamType::Bool, _) => Value::Bool(true),
        (ParamType::Enum(cases), Arg::Value(Value::Enum(case))) => {
            Value::Enum((case + 1) % cases.len().max(1) as u32)
        }
        (ParamType::Enum(cases), _) => Value::Enum(cases.len().saturating_sub(1) as u32),
    }
}
