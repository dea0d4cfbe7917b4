//! Explanations as text and as JSON.

use std::sync::Arc;

use crate::engine_support::{Shape, attend, engine, run, spec};
use lz_core::device::Platform;
use lz_core::plan::TransformKind;
use lz_core::{KernelSpec, Reason, ReasonCode};
use lz_engine::Engine;
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence, Measured};
use lz_engine::explain::CacheState;
use lz_engine::policy::{Action, ListEntry, Pattern, Policy, Provenance, Rule};

struct Known;

impl Evidence for Known {
    fn findings(&self, _: &EvidenceQuery<'_>, visit: &mut dyn FnMut(&KernelEvidence<'_>)) {
        for (kernel, median_ns) in [("flashinfer.attend.fa3", 62_000.0), ("flashinfer.attend.fa2", 71_000.0)]
        {
            let measured = Measured { median_ns, samples: 40, age_seconds: 2 * 86_400, confidence: 0.95 };
            visit(&KernelEvidence { kernel, version: "1", capabilities_hash: "", measured });
        }
    }
}

fn engine_with_kernels() -> Engine {
    let cuda = |id: &str, priority: u8| {
        let mut spec = spec(id).priority(priority);
        spec.platform = Platform::Cuda;
        spec
    };
    let with = |mut spec: KernelSpec, change: &dyn Fn(&mut KernelSpec)| {
        change(&mut spec);
        spec
    };
    let engine = engine([
        with(cuda("flashinfer.attend.fa3", 100), &|spec| spec.workspace = Some("seq * 4".to_owned())),
        cuda("flashinfer.attend.fa2", 95),
        with(cuda("cutlass.attend", 90), &|spec| {
            spec.device.generations = vec!["blackwell".to_owned()];
            spec.layouts = vec!["BHSD".to_owned()];
        }),
        cuda("flash_attn.attend", 90),
        with(cuda("xformers.attend", 60), &|spec| {
            spec.layouts = vec!["BHSD".to_owned()];
            (spec.adapts, spec.transform_cost) = (vec![TransformKind::Layout], 10);
        }),
        cuda("reference.attend", 0),
    ]);
    engine.set_evidence(Some(Arc::new(Known)));
    engine.disable_backend(
        "flash_attn",
        Reason::new(ReasonCode::BackendImportFailed).message("undefined symbol; run `lz doctor flash_attn`"),
    );
    engine.set_policy(Policy {
        prefer: vec![ListEntry {
            kernels: Pattern::new("flashinfer.*"),
            operations: Pattern::any(),
            source: Provenance::new("layerzero.yaml:14"),
        }],
        rules: vec![Rule {
            name: "long".to_owned(),
            operations: Pattern::any(),
            condition: Some("seq > 100000".to_owned()),
            actions: vec![Action::Avoid(Pattern::new("xformers"))],
            source: Provenance::new("layerzero.yaml:20"),
        }],
        ..Policy::default()
    });
    engine.with_device(lz_device::preset("h200").expect("a preset"))
}

/// Masks times and generations, which differ between runs.
fn steady(text: &str) -> String {
    text.lines()
        .map(|line| {
            if line.starts_with("decided in") {
                let rest = line.split_once("; ").map(|(_, rest)| rest).unwrap_or_default();
                let cached = if line.contains("not cached yet") { "not cached yet" } else { "cached" };
                format!("decided in …, {cached} (generation …); {rest}\n")
            } else {
                format!("{line}\n")
            }
        })
        .collect()
}

#[test]
fn explanation_as_table() {
    let engine = engine_with_kernels();
    let context = Shape { causal: true, ..Shape::default() }.context();
    insta::assert_snapshot!(steady(&engine.explain(attend(), &context).to_string()));
    engine.decide(attend(), &context).expect("something fits");
    assert_eq!(engine.explain(attend(), &context).cache, CacheState::Cached);
}

#[test]
fn explanation_as_json() {
    let engine = engine_with_kernels();
    let mut explanation = engine.explain(attend(), &Shape::default().context());
    (explanation.decided_in_ns, explanation.generation) = (0, 0);
    insta::assert_snapshot!(serde_json::to_string_pretty(&explanation).expect("it is data"));
}

#[test]
fn operation_without_kernels_is_explained() {
    let text = Engine::new().explain(attend(), &Shape::default().context()).to_string();
    assert!(text.contains("no kernel is registered"), "{text}");
    assert!(run(&Engine::new(), &Shape::default()).is_err());
}

#[test]
fn a_lock_to_an_unknown_kernel_is_explained() {
    let engine = engine([spec("a.x")]);
    engine.lock("demo.attend", "a.y").expect("the operation is known");
    let explanation = engine.explain(attend(), &Shape::default().context());
    let why = &explanation.candidate("a.x").expect("it is registered").reasons[0].sentence;
    assert!(why.contains("a.y") && why.ends_with("which is not a kernel of this operation"), "{why}");
    let [unknown] = &engine.unknown_names()[..] else { panic!("one name is unknown") };
    assert!(unknown.name == "a.y" && unknown.backend_registered);
}

#[test]
fn params_are_shown_as_written() {
    let shown = |scale: f64| {
        let explanation =
            engine_with_kernels().explain(attend(), &Shape { scale, ..Shape::default() }.context());
        explanation.call.iter().find(|one| one.name == "scale").expect("it is a param").value.clone()
    };
    // An f32 is passed as f64; a value that is not an f32 keeps all its digits.
    assert_eq!(shown(f64::from(1e-6_f32)), "1e-6");
    assert_eq!(shown(f64::from(0.088_388_346_f32)), "0.088388346");
    assert_eq!(shown(1.0), "1.0");
    assert_eq!(shown(0.1), "0.1");
    assert_eq!(shown(1e-6), "1e-6");
}
