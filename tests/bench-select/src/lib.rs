//! A full house to select from: 32 kernels, 20 rules, measurements, health and real tensors, for every benchmark of selection.

pub mod instructions;

use std::sync::Arc;
use std::time::Instant;

use lz_core::device::Platform;
use lz_core::evidence::{Evidence, Finding, Measured, Question};
use lz_core::policy::{Action, Pattern, Policy, Provenance, Rule};
use lz_core::spec::StrideNeeds;
use lz_core::{
    Context, DType, Engine, Error, KernelError, KernelSpec, ReasonCode, Run, TensorMut, TensorView,
};
use lz_ops::{NORM_RMS, NormRms, NormRmsCall, NormRmsKernel, NormRmsOut, norm_rms_into, norm_rms_kernel};

/// A kernel that does nothing: what is left is the decision.
#[derive(Debug)]
pub struct Nothing;

impl NormRmsKernel for Nothing {
    fn run(&self, _: &NormRmsCall<'_>, _: NormRmsOut<'_>, _: &mut Run<'_>) -> Result<(), KernelError> {
        Ok(())
    }
}

/// Rows for half of the kernels, in every bucket.
struct Rows(Vec<String>);

impl Evidence for Rows {
    fn findings(&self, _: &Question<'_>, tell: &mut dyn FnMut(&Finding<'_>)) {
        for (position, kernel) in self.0.iter().enumerate() {
            let measured = Measured {
                median_ns: 1000.0 + position as f64,
                samples: 40,
                age_seconds: 3600,
                confidence: 0.9,
            };
            tell(&Finding { kernel, version: "1", capabilities_hash: "", measured });
        }
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

/// The engine of all benchmarks. The eleven best kernels cannot run the calls, so that a miss has to look at several.
pub fn full_house() -> Result<Engine, Error> {
    let engine = Engine::new();
    let specs: Vec<KernelSpec> = (0..32)
        .map(|number| {
            let spec = kernel(number);
            if number < 11 { spec.limit("hidden >= 100000", ReasonCode::AxisLimit) } else { spec }
        })
        .collect();
    let measured = specs.iter().step_by(2).map(|spec| spec.id.clone()).collect();
    engine.register(specs.into_iter().map(|spec| norm_rms_kernel(spec, Nothing)))?;
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
    engine.set_evidence(Some(Arc::new(Rows(measured))));
    Ok(engine)
}

/// Tensors that calls are made of: different row sizes give different cells.
pub struct Tensors {
    data: Vec<f32>,
    weight: Vec<f32>,
    hidden: Vec<i64>,
}

impl Tensors {
    /// With so many different calls.
    pub fn new(calls: usize) -> Tensors {
        let hidden: Vec<i64> = (0..calls as i64).map(|number| 64 + 8 * number).collect();
        let most = hidden.last().copied().unwrap_or(64) as usize;
        Tensors { data: vec![1.0; 4 * most], weight: vec![1.0; most], hidden }
    }

    /// The arguments of one call, as views that borrow.
    pub fn args(&self) -> Result<Vec<NormRms<'_>>, Box<dyn std::error::Error>> {
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

/// Checks a call, builds its context from its tensors, decides, and runs a kernel that does nothing.
#[inline(never)]
pub fn call(engine: &Engine, args: &NormRms<'_>) -> Result<(), Error> {
    let call = args.check()?;
    engine.dispatch(&NORM_RMS, &call.context(), &mut |_, _| Ok(()))
}

/// A whole call as a user makes it: checks, output, context, decision, and a typed kernel that does nothing.
#[inline(never)]
pub fn whole_call(engine: &Engine, args: &NormRms<'_>, place: &mut [f32]) -> Result<(), Error> {
    let (data, layout) = (place.as_mut_ptr().cast(), *args.x.layout());
    // SAFETY: the benchmark gives a place with as many elements of the same type as the input, borrowed for this call.
    let output = unsafe { TensorMut::from_raw(data, layout) };
    norm_rms_into(engine, args, output)
}

/// The context alone, from a checked call.
#[inline(never)]
pub fn context(call: &NormRmsCall<'_>) -> Context {
    call.context()
}

/// Context and decision, from a checked call.
#[inline(never)]
pub fn decide(engine: &Engine, call: &NormRmsCall<'_>) -> Result<(), Error> {
    engine.dispatch(&NORM_RMS, &call.context(), &mut |_, _| Ok(()))
}

/// Nanoseconds a run of `work`: the fastest of many short samples, because noise only ever adds, and a sample that is shorter
/// than a turn of the scheduler is often left alone.
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
