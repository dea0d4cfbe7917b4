//! Faults of the engine itself are recorded by it, and calls go on.

use std::sync::Arc;

use crate::engine_support::{Shape, engine, run, spec};
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence};
use lz_engine::health::DegradationLevel;

/// A source of measurements with a fault.
struct Panicking;

impl Evidence for Panicking {
    fn findings(&self, _: &EvidenceQuery<'_>, _: &mut dyn FnMut(&KernelEvidence<'_>)) {
        panic!("a fault of the engine");
    }
}

#[test]
fn a_panic_in_selection_is_recorded_and_the_reference_runs() {
    let engine = engine([spec("fast.x").priority(90), spec("fast.y").priority(80), spec("reference.x")]);
    engine.set_evidence(Some(Arc::new(Panicking)));
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "reference.x");
    assert_eq!(engine.health().summary().counters.engine_faults, 1);
    engine.set_evidence(None);
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "fast.x", "nothing of the fault is cached");
}

#[test]
fn repeated_faults_degrade_the_engine() {
    let engine = engine([spec("fast.x").priority(90), spec("fast.y").priority(80), spec("reference.x")]);
    engine.set_evidence(Some(Arc::new(Panicking)));
    for heads in 1..20 {
        run(&engine, &Shape { heads, ..Shape::default() }).unwrap();
    }
    assert!(engine.health().level() > DegradationLevel::Full);
}
