//! The engine of all selection benchmarks: all kernels registered (32 candidates), 20 rules, measurements,
//! health and real tensors.

pub mod counted;
pub mod instructions;

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use lz_core::device::{DeviceSpec, Platform};
use lz_core::spec::StrideNeeds;
use lz_core::{Context, DType, KernelError, KernelSpec, ReasonCode, Run, TensorMut, TensorView};
use lz_device::detect_cpu;
use lz_engine::Engine;
use lz_engine::bucket::Bucket;
use lz_engine::evidence::dtypes_text;
use lz_engine::policy::{Action, Pattern, Policy, Provenance, Rule};
use lz_ops::{NORM_RMS, NormRms, NormRmsCall, NormRmsKernel, NormRmsOut, norm_rms_into, norm_rms_kernel};
use lz_perfdb::{EvidenceKey, Measurement, PerfDb, Setting, Timing, unix_now};
use lz_test_support::Folder;

/// A kernel that does nothing, so that only selection is measured.
#[derive(Debug)]
pub struct NoopKernel;

impl NormRmsKernel for NoopKernel {
    fn run(&self, _: &NormRmsCall<'_>, _: NormRmsOut<'_>, _: &mut Run<'_>) -> Result<(), KernelError> {
        Ok(())
    }
}

/// A PerfDB in a temporary folder, which is removed on drop.
struct Measurements {
    /// Removed on drop.
    _folder: Folder,
}

impl Measurements {
    /// Stores synthetic measurements of some kernels for every bucket of the calls, and attaches them to the
    /// engine.
    fn attach(
        engine: &Engine,
        kernels: &[KernelSpec],
        contexts: &[Context],
    ) -> Result<Measurements, Box<dyn Error>> {
        let folder = Folder::new();
        let database = PerfDb::open(folder.database()).db;
        let device = detect_cpu();
        let mut rows = Vec::new();
        for context in contexts {
            for (position, spec) in kernels.iter().enumerate() {
                rows.push(row(spec, context, &device, 1000.0 + position as f64));
            }
        }
        database.record_all(&rows).map_err(|reason| format!("{reason:?}"))?;
        if !engine.attach_perfdb(Arc::new(database), "") {
            return Err("the engine already has a PerfDB attached".into());
        }
        Ok(Measurements { _folder: folder })
    }
}

fn row(spec: &KernelSpec, context: &Context, device: &DeviceSpec, median_ns: f64) -> Measurement {
    Measurement {
        key: EvidenceKey {
            kernel: spec.id.clone(),
            kernel_version: spec.version.clone(),
            operation: spec.operation.clone(),
            setting: Setting::of(device, ""),
            dtypes: dtypes_text(&NORM_RMS, context),
            bucket: Bucket::of(&NORM_RMS, context).words().into(),
            capabilities_hash: spec.capabilities_hash.clone(),
            environment: lz_device::read_environment(device),
        },
        timing: Timing {
            median_ns,
            p95_ns: median_ns * 1.1,
            variance_ns2: 1.0,
            samples: 40,
            warmup_ns: 0.0,
            measured_at: unix_now(),
        },
        expires_at: None,
    }
}

fn kernel(number: u8) -> KernelSpec {
    let id = format!("backend{}.norm.rms.k{number}", number % 8);
    let backend = format!("backend{}", number % 8);
    let mut spec = KernelSpec::new(&id, "norm.rms", &backend, "1", Platform::Cpu).priority(90 - number);
    spec = match number % 4 {
        0 => spec.limit("hidden <= 65536", ReasonCode::AxisLimit),
        1 => spec.limit("hidden % 8 == 0 and rows >= 1", ReasonCode::AxisLimit),
        2 => spec.dtype("T", &[DType::F16, DType::BF16]),
        _ => spec.limit("rows * hidden <= 1073741824", ReasonCode::AxisLimit),
    };
    spec.strides = StrideNeeds::LastDense;
    spec
}

/// The engine of all benchmarks, and its PerfDB.
pub struct BenchEngine {
    /// The engine.
    pub engine: Engine,
    _measurements: Measurements,
}

/// An engine for these calls. The eleven kernels with the highest priority cannot run them, so that a miss
/// evaluates several candidates; half of all kernels are measured in every bucket.
pub fn bench_engine(calls: &[NormRms<'_>]) -> Result<BenchEngine, Box<dyn Error>> {
    let engine = Engine::new();
    let specs: Vec<KernelSpec> = (0..32)
        .map(|number| {
            let spec = kernel(number);
            if number < 11 { spec.limit("hidden >= 100000", ReasonCode::AxisLimit) } else { spec }
        })
        .collect();
    let measured: Vec<KernelSpec> = specs.iter().step_by(2).cloned().collect();
    engine.register(specs.into_iter().map(|spec| norm_rms_kernel(spec, NoopKernel)))?;
    let rules = (0..20).map(|number: i64| Rule {
        name: format!("rule {number}"),
        operations: Pattern::new("norm.*"),
        condition: Some(match number % 4 {
            0 => format!("rows > {}", 1 << (number / 2)),
            1 => "platform == cpu and not deterministic".to_owned(),
            2 => "dtype in [f16, bf16]".to_owned(),
            _ => format!("hidden >= {}", 64 * number),
        }),
        actions: vec![Action::Boost(Pattern::new(&format!("backend{}", number % 8)), 1.0)],
        source: Provenance::new(format!("layerzero.yaml:{number}")),
    });
    engine.set_policy(Policy { rules: rules.collect(), ..Policy::default() });
    let mut contexts = Vec::new();
    for call in calls {
        contexts.push(call.check()?.context());
    }
    let measurements = Measurements::attach(&engine, &measured, &contexts)?;
    Ok(BenchEngine { engine, _measurements: measurements })
}

/// Tensors for the calls: different row sizes fall into different cache cells.
pub struct Tensors {
    data: Vec<f32>,
    weight: Vec<f32>,
    hidden: Vec<i64>,
}

impl Tensors {
    /// For `calls` different calls.
    pub fn new(calls: usize) -> Tensors {
        let hidden: Vec<i64> = (0..calls as i64).map(|number| 64 + 8 * number).collect();
        let max_hidden = hidden.last().copied().unwrap_or(64) as usize;
        Tensors { data: vec![1.0; 4 * max_hidden], weight: vec![1.0; max_hidden], hidden }
    }

    /// The arguments of all calls, as borrowed views.
    pub fn args(&self) -> Result<Vec<NormRms<'_>>, Box<dyn Error>> {
        let mut all = Vec::new();
        for &hidden in &self.hidden {
            let x = self.data.get(..4 * hidden as usize).unwrap_or_default();
            let weight = self.weight.get(..hidden as usize).unwrap_or_default();
            let x = TensorView::from_slice(x, &[4, hidden])?;
            all.push(NormRms::new(x).weight(TensorView::from_slice(weight, &[hidden])?).eps(1e-5));
        }
        Ok(all)
    }
}

/// Validates a call, builds its context from its tensors, selects, and runs a kernel that does nothing.
#[inline(never)]
pub fn call(engine: &Engine, args: &NormRms<'_>) -> Result<(), lz_core::Error> {
    let call = args.check()?;
    engine.dispatch(&NORM_RMS, &call.context(), &mut |_, _| Ok(()))
}

/// A whole call as a user makes it: validation, output, context, selection, and a typed kernel that does
/// nothing.
#[inline(never)]
pub fn whole_call(engine: &Engine, args: &NormRms<'_>, output: &mut [f32]) -> Result<(), lz_core::Error> {
    let (data, layout) = (output.as_mut_ptr().cast(), *args.x.layout());
    // SAFETY: the buffer has as many elements of the same type as the input, borrowed for this call.
    let output = unsafe { TensorMut::from_raw(data, layout) };
    norm_rms_into(engine, args, output)
}

/// Only the context, from a validated call.
#[inline(never)]
pub fn context(call: &NormRmsCall<'_>) -> Context {
    call.context()
}

/// Context and selection, from a validated call.
#[inline(never)]
pub fn decide(engine: &Engine, call: &NormRmsCall<'_>) -> Result<(), lz_core::Error> {
    engine.dispatch(&NORM_RMS, &call.context(), &mut |_, _| Ok(()))
}

/// Nanoseconds per run of `work`: the fastest of many short samples, because noise only adds time, and
/// samples shorter than a scheduler time slice are often undisturbed.
pub fn time(runs: u32, mut work: impl FnMut()) -> f64 {
    let runs = (runs / 100).max(20);
    let mut best = f64::INFINITY;
    for _ in 0..2000 {
        let start = Instant::now();
        (0..runs).for_each(|_| work());
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(runs));
    }
    best
}
