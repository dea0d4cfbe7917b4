//! Arithmetic with sizes at import: `Shape → Gather → Concat → Reshape` and the like never become kernels.
//!
//! Every function returns `None` if the result is no vector of sizes; the operator then becomes part of the graph.

use lz_core::DType;

use super::op::{Op, tensor};
use super::value::{Sizes, Value};
use crate::dim::Dim;
use crate::error::GraphError;

/// Larger numbers stay in the graph: polynomials of them could exceed 64 bits.
const MAX_NUMBER: i64 = 1 << 40;

/// Longer vectors stay in the graph.
const MAX_LENGTH: i64 = 1024;

/// The outputs of an operator whose inputs are all sizes.
pub fn fold(op: &mut Op<'_>) -> Result<Option<Vec<Value>>, GraphError> {
    let folded = match op.operator() {
        "Shape" => Some(shape(op)?),
        "Size" => {
            let dims = dims_of(op)?;
            Some(Sizes::scalar(Dim::product(&dims)))
        }
        "Cast" | "CastLike" => return cast(op),
        "Split" => return split(op),
        name => {
            let inputs: Option<Vec<Sizes>> = (0..op.count()).map(|index| op.known(index)).collect();
            match inputs {
                Some(inputs) if !inputs.is_empty() => operator(op, name, &inputs)?,
                _ => None,
            }
        }
    };
    Ok(folded.map(|sizes| vec![Value::Sizes(sizes)]))
}

fn dims_of(op: &mut Op<'_>) -> Result<Vec<Dim>, GraphError> {
    match op.value(0) {
        Some(Value::Sizes(sizes)) if sizes.scalar => Ok(Vec::new()),
        Some(Value::Sizes(sizes)) => Ok(vec![Dim::from(sizes.dims.len() as i64)]),
        Some(Value::Tensor(node)) => Ok(op.build.shape(node).to_vec()),
        None => Err(op.error("input 0 is missing")),
    }
}

/// `Shape`, with the range of dimensions that opset 15 added.
fn shape(op: &mut Op<'_>) -> Result<Sizes, GraphError> {
    let dims = dims_of(op)?;
    let rank = dims.len() as i64;
    let clamp =
        |bound: i64| (if bound < 0 { bound.saturating_add(rank) } else { bound }).clamp(0, rank) as usize;
    let (start, end) = (clamp(op.int("start", 0)?), clamp(op.int("end", rank)?));
    Ok(Sizes::vector(dims.get(start..end.max(start)).unwrap_or_default().to_vec()))
}

/// `Cast` between integers, and of numbers to any type.
fn cast(op: &mut Op<'_>) -> Result<Option<Vec<Value>>, GraphError> {
    let Some(Value::Sizes(sizes)) = op.value(0) else { return Ok(None) };
    let dtype = if op.operator() == "Cast" {
        op.dtype_attribute("to")?
    } else {
        match op.value(1) {
            Some(Value::Sizes(like)) => Some(like.dtype),
            Some(Value::Tensor(like)) => Some(op.build.dtype(like)),
            None => None,
        }
    };
    let Some(dtype) = dtype else { return Ok(None) };
    match (dtype, sizes.numbers()) {
        (DType::I64 | DType::I32, _) => Ok(Some(vec![Value::Sizes(Sizes { dtype, ..sizes })])),
        (DType::Bool, Some(numbers)) => {
            let dims = numbers.iter().map(|number| Dim::from(i64::from(*number != 0))).collect();
            Ok(Some(vec![Value::Sizes(Sizes { dims, dtype, ..sizes })]))
        }
        (DType::F64 | DType::F32 | DType::F16 | DType::BF16, Some(numbers)) => {
            let shape: &[i64] = if sizes.scalar { &[] } else { &[numbers.len() as i64] };
            let mut constant =
                lz_core::Tensor::zeros(shape, dtype).map_err(|reason| op.error(reason.to_string()))?;
            for (index, &number) in numbers.iter().enumerate() {
                let index = if sizes.scalar { &[][..] } else { &[index as i64][..] };
                constant.view_mut().set(index, number as f64);
            }
            Ok(Some(vec![op.build.owned(constant).into()]))
        }
        _ => {
            let node = tensor(op.build, Value::Sizes(sizes))?;
            Ok(Some(vec![op.build.cast(node, dtype)?.into()]))
        }
    }
}

fn split(op: &mut Op<'_>) -> Result<Option<Vec<Value>>, GraphError> {
    let Some(Value::Sizes(sizes)) = op.value(0) else { return Ok(None) };
    let axis = op.int("axis", 0)?;
    let parts = if op.opset < 13 { op.list("split")? } else { op.numbers(1)? };
    let count = op.output_count();
    let parts = parts.unwrap_or_else(|| {
        let each = sizes.dims.len().div_ceil(count.max(1));
        (0..count).map(|part| each.min(sizes.dims.len().saturating_sub(part * each)) as i64).collect()
    });
    let total =
        parts.iter().try_fold(0i64, |sum, part| (*part >= 0).then(|| sum.checked_add(*part)).flatten());
    if sizes.scalar || !matches!(axis, 0 | -1) || total != Some(sizes.dims.len() as i64) {
        return Err(op.error("the parts do not add up to the size of the dimension"));
    }
    let mut rest = sizes.dims.as_slice();
    let mut outputs = Vec::new();
    for part in parts {
        let (head, tail) = rest.split_at(part as usize);
        outputs.push(Value::Sizes(Sizes { dims: head.to_vec(), ..sizes.clone() }));
        rest = tail;
    }
    Ok(Some(outputs))
}

fn operator(op: &mut Op<'_>, name: &str, inputs: &[Sizes]) -> Result<Option<Sizes>, GraphError> {
    let first = inputs[0].clone();
    Ok(match name {
        "Identity" => Some(first),
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Min" | "Max" | "Equal" | "Less" | "LessOrEqual"
        | "Greater" | "GreaterOrEqual" | "And" | "Or" => {
            if name == "Mod" && op.flag("fmod", false)? {
                return Ok(None);
            }
            let compares = !matches!(name, "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Min" | "Max");
            let dtype = if compares { DType::Bool } else { first.dtype };
            let join =
                |left: Sizes, right: &Sizes| elementwise(&[left, right.clone()], |dims| binary(name, dims));
            inputs[1..].iter().try_fold(first, join).map(|sizes| Sizes { dtype, ..sizes })
        }
        "Neg" => elementwise(&[first], |dims| Some(dims[0].times(&Dim::from(-1)))),
        "Not" => elementwise(&[first], |dims| Some(Dim::from(i64::from(dims[0].constant()? == 0)))),
        "Where" if inputs.len() == 3 => {
            let dtype = inputs[1].dtype;
            let choose =
                |dims: &[Dim]| Some(if dims[0].constant()? != 0 { dims[1].clone() } else { dims[2].clone() });
            elementwise(inputs, choose).map(|sizes| Sizes { dtype, ..sizes })
        }
        "Concat" => {
            let dtype = first.dtype;
            let joined = inputs.iter().flat_map(|sizes| sizes.dims.iter().cloned()).collect();
            (!inputs.iter().any(|sizes| sizes.scalar) && matches!(op.int("axis", 0)?, 0 | -1))
                .then_some(Sizes { dims: joined, scalar: false, dtype })
        }
        "Gather" if inputs.len() == 2 => gather(&first, &inputs[1]).filter(|_| !first.scalar),
        "Slice" => slice(op, &first)?,
        "Squeeze" => (first.dims.len() == 1).then_some(Sizes { scalar: true, ..first }),
        "Unsqueeze" => first.scalar.then_some(Sizes { scalar: false, ..first }),
        "Reshape" if inputs.len() == 2 => reshape(&first, &inputs[1]),
        "Expand" if inputs.len() == 2 => expand(&first, &inputs[1]),
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => reduce(op, name, &first)?,
        "Range" if inputs.len() == 3 => range(inputs),
        _ => None,
    }
    .filter(|sizes| sizes.dims.len() as i64 <= MAX_LENGTH))
}

/// A function of vectors of one length; scalars and vectors of length 1 are repeated.
fn elementwise(inputs: &[Sizes], function: impl Fn(&[Dim]) -> Option<Dim>) -> Option<Sizes> {
    let scalar = inputs.iter().all(|sizes| sizes.scalar);
    let length = inputs.iter().map(|sizes| sizes.dims.len()).find(|length| *length != 1).unwrap_or(1);
    let small = |sizes: &Sizes| {
        sizes.dims.iter().all(|dim| dim.constant().is_none_or(|number| number.abs() <= MAX_NUMBER))
    };
    let fits = |sizes: &Sizes| matches!(sizes.dims.len(), 1) || sizes.dims.len() == length;
    if !inputs.iter().all(|sizes| small(sizes) && fits(sizes)) {
        return None;
    }
    let at = |index: usize| {
        let operands: Option<Vec<Dim>> = inputs
            .iter()
            .map(|sizes| sizes.dims.get(if sizes.dims.len() == 1 { 0 } else { index }).cloned())
            .collect();
        function(&operands?)
    };
    let dims = (0..length).map(at).collect::<Option<_>>()?;
    Some(Sizes { dims, scalar, dtype: inputs[0].dtype }).filter(|sizes| small(sizes))
}

fn binary(name: &str, dims: &[Dim]) -> Option<Dim> {
    let [a, b] = dims else { return None };
    let truth = |holds: bool| Some(Dim::from(i64::from(holds)));
    let numbers = a.constant().zip(b.constant());
    match name {
        "Add" => Some(a.plus(b)),
        "Sub" => Some(a.minus(b)),
        "Mul" => Some(a.times(b)),
        // ONNX rounds toward zero, which is down only without signs.
        "Div" | "Mod" if b.is(0) || (b.constant().is_none() && !b.is_non_negative()) => None,
        "Div" => match numbers {
            Some((a, b)) => Some(Dim::from(a / b)),
            None => (a.is_non_negative() && b.is_non_negative()).then(|| a.floor_div(b)),
        },
        "Mod" => match numbers {
            Some((a, b)) => Some(Dim::from(((a % b) + b) % b)),
            None => b.is_non_negative().then(|| a.modulo(b)),
        },
        "Min" => Some(a.smaller(b)),
        "Max" => Some(a.larger(b)),
        "And" => numbers.and_then(|(a, b)| truth(a != 0 && b != 0)),
        "Or" => numbers.and_then(|(a, b)| truth(a != 0 || b != 0)),
        _ => {
            let difference = a.minus(b);
            let sign = match difference.constant() {
                Some(difference) => difference.signum(),
                // A size is larger than every negative number.
                None if a.is_non_negative() && b.constant().is_some_and(|b| b < 0) => 1,
                None if b.is_non_negative() && a.constant().is_some_and(|a| a < 0) => -1,
                None => return None,
            };
            truth(match name {
                "Equal" => sign == 0,
                "Less" => sign < 0,
                "LessOrEqual" => sign <= 0,
                "Greater" => sign > 0,
                _ => sign >= 0,
            })
        }
    }
}

fn gather(data: &Sizes, indices: &Sizes) -> Option<Sizes> {
    let length = data.dims.len() as i64;
    let at = |index: &i64| {
        data.dims.get(usize::try_from(if *index < 0 { index.checked_add(length)? } else { *index }).ok()?)
    };
    let dims = indices.numbers()?.iter().map(|index| at(index).cloned()).collect::<Option<_>>()?;
    Some(Sizes { dims, scalar: indices.scalar, dtype: data.dtype })
}

fn slice(op: &mut Op<'_>, data: &Sizes) -> Result<Option<Sizes>, GraphError> {
    let (starts, ends, axes, steps) = super::ops::slice_arguments(op)?;
    let all = |dims: &[Dim]| dims.iter().map(Dim::constant).collect::<Option<Vec<i64>>>();
    let (Some(starts), Some(ends)) = (all(&starts), all(&ends)) else { return Ok(None) };
    let ([start], [end], [step]) = (starts.as_slice(), ends.as_slice(), steps.as_slice()) else {
        return Ok(None);
    };
    if data.scalar || !matches!(axes.as_slice(), [0 | -1]) || *step == 0 {
        return Ok(None);
    }
    let length = data.dims.len() as i64;
    let wrap = |bound: i64| if bound < 0 { bound.saturating_add(length) } else { bound };
    let mut picked = Vec::new();
    if *step > 0 {
        let (mut index, end) = (wrap(*start).clamp(0, length), wrap(*end).clamp(0, length));
        while index < end {
            picked.push(data.dims[index as usize].clone());
            index = index.saturating_add(*step);
        }
    } else {
        let (mut index, end) = (wrap(*start).clamp(-1, length - 1), wrap(*end).clamp(-1, length - 1));
        while index > end {
            picked.push(data.dims[index as usize].clone());
            index = index.saturating_add(*step);
        }
    }
    Ok(Some(Sizes { dims: picked, ..data.clone() }))
}

fn reshape(data: &Sizes, shape: &Sizes) -> Option<Sizes> {
    match shape.numbers()?.as_slice() {
        [] if data.dims.len() == 1 => Some(Sizes { scalar: true, ..data.clone() }),
        [-1] => Some(Sizes { scalar: false, ..data.clone() }),
        [length] if *length == data.dims.len() as i64 && *length > 0 => {
            Some(Sizes { scalar: false, ..data.clone() })
        }
        _ => None,
    }
}

fn expand(data: &Sizes, shape: &Sizes) -> Option<Sizes> {
    match (shape.numbers()?.as_slice(), data.dims.as_slice()) {
        ([], _) | ([1], _) => Some(Sizes { scalar: data.scalar && shape.dims.is_empty(), ..data.clone() }),
        ([length @ 0..=MAX_LENGTH], [dim]) => {
            Some(Sizes { dims: vec![dim.clone(); *length as usize], scalar: false, dtype: data.dtype })
        }
        _ => None,
    }
}

fn reduce(op: &mut Op<'_>, name: &str, data: &Sizes) -> Result<Option<Sizes>, GraphError> {
    let keep = op.flag("keepdims", true)?;
    if data.scalar || data.dtype == DType::Bool || op.flag("noop_with_empty_axes", false)? {
        return Ok(None);
    }
    let mut dims = data.dims.iter().cloned();
    let empty = match name {
        "ReduceProd" => Some(Dim::from(1)),
        "ReduceSum" => Some(Dim::from(0)),
        _ => None,
    };
    let Some(first) = dims.next().or(empty) else { return Ok(None) };
    let total = dims.fold(first, |total, dim| match name {
        "ReduceProd" => total.times(&dim),
        "ReduceSum" => total.plus(&dim),
        "ReduceMax" => total.larger(&dim),
        _ => total.smaller(&dim),
    });
    Ok(Some(Sizes { dims: vec![total], scalar: !keep, dtype: data.dtype }))
}

fn range(inputs: &[Sizes]) -> Option<Sizes> {
    let [start, limit, step] = [&inputs[0], &inputs[1], &inputs[2]]
        .map(|sizes| sizes.numbers().and_then(|numbers| numbers.first().copied()));
    let (start, limit, step) = (start?, limit?, step?);
    let span = i128::from(limit) - i128::from(start);
    let count = if step == 0 {
        return None;
    } else {
        (span + i128::from(step) - i128::from(step.signum())) / i128::from(step)
    };
    if count > i128::from(MAX_LENGTH) || start.abs() > MAX_NUMBER || step.abs() > MAX_NUMBER {
        return None;
    }
    let dims = (0..count.max(0) as i64).map(|index| Dim::from(start + index * step)).collect();
    Some(Sizes { dims, scalar: false, dtype: inputs[0].dtype })
}
