//! Details of selection that other tests did not notice when they were changed: limits at their bounds, guards on cache hits, findings
//! about other versions, and the argument that a reason names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine_support::{Shape, attend, engine, run, spec};
use lz_core::device::{DeviceDetail, DeviceSpec, Platform};
use lz_core::plan::TransformKind;
use lz_core::spec::StrideNeeds;
use lz_core::{Error, KernelSpec, ReasonCode};
use lz_engine::Engine;
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence, Measured, MemoryProbe};
use lz_engine::policy::{Action, Pattern, Policy, Provenance, Rule};

fn on_h100(change: impl FnOnce(&mut KernelSpec)) -> Result<String, Error> {
    let mut spec = spec("cuda.x");
    spec.platform = Platform::Cuda;
    change(&mut spec);
    let engine = engine([spec]).with_device(lz_device::preset("h100").unwrap());
    engine.which(attend(), &Shape::default().context()).map(|plan| plan.kernel)
}

#[test]
fn compute_capabilities_are_inclusive() {
    for (min, max) in [(Some(90), None), (None, Some(90)), (Some(90), Some(90)), (Some(80), Some(100))] {
        let found = on_h100(|spec| (spec.device.min_sm, spec.device.max_sm) = (min, max));
        assert!(found.is_ok(), "{min:?} to {max:?}: {}", found.unwrap_err());
    }
    for (min, max, code) in [(Some(91), None, ReasonCode::SmTooOld), (None, Some(89), ReasonCode::SmTooNew)] {
        let error = on_h100(|spec| (spec.device.min_sm, spec.device.max_sm) = (min, max)).unwrap_err();
        assert!(error.has(code), "{error}");
    }
}

#[test]
fn a_driver_at_or_above_the_minimum_is_accepted() {
    let mut device = lz_device::preset("h100").unwrap();
    let DeviceDetail::Cuda(cuda) = &mut device.detail else { panic!("a CUDA device") };
    cuda.driver_version = "550.54".to_owned();
    let judge = |min: &str| {
        let mut spec = spec("cuda.x");
        spec.platform = Platform::Cuda;
        spec.device.min_driver = Some(min.to_owned());
        let engine = engine([spec]).with_device(device.clone());
        engine.which(attend(), &Shape::default().context()).map(drop)
    };
    for min in ["550.54", "550.9", "549", "535.104.12"] {
        judge(min).unwrap_or_else(|error| panic!("{min}: {error}"));
    }
    for min in ["551", "550.55"] {
        assert!(judge(min).unwrap_err().has(ReasonCode::DriverVersionUnsupported), "{min}");
    }
}

/// The launch is checked again for each call of a cell: `seq` has buckets, and the grid depends on it.
#[test]
fn a_cached_decision_is_not_used_for_a_call_that_cannot_be_launched() {
    let mut tiled = spec("cuda.tiled").priority(90);
    tiled.platform = Platform::Cuda;
    tiled.grid = Some(["1".to_owned(), "seq * 16".to_owned(), "1".to_owned()]);
    let mut plain = spec("cuda.plain");
    plain.platform = Platform::Cuda;
    let engine = engine([tiled, plain]).with_device(lz_device::preset("h100").unwrap());
    let chosen = |seq| {
        let shape = Shape { seq, batch: 1, ..Shape::default() };
        engine.which(attend(), &shape.context()).unwrap().kernel
    };
    for _ in 0..3 {
        assert_eq!(chosen(4095), "cuda.tiled", "65520 blocks");
        assert_eq!(chosen(4096), "cuda.plain", "65536 blocks");
    }
}

/// Alignment is part of the cache key as soon as a kernel requires one.
#[test]
fn a_cached_decision_is_not_used_for_memory_with_less_alignment() {
    let mut aligned = spec("aligned.x").priority(90);
    aligned.alignment = 64;
    let engine = engine([aligned, spec("any.x")]);
    let shape = |alignment| Shape { strides: (true, true, alignment), ..Shape::default() };
    for _ in 0..3 {
        assert_eq!(run(&engine, &shape(6)).unwrap(), "aligned.x");
        assert_eq!(run(&engine, &shape(5)).unwrap(), "any.x");
        assert_eq!(engine.which(attend(), &shape(4).context()).unwrap().kernel, "any.x");
    }
}

/// Free memory is read for each call, also where the workspace is the same for all calls.
#[test]
fn a_constant_workspace_is_compared_with_the_memory_that_is_free_now() {
    struct Free(AtomicU64);
    impl MemoryProbe for Free {
        fn free_bytes(&self, _: &DeviceSpec) -> Option<u64> {
            Some(self.0.load(Ordering::Relaxed))
        }
    }
    let mut hungry = spec("hungry.x").priority(90);
    hungry.workspace = Some("1048576".to_owned());
    let engine = engine([hungry, spec("frugal.x")]);
    let free = Arc::new(Free(AtomicU64::new(0)));
    engine.set_memory_probe(Some(free.clone()));
    for (bytes, who) in
        [(1 << 30, "hungry.x"), (1 << 10, "frugal.x"), (1 << 30, "hungry.x"), (1 << 10, "frugal.x")]
    {
        free.0.store(bytes, Ordering::Relaxed);
        assert_eq!(run(&engine, &Shape::default()).unwrap(), who);
    }
}

/// A workspace that varies within a cell is computed for each call, on the first call and on cache hits.
#[test]
fn kernels_get_the_workspace_of_their_call() {
    let mut varying = spec("varying.x");
    varying.workspace = Some("seq * 8".to_owned());
    let mut fixed = spec("fixed.x");
    fixed.workspace = Some("4096".to_owned());
    for (spec, expected) in [(varying, [8 * 200, 8 * 300]), (fixed, [4096, 4096])] {
        let engine = engine([spec]);
        for _ in 0..4 {
            for (seq, bytes) in [200, 300].into_iter().zip(expected) {
                let mut declared = 0;
                let context = Shape { seq, ..Shape::default() }.context();
                let run = &mut |_: &lz_core::KernelEntry, run: &mut lz_core::Run<'_>| {
                    declared = run.declared_workspace();
                    Ok(())
                };
                engine.dispatch(attend(), &context, run).unwrap();
                assert_eq!(declared, bytes);
            }
        }
    }
}

/// The reason names the argument whose strides are wrong, not one that was not given.
#[test]
fn a_reason_names_the_argument_with_the_wrong_strides() {
    let mut dense = spec("dense.x");
    dense.strides = StrideNeeds::Contiguous;
    let engine = engine([dense]);
    let error = run(&engine, &Shape { strides: (false, true, 6), ..Shape::default() }).unwrap_err();
    assert!(error.has(ReasonCode::NotContiguous), "{error}");
    assert!(error.to_string().contains("q: requires dense row-major memory, found other strides"), "{error}");
}

struct Findings(Vec<(&'static str, &'static str, &'static str, f64, f64)>);

impl Evidence for Findings {
    fn findings(&self, _: &EvidenceQuery<'_>, tell: &mut dyn FnMut(&KernelEvidence<'_>)) {
        for &(kernel, version, capabilities_hash, median_ns, confidence) in &self.0 {
            let measured = Measured { median_ns, samples: 40, age_seconds: 9, confidence };
            tell(&KernelEvidence { kernel, version, capabilities_hash, measured });
        }
    }
}

/// Only findings about the registered version with the declared capabilities count, and of those the one with the highest confidence,
/// in any order.
#[test]
fn findings_count_for_their_version_by_confidence() {
    let chosen = |findings: &[(&'static str, &'static str, &'static str, f64, f64)]| {
        let engine: Engine = engine([spec("a.x").priority(50), spec("b.x").priority(50)]);
        engine.set_evidence(Some(Arc::new(Findings(findings.to_vec()))));
        run(&engine, &Shape::default()).unwrap()
    };
    let base = ("a.x", "1", "", 100.0, 1.0);
    assert_eq!(chosen(&[base, ("b.x", "1", "", 50.0, 1.0)]), "b.x");
    assert_eq!(chosen(&[base, ("b.x", "2", "", 50.0, 1.0)]), "a.x", "another version");
    assert_eq!(chosen(&[base, ("b.x", "1", "other", 50.0, 1.0)]), "a.x", "other capabilities");
    assert_eq!(chosen(&[base, ("b.x", "1", "", 50.0, 0.0)]), "a.x", "without confidence");
    let (sure, unsure) = (("b.x", "1", "", 50.0, 1.0), ("b.x", "1", "", 5000.0, 0.5));
    assert_eq!(chosen(&[base, sure, unsure]), "b.x");
    assert_eq!(chosen(&[base, unsure, sure]), "b.x");
}

/// Rules beyond the width of the bitset act as the others do, also with conditions that need the call.
#[test]
fn rules_beyond_the_bitset_act() {
    let rule = |condition: String, action: Action| Rule {
        name: String::new(),
        operations: Pattern::any(),
        condition: Some(condition),
        actions: vec![action],
        source: Provenance::new("test"),
    };
    let mut rules: Vec<Rule> = (0..140)
        .map(|number| rule(format!("seq == {}", 5000 + number), Action::Deny(Pattern::new("b.x"))))
        .collect();
    rules.push(rule("seq * heads % 7 == 3".to_owned(), Action::Deny(Pattern::new("a.x"))));
    let engine = engine([spec("a.x").priority(60), spec("b.x")]);
    engine.set_policy(Policy { rules, ..Policy::default() });
    let chosen = |seq| run(&engine, &Shape { seq, heads: 1, ..Shape::default() }).unwrap();
    assert_eq!(chosen(7), "a.x");
    assert_eq!(chosen(10), "b.x", "10 % 7 == 3");
    assert_eq!(chosen(14), "a.x");
    assert_eq!(chosen(17), "b.x");
}

/// Each conversion has its cost, and copying the output at least that of one.
#[test]
fn conversions_add_up() {
    let mut adapting = spec("adapting.x").priority(90);
    adapting.layouts = vec!["BSHD".to_owned()];
    adapting.strides = StrideNeeds::Contiguous;
    adapting.adapts = vec![TransformKind::Layout, TransformKind::Contiguous];
    adapting.transform_cost = 7;
    let engine = engine([adapting]);
    let cost = |layout, contiguous| {
        let shape = Shape { layout, strides: (contiguous, true, 6), ..Shape::default() };
        engine.which(attend(), &shape.context()).unwrap().transform_cost
    };
    assert_eq!([cost(0, true), cost(1, true), cost(0, false), cost(1, false)], [0.0, 7.0, 7.0, 14.0]);
}

/// A rule is explained with all its actions.
#[test]
fn a_rule_with_two_actions_is_explained_with_both() {
    let engine = engine([spec("a.x").priority(60), spec("b.x")]);
    let rule = Rule {
        name: "night".to_owned(),
        operations: Pattern::any(),
        condition: None,
        actions: vec![Action::Avoid(Pattern::new("a.x")), Action::Prefer(Pattern::new("b.x"))],
        source: Provenance::new("test"),
    };
    engine.set_policy(Policy { rules: vec![rule], ..Policy::default() });
    let text = format!("{:?}", engine.explain(attend(), &Shape::default().context()));
    assert!(text.contains("night: avoid a.x, prefer b.x"), "{text}");
}
