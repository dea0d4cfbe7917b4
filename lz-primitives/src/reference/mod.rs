//! The references: plain loops over indices, in f64 or i64.

pub mod elementwise;
pub mod matmul;
pub mod movement;
pub mod reduce;
pub mod window;

use std::any::Any;

use lz_core::device::Platform;
use lz_core::tensor::Dims;
use lz_core::{Arg, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, Run};

use crate::call::Call;

/// A reference implementation.
pub type Reference = fn(Call<'_, '_>, &mut [OutArg<'_>]) -> Result<(), KernelError>;

struct ReferenceKernel(Reference);

impl Kernel for ReferenceKernel {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        (self.0)(Call::new(args), outputs)
    }
}

/// The registry entry of a reference: priority 0, and equal results in every mode.
pub(crate) fn entry(operation: &'static OperationInfo, reference: Reference) -> KernelEntry {
    let id = format!("reference.{}", operation.name);
    let version = env!("CARGO_PKG_VERSION");
    let mut spec = KernelSpec::new(&id, &operation.name, "reference", version, Platform::Cpu);
    spec.reference = true;
    spec.deterministic = true;
    spec.tp_invariant = true;
    spec.batch_invariant = true;
    KernelEntry::new(spec, ReferenceKernel(reference)).of(operation)
}

/// A leading index and one more position.
fn with(mut leading: Dims, last: i64) -> Dims {
    // A rank that does not fit gives an index that addresses no element.
    let _fits = leading.push(last);
    leading
}

/// The leading sizes and the last one.
fn split_last(shape: &[i64]) -> Result<(i64, &[i64]), KernelError> {
    match shape.split_last() {
        Some((&last, rows)) => Ok((last, rows)),
        None => Err(crate::call::mismatch("a tensor must have at least one dimension")),
    }
}
