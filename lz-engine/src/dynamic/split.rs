//! Runs a split call: slices of the caller's tensors along their first dimension, one after the other.

use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashSet;
use lz_core::args::{Arg, OutArg};
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_schema::model::{Cases, Dim, Operation};

pub use crate::selection::split::batch_axis;
pub use lz_core::plan::Split;

use crate::engine::Engine;
use crate::selection::split::{parts, splittable_axis};

/// After a call without an eligible kernel: splits it if possible, otherwise returns the error.
///
/// Called by generated and dynamic calls with the error of their dispatch; `args` are inputs, then params, all filled in.
#[cold]
#[inline(never)]
pub fn or_split(
    engine: &Engine,
    operation: &'static OperationInfo,
    error: Error,
    args: &mut [Arg<'_>],
    outputs: &mut [OutArg<'_>],
) -> Result<(), Error> {
    if !matches!(error, Error::NoKernel { .. }) {
        return Err(error);
    }
    match cut(engine, operation, args, Some(outputs)) {
        Some(cut) => {
            cut.note(engine, operation);
            run_parts(engine, operation, &cut, args, outputs)
        }
        None => Err(error),
    }
}

/// How one call is split.
#[derive(Debug, Clone)]
pub struct Cut {
    /// In sizes of the first dimension, which for a pack is only one of several.
    pub split: Split,
    /// The kernel that runs the parts.
    pub kernel: String,
    /// Which inputs are split; the others are shared by all parts.
    pub inputs: Vec<bool>,
}

impl Cut {
    /// Counts and logs it. True if it was logged: once per operation and kernel.
    pub fn note(&self, engine: &Engine, operation: &'static OperationInfo) -> bool {
        engine.extension::<Splits>().note(operation, &self.kernel, &self.split)
    }
}

/// How a call without an eligible kernel is split, for callers that run the parts themselves. `args` are inputs, then params.
pub fn cut(
    engine: &Engine,
    operation: &'static OperationInfo,
    args: &[Arg<'_>],
    outputs: Option<&[OutArg<'_>]>,
) -> Option<Cut> {
    let schema = operation.schema();
    let axis = splittable_axis(schema)?;
    let bound = lz_core::check::check_call(schema, args, outputs).ok()?;
    let context = lz_core::dynamic::context(schema, &bound, args, outputs).ok()?;
    let plan = engine.which(operation, &context).ok()?;
    let split = plan.split?;
    let size = match bound.packs.get(axis).and_then(Option::as_ref) {
        Some(sizes) => *sizes.first()?,
        None => split.size,
    };
    // Elements of the axis per step of a pack's first dimension.
    let unit = split.size.checked_div(size)?;
    let part = split.part.checked_div(unit)?;
    if part < 1 || part >= size {
        return None;
    }
    let inputs = args.iter().take(schema.inputs.len()).enumerate();
    Some(Cut {
        inputs: inputs.map(|(position, arg)| is_cut(schema, axis, position, size, arg)).collect(),
        split: Split { axis: split.axis, size, part, parts: parts(size, part) },
        kernel: plan.kernel,
    })
}

fn run_parts(
    engine: &Engine,
    operation: &'static OperationInfo,
    cut: &Cut,
    args: &mut [Arg<'_>],
    outputs: &mut [OutArg<'_>],
) -> Result<(), Error> {
    let split = &cut.split;
    let mut start = 0;
    while start < split.size {
        let count = split.part.min(split.size - start);
        let mut part_args: Vec<Arg<'_>> = Vec::with_capacity(args.len());
        for (position, arg) in args.iter_mut().enumerate() {
            part_args.push(if cut.inputs.get(position) == Some(&true) {
                part_of(arg, start, count).ok_or_else(|| part_error(operation))?
            } else {
                arg.reborrow()
            });
        }
        let mut out_args: Vec<OutArg<'_>> = Vec::with_capacity(outputs.len());
        for output in outputs.iter_mut() {
            out_args.push(match output {
                OutArg::Tensor(tensor) => {
                    OutArg::Tensor(tensor.leading_mut(start, count).ok_or_else(|| part_error(operation))?)
                }
                other => other.reborrow(),
            });
        }
        super::call_into(engine, operation, &mut part_args, &mut out_args)?;
        start += count;
    }
    Ok(())
}

/// Whether this input is split: it has the axis, and is not broadcast along it.
fn is_cut(schema: &Operation, axis: usize, input: usize, size: i64, arg: &Arg<'_>) -> bool {
    let Some(about) = schema.inputs.get(input) else { return false };
    let mut shapes = about.shape.all().iter();
    let has = shapes
        .any(|shape| matches!(shape.first(), Some(Dim::Axis(index) | Dim::Pack(index)) if *index == axis));
    let Some(view) = arg.tensor().filter(|_| has) else { return false };
    if !about.broadcast {
        return true;
    }
    let full = match &about.shape {
        Cases::One(shape) => shape.len(),
        Cases::By(_, cases) => cases.iter().map(Vec::len).max().unwrap_or_default(),
    };
    view.rank() == full && view.shape().first() == Some(&size)
}

fn part_of<'a>(arg: &'a mut Arg<'_>, start: i64, count: i64) -> Option<Arg<'a>> {
    match arg {
        Arg::Tensor(view) => view.leading(start, count).map(Arg::Tensor),
        Arg::TensorMut(tensor) => tensor.leading_mut(start, count).map(Arg::TensorMut),
        other => Some(other.reborrow()),
    }
}

fn part_error(operation: &OperationInfo) -> Error {
    let reason = Reason::new(ReasonCode::ShapeMismatch).message("a part of the batch is outside of a tensor");
    Error::Validation { operation: operation.name.to_string(), reasons: vec![reason] }
}

/// Counts split calls, and which of them were logged.
#[derive(Debug, Default)]
pub(crate) struct Splits {
    count: AtomicU64,
    logged: DashSet<(u32, String)>,
}

impl Splits {
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a split, logs the first per operation and kernel, and returns whether it was logged.
    fn note(&self, operation: &OperationInfo, kernel: &str, split: &Split) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed);
        let first = self.logged.insert((operation.slot(), kernel.to_owned()));
        if first {
            tracing::warn!(target: "lz::select", operation = %operation.name, kernel, %split, "call is too large for every kernel and is split");
        }
        first
    }
}

impl Engine {
    /// How many calls were too large for every kernel and ran in chunks.
    pub fn split_calls(&self) -> u64 {
        self.extension::<Splits>().count()
    }
}
