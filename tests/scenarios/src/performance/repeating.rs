//! Decision cache hits: the overhead of every repeated call.

use std::hint::black_box;
use std::sync::Arc;

use lz_core::{DType, ReasonCode, Tensor};
use lz_engine::Engine;
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence, Measured};
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_ops::{ATTENTION_GQA_PREFILL, AttentionGqaPrefill, NORM_RMS, NormRms, norm_rms_into};

use super::Bench;
use super::naive::{Dictionary, MutexMap, if_chain};
use crate::engines::{apply_policy, full_engine, host_engine, host_spec};
use crate::tensors::{Placement, tensor};

/// A norm with the given rows and row length.
pub(super) fn norm(rows: i64, hidden: i64) -> NormRms<'static> {
    let x = tensor(&[rows, hidden], DType::F32, Placement::HOST);
    NormRms::new(x).weight(tensor(&[hidden], DType::F32, Placement::HOST)).eps(1e-5)
}

/// Validates a call, builds its context and decides; the kernel does not run.
#[inline(never)]
pub(super) fn decide(engine: &Engine, args: &NormRms<'_>) {
    if let Ok(call) = args.check() {
        drop(black_box(engine.dispatch(&NORM_RMS, &call.context(), &mut |_, _| Ok(()))));
    }
}

/// `count` norms with different row lengths.
pub(super) fn norms(count: i64) -> Vec<NormRms<'static>> {
    (0..count).map(|number| norm(4, 64 + 8 * number)).collect()
}

/// An engine with `count` kernels that can all run the calls.
pub(super) fn kernels(count: u8) -> Engine {
    host_engine((0..count).map(|number| {
        let spec = host_spec(&format!("backend{}.k{number}", number % 8)).priority(50 + number % 50);
        spec.limit("hidden >= 8", ReasonCode::AxisLimit).dtype("T", &[DType::F32, DType::BF16])
    }))
}

fn rotate_shapes(bench: &Bench, engine: &Engine, shapes: i64) {
    let (all, map) = (norms(shapes), MutexMap::default());
    all.iter().for_each(|args| decide(engine, args));
    let (mut ours, mut theirs) = (all.iter().cycle(), all.iter().cycle());
    bench.compare(
        "a map under a mutex",
        20_000,
        || ours.next().into_iter().for_each(|args| decide(engine, black_box(args))),
        || {
            black_box(theirs.next().map(|args| map.decide(black_box(args))));
        },
    );
}

/// A decode loop repeats one norm: validation, context and decision; compared with an if chain that validates
/// nothing.
pub fn a_decode_loop_of_one_shape(bench: &mut Bench) {
    let (engine, args) = (kernels(32), norm(4, 4096));
    bench.compare(
        "a ladder of ifs",
        50_000,
        || decide(&engine, black_box(&args)),
        || {
            black_box(if_chain(black_box(&args)));
        },
    );
}

/// A model alternates between 4 norm shapes: all of them are in the thread-local cache.
pub fn a_norm_among_four_shapes(bench: &mut Bench) {
    rotate_shapes(bench, &kernels(32), 4);
}

/// 64 shapes in rotation, more than the thread-local cache holds: the shared cache is hit.
pub fn sixty_four_shapes_in_turn(bench: &mut Bench) {
    rotate_shapes(bench, &kernels(32), 64);
}

/// 1000 shapes in rotation, as a server with unpadded batches has them.
pub fn a_thousand_shapes_in_turn(bench: &mut Bench) {
    rotate_shapes(bench, &kernels(32), 1000);
}

/// Every row count from 17 to 256 in rotation: one bucket for LayerZero, 240 entries for a map with exact
/// keys.
pub fn every_row_count_of_a_bucket(bench: &mut Bench) {
    let (engine, map) = (kernels(32), MutexMap::default());
    let all: Vec<NormRms<'static>> = (17..=256).map(|rows| norm(rows, 256)).collect();
    let (mut ours, mut theirs) = (all.iter().cycle(), all.iter().cycle());
    bench.compare(
        "a map under a mutex",
        20_000,
        || ours.next().into_iter().for_each(|args| decide(&engine, black_box(args))),
        || {
            black_box(theirs.next().map(|args| map.decide(black_box(args))));
        },
    );
}

/// The best kernel has a limit on a product of axes that is evaluated on every hit; consecutive calls in the
/// bucket alternate between kernels.
pub fn a_limit_that_no_bucket_holds(bench: &mut Bench) {
    let engine = host_engine([
        host_spec("tiled.x").limit("rows * hidden <= 6400", ReasonCode::AxisLimit).priority(90),
        host_spec("plain.x"),
    ]);
    let pair = [norm(100, 64), norm(101, 64)];
    let (mut ours, mut theirs) = (pair.iter().cycle(), pair.iter().cycle());
    bench.compare(
        "a ladder of ifs",
        20_000,
        || ours.next().into_iter().for_each(|args| decide(&engine, black_box(args))),
        || {
            black_box(theirs.next().map(|args| if_chain(black_box(args))));
        },
    );
}

/// Every call enters and leaves a scope that requires kernels that are safe for graph capture.
pub fn a_call_inside_of_a_capture(bench: &mut Bench) {
    let mut safe = host_spec("safe.x");
    safe.cuda_graph_safe = true;
    let (engine, args) = (host_engine([safe, host_spec("fast.x").priority(90)]), norm(4, 4096));
    bench.measure(20_000, || {
        let _capture = mode::scope(ModeOverride::NONE.set(ModeFlag::Capturing, true));
        decide(&engine, black_box(&args));
    });
}

/// A small prefill: three rank-4 tensors and nine parameters are validated and decided; compared with a
/// dictionary keyed by strings.
pub fn a_prompt_of_small_attention(bench: &mut Bench) {
    let engine = full_engine();
    let q = tensor(&[1, 16, 4, 32], DType::F32, Placement::HOST);
    let k = tensor(&[1, 16, 2, 32], DType::F32, Placement::HOST);
    let args = AttentionGqaPrefill::new(q, k, k).causal(true);
    let mut dictionary = Dictionary::default();
    bench.compare(
        "a dictionary of strings",
        20_000,
        || {
            if let Ok(call) = black_box(&args).check() {
                drop(black_box(engine.dispatch(&ATTENTION_GQA_PREFILL, &call.context(), &mut |_, _| Ok(()))));
            }
        },
        || {
            let text =
                format!("{:?} {:?} {} {}", args.q.shape(), args.k.shape(), args.q.dtype().name(), true);
            black_box(dictionary.decide(text));
        },
    );
}

/// 20 policy rules: no cost on a hit; compared with 20 hand-written comparisons.
pub fn twenty_rules_in_force(bench: &mut Bench) {
    let engine = kernels(32);
    let rules: String = (0..20)
        .map(|number| {
            format!("  - {{ condition: hidden_size >= {}, prefer: backend{} }}\n", 64 * number, number % 8)
        })
        .collect();
    apply_policy(&engine, &format!("rules:\n{rules}"));
    let args = norm(4, 4096);
    bench.compare(
        "twenty comparisons",
        50_000,
        || decide(&engine, black_box(&args)),
        || {
            let hidden = args.x.shape().last().copied().unwrap_or_default();
            let points = (0..20).fold(0, |sum, number| sum + i64::from(black_box(hidden) >= 64 * number));
            black_box((points, if_chain(black_box(&args))));
        },
    );
}

/// Measurements of 16 kernels.
struct Rows(Vec<String>);

impl Evidence for Rows {
    fn findings(&self, _: &EvidenceQuery<'_>, on_finding: &mut dyn FnMut(&KernelEvidence<'_>)) {
        for (at, kernel) in self.0.iter().enumerate() {
            let median_ns = 1000.0 + at as f64;
            let measured = Measured { median_ns, samples: 40, age_seconds: 60, confidence: 0.9 };
            on_finding(&KernelEvidence { kernel, version: "1", capabilities_hash: "", measured });
        }
    }
}

/// Measurements of 16 kernels: no cost on a hit; compared with a scan for the fastest.
pub fn figures_in_force(bench: &mut Bench) {
    let engine = kernels(32);
    let names: Vec<String> =
        engine.registry().kernels().step_by(2).map(|entry| entry.spec.id.clone()).collect();
    engine.set_evidence(Some(Arc::new(Rows(names))));
    let (args, medians) = (norm(4, 4096), (0..16).map(|at| 1000.0 + f64::from(at)).collect::<Vec<f64>>());
    bench.compare(
        "a scan of sixteen figures",
        50_000,
        || decide(&engine, black_box(&args)),
        || {
            black_box(black_box(&medians).iter().copied().fold(f64::INFINITY, f64::min));
        },
    );
}

/// The operation is locked to a kernel: no cost on a hit.
pub fn a_lock_in_force(bench: &mut Bench) {
    let engine = kernels(32);
    apply_policy(&engine, "locks:\n  norm.rms: backend3.k3\n");
    let args = norm(4, 4096);
    bench.measure(50_000, || decide(&engine, black_box(&args)));
}

/// A preference scope is open around many calls: they hit the cache as usual.
pub fn a_call_inside_of_a_preference(bench: &mut Bench) {
    let engine = kernels(32);
    let args = norm(4, 4096);
    let scope = engine.prefer(&["backend3".to_owned()]);
    bench.measure(50_000, || decide(&engine, black_box(&args)));
    drop(scope);
}

/// The caller provides the output: it is validated, and the native kernel runs on 4 rows of 64.
pub fn an_output_of_the_callers_own(bench: &mut Bench) {
    let (engine, args) = (full_engine(), norm(4, 64));
    let Ok(mut output) = Tensor::zeros(&[4, 64], DType::F32) else { return };
    let mut by_hand = vec![0.0f32; 4 * 64];
    let zeros = vec![0.0f32; 4 * 64];
    bench.compare(
        "four loops by hand",
        20_000,
        || drop(black_box(norm_rms_into(&engine, black_box(&args), output.view_mut()))),
        || {
            for (row, out) in black_box(&zeros).chunks(64).zip(by_hand.chunks_mut(64)) {
                let sum: f32 = row.iter().map(|x| x * x).sum();
                let scale = 1.0 / (sum / 64.0 + 1e-5).sqrt();
                out.iter_mut().zip(row).for_each(|(out, x)| *out = x * scale);
            }
            black_box(&by_hand);
        },
    );
}
