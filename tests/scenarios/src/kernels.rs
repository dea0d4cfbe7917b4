//! Kernels that do what a scenario says, behind any spec.

use std::any::Any;

use lz_core::device::Platform;
use lz_core::{Arg, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, Run};

type Deed = dyn Fn(&mut [OutArg<'_>], &mut Run<'_>) -> Result<(), KernelError> + Send + Sync;

/// A kernel that is a closure.
struct Does(Box<Deed>);

impl Kernel for Does {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(&self, _: &mut [Arg<'_>], out: &mut [OutArg<'_>], run: &mut Run<'_>) -> Result<(), KernelError> {
        (self.0)(out, run)
    }
}

/// A kernel that does what the closure says.
pub fn doing(
    spec: KernelSpec,
    operation: &'static OperationInfo,
    deed: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static,
) -> KernelEntry {
    KernelEntry::new(spec, Does(Box::new(move |_, _| deed()))).of(operation)
}

/// The same, with the outputs and the run at hand.
pub fn doing_with(
    spec: KernelSpec,
    operation: &'static OperationInfo,
    deed: impl Fn(&mut [OutArg<'_>], &mut Run<'_>) -> Result<(), KernelError> + Send + Sync + 'static,
) -> KernelEntry {
    KernelEntry::new(spec, Does(Box::new(deed))).of(operation)
}

/// A kernel that succeeds without doing anything: what is left is the choice.
pub fn quiet(spec: KernelSpec, operation: &'static OperationInfo) -> KernelEntry {
    doing(spec, operation, || Ok(()))
}

/// A spec whose backend is the first word of its id; that of `reference.x` is the reference.
pub fn spec(id: &str, operation: &OperationInfo, version: &str, platform: Platform) -> KernelSpec {
    let backend = id.split('.').next().unwrap_or(id);
    let mut spec = KernelSpec::new(id, &operation.name, backend, version, platform);
    spec.reference = backend == "reference";
    spec
}
