//! Along which axis a call may be cut into several, as the schema tells.
//!
//! The answer is careful: what cannot be seen to be sound is not cut. Nothing here looks at a call.

use lz_schema::expr::Typed;
use lz_schema::model::{Dim, Equivalence, Input, Kind, Operation, Role, ValueRule};

/// The axis along which a call of the operation may be cut, by index.
///
/// The schema says by `role: batch` that the items of an axis do not influence each other. Beyond that, every tensor that has
/// the axis must have it first, in every case of its shape; every output must have it, or parts would have to be combined;
/// whatever is changed in place must have it, or parts would change it several times; and no constraint, check of values or
/// condition of an output may depend on its size. Operations that are judged by distribution number their draws by the item's
/// place in the batch, which a part does not know.
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

/// Whether an input can be cut, or passed whole to every part.
fn cuts_input(input: &Input, axis: usize) -> bool {
    let by_values = match &input.values {
        None => false,
        Some(ValueRule::IndexInto(text) | ValueRule::IndptrOf(text) | ValueRule::PartitionOf(text)) => {
            reads(text, axis)
        }
        Some(ValueRule::Between(low, high)) => reads(low, axis) || reads(high, axis),
    };
    let shapes = input.shape.all();
    let has = shapes.iter().any(|shape| shape.iter().any(|dim| mentions(dim, axis)));
    if by_values || !has {
        // What is whole for every part must not be changed by it, and what is no tensor is not known to be the same for all.
        return !by_values && !input.read_write && input.kind != Kind::Text;
    }
    // A mask that may lack leading dimensions cannot be told apart from one of a pack with fewer.
    let packed = shapes.iter().flatten().any(|dim| matches!(dim, Dim::Pack(index) if *index == axis));
    input.kind == Kind::Tensor
        && !(input.broadcast && packed)
        && shapes.iter().all(|shape| leads(shape, axis))
}

/// Whether the axis comes first and nowhere else.
fn leads(shape: &[Dim], axis: usize) -> bool {
    let first = matches!(shape.first(), Some(Dim::Axis(index) | Dim::Pack(index)) if *index == axis);
    first && !shape.iter().skip(1).any(|dim| mentions(dim, axis))
}

fn mentions(dim: &Dim, axis: usize) -> bool {
    match dim {
        Dim::Axis(index) | Dim::Pack(index) | Dim::Offset(index, _) => *index == axis,
        Dim::Fixed(_) => false,
        Dim::Expr(text) => reads(text, axis),
    }
}

/// An expression's variables are numbered by slots, which begin with the axes.
fn reads(text: &Typed, axis: usize) -> bool {
    text.variables().iter().any(|variable| usize::from(variable.index) == axis)
}
