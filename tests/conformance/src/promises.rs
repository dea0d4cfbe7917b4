//! Promises of a kernel's spec, proven on drawn calls: a kernel that declares what it does not keep is rejected.

use lz_core::run::{Run, Scratch};
use lz_core::{Cause, KernelEntry, KernelSpec};
use lz_schema::model::{Operation, Role};

use crate::assign::Prepared;
use crate::call::{OwnedArg, OwnedCall, OwnedOut};
use crate::fill::Numbers;
use crate::parts::{self, Cut};
use crate::suite::{Checked, Subject, focus_of, for_each_case};
use crate::valid::{Drawing, Drawn, draw_valid};
use crate::values::{Supports, conforms};

/// A promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// The same bits for the same inputs: in repeated runs, and with any number of threads.
    Deterministic,
    /// The same bits for every tensor-parallel size: a rank computes its heads as one rank computes all.
    TensorParallelInvariant,
    /// The same bits in every batch: an item is computed alone, in a part and among copies as in its batch.
    BatchInvariant,
    /// A captured graph can repeat the call: it neither allocates nor waits.
    GraphSafe,
    /// Results within the schema's tolerance, unless the kernel declares reduced precision.
    Tolerance,
}

impl Promise {
    /// All promises.
    pub const ALL: [Promise; 5] = [
        Promise::Deterministic,
        Promise::TensorParallelInvariant,
        Promise::BatchInvariant,
        Promise::GraphSafe,
        Promise::Tolerance,
    ];

    /// Whether a spec declares it.
    pub fn is_declared(self, spec: &KernelSpec) -> bool {
        match self {
            Promise::Deterministic => spec.deterministic,
            Promise::TensorParallelInvariant => spec.tp_invariant,
            Promise::BatchInvariant => spec.batch_invariant,
            Promise::GraphSafe => spec.cuda_graph_safe,
            Promise::Tolerance => !spec.reduced_precision,
        }
    }
}

/// What the calling thread has done so far that a captured graph does not repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effects {
    /// Allocations and releases of memory.
    pub allocations: u64,
    /// Waits: for a lock, another thread, a file or a timer.
    pub waits: u64,
}

/// Threads of repeated runs; the first result is that of one thread.
const THREADS: [usize; 4] = [1, 1, 2, 5];

/// Numbers of ranks that parts are computed for.
const RANKS: [i64; 2] = [2, 4];

/// Operations whose heads depend on how many there are, so that a rank passes another param or tensor than a part has.
const NUMBERED_HEADS: [&str; 1] = ["posenc.alibi"];

/// Operations that are defined over the whole batch: caches that all items write, a quantization scale per tensor, random numbers by
/// row.
const BATCH_BY_DEFINITION: [&str; 7] = [
    "kv.append",
    "quantize",
    "rope.append",
    "sampling.minp",
    "sampling.speculative",
    "sampling.topk",
    "sampling.topp",
];

/// Whether the operation has a batch whose items are independent.
pub fn has_batch(operation: &Operation) -> bool {
    operation.axes.iter().any(|axis| axis.role == Role::Batch)
        && !BATCH_BY_DEFINITION.contains(&operation.name.as_str())
}

/// Checks one promise of a kernel with `count` drawn calls. Returns how many calls could show whether it is kept; an error is the first
/// call that breaks it. `effects` are those of the calling thread.
pub fn check(
    promise: Promise,
    subject: &dyn Subject,
    entry: &KernelEntry,
    supports: &Supports,
    effects: &dyn Fn() -> Effects,
    count: u64,
) -> Result<u64, String> {
    if promise == Promise::Tolerance {
        return conforms(subject, entry, supports, count, false).map(|()| count);
    }
    let operation = subject.info().schema();
    let prepared = Prepared::new(operation).tame();
    let mut shown = 0;
    let outcome = for_each_case(&operation.name, "promises", 0..count, |case, random, size| {
        let focus = focus_of(&prepared, case);
        let drawing = Drawing { size, focus: &focus, numbers: Numbers::Normal, devices: false };
        let mut drawn = draw_valid(&prepared, random, &drawing)?;
        if !is_claimed(subject, entry, supports, &mut drawn.call) {
            return Ok(());
        }
        shown += match promise {
            Promise::Deterministic => deterministic(entry, &drawn)?,
            Promise::TensorParallelInvariant => tensor_parallel(subject, entry, supports, &drawn)?,
            Promise::BatchInvariant => batch(subject, entry, supports, &drawn)?,
            Promise::GraphSafe => graph_safe(entry, &drawn, effects)?,
            Promise::Tolerance => 0,
        };
        Ok(())
    });
    outcome.map_err(|problem| format!("{} declares {promise:?}: {problem}", entry.spec.id))?;
    Ok(shown)
}

fn is_claimed(subject: &dyn Subject, entry: &KernelEntry, supports: &Supports, call: &mut OwnedCall) -> bool {
    let checked = call.with_args(|args, outputs| subject.check(args, Some(outputs)));
    matches!(checked, Some(Checked::Right { context, outputs: Some(Ok(())) }) if supports(entry, &context))
}

/// The call after the kernel ran; `None` if it refuses the values.
fn run(entry: &KernelEntry, call: &OwnedCall, threads: usize) -> Result<Option<OwnedCall>, String> {
    let mut call = call.clone();
    let mut scratch = Scratch::default();
    let outcome = lz_pool::with_threads(threads, || {
        call.with_args(|args, outputs| entry.kernel.run(args, outputs, &mut Run::new(&mut scratch, u64::MAX)))
    });
    match outcome {
        Ok(()) => Ok(Some(call)),
        Err(error) if error.cause == Cause::Caller => Ok(None),
        Err(error) => Err(format!("does not run a valid call: {error}\n{call:?}")),
    }
}

fn deterministic(entry: &KernelEntry, drawn: &Drawn) -> Result<u64, String> {
    let mut first: Option<OwnedCall> = None;
    for threads in THREADS {
        let Some(found) = run(entry, &drawn.call, threads)? else { return Ok(0) };
        match &first {
            None => first = Some(found),
            Some(first) if has_same_bits(first, &found) => {}
            Some(_) => {
                return Err(format!("other bits in another run with {threads} threads\n{:?}", drawn.call));
            }
        }
    }
    Ok(1)
}

fn has_same_bits(left: &OwnedCall, right: &OwnedCall) -> bool {
    let outputs = left.outputs.iter().zip(&right.outputs).all(|pair| match pair {
        (OwnedOut::Tensor(left), OwnedOut::Tensor(right)) => left.bytes() == right.bytes(),
        (OwnedOut::Dynamic(Some(left)), OwnedOut::Dynamic(Some(right))) => {
            left.shape() == right.shape() && left.bytes() == right.bytes()
        }
        (OwnedOut::Text(left), OwnedOut::Text(right)) => left == right,
        (OwnedOut::Absent, OwnedOut::Absent) => true,
        _ => false,
    });
    outputs
        && left.args.iter().zip(&right.args).all(|pair| match pair {
            (OwnedArg::Written(left), OwnedArg::Written(right)) => left.bytes() == right.bytes(),
            _ => true,
        })
}

/// The cuts of the heads for one rank; `None` if the operation has no heads, or they cannot be divided.
fn rank(operation: &Operation, drawn: &Drawn, rank: i64, ranks: i64) -> Option<Vec<Cut>> {
    let heads = operation.axes.iter().enumerate().filter(|(_, axis)| axis.role == Role::Heads);
    let cuts: Option<Vec<Cut>> = heads
        .map(|(axis, _)| {
            let size = drawn.bound.axes.get(axis).copied().flatten()?;
            (size >= ranks && size % ranks == 0).then(|| Cut {
                axis,
                start: rank * (size / ranks),
                count: size / ranks,
            })
        })
        .collect();
    cuts.filter(|cuts| !cuts.is_empty())
}

fn tensor_parallel(
    subject: &dyn Subject,
    entry: &KernelEntry,
    supports: &Supports,
    drawn: &Drawn,
) -> Result<u64, String> {
    let operation = subject.info().schema();
    if NUMBERED_HEADS.contains(&operation.name.as_str()) {
        return Ok(0);
    }
    let mut shown = 0;
    let Some(whole) = run(entry, &drawn.call, 1)? else { return Ok(0) };
    for ranks in
        RANKS.into_iter().filter(|ranks| entry.spec.max_tp_size.is_none_or(|most| *ranks <= i64::from(most)))
    {
        for number in 0..ranks {
            let Some(cuts) = rank(operation, drawn, number, ranks) else { continue };
            let Some(mut part) = parts::part(operation, drawn, &cuts) else { continue };
            if !is_claimed(subject, entry, supports, &mut part) {
                continue;
            }
            let Some(part) = run(entry, &part, 1)? else { continue };
            if let Some(differs) = parts::difference(operation, drawn, &cuts, &whole, &part) {
                return Err(format!("rank {number} of {ranks}: {differs}\n{:?}", drawn.call));
            }
            shown += 1;
        }
    }
    Ok(shown)
}

/// The batches in which the items of a call of `size` items must have the same results: alone, in parts, at other positions, and in
/// batches so large that kernels divide the work in other ways.
fn batches(size: i64) -> Vec<(i64, i64)> {
    let half = size / 2;
    vec![(0, 1), (size - 1, 1), (0, half), (half, size - half), (half, size), (1, LARGE_BATCH)]
}

/// More items than any kernel treats as few.
const LARGE_BATCH: i64 = 33;

/// How many times the features of a call are repeated, so that sums are long enough to depend on their order.
const FEATURES: i64 = 7;

/// How many times the positions of sequences, and the pages of requests, are repeated, so that kernels split them (split-KV).
const LENGTHS: [(Role, i64); 2] = [(Role::Length, 32), (Role::Count, 64)];

fn batch(
    subject: &dyn Subject,
    entry: &KernelEntry,
    supports: &Supports,
    drawn: &Drawn,
) -> Result<u64, String> {
    let operation = subject.info().schema();
    if !has_batch(operation) {
        return Ok(0);
    }
    let mut shown = batch_of(subject, entry, supports, drawn, &batches)?;
    // References add in one order and are slow.
    if entry.spec.reference {
        return Ok(shown);
    }
    if let Some(wide) = parts::repeated(operation, drawn, Role::Feature, FEATURES) {
        shown += batch_of(subject, entry, supports, &wide, &|_| vec![(0, 1), (1, LARGE_BATCH)])?;
    }
    for (role, times) in LENGTHS {
        if let Some(long) = parts::repeated(operation, drawn, role, times) {
            shown += batch_of(subject, entry, supports, &long, &|size| vec![(size - 1, 1), (1, size + 1)])?;
        }
    }
    Ok(shown)
}

fn batch_of(
    subject: &dyn Subject,
    entry: &KernelEntry,
    supports: &Supports,
    drawn: &Drawn,
    batches: &dyn Fn(i64) -> Vec<(i64, i64)>,
) -> Result<u64, String> {
    let operation = subject.info().schema();
    if !is_claimed(subject, entry, supports, &mut drawn.call.clone()) {
        return Ok(0);
    }
    let Some(whole) = run(entry, &drawn.call, 1)? else { return Ok(0) };
    let mut shown = 0;
    for (axis, about) in operation.axes.iter().enumerate().filter(|(_, axis)| axis.role == Role::Batch) {
        let Some(size) = drawn.size(axis).filter(|size| *size > 0) else { continue };
        for (start, count) in batches(size).into_iter().filter(|(_, count)| *count > 0) {
            let cuts = [Cut { axis, start, count }];
            let Some(mut other) = parts::part(operation, drawn, &cuts) else { continue };
            if !is_claimed(subject, entry, supports, &mut other) {
                continue;
            }
            let Some(other) = run(entry, &other, 1)? else { continue };
            if let Some(differs) = parts::difference(operation, drawn, &cuts, &whole, &other) {
                return Err(format!(
                    "{} {start} to {} of {size}: {differs}\n{:?}",
                    about.name,
                    start + count,
                    drawn.call
                ));
            }
            shown += 1;
        }
    }
    Ok(shown)
}

/// Runs after the first one, which may allocate its workspace. The fewest effects of several count: other threads of the process can make
/// a run wait for the memory map.
fn graph_safe(entry: &KernelEntry, drawn: &Drawn, effects: &dyn Fn() -> Effects) -> Result<u64, String> {
    let mut scratch = Scratch::default();
    let mut fewest: Option<(u64, u64)> = None;
    for number in 0..4 {
        let mut call = drawn.call.clone();
        let mut seen = (0, 0);
        let outcome = lz_pool::with_threads(1, || {
            call.with_args(|args, outputs| {
                let before = effects();
                let outcome = entry.kernel.run(args, outputs, &mut Run::new(&mut scratch, u64::MAX));
                let after = effects();
                seen = (after.allocations - before.allocations, after.waits - before.waits);
                outcome
            })
        });
        match outcome {
            Ok(()) => {}
            Err(error) if error.cause == Cause::Caller => return Ok(0),
            Err(error) => return Err(format!("does not run a valid call: {error}\n{:?}", drawn.call)),
        }
        if number > 0 {
            fewest = Some(fewest.map_or(seen, |fewest| fewest.min(seen)));
        }
    }
    match fewest {
        Some((allocations, waits)) if allocations > 0 || waits > 0 => {
            Err(format!("allocates {allocations} times and waits {waits} times\n{:?}", drawn.call))
        }
        _ => Ok(1),
    }
}
