//! Prints the round-trip latency of a call to a worker process; with `--json` one object per line.
//!
//! The worker is this same program, with kernels that do almost nothing, so that the round trip is measured.
//! It is the worker if `LAYERZERO_WORKER_CONTROL` is set.

use std::time::Instant;

use lz_core::{Arg, DType, Error, Kernel, KernelEntry, KernelError, OutArg, Run, Tensor, TensorView};
use lz_engine::Engine;
use lz_ops::{NORM_RMS, NormRms, norm_rms_into};
use lz_worker::serve::{WorkerKernels, serve};
use lz_worker::{Worker, WorkerOptions};

/// An engine with the reference kernels of all operations.
fn reference_engine() -> lz_engine::Engine {
    lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

const DESCRIPTOR: &str = r#"{"schema_version": "1.0", "backend": "far", "backend_version": "1", "platform": "cpu", "ops":
    {"norm.rms": [{"kernel_id": "far.norm.rms", "dtypes": ["float32"], "requires_layouts": ["any"], "params": ["eps"],
    "writes_into_output": true, "priority": 99}]}}"#;
/// Maximum median round-trip latency of a small call, in nanoseconds.
const LIMIT_NS: f64 = 10_000.0;
const CALLS: usize = 20_000;

/// Writes one element, so that shared_output is an output to transfer.
struct Touch;

impl Kernel for Touch {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(&self, _: &mut [Arg<'_>], out: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        if let Some(OutArg::Tensor(tensor)) = out.first_mut()
            && let Some(first) = tensor.as_slice_mut::<f32>().and_then(|all| all.first_mut())
        {
            *first = 1.0;
        }
        Ok(())
    }
}

fn offer() -> Result<WorkerKernels, String> {
    let engine = reference_engine();
    let registry = engine.registry();
    let catalog =
        lz_core::descriptor::Catalog::new(registry.operations().map(lz_core::OperationInfo::schema));
    let read = lz_core::descriptor::read("bench", DESCRIPTOR, &catalog).map_err(|error| error.to_string())?;
    let kernels = read.kernels.into_iter().map(|spec| KernelEntry::new(spec, Touch).of(&NORM_RMS)).collect();
    Ok(WorkerKernels { descriptor: DESCRIPTOR.to_owned(), kernels })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os("LAYERZERO_WORKER_CONTROL").is_some() {
        return Ok(serve(offer)?);
    }
    let json = std::env::args().any(|argument| argument == "--json");
    let worker = Worker::start(WorkerOptions::new(std::env::current_exe()?))?;
    let engine = reference_engine();
    engine.register(worker.kernels(&engine)?)?;
    engine.lock("norm.rms", "far.norm.rms")?;
    for (name, elements) in [("1 KB", 256i64), ("64 KB", 1 << 14), ("1 MB", 1 << 18)] {
        let shape = [1, elements];
        let x = Tensor::zeros(&shape, DType::F32)?;
        let mut out = Tensor::zeros(&shape, DType::F32)?;
        let copied = measure(&engine, x.view(), |call| call(out.view_mut()))?;
        report(json, &format!("{name} tensors, copied"), &copied);
        let shared_input = worker.allocate(&shape, DType::F32).ok_or("no space in shared memory")?;
        let mut shared_output = worker.allocate(&shape, DType::F32).ok_or("no space in shared memory")?;
        let shared = measure(&engine, shared_input.view(), |call| call(shared_output.view_mut()))?;
        report(json, &format!("{name} tensors, in shared memory"), &shared);
    }
    Ok(())
}

type Call<'c> = &'c mut dyn FnMut(lz_core::TensorMut<'_>) -> Result<(), Error>;

/// Sorted times of many calls, in nanoseconds.
fn measure(
    engine: &Engine,
    x: TensorView<'_>,
    mut with: impl FnMut(Call<'_>) -> Result<(), Error>,
) -> Result<Vec<f64>, Error> {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        with(&mut |out| norm_rms_into(engine, &NormRms::new(x), out))?;
        times.push(start.elapsed().as_secs_f64() * 1e9);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn report(json: bool, case: &str, times: &[f64]) {
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let (median, high) = (at(0.5), at(0.99));
    if json {
        for (which, ours) in [("p50", median), ("p99", high)] {
            println!(
                "{{\"bench\": \"ipc\", \"case\": \"{case}, round trip {which}\", \"unit\": \"ns\", \"ours\": {ours:.0}, \"peer\": null, \"theirs\": null, \"speedup\": null, \"limit\": null}}"
            );
        }
    } else {
        let target =
            if case.starts_with("1 KB") { format!("   (target: p50 {LIMIT_NS} ns)") } else { String::new() };
        println!("{case:<36} p50 {median:>9.0} ns   p99 {high:>9.0} ns{target}");
    }
}
