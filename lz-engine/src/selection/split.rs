//! Splitting: if no kernel can run a call only because it is too large, it is split along its batch and run in parts.
//!
//! Any eligible kernel is preferred, however slow. A split is planned from the context alone (`which`, `explain`) and run on dynamic
//! arguments, because parts are slices of the caller's tensors. Each part is an ordinary call.

pub(crate) use super::split_axis::splittable_axis;
use crate::compiled::CompiledKernel;
use crate::selection::call::Call;
use crate::selection::decide;
use crate::selection::filter;
use lz_core::context::{Context, FieldKind, Store};
use lz_core::expression_names::Values;
use lz_core::mode::ModeFlag;
use lz_core::operation::OperationInfo;
use lz_core::plan::Split;
use lz_core::reason::{Reason, ReasonCode};
use lz_schema::model::ValueRule;

/// Reasons that a smaller batch can resolve.
fn is_about_size(code: ReasonCode) -> bool {
    matches!(
        code,
        ReasonCode::CudaGridDimExceeded
            | ReasonCode::CudaBlockLimitExceeded
            | ReasonCode::MemoryHeadroomExceeded
    )
}

/// Whether a smaller batch might make the candidate eligible.
pub(crate) fn is_only_too_large(reasons: &[Reason]) -> bool {
    !reasons.is_empty() && reasons.iter().all(|reason| is_about_size(reason.code))
}

/// The splittable axis and its store.
fn axis_of(operation: &OperationInfo) -> Option<(usize, Store)> {
    let axis = splittable_axis(operation.schema())?;
    let field = operation.fields.get(axis)?;
    matches!(field.kind, FieldKind::Axis { .. }).then_some((axis, field.store))
}

/// The axis along which calls of an operation may be split, if there is one.
pub fn batch_axis(operation: &OperationInfo) -> Option<&str> {
    let (axis, _) = axis_of(operation)?;
    operation.fields.get(axis).map(|field| field.name.as_ref())
}

/// How a call without an eligible kernel is split, and the candidate for the parts.
///
/// The batch is halved until a kernel is eligible for a part. Strict calls are not split: they allow nothing implicit.
pub(crate) fn plan(call: &Call<'_>) -> Option<(Split, decide::Ranked)> {
    if call.mode.has(ModeFlag::Strict) || call.lock.is_some() || call.hint.forbids().is_some() {
        return None;
    }
    let (axis, store) = axis_of(call.table.info)?;
    if reads_batch_index(call) {
        return None;
    }
    let too_large = (0..call.table.candidates.len()).any(|position| {
        let mut reasons: Vec<Reason> = Vec::new();
        filter::examine(call, position as u16, &mut reasons);
        is_only_too_large(&reasons)
    });
    let size = call.context.raw(store) as i64;
    if !too_large || size < 2 {
        return None;
    }
    let mut part = size;
    while part > 1 {
        part = part / 2 + part % 2;
        let smaller = with_size(call.context, store, part)?;
        let smaller = Call::new(call.snapshot, call.table, &smaller, call.mode);
        if let Some(best) = decide::eligible(&smaller).first() {
            let axis = call.table.info.fields.get(axis)?.name.to_string();
            return Some((Split { axis, size, part, parts: parts(size, part) }, *best));
        }
    }
    None
}

/// Whether the call has a score expression, which may read the index in the batch: a part would have other indices.
fn reads_batch_index(call: &Call<'_>) -> bool {
    let info = call.table.info;
    let rules = info.schema().inputs.iter();
    rules.filter(|input| matches!(input.values, Some(ValueRule::ScoreMod(_)))).any(|input| {
        let name = format!("given({})", input.name);
        info.fields.iter().any(|field| field.name == name && call.context.raw(field.store) != 0)
    })
}

/// Number of parts of up to `part`; both are positive.
pub(crate) fn parts(size: i64, part: i64) -> i64 {
    size / part + i64::from(size % part != 0)
}

/// Workspace of one part.
pub(crate) fn workspace(call: &Call<'_>, kernel: &CompiledKernel, split: &Split) -> u64 {
    let store = axis_of(call.table.info).map(|(_, store)| store);
    let part = store.and_then(|store| with_size(call.context, store, split.part));
    let values = part.as_ref().map(|part| Values::of_fields(&call.table.info.fields, part));
    values.and_then(|values| filter::workspace(kernel, &values)).unwrap_or(0)
}

fn with_size(context: &Context, store: Store, size: i64) -> Option<Context> {
    let mut smaller = *context;
    smaller.replace(store, size as u64).then_some(smaller)
}
