//! Test kernels with any spec: closures and no-ops.

use std::any::Any;

use lz_core::device::Platform;
use lz_core::{Arg, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, Run};

type KernelFn = dyn Fn(&mut [OutArg<'_>], &mut Run<'_>) -> Result<(), KernelError> + Send + Sync;

/// A kernel implemented by a closure.
struct FnKernel(Box<KernelFn>);

impl Kernel for FnKernel {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(&self, _: &mut [Arg<'_>], out: &mut [OutArg<'_>], run: &mut Run<'_>) -> Result<(), KernelError> {
        (self.0)(out, run)
    }
}

/// A kernel that calls the closure and ignores its arguments.
pub fn kernel_fn(
    spec: KernelSpec,
    operation: &'static OperationInfo,
    body: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static,
) -> KernelEntry {
    KernelEntry::new(spec, FnKernel(Box::new(move |_, _| body()))).of(operation)
}

/// Like [`kernel_fn`]; the closure receives the outputs and the [`Run`].
pub fn kernel_fn_with(
    spec: KernelSpec,
    operation: &'static OperationInfo,
    body: impl Fn(&mut [OutArg<'_>], &mut Run<'_>) -> Result<(), KernelError> + Send + Sync + 'static,
) -> KernelEntry {
    KernelEntry::new(spec, FnKernel(Box::new(body))).of(operation)
}

/// A kernel that returns `Ok` and does nothing, for scenarios about selection only.
pub fn noop_kernel(spec: KernelSpec, operation: &'static OperationInfo) -> KernelEntry {
    kernel_fn(spec, operation, || Ok(()))
}

/// A spec whose backend is the first component of the id; `reference.*` is marked as a reference kernel.
pub fn spec(id: &str, operation: &OperationInfo, version: &str, platform: Platform) -> KernelSpec {
    let backend = id.split('.').next().unwrap_or(id);
    let mut spec = KernelSpec::new(id, &operation.name, backend, version, platform);
    spec.reference = backend == "reference";
    spec
}
