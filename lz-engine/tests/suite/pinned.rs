//! Pinned decisions: the same kernel until it is pinned again; rejected if it may not run, never replaced.

use crate::engine_support::{Shape, attend, engine, entry, failing, spec};
use lz_core::spec::StrideNeeds;
use lz_core::{DType, Error, KernelError, ReasonCode};
use lz_engine::Engine;
use lz_engine::engine::Pinned;
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_engine::policy::{ListEntry, Pattern, Policy, Provenance};

fn pin(engine: &Engine, shape: &Shape) -> Pinned {
    engine.pin(attend(), &shape.context(), &mut |_| Ok(())).unwrap_or_else(|error| panic!("{error}"))
}

fn run(engine: &Engine, pinned: &Pinned, shape: &Shape) -> Result<String, Error> {
    let mut ran = String::new();
    engine.run_pinned(pinned, &shape.context(), &mut |entry, run| {
        ran.clone_from(&entry.spec.id);
        entry.kernel.run(&mut [], &mut [], run)
    })?;
    Ok(ran)
}

fn codes(outcome: Result<String, Error>) -> Vec<ReasonCode> {
    match outcome {
        Ok(who) => panic!("{who} ran"),
        Err(error) => error.reasons().iter().map(|reason| reason.code).collect(),
    }
}

#[test]
fn pinned_kernel_stays_when_a_better_one_is_registered() {
    let engine = engine([spec("a.x").priority(50)]);
    let shape = Shape::default();
    let pinned = pin(&engine, &shape);
    engine.register([entry(spec("b.x").priority(90))]).unwrap();
    assert_eq!(crate::engine_support::run(&engine, &shape).unwrap(), "b.x");
    for _ in 0..3 {
        assert_eq!(run(&engine, &pinned, &shape).unwrap(), "a.x");
    }
    assert_eq!(pin(&engine, &shape).entry().spec.id, "b.x");
}

#[test]
fn different_call_is_rejected_with_all_differences() {
    let engine = engine([spec("a.x")]);
    let pinned = pin(&engine, &Shape::default());
    let other = Shape { batch: 3, dtype: DType::F32, causal: true, scale: 2.0, ..Shape::default() };
    let Err(error) = run(&engine, &pinned, &other) else { panic!("it ran") };
    let found: Vec<(Option<String>, Option<String>, Option<String>)> = error
        .reasons()
        .iter()
        .map(|reason| {
            assert_eq!(reason.code, ReasonCode::PlanMismatch);
            (reason.axis.clone().or(reason.argument.clone()), reason.required.clone(), reason.found.clone())
        })
        .collect();
    let line = |name: &str, required: &str, found: &str| {
        (Some(name.to_owned()), Some(required.to_owned()), Some(found.to_owned()))
    };
    let wanted = [
        line("batch", "2", "3"),
        line("causal", "false", "true"),
        line("scale", "1", "2"),
        line("T", "bfloat16", "float32"),
    ];
    assert_eq!(found, wanted);
    // Other strides are allowed if the kernel supports them.
    let elsewhere = Shape { strides: (false, true, 4), ..Shape::default() };
    assert_eq!(run(&engine, &pinned, &elsewhere).unwrap(), "a.x");
}

#[test]
fn unsupported_strides_are_rejected() {
    let mut needy = spec("a.x").priority(90);
    needy.strides = StrideNeeds::Contiguous;
    let engine = engine([needy, spec("b.x").priority(1)]);
    let pinned = pin(&engine, &Shape::default());
    let elsewhere = Shape { strides: (false, true, 4), ..Shape::default() };
    let _strict = mode::scope(ModeOverride::NONE.set(ModeFlag::Strict, true));
    let found = codes(run(&engine, &pinned, &elsewhere));
    assert_eq!(found.first(), Some(&ReasonCode::PlanStale));
    assert!(found.len() > 1);
}

#[test]
fn denied_pinned_kernel_is_rejected_until_allowed() {
    let engine = engine([spec("a.x").priority(90), spec("b.x")]);
    let shape = Shape::default();
    let pinned = pin(&engine, &shape);
    let denied = ListEntry {
        kernels: Pattern::new("a.*"),
        operations: Pattern::any(),
        source: Provenance::new("layerzero.yaml:3"),
    };
    engine.set_policy(Policy { deny: vec![denied], ..Policy::default() });
    assert_eq!(codes(run(&engine, &pinned, &shape)), [ReasonCode::PlanStale, ReasonCode::PolicyDenied]);
    engine.set_policy(Policy::default());
    assert_eq!(run(&engine, &pinned, &shape).unwrap(), "a.x");
    {
        let _captured = mode::scope(ModeOverride::NONE.set(ModeFlag::Capturing, true));
        assert_eq!(codes(run(&engine, &pinned, &shape))[0], ReasonCode::PlanStale);
    }
    engine.unregister_backend("a");
    assert_eq!(codes(run(&engine, &pinned, &shape)), [ReasonCode::PlanStale, ReasonCode::KernelUnknown]);
}

#[test]
fn pinned_failure_is_reported_without_fallback() {
    let engine = engine([spec("b.x")]);
    engine.register([failing(spec("a.x").priority(90), || Err(KernelError::failed("no luck")))]).unwrap();
    let shape = Shape::default();
    let pinned = pin(&engine, &shape);
    let Err(Error::KernelExecution { kernel, .. }) = run(&engine, &pinned, &shape) else {
        panic!("another error")
    };
    assert_eq!(kernel, "a.x");
    assert!(engine.health().summary().tracked > 0);
}

#[test]
fn rejected_kernel_offers_the_next() {
    let engine = engine([spec("a.x").priority(90), spec("b.x").priority(50), spec("c.x").priority(10)]);
    let context = Shape::default().context();
    let mut heard = Vec::new();
    let pinned = engine.pin(attend(), &context, &mut |entry| {
        heard.push(entry.spec.id.clone());
        if entry.spec.id == "c.x" { Ok(()) } else { Err(KernelError::failed("not me").before_writing()) }
    });
    assert_eq!(pinned.unwrap().entry().spec.id, "c.x");
    assert_eq!(heard, ["a.x", "b.x", "c.x"]);
    let Err(error) = engine.pin(attend(), &context, &mut |_| Err(KernelError::failed("nobody"))) else {
        panic!("something was accepted")
    };
    assert_eq!(error.reasons().len(), 3);
}
