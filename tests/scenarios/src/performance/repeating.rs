//! Calls whose decision is known already: what serving pays on every one of them.

use std::hint::black_box;
use std::sync::Arc;

use lz_core::{DType, ReasonCode, Tensor};
use lz_engine::Engine;
use lz_engine::evidence::{Evidence, Finding, Measured, Question};
use lz_engine::mode::{self, Ask, ModeChange};
use lz_ops::{ATTENTION_GQA_PREFILL, AttentionGqaPrefill, NORM_RMS, NormRms, norm_rms_into};

use super::Bench;
use super::naive::{Dictionary, Locked, ladder};
use crate::house::{govern, host_house, host_spec, house};
use crate::tensors::{Lie, tensor};

/// A norm of so many rows and features, as a caller holds it.
pub(super) fn norm(rows: i64, hidden: i64) -> NormRms<'static> {
    let x = tensor(&[rows, hidden], DType::F32, Lie::HOST);
    NormRms::new(x).weight(tensor(&[hidden], DType::F32, Lie::HOST)).eps(1e-5)
}

/// Checks a call, builds its context, decides, and runs nothing.
#[inline(never)]
pub(super) fn decide(engine: &Engine, args: &NormRms<'_>) {
    if let Ok(call) = args.check() {
        drop(black_box(engine.dispatch(&NORM_RMS, &call.context(), &mut |_, _| Ok(()))));
    }
}

/// So many norms of different row sizes.
pub(super) fn norms(count: i64) -> Vec<NormRms<'static>> {
    (0..count).map(|number| norm(4, 64 + 8 * number)).collect()
}

/// An engine with so many kernels that all can run the calls.
pub(super) fn kernels(count: u8) -> Engine {
    host_house((0..count).map(|number| {
        let spec = host_spec(&format!("backend{}.k{number}", number % 8)).priority(50 + number % 50);
        spec.limit("hidden >= 8", ReasonCode::AxisLimit).dtype("T", &[DType::F32, DType::BF16])
    }))
}

fn in_turn(bench: &Bench, engine: &Engine, shapes: i64) {
    let (all, map) = (norms(shapes), Locked::default());
    all.iter().for_each(|args| decide(engine, args));
    let (mut ours, mut theirs) = (all.iter().cycle(), all.iter().cycle());
    bench.beside(
        "a map under a mutex",
        20_000,
        || ours.next().into_iter().for_each(|args| decide(engine, black_box(args))),
        || {
            black_box(theirs.next().map(|args| map.decide(black_box(args))));
        },
    );
}

/// A decode loop asks for the same norm again and again: check, context and decision, beside a ladder of ifs that checks nothing.
pub fn a_decode_loop_of_one_shape(bench: &mut Bench) {
    let (engine, args) = (kernels(32), norm(4, 4096));
    bench.beside(
        "a ladder of ifs",
        50_000,
        || decide(&engine, black_box(&args)),
        || {
            black_box(ladder(black_box(&args)));
        },
    );
}

/// A model with four sizes of norms takes them in turn: all of them are in what the thread remembers.
pub fn a_norm_among_four_shapes(bench: &mut Bench) {
    in_turn(bench, &kernels(32), 4);
}

/// Sixty-four shapes in turn, more than a thread remembers: the shared table answers.
pub fn sixty_four_shapes_in_turn(bench: &mut Bench) {
    in_turn(bench, &kernels(32), 64);
}

/// A thousand shapes in turn, as a server with unpadded batches has them.
pub fn a_thousand_shapes_in_turn(bench: &mut Bench) {
    in_turn(bench, &kernels(32), 1000);
}

/// Every row count from 17 to 256 in turn: one bucket for us, 240 entries for a map with exact keys.
pub fn every_row_count_of_a_bucket(bench: &mut Bench) {
    let (engine, map) = (kernels(32), Locked::default());
    let all: Vec<NormRms<'static>> = (17..=256).map(|rows| norm(rows, 256)).collect();
    let (mut ours, mut theirs) = (all.iter().cycle(), all.iter().cycle());
    bench.beside(
        "a map under a mutex",
        20_000,
        || ours.next().into_iter().for_each(|args| decide(&engine, black_box(args))),
        || {
            black_box(theirs.next().map(|args| map.decide(black_box(args))));
        },
    );
}

/// The best kernel has a limit on a product of axes, which is looked at on every hit; neighbours in the bucket alternate.
pub fn a_limit_that_no_bucket_holds(bench: &mut Bench) {
    let engine = host_house([
        host_spec("tiled.x").limit("rows * hidden <= 6400", ReasonCode::AxisLimit).priority(90),
        host_spec("plain.x"),
    ]);
    let pair = [norm(100, 64), norm(101, 64)];
    let (mut ours, mut theirs) = (pair.iter().cycle(), pair.iter().cycle());
    bench.beside(
        "a ladder of ifs",
        20_000,
        || ours.next().into_iter().for_each(|args| decide(&engine, black_box(args))),
        || {
            black_box(theirs.next().map(|args| ladder(black_box(args))));
        },
    );
}

/// Every call opens and ends a block of its own that asks for kernels that are safe in a capture.
pub fn a_call_inside_of_a_capture(bench: &mut Bench) {
    let mut safe = host_spec("safe.x");
    safe.cuda_graph_safe = true;
    let (engine, args) = (host_house([safe, host_spec("fast.x").priority(90)]), norm(4, 4096));
    bench.alone(20_000, || {
        let _capture = mode::scope(ModeChange::NONE.set(Ask::Capturing, true));
        decide(&engine, black_box(&args));
    });
}

/// A small prompt: three tensors of rank four and nine params are checked and decided, beside a dictionary of strings.
pub fn a_prompt_of_small_attention(bench: &mut Bench) {
    let engine = house();
    let q = tensor(&[1, 16, 4, 32], DType::F32, Lie::HOST);
    let k = tensor(&[1, 16, 2, 32], DType::F32, Lie::HOST);
    let args = AttentionGqaPrefill::new(q, k, k).causal(true);
    let mut dictionary = Dictionary::default();
    bench.beside(
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

/// Twenty rules are in force: on a hit they cost nothing, beside twenty comparisons by hand.
pub fn twenty_rules_in_force(bench: &mut Bench) {
    let engine = kernels(32);
    let rules: String = (0..20)
        .map(|number| {
            format!("  - {{ condition: hidden_size >= {}, prefer: backend{} }}\n", 64 * number, number % 8)
        })
        .collect();
    govern(&engine, &format!("rules:\n{rules}"));
    let args = norm(4, 4096);
    bench.beside(
        "twenty comparisons",
        50_000,
        || decide(&engine, black_box(&args)),
        || {
            let hidden = args.x.shape().last().copied().unwrap_or_default();
            let points = (0..20).fold(0, |sum, number| sum + i64::from(black_box(hidden) >= 64 * number));
            black_box((points, ladder(black_box(&args))));
        },
    );
}

/// Rows of figures for sixteen kernels.
struct Rows(Vec<String>);

impl Evidence for Rows {
    fn findings(&self, _: &Question<'_>, tell: &mut dyn FnMut(&Finding<'_>)) {
        for (at, kernel) in self.0.iter().enumerate() {
            let median_ns = 1000.0 + at as f64;
            let measured = Measured { median_ns, samples: 40, age_seconds: 60, confidence: 0.9 };
            tell(&Finding { kernel, version: "1", capabilities_hash: "", measured });
        }
    }
}

/// Figures of sixteen kernels are in force: on a hit they cost nothing, beside a scan for the fastest.
pub fn figures_in_force(bench: &mut Bench) {
    let engine = kernels(32);
    let names: Vec<String> =
        engine.registry().kernels().step_by(2).map(|entry| entry.spec.id.clone()).collect();
    engine.set_evidence(Some(Arc::new(Rows(names))));
    let (args, medians) = (norm(4, 4096), (0..16).map(|at| 1000.0 + f64::from(at)).collect::<Vec<f64>>());
    bench.beside(
        "a scan of sixteen figures",
        50_000,
        || decide(&engine, black_box(&args)),
        || {
            black_box(black_box(&medians).iter().copied().fold(f64::INFINITY, f64::min));
        },
    );
}

/// The operation is locked to a kernel: on a hit the lock costs nothing.
pub fn a_lock_in_force(bench: &mut Bench) {
    let engine = kernels(32);
    govern(&engine, "locks:\n  norm.rms: backend3.k3\n");
    let args = norm(4, 4096);
    bench.alone(50_000, || decide(&engine, black_box(&args)));
}

/// A block with a preference is open around many calls: they hit like all others.
pub fn a_call_inside_of_a_preference(bench: &mut Bench) {
    let engine = kernels(32);
    let args = norm(4, 4096);
    let scope = engine.prefer(&["backend3".to_owned()]);
    bench.alone(50_000, || decide(&engine, black_box(&args)));
    drop(scope);
}

/// The caller gives the output: places are checked, the native kernel is chosen and runs on four rows of 64.
pub fn an_output_of_the_callers_own(bench: &mut Bench) {
    let (engine, args) = (house(), norm(4, 64));
    let Ok(mut output) = Tensor::zeros(&[4, 64], DType::F32) else { return };
    let mut by_hand = vec![0.0f32; 4 * 64];
    let zeros = vec![0.0f32; 4 * 64];
    bench.beside(
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
