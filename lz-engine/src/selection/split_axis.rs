//! The axis along which calls of an operation may be split, from its schema.
//!
//! Conservative: an axis that is not provably sound is not split. Nothing here depends on a call.

use lz_schema::expr::Typed;
use lz_schema::model::{Dim, Equivalence, Input, Kind, Operation, Role, ValueRule};

/// The index of the axis along which a call of the operation may be split.
///
/// `role: batch` in the schema declares that the items of an axis are independent. In addition, every tensor with the axis must have it as
/// the first dimension, in every case of its shape; every output must have it, otherwise parts would have to be combined; every input that is
/// mutated must have it, otherwise parts would mutate it several times; and no constraint, value check or output condition may depend on its
/// size. Operations that are checked by distribution number their draws by the index in the batch, which a part does not know.
pub(crate) fn splittable_axis(operation: &Operation) -> Option<usize> {
    if matches!(operation.equivalence, Equivalence::Distribution(_)) {
        return None;
    }
    (0..operation.axes.len()).find(|axis| is_splittable(operation, *axis))
}

fn is_splittable(operation: &Operation, axis: usize) -> bool {
    let Some(about) = operation.axes.get(axis) else { return false };
    if about.role != Role::Batch || about.dynamic || about.value.is_some() || about.bound_by.is_none() {
        return false;
    }
    let constraints = operation.constraints.iter().map(|constraint| &constraint.check);
    let conditions = operation.outputs.iter().filter_map(|output| output.when.as_ref());
    if constraints.chain(conditions).any(|text| reads(text, axis)) {
        return false;
    }
    operation.inputs.iter().all(|input| cuts_input(input, axis))
        && operation.outputs.iter().all(|output| {
            output.kind == Kind::Tensor
                && !output.is_dynamic(operation)
                && output.shape.all().iter().all(|shape| leads(shape, axis))
        })
}

/// Whether an input can be split, or passed unchanged to every part.
fn cuts_input(input: &Input, axis: usize) -> bool {
    let by_values = match &input.values {
        None => false,
        Some(
            ValueRule::IndexInto(text)
            | ValueRule::IndptrOf(text)
            | ValueRule::IndptrWithin(text)
            | ValueRule::PartitionOf(text)
            | ValueRule::ScoreMod(text),
        ) => reads(text, axis),
        Some(ValueRule::Between(low, high)) => reads(low, axis) || reads(high, axis),
    };
    let shapes = input.shape.all();
    let has = shapes.iter().any(|shape| shape.iter().any(|dim| mentions(dim, axis)));
    if by_values || !has {
        // An input that is shared by all parts must not be mutated; text is not known to be independent of the batch.
        return !by_values && !input.read_write && input.kind != Kind::Text;
    }
    // A broadcast mask without leading dimensions is indistinguishable from one of a pack with fewer dimensions.
    let packed = shapes.iter().flatten().any(|dim| matches!(dim, Dim::Pack(index) if *index == axis));
    input.kind == Kind::Tensor
        && !(input.broadcast && packed)
        && shapes.iter().all(|shape| leads(shape, axis))
}

/// Whether the axis is the first dimension and no other.
fn leads(shape: &[Dim], axis: usize) -> bool {
    let first = matches!(shape.first(), Some(Dim::Axis(index) | Dim::Pack(index)) if *index == axis);
    first && !shape.iter().skip(1).any(|dim| mentions(dim, axis))
}

pub(super) fn mentions(dim: &Dim, axis: usize) -> bool {
    match dim {
        Dim::Axis(index) | Dim::Pack(index) | Dim::Offset(index, _) => *index == axis,
        Dim::Fixed(_) => false,
        Dim::Expr(text) => reads(text, axis),
    }
}

/// An expression's variables are numbered by slots, which begin with the axes.
pub(super) fn reads(text: &Typed, axis: usize) -> bool {
    text.variables().iter().any(|variable| usize::from(variable.index) == axis)
}
