//! Faults in inputs and params.

use lz_core::tensor::{Dims, Layout};
use lz_core::{DType, ReasonCode};
use lz_schema::model::{Contiguous, DTypeRef, DeviceRule, Dim};

use super::{Break, MemoryBreak, axis_of, other_kind, other_type};
use crate::assign::Prepared;
use crate::call::OwnedArg;
use crate::fill::{Rule, rule};
use crate::memory::{OwnedTensor, Pattern};
use crate::random::Random;
use crate::valid::Drawn;

/// Applies the fault; `None` if it does not apply to this call.
pub(super) fn apply(
    prepared: &Prepared,
    random: &mut Random,
    drawn: &mut Drawn,
    broken: Break,
) -> Option<ReasonCode> {
    let operation = prepared.operation;
    let first_param = operation.inputs.len();
    match broken {
        Break::AxisSize(input, dim) => axis_size(prepared, drawn, input, dim),
        Break::ComputedSize(input, dim) => {
            let dims = drawn.assignment.pick(operation, &operation.inputs[input].shape)?;
            let dimension = tensor_dim(dims, dim, shape_of(drawn, input)?.len());
            matches!(dims.get(dim)?, Dim::Fixed(_) | Dim::Expr(_)).then_some(())?;
            reshape(drawn, input, |shape| shape[dimension] += 1)?;
            Some(ReasonCode::ShapeMismatch)
        }
        Break::Broadcast(input) => {
            let full = prepared.shape(&drawn.assignment, &drawn.values, &operation.inputs[input])?;
            let shape = shape_of(drawn, input)?;
            let dimension = random.below(shape.len());
            let missing = full.len() - shape.len();
            let size = *full.get(missing + dimension)?;
            (!shape.is_empty()).then_some(())?;
            reshape(drawn, input, |shape| shape[dimension] = size.max(1) + 1)?;
            Some(ReasonCode::BroadcastMismatch)
        }
        Break::Rank(input) => rank(prepared, drawn, input),
        Break::Dtype(input) => dtype(prepared, random, drawn, input),
        Break::DtypeVariable(input) => dtype_variable(prepared, random, drawn, input),
        Break::Memory(_, input, broken) => memory(random, drawn.call.args[input].tensor_mut()?, broken),
        Break::Contiguity(input) => {
            let layout = *drawn.call.args[input].tensor()?.layout();
            let stepped = OwnedTensor::new(random, &layout.shape, layout.dtype, Pattern::Stepped);
            (!stepped.layout().last_is_dense() && !stepped.layout().is_contiguous()).then_some(())?;
            *drawn.call.args[input].tensor_mut()? = stepped;
            Some(match operation.inputs[input].contiguous {
                Contiguous::All => ReasonCode::NotContiguous,
                _ => ReasonCode::StrideLastDim,
            })
        }
        Break::Device(input) => {
            let same = |index: &usize| operation.inputs[*index].device == DeviceRule::Same;
            let others = (0..first_param)
                .filter(|index| *index != input && same(index))
                .any(|index| drawn.call.args[index].tensor().is_some());
            (others || !same(&input)).then_some(())?;
            drawn.call.args[input].tensor_mut()?.put_on_device(1);
            Some(ReasonCode::DeviceMismatch)
        }
        Break::MissingInput(input) => {
            drawn.call.args[input] = OwnedArg::Absent;
            Some(ReasonCode::MissingArgument)
        }
        Break::InputKind(input) => {
            drawn.call.args[input] = other_kind(&drawn.call.args[input]);
            Some(ReasonCode::ArgumentKind)
        }
        Break::NotWritable(input) => {
            let OwnedArg::Written(tensor) = &drawn.call.args[input] else { return None };
            drawn.call.args[input] = OwnedArg::Tensor(tensor.clone());
            Some(ReasonCode::ArgumentKind)
        }
        Break::Value(input, variant) => value(prepared, random, drawn, input, variant),
        Break::WrittenOverlap(input, other) => {
            let address = drawn.call.args[other].tensor().filter(|tensor| !is_empty(tensor))?.address();
            let tensor = drawn.call.args[input].tensor_mut().filter(|tensor| !is_empty(tensor))?;
            address.is_multiple_of(tensor.layout().dtype.size()).then_some(())?;
            tensor.readdress(address);
            Some(ReasonCode::OutputOverlap)
        }
        Break::ParamRange(param) => {
            let value = *random.pick(&prepared.outside[param])?;
            drawn.call.args[first_param + param] = OwnedArg::Value(value);
            Some(ReasonCode::ParamOutOfRange)
        }
        Break::MissingParam(param) => {
            drawn.call.args[first_param + param] = OwnedArg::Absent;
            Some(ReasonCode::MissingArgument)
        }
        Break::ParamType(param) => {
            let wrong = other_type(&operation.params[param].ty);
            drawn.call.args[first_param + param] = OwnedArg::Value(wrong);
            Some(ReasonCode::ParamType)
        }
        Break::ParamKind(param) => {
            drawn.call.args[first_param + param] = OwnedArg::Text(Vec::new());
            Some(ReasonCode::ArgumentKind)
        }
        Break::ArgumentCount => {
            drawn.call.args.pop()?;
            Some(ReasonCode::MissingArgument)
        }
        _ => None,
    }
}

pub(super) fn is_empty(tensor: &OwnedTensor) -> bool {
    tensor.layout().shape.contains(&0)
}

fn shape_of(drawn: &Drawn, input: usize) -> Option<Dims> {
    Some(drawn.call.args[input].tensor()?.layout().shape)
}

/// Gives an input another shape, with newly allocated contiguous memory.
fn reshape(drawn: &mut Drawn, input: usize, change: impl FnOnce(&mut Vec<i64>)) -> Option<()> {
    let tensor = drawn.call.args[input].tensor_mut()?;
    let mut shape = tensor.layout().shape.to_vec();
    change(&mut shape);
    let fresh = OwnedTensor::dense(&shape, tensor.layout().dtype);
    (fresh.layout().shape.len() == shape.len()).then_some(())?;
    *tensor = fresh;
    Some(())
}

/// The tensor dimension of a dimension of the schema's shape, for this rank.
fn tensor_dim(dims: &[Dim], dim: usize, rank: usize) -> usize {
    match dims.iter().position(|dim| matches!(dim, Dim::Pack(_))) {
        Some(pack) if pack < dim => rank - (dims.len() - dim),
        _ => dim,
    }
}

fn axis_size(prepared: &Prepared, drawn: &mut Drawn, input: usize, dim: usize) -> Option<ReasonCode> {
    let operation = prepared.operation;
    let dims = drawn.assignment.pick(operation, &operation.inputs[input].shape)?;
    let axis = axis_of(dims.get(dim)?)?;
    let elsewhere = operation.inputs.iter().enumerate().any(|(other, definition)| {
        other != input
            && !definition.broadcast
            && drawn.call.args[other].is_given()
            && drawn
                .assignment
                .pick(operation, &definition.shape)
                .is_some_and(|dims| dims.iter().filter_map(axis_of).any(|seen| seen == axis))
    });
    (elsewhere || operation.axes[axis].value.is_some()).then_some(())?;
    let dimension = tensor_dim(dims, dim, shape_of(drawn, input)?.len());
    if let Dim::Pack(_) = dims[dim] {
        let empty = drawn.assignment.packs[axis].is_empty();
        reshape(
            drawn,
            input,
            |shape| if empty { shape.insert(dimension, 2) } else { shape[dimension] += 1 },
        )?;
    } else {
        reshape(drawn, input, |shape| shape[dimension] += 1)?;
    }
    Some(ReasonCode::AxisMismatch)
}

fn rank(prepared: &Prepared, drawn: &mut Drawn, input: usize) -> Option<ReasonCode> {
    let definition = &prepared.operation.inputs[input];
    let dims = drawn.assignment.pick(prepared.operation, &definition.shape)?;
    let packed = dims.iter().any(|dim| matches!(dim, Dim::Pack(_)));
    let plain = dims.len() - usize::from(packed);
    if definition.broadcast {
        reshape(drawn, input, |shape| *shape = vec![1; plain + 1])?;
    } else if packed {
        let fewer = plain.checked_sub(1)?;
        reshape(drawn, input, |shape| shape.drain(..shape.len() - fewer).for_each(drop))?;
    } else {
        reshape(drawn, input, |shape| shape.insert(0, 1))?;
    }
    Some(ReasonCode::RankMismatch)
}

/// Gives an input another dtype, with newly allocated contiguous memory.
fn retype(drawn: &mut Drawn, input: usize, dtype: DType) -> Option<()> {
    let tensor = drawn.call.args[input].tensor_mut()?;
    let shape = tensor.layout().shape;
    *tensor = OwnedTensor::dense(&shape, dtype);
    Some(())
}

/// Whether other given inputs have the same dtype variable, and whether one of them binds it first.
fn variable_elsewhere(prepared: &Prepared, drawn: &Drawn, input: usize, variable: usize) -> (bool, bool) {
    let operation = prepared.operation;
    let order = |index: usize| (operation.inputs[index].optional.is_some(), index);
    let others: Vec<usize> = (0..operation.inputs.len())
        .filter(|other| *other != input && drawn.call.args[*other].tensor().is_some())
        .filter(|other| {
            let reference = drawn.assignment.pick(operation, &operation.inputs[*other].dtype);
            reference == Some(&DTypeRef::Variable(variable))
        })
        .collect();
    (!others.is_empty(), others.iter().any(|other| order(*other) < order(input)))
}

fn dtype(prepared: &Prepared, random: &mut Random, drawn: &mut Drawn, input: usize) -> Option<ReasonCode> {
    let reference = *drawn.assignment.pick(prepared.operation, &prepared.operation.inputs[input].dtype)?;
    let (wrong, expected) = match reference {
        DTypeRef::Fixed(dtype) => (
            DType::ALL.into_iter().filter(|other| *other != dtype).collect::<Vec<_>>(),
            ReasonCode::DtypeUnsupported,
        ),
        DTypeRef::Variable(variable) => {
            let allowed = &prepared.operation.types[variable].dtypes;
            let bound = variable_elsewhere(prepared, drawn, input, variable).1;
            let expected = if bound { ReasonCode::DtypeMismatch } else { ReasonCode::DtypeUnsupported };
            (DType::ALL.into_iter().filter(|other| !allowed.contains(other)).collect(), expected)
        }
    };
    let wrong = *random.pick(&wrong)?;
    retype(drawn, input, wrong)?;
    Some(expected)
}

fn dtype_variable(
    prepared: &Prepared,
    random: &mut Random,
    drawn: &mut Drawn,
    input: usize,
) -> Option<ReasonCode> {
    let reference = drawn.assignment.pick(prepared.operation, &prepared.operation.inputs[input].dtype)?;
    let DTypeRef::Variable(variable) = *reference else { return None };
    variable_elsewhere(prepared, drawn, input, variable).0.then_some(())?;
    let bound = drawn.assignment.types[variable];
    let others: Vec<DType> =
        prepared.operation.types[variable].dtypes.iter().copied().filter(|dtype| *dtype != bound).collect();
    let other = *random.pick(&others)?;
    retype(drawn, input, other)?;
    Some(ReasonCode::DtypeMismatch)
}

/// Faults of a single tensor.
pub(super) fn memory(
    random: &mut Random,
    tensor: &mut OwnedTensor,
    broken: MemoryBreak,
) -> Option<ReasonCode> {
    let layout = *tensor.layout();
    let rank = layout.shape.len();
    let set = |dims: &mut Dims, change: &dyn Fn(&mut [i64])| {
        let mut values = dims.to_vec();
        change(&mut values);
        if let Some(changed) = Dims::new(&values) {
            *dims = changed;
        }
    };
    let dimension = random.below(rank);
    let several = |layout: &Layout| layout.shape.get(dimension).is_some_and(|size| *size >= 2);
    match broken {
        MemoryBreak::Negative => {
            (rank > 0).then_some(())?;
            tensor.relabel(|layout| set(&mut layout.shape, &|sizes| sizes[dimension] = -1));
            Some(ReasonCode::NegativeSize)
        }
        MemoryBreak::Overflow => {
            (rank > 1 || (rank == 1 && layout.dtype.size() > 1)).then_some(())?;
            tensor.relabel(|layout| set(&mut layout.shape, &|sizes| sizes.fill(i64::MAX)));
            Some(ReasonCode::SizeOverflow)
        }
        MemoryBreak::StrideReach => {
            (several(&layout) && !is_empty(tensor)).then_some(())?;
            tensor.relabel(|layout| set(&mut layout.strides, &|strides| strides[dimension] = i64::MAX));
            Some(ReasonCode::StrideInvalid)
        }
        MemoryBreak::StrideCount => {
            (rank > 0).then_some(())?;
            tensor.relabel(|layout| {
                layout.strides = Dims::new(&layout.strides[1..]).unwrap_or(Dims::empty());
            });
            Some(ReasonCode::StrideInvalid)
        }
        MemoryBreak::Misaligned => {
            (layout.dtype.size() > 1).then_some(())?;
            tensor.readdress(tensor.address() + 1);
            Some(ReasonCode::PointerMisaligned)
        }
        MemoryBreak::Null => {
            (!is_empty(tensor)).then_some(())?;
            tensor.readdress(0);
            Some(ReasonCode::NullData)
        }
        MemoryBreak::SelfOverlap => {
            (several(&layout) && !is_empty(tensor)).then_some(())?;
            tensor.relabel(|layout| set(&mut layout.strides, &|strides| strides[dimension] = 0));
            Some(ReasonCode::OutputOverlap)
        }
    }
}

fn value(
    prepared: &Prepared,
    random: &mut Random,
    drawn: &mut Drawn,
    input: usize,
    variant: u8,
) -> Option<ReasonCode> {
    let rule = rule(&prepared.operation.inputs[input], &drawn.values)?;
    let tensor = drawn.call.args[input].tensor_mut().filter(|tensor| !is_empty(tensor))?;
    let (shape, dtype) = (tensor.layout().shape, tensor.layout().dtype);
    let index: Vec<i64> = shape.iter().map(|size| random.between(0, size - 1)).collect();
    let mut view = tensor.view_mut();
    Some(match rule {
        Rule::Index(end) => {
            view.set_int(&index, if variant == 0 { -1 } else { end });
            ReasonCode::IndexOutOfRange
        }
        Rule::Range(low, high) => {
            let wrong = [low - 0.5, high + 0.25, f64::NAN, f64::INFINITY];
            view.set(&index, wrong[usize::from(variant) + 2 * random.below(2)]);
            ReasonCode::ValueOutOfRange
        }
        Rule::Between(low, high) => {
            let above = high < lz_core::element::largest_finite(dtype) as i64;
            view.set_int(&index, if variant == 0 || !above { low - 1 } else { high + 1 });
            ReasonCode::ValueOutOfRange
        }
        Rule::Indptr(total) | Rule::IndptrWithin(total) => {
            match variant {
                0 => view.set_int(&[0], 1),
                1 => view.set_int(&[shape[0] - 1], total + 1),
                _ => {
                    (shape[0] >= 3).then_some(())?;
                    view.set_int(&[random.between(1, shape[0] - 2)], total + 1);
                }
            }
            ReasonCode::IndptrInvalid
        }
        Rule::ScoreMod(_) => {
            view.set_int(&[0], i64::from(if variant == 0 { b'?' } else { 0xff }));
            ReasonCode::ScoreModInvalid
        }
        Rule::Partition(_) => {
            let before = tensor.view().int_at(&index);
            tensor.view_mut().set_int(&index, if variant == 0 { -1 } else { before + 1 });
            ReasonCode::PartitionInvalid
        }
    })
}
