//! Validates dynamic outputs, whose size the kernel determines, against the schema.

use lz_schema::DType;
use lz_schema::model::{Dim, Operation};

use super::Bound;
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
