//! Parts of a call: the same rows, heads or other items of every tensor, as a smaller call of its own.
//!
//! A tensor-parallel rank computes such a part, and so does a caller with another batch. Parts are dense copies, whatever the layout of
//! the whole call.

use lz_core::tensor::{Indices, TensorView};
use lz_schema::model::{Cases, Dim, Operation, Role};

use crate::call::{OwnedArg, OwnedCall, OwnedOut};
use crate::memory::OwnedTensor;
use crate::valid::Drawn;

/// The items of an axis that belong to a part. Items after the last one are the first ones again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The axis, by index.
    pub axis: usize,
    /// The first item.
    pub start: i64,
    /// The number of items.
    pub count: i64,
}

/// The items of one dimension: the first one, their number, and the size of the dimension.
#[derive(Debug, Clone, Copy)]
struct Range {
    start: i64,
    count: i64,
    size: i64,
}

/// The position in the whole tensor of an element of the part.
fn position(index: &[i64], ranges: &[Range]) -> Vec<i64> {
    let pairs = index.iter().zip(ranges);
    pairs.map(|(position, range)| (position + range.start) % range.size.max(1)).collect()
}

/// The part of a drawn call; `None` if a shape depends on a cut axis other than by being it.
pub fn part(operation: &Operation, drawn: &Drawn, cuts: &[Cut]) -> Option<OwnedCall> {
    let mut args = Vec::with_capacity(drawn.call.args.len());
    for (index, arg) in drawn.call.args.iter().enumerate() {
        let input = operation.inputs.get(index);
        args.push(match (arg, input) {
            (OwnedArg::Tensor(tensor), Some(input)) => OwnedArg::Tensor(gather(
                &tensor.view(),
                &ranges(operation, drawn, cuts, &input.shape, &tensor.view())?,
            )),
            (OwnedArg::Written(tensor), Some(input)) => OwnedArg::Written(gather(
                &tensor.view(),
                &ranges(operation, drawn, cuts, &input.shape, &tensor.view())?,
            )),
            (OwnedArg::Text(_), _) => return None,
            (other, _) => other.clone(),
        });
    }
    let mut outputs = Vec::with_capacity(drawn.call.outputs.len());
    for (output, about) in drawn.call.outputs.iter().zip(&operation.outputs) {
        outputs.push(match output {
            OwnedOut::Absent => OwnedOut::Absent,
            OwnedOut::Tensor(tensor) => OwnedOut::Tensor(gather(
                &tensor.view(),
                &ranges(operation, drawn, cuts, &about.shape, &tensor.view())?,
            )),
            OwnedOut::Dynamic(_) | OwnedOut::Text(_) => return None,
        });
    }
    Some(OwnedCall { args, outputs })
}

/// The call with all axes of a role repeated; `None` if its shapes do not allow it, or the result is not valid.
pub fn repeated(operation: &Operation, drawn: &Drawn, role: Role, times: i64) -> Option<Drawn> {
    let axes = operation.axes.iter().enumerate().filter(|(_, axis)| axis.role == role);
    let cuts: Vec<Cut> =
        axes.filter_map(|(axis, _)| Some(Cut { axis, start: 0, count: drawn.size(axis)? * times })).collect();
    let mut call = part(operation, drawn, &cuts)?;
    let bound = call.interpret(operation, false).ok()?;
    Some(Drawn { call, bound, ..drawn.clone() })
}

/// The first difference in bits between the results of a part and the same items of the results of the whole call.
pub fn difference(
    operation: &Operation,
    drawn: &Drawn,
    cuts: &[Cut],
    whole: &OwnedCall,
    part: &OwnedCall,
) -> Option<String> {
    let outputs = whole.outputs.iter().zip(&part.outputs).zip(&operation.outputs);
    let outputs = outputs.filter_map(|((whole, part), about)| match (whole, part) {
        (OwnedOut::Tensor(whole), OwnedOut::Tensor(part)) => Some((&about.name, &about.shape, whole, part)),
        _ => None,
    });
    let inputs = whole.args.iter().zip(&part.args).zip(&operation.inputs);
    let inputs = inputs.filter_map(|((whole, part), about)| match (whole, part) {
        (OwnedArg::Written(whole), OwnedArg::Written(part)) => Some((&about.name, &about.shape, whole, part)),
        _ => None,
    });
    for (name, shape, whole, part) in outputs.chain(inputs) {
        let (whole, part) = (whole.view(), part.view());
        let ranges = ranges(operation, drawn, cuts, shape, &whole)?;
        for index in Indices::new(part.shape()) {
            let at = position(&index, &ranges);
            if element(&whole, &at) != element(&part, &index) {
                let (found, expected) = (part.at(&index), whole.at(&at));
                return Some(format!(
                    "{name} at {at:?} is {found:e} in a part and {expected:e} in the whole call"
                ));
            }
        }
    }
    None
}

/// The items of each dimension of a tensor.
fn ranges(
    operation: &Operation,
    drawn: &Drawn,
    cuts: &[Cut],
    shape: &Cases<Vec<Dim>>,
    tensor: &TensorView<'_>,
) -> Option<Vec<Range>> {
    let mut axes: Vec<Option<usize>> = Vec::new();
    for dim in drawn.assignment.pick(operation, shape)? {
        match dim {
            Dim::Axis(axis) => axes.push(Some(*axis)),
            Dim::Fixed(_) => axes.push(None),
            Dim::Offset(axis, _) if cuts.iter().any(|cut| cut.axis == *axis) => return None,
            Dim::Offset(..) => axes.push(None),
            // A pack is cut along its first dimension.
            Dim::Pack(axis) => {
                let rank = drawn.bound.packs.get(*axis)?.as_ref()?.len();
                axes.extend((0..rank).map(|position| (position == 0).then_some(*axis)));
            }
            Dim::Expr(expression) => {
                let reads = |cut: &Cut| {
                    expression.variables().iter().any(|variable| usize::from(variable.index) == cut.axis)
                };
                if cuts.iter().any(reads) {
                    return None;
                }
                axes.push(None);
            }
        }
    }
    // An input that is broadcast may lack leading dimensions, and dimensions of size 1 are not cut.
    let sizes = tensor.shape();
    let axes = axes.get(axes.len().checked_sub(sizes.len())?..)?;
    let range = |(axis, size): (&Option<usize>, &i64)| {
        let is_whole = |cut: &&Cut| Some(cut.axis) == *axis && drawn.size(cut.axis) == Some(*size);
        let (start, count) = cuts.iter().find(is_whole).map_or((0, *size), |cut| (cut.start, cut.count));
        Range { start, count, size: *size }
    };
    Some(axes.iter().zip(sizes).map(range).collect())
}

fn gather(tensor: &TensorView<'_>, ranges: &[Range]) -> OwnedTensor {
    let shape: Vec<i64> = ranges.iter().map(|range| range.count).collect();
    let mut part = OwnedTensor::dense(&shape, tensor.dtype());
    for index in Indices::new(&shape) {
        let bytes = element(tensor, &position(&index, ranges)).to_vec();
        let mut view = part.view_mut();
        let offset = view.layout().offset(&index).unwrap_or(0) * bytes.len() as isize;
        // SAFETY: an element of the tensor, which is borrowed exclusively.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), view.as_mut_ptr().offset(offset), bytes.len())
        };
    }
    part
}

/// The bytes of an element.
fn element<'t>(tensor: &TensorView<'t>, index: &[i64]) -> &'t [u8] {
    let size = tensor.dtype().size();
    let offset = tensor.layout().offset(index).unwrap_or(0) * size as isize;
    // SAFETY: an element of the tensor, whose memory lives for the view.
    unsafe { std::slice::from_raw_parts(tensor.as_ptr().offset(offset), size) }
}
