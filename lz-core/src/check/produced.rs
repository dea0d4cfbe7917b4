//! Validates dynamic outputs, whose size the kernel determines, against the schema.

use lz_schema::DType;
use lz_schema::model::{Dim, Operation};

use super::{Bound, check};
use crate::args::{Arg, OutArg};
use crate::reason::{Reason, ReasonCode};

/// A produced output: its index in the schema, its dtype unless it is text, and its sizes.
pub type Produced<'a> = (usize, Option<DType>, &'a [i64]);

/// Checks dtype, rank and sizes of dynamic outputs; a dynamic axis must be the same in all of them.
pub fn check_produced(operation: &Operation, bound: &Bound, produced: &[Produced<'_>]) -> Result<(), Reason> {
    let mut bound = bound.clone();
    for &(number, dtype, sizes) in produced {
        let Some(output) = operation.outputs.get(number) else { continue };
        let required = bound.pick(operation, &output.dtype).and_then(|reference| bound.dtype(*reference));
        if let (Some(required), Some(dtype)) = (required, dtype)
            && required != dtype
        {
            return Err(Reason::new(ReasonCode::DtypeMismatch)
                .argument(&output.name)
                .required(required.to_string())
                .found(dtype.to_string()));
        }
        let Some(dims) = bound.pick(operation, &output.shape) else { continue };
        for (dim, size) in dims.iter().zip(sizes) {
            let (axis, size) = match dim {
                Dim::Axis(axis) => (*axis, *size),
                Dim::Offset(axis, offset) => (*axis, size.saturating_sub(*offset)),
                Dim::Pack(_) | Dim::Fixed(_) | Dim::Expr(_) => continue,
            };
            if operation.axes[axis].dynamic && size >= 0 {
                bound.axes[axis].get_or_insert(size);
            }
        }
        let required = bound.sizes(dims)?;
        if &required[..] != sizes {
            return Err(Reason::new(ReasonCode::ShapeMismatch)
                .argument(&output.name)
                .required(format!("{:?}", &required[..]))
                .found(format!("{sizes:?}")));
        }
    }
    Ok(())
}

/// Checks the dynamic outputs of a kernel that ran. If one is wrong, all are removed, and the kernel has failed for the reason.
pub fn check_dynamic_outputs(
    operation: &Operation,
    args: &[Arg<'_>],
    outputs: &mut [OutArg<'_>],
) -> Result<(), Reason> {
    if outputs.iter().all(|output| matches!(output, OutArg::Absent | OutArg::Tensor(_))) {
        return Ok(());
    }
    let failed = |message: String| Reason::new(ReasonCode::KernelFailed).message(message);
    let bound = check(operation, args, None, false).map_err(|error| failed(error.to_string()))?;
    let lengths: Vec<i64> = outputs.iter().map(|output| text_count(output).unwrap_or(0)).collect();
    let mut produced: Vec<Produced<'_>> = Vec::with_capacity(outputs.len());
    let mut missing = None;
    for (number, (output, length)) in outputs.iter().zip(&lengths).enumerate() {
        match output {
            OutArg::Dynamic(tensor) => match tensor.as_ref() {
                Some(tensor) => produced.push((number, Some(tensor.dtype()), tensor.shape())),
                None => missing = Some(number),
            },
            OutArg::Text(texts) if texts.is_none() => missing = Some(number),
            OutArg::Text(_) => produced.push((number, None, std::slice::from_ref(length))),
            OutArg::Absent | OutArg::Tensor(_) => {}
        }
    }
    let name =
        |number: usize| operation.outputs.get(number).map_or("an output", |output| output.name.as_str());
    let outcome = match missing {
        Some(number) => Err(format!("the kernel produced no {}", name(number))),
        None => check_produced(operation, &bound, &produced).map_err(|reason| {
            format!("the kernel produced an output that the schema does not allow: {reason}")
        }),
    };
    outcome.map_err(|message| {
        for output in outputs {
            match output {
                OutArg::Dynamic(tensor) => **tensor = None,
                OutArg::Text(texts) => **texts = None,
                OutArg::Absent | OutArg::Tensor(_) => {}
            }
        }
        failed(message)
    })
}

fn text_count(output: &OutArg<'_>) -> Option<i64> {
    match output {
        OutArg::Text(texts) => texts.as_ref().map(|texts| texts.len() as i64),
        _ => None,
    }
}
