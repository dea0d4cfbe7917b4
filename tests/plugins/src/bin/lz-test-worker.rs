//! A worker for tests: it serves the reference of every operation as `far.<operation>`, and `far.addresses`, which tells where
//! its tensors lie. With `--nonsense` it answers what nobody understands.

use std::sync::Arc;
use std::time::Duration;

use lz_core::device::Platform;
use lz_core::{Arg, Kernel, KernelEntry, KernelError, KernelSpec, OutArg, Run};
use lz_worker::serve::{Offer, serve};

/// Writes how far the output lies behind the input, in elements, into the output.
struct Addresses;

impl Kernel for Addresses {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(&self, args: &mut [Arg<'_>], out: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        let x = args.first().and_then(Arg::tensor).map_or(0, |view| view.address());
        let Some(OutArg::Tensor(tensor)) = out.first_mut() else {
            return Err(KernelError::failed("there is no output"));
        };
        let distance = tensor.address().wrapping_sub(x) as isize / size_of::<f32>() as isize;
        if let Some(first) = tensor.as_slice_mut::<f32>().and_then(|all| all.first_mut()) {
            *first = distance as f32;
        }
        Ok(())
    }
}

fn offer() -> Result<Offer, String> {
    let engine = lz_ops::reference_engine();
    let registry = engine.registry();
    let mut kernels: Vec<KernelEntry> = Vec::new();
    for entry in registry.kernels() {
        let operation = &entry.spec.operation;
        let spec = KernelSpec::new(&format!("far.{operation}"), operation, "far", "1", Platform::Cpu);
        kernels.push(KernelEntry { spec: Arc::new(spec), ..entry.clone() });
    }
    let spec = KernelSpec::new("far.addresses", "norm.rms", "far", "1", Platform::Cpu);
    kernels.push(KernelEntry::new(spec, Addresses).of(&lz_ops::NORM_RMS));
    Ok(Offer { descriptor: String::new(), kernels })
}

/// Greets as it should, and answers every call with bytes that mean nothing.
fn talk_nonsense() -> std::io::Result<()> {
    let (channel, _arena) = lz_worker::serve::open()?;
    let greeting = r#"{"descriptor": "", "kernels": [["far.norm.rms", "norm.rms"]]}"#;
    channel.greet(lz_worker::protocol::READY, greeting.as_bytes());
    for ticket in 0.. {
        let number = loop {
            if let Some(number) = channel.take(ticket, Duration::from_secs(1)) {
                break number;
            }
        };
        channel.write(number, &[9, 9, 9]);
        channel.answer(number);
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    if std::env::args().any(|argument| argument == "--nonsense") { talk_nonsense() } else { serve(offer) }
}
