//! A test worker. It serves the reference kernel of every operation as `far.<operation>`, `far.addresses`, which reports the distance of
//! its tensors, and `far.slow`, which sleeps before it runs.

use std::sync::Arc;
use std::time::Duration;

use lz_core::device::Platform;
use lz_core::{Arg, Kernel, KernelEntry, KernelError, KernelSpec, OutArg, Run};
use lz_worker::serve::{WorkerKernels, serve};

/// Writes the distance from the input to the output, in elements, into the output.
struct Addresses;

impl Kernel for Addresses {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(&self, args: &mut [Arg<'_>], out: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        let x = args.first().and_then(Arg::tensor).map_or(0, |view| view.address());
        let Some(OutArg::Tensor(tensor)) = out.first_mut() else {
            return Err(KernelError::failed("the call has no output tensor"));
        };
        let distance = tensor.address().wrapping_sub(x) as isize / size_of::<f32>() as isize;
        if let Some(first) = tensor.as_slice_mut::<f32>().and_then(|all| all.first_mut()) {
            *first = distance as f32;
        }
        Ok(())
    }
}

/// Runs another kernel after a delay.
struct Slow(Arc<dyn Kernel>);

impl Kernel for Slow {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        out: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        std::thread::sleep(Duration::from_millis(20));
        self.0.run(args, out, run)
    }
}

fn offer() -> Result<WorkerKernels, String> {
    let engine = lz_ops::reference_engine();
    let registry = engine.registry();
    let mut kernels: Vec<KernelEntry> = Vec::new();
    for entry in registry.kernels() {
        let operation = &entry.spec.operation;
        let spec = KernelSpec::new(&format!("far.{operation}"), operation, "far", "1", Platform::Cpu);
        if operation == "norm.rms" {
            let spec = KernelSpec::new("far.slow", operation, "far", "1", Platform::Cpu);
            kernels.push(KernelEntry::new(spec, Slow(Arc::clone(&entry.kernel))).of(&lz_ops::NORM_RMS));
        }
        kernels.push(KernelEntry { spec: Arc::new(spec), ..entry.clone() });
    }
    let spec = KernelSpec::new("far.addresses", "norm.rms", "far", "1", Platform::Cpu);
    kernels.push(KernelEntry::new(spec, Addresses).of(&lz_ops::NORM_RMS));
    Ok(WorkerKernels { descriptor: String::new(), kernels })
}

fn main() -> std::io::Result<()> {
    serve(offer)
}
