//! Parts of a call: the same rows, heads or other items of every tensor, as a smaller call of its own.
//!
//! A tensor-parallel rank computes such a part, and so does a caller with another batch. Parts are dense copies, whatever the layout of
//! the whole call. If the items are requests of different lengths (CSR index pointers), a part has their rows and pages too.

use lz_core::tensor::{Indices, TensorView};
use lz_schema::model::{Cases, Dim, Input, Operation, Role, ValueRule};

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

impl Cut {
    /// Positions of its items among `size`.
    fn positions(&self, size: i64) -> Vec<i64> {
        (self.start..self.start + self.count).map(|item| item % size.max(1)).collect()
    }
}

/// The items of one axis, as positions in the whole call.
#[derive(Debug)]
struct Items {
    axis: usize,
    size: i64,
    positions: Vec<i64>,
}

/// A CSR index pointer of a call: item `b` of `batch` owns the items `starts[b]..starts[b + 1]` of `target`.
struct Indptr {
    batch: usize,
    target: usize,
    starts: Vec<i64>,
}

impl Indptr {
    /// The index pointer that an argument is; `None` if it is another tensor.
    fn of(operation: &Operation, drawn: &Drawn, input: &Input, arg: &OwnedArg) -> Option<Indptr> {
        let (Some(ValueRule::IndptrOf(total) | ValueRule::IndptrWithin(total)), OwnedArg::Tensor(tensor)) =
            (&input.values, arg)
        else {
            return None;
        };
        let [Dim::Offset(batch, 1)] = drawn.assignment.pick(operation, &input.shape)?.as_slice() else {
            return None;
        };
        let [total] = &total.variables()[..] else { return None };
        let (view, target) = (tensor.view(), usize::from(total.index));
        let starts = (0..*view.shape().first()?).map(|index| view.at(&[index]) as i64).collect();
        (target < operation.axes.len()).then_some(Indptr { batch: *batch, target, starts })
    }

    /// Positions of the items of the target that belong to these items of the batch.
    fn owned(&self, batch: &[i64]) -> Option<Vec<i64>> {
        let mut owned = Vec::new();
        for &item in batch {
            let item = usize::try_from(item).ok()?;
            owned.extend(*self.starts.get(item)?..*self.starts.get(item + 1)?);
        }
        Some(owned)
    }

    /// The values of the index pointer of the part.
    fn part(&self, items: &[Items]) -> Option<Vec<i64>> {
        let items_of = |axis: usize| items.iter().find(|items| items.axis == axis);
        if let Some(batch) = items_of(self.batch) {
            let mut starts = vec![0];
            for &item in &batch.positions {
                let length = self.owned(&[item])?.len() as i64;
                starts.push(starts.last()? + length);
            }
            return Some(starts);
        }
        // A target that is repeated a number of times gives every item of the batch that many times its length.
        let times = items_of(self.target).map_or(Some(1), |target| {
            let count = target.positions.len() as i64;
            (target.size > 0 && count % target.size == 0).then(|| count / target.size)
        })?;
        Some(self.starts.iter().map(|start| start * times).collect())
    }
}

/// The items of all axes that a part cuts: those of `cuts`, and those that the cut requests own.
fn items(operation: &Operation, drawn: &Drawn, cuts: &[Cut]) -> Option<Vec<Items>> {
    let mut items = Vec::new();
    for cut in cuts {
        let size = drawn.size(cut.axis)?;
        items.push(Items { axis: cut.axis, size, positions: cut.positions(size) });
    }
    for (input, arg) in operation.inputs.iter().zip(&drawn.call.args) {
        let Some(indptr) = Indptr::of(operation, drawn, input, arg) else { continue };
        let is_cut = |items: &&Items| items.axis == indptr.batch;
        let Some(batch) = items.iter().find(is_cut) else { continue };
        if items.iter().any(|items| items.axis == indptr.target) {
            return None;
        }
        let (size, positions) = (drawn.size(indptr.target)?, indptr.owned(&batch.positions)?);
        items.push(Items { axis: indptr.target, size, positions });
    }
    Some(items)
}

/// The part of a drawn call; `None` if a shape depends on a cut axis other than by being it or its index pointers.
pub fn part(operation: &Operation, drawn: &Drawn, cuts: &[Cut]) -> Option<OwnedCall> {
    let items = items(operation, drawn, cuts)?;
    let mut args = Vec::with_capacity(drawn.call.args.len());
    for (index, arg) in drawn.call.args.iter().enumerate() {
        let input = operation.inputs.get(index);
        if let Some(indptr) = input.and_then(|input| Indptr::of(operation, drawn, input, arg))
            && let OwnedArg::Tensor(tensor) = arg
        {
            args.push(OwnedArg::Tensor(integers(&tensor.view(), &indptr.part(&items)?)));
            continue;
        }
        args.push(match (arg, input) {
            (OwnedArg::Tensor(tensor), Some(input)) => OwnedArg::Tensor(gather(
                &tensor.view(),
                &picks(operation, drawn, &items, &input.shape, &tensor.view())?,
            )),
            (OwnedArg::Written(tensor), Some(input)) => OwnedArg::Written(gather(
                &tensor.view(),
                &picks(operation, drawn, &items, &input.shape, &tensor.view())?,
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
                &picks(operation, drawn, &items, &about.shape, &tensor.view())?,
            )),
            OwnedOut::Dynamic(_) | OwnedOut::Text(_) => return None,
        });
    }
    Some(OwnedCall { args, outputs })
}

/// The call with all axes of a role repeated; `None` if it has none, its shapes do not allow it, or the result is not valid.
pub fn repeated(operation: &Operation, drawn: &Drawn, role: Role, times: i64) -> Option<Drawn> {
    let axes = operation.axes.iter().enumerate().filter(|(_, axis)| axis.role == role);
    let cuts: Vec<Cut> =
        axes.filter_map(|(axis, _)| Some(Cut { axis, start: 0, count: drawn.size(axis)? * times })).collect();
    if cuts.is_empty() {
        return None;
    }
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
    let items = items(operation, drawn, cuts)?;
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
        let picks = picks(operation, drawn, &items, shape, &whole)?;
        for index in Indices::new(part.shape()) {
            let at = position(&index, &picks);
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

/// The positions in the whole tensor that a part has, for each dimension.
type Picks<'i> = Vec<Pick<'i>>;

/// The positions of one dimension.
#[derive(Debug, Clone, Copy)]
enum Pick<'i> {
    /// All of this many.
    All(i64),
    /// These.
    These(&'i [i64]),
}

impl Pick<'_> {
    fn count(&self) -> i64 {
        match self {
            Pick::All(count) => *count,
            Pick::These(positions) => positions.len() as i64,
        }
    }

    fn at(&self, index: i64) -> i64 {
        match self {
            Pick::All(_) => index,
            Pick::These(positions) => positions[index as usize],
        }
    }
}

/// The position in the whole tensor of an element of the part.
fn position(index: &[i64], picks: &[Pick<'_>]) -> Vec<i64> {
    index.iter().zip(picks).map(|(index, pick)| pick.at(*index)).collect()
}

/// The positions of each dimension of a tensor.
fn picks<'i>(
    operation: &Operation,
    drawn: &Drawn,
    items: &'i [Items],
    shape: &Cases<Vec<Dim>>,
    tensor: &TensorView<'_>,
) -> Option<Picks<'i>> {
    let is_cut = |axis: usize| items.iter().any(|items| items.axis == axis);
    let mut axes: Vec<Option<usize>> = Vec::new();
    for dim in drawn.assignment.pick(operation, shape)? {
        match dim {
            Dim::Axis(axis) => axes.push(Some(*axis)),
            Dim::Fixed(_) => axes.push(None),
            Dim::Offset(axis, _) if is_cut(*axis) => return None,
            Dim::Offset(..) => axes.push(None),
            // A pack is cut along its first dimension.
            Dim::Pack(axis) => {
                let rank = drawn.bound.packs.get(*axis)?.as_ref()?.len();
                axes.extend((0..rank).map(|position| (position == 0).then_some(*axis)));
            }
            Dim::Expr(expression) => {
                if expression.variables().iter().any(|variable| is_cut(usize::from(variable.index))) {
                    return None;
                }
                axes.push(None);
            }
        }
    }
    // An input that is broadcast may lack leading dimensions, and dimensions of size 1 are not cut.
    let sizes = tensor.shape();
    let axes = axes.get(axes.len().checked_sub(sizes.len())?..)?;
    let pick = |(axis, size): (&Option<usize>, &i64)| {
        let is_whole = |items: &&Items| Some(items.axis) == *axis && items.size == *size;
        items.iter().find(is_whole).map_or(Pick::All(*size), |items| Pick::These(&items.positions))
    };
    Some(axes.iter().zip(sizes).map(pick).collect())
}

fn gather(tensor: &TensorView<'_>, picks: &[Pick<'_>]) -> OwnedTensor {
    let shape: Vec<i64> = picks.iter().map(Pick::count).collect();
    let mut part = OwnedTensor::dense(&shape, tensor.dtype());
    let (size, strides) = (tensor.dtype().size(), tensor.layout().strides);
    let mut view = part.view_mut();
    let mut to = view.as_mut_ptr();
    for index in Indices::new(&shape) {
        let places = index.iter().zip(picks).zip(strides.iter());
        let from: i64 = places.map(|((index, pick), stride)| pick.at(*index) * stride).sum();
        // SAFETY: an element of the tensor, whose memory lives for the view, and the next one of the dense part.
        unsafe {
            std::ptr::copy_nonoverlapping(tensor.as_ptr().offset(from as isize * size as isize), to, size);
            to = to.add(size);
        }
    }
    part
}

/// A dense tensor of these integers, with the dtype of another.
fn integers(like: &TensorView<'_>, values: &[i64]) -> OwnedTensor {
    let mut tensor = OwnedTensor::dense(&[values.len() as i64], like.dtype());
    for (index, value) in values.iter().enumerate() {
        tensor.view_mut().set(&[index as i64], *value as f64);
    }
    tensor
}

/// The bytes of an element.
fn element<'t>(tensor: &TensorView<'t>, index: &[i64]) -> &'t [u8] {
    let size = tensor.dtype().size();
    let offset = tensor.layout().offset(index).unwrap_or(0) * size as isize;
    // SAFETY: an element of the tensor, whose memory lives for the view.
    unsafe { std::slice::from_raw_parts(tensor.as_ptr().offset(offset), size) }
}
