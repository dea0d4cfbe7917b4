//! Details of selection that other tests did not notice when they were changed: limits at their bounds, guards on cache hits, findings
//! about other versions, and the argument that a reason names.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::engine_support::{Does, Shape, attend, engine, failing, run, spec};
use lz_core::device::{DeviceDetail, DeviceSpec, Platform};
use lz_core::plan::TransformKind;
use lz_core::spec::StrideNeeds;
use lz_core::{
    Context, Error, KernelEntry, KernelError, KernelSpec, OperationInfo, Reason, ReasonCode, dynamic,
};
use lz_engine::Engine;
use lz_engine::engine::JitRequests;
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence, Measured, MemoryProbe};
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_engine::policy::{Action, JitPolicy, ListEntry, Lock, Pattern, Policy, Provenance, Rule, WithSource};

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
    fn findings(&self, _: &EvidenceQuery<'_>, visit: &mut dyn FnMut(&KernelEvidence<'_>)) {
        for &(kernel, version, capabilities_hash, median_ns, confidence) in &self.0 {
            let measured = Measured { median_ns, samples: 40, age_seconds: 9, confidence };
            visit(&KernelEvidence { kernel, version, capabilities_hash, measured });
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
    rules.push(rule("seq * heads % 11 == 5".to_owned(), Action::Boost(Pattern::new("b.x"), 100.0)));
    let engine = engine([spec("a.x").priority(60), spec("b.x")]);
    engine.set_policy(Policy { rules, ..Policy::default() });
    let chosen = |seq| run(&engine, &Shape { seq, heads: 1, ..Shape::default() }).unwrap();
    assert_eq!(chosen(7), "a.x");
    assert_eq!(chosen(10), "b.x", "10 % 7 == 3");
    assert_eq!(chosen(14), "a.x");
    assert_eq!(chosen(17), "b.x");
    assert_eq!(chosen(16), "b.x", "16 % 11 == 5");
    assert_eq!(chosen(18), "a.x");
}

/// Kernels beyond the width of the bitset are candidates as the others are.
#[test]
fn any_number_of_kernels_may_be_registered() {
    for count in [1, 127, 128, 129, 200] {
        for best in [0, count / 2, count - 1] {
            let priority = |number| if number == best { 90 } else { 10 };
            let engine =
                engine((0..count).map(|number| spec(&format!("k.{number}")).priority(priority(number))));
            assert_eq!(run(&engine, &Shape::default()).unwrap(), format!("k.{best}"), "{count}");
        }
    }
}

/// Only where graph capture alone excludes a kernel does the error say so.
#[test]
fn a_refused_capture_has_the_reason_of_its_kernels() {
    let error = |spec: KernelSpec| {
        let _capturing = mode::scope(ModeOverride::NONE.set(ModeFlag::Capturing, true));
        engine([spec]).which(attend(), &Shape::default().context()).unwrap_err()
    };
    let limited = |spec: KernelSpec| spec.limit("heads == 7", ReasonCode::AxisLimit);
    assert!(matches!(error(spec("unsafe.x")), Error::CudaGraphUnsafe { .. }));
    assert!(matches!(error(limited(spec("both.x"))), Error::NoKernel { .. }));
    let mut safe = limited(spec("safe.x"));
    safe.cuda_graph_safe = true;
    assert!(matches!(error(safe), Error::NoKernel { .. }));
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

/// A call with stride classes of other tensors: dense row-major, dense last dimension, alignment as a power of two.
fn with_strides(tensor: &str, (contiguous, last, alignment): (bool, bool, u64)) -> Context {
    let mut context = Shape::default().context();
    let field = attend().fields.iter().find(|field| field.name == format!("strides({tensor})")).unwrap();
    context.set(field.store, 1 | u64::from(contiguous) << 1 | u64::from(last) << 2 | alignment << 3);
    context
}

/// The reason names the tensor that does not meet the requirement, not the first one of the call.
#[test]
fn reasons_name_the_tensor_that_does_not_meet_the_requirement() {
    let refused = |change: &dyn Fn(&mut KernelSpec), context: &Context| {
        let mut picky = spec("picky.x");
        change(&mut picky);
        engine([picky]).which(attend(), context).unwrap_err().to_string()
    };
    let dense =
        refused(&|spec| spec.strides = StrideNeeds::Contiguous, &with_strides("mask", (false, true, 6)));
    assert!(dense.contains("mask: requires dense row-major memory"), "{dense}");
    let last =
        refused(&|spec| spec.strides = StrideNeeds::LastDense, &with_strides("mask", (false, false, 6)));
    assert!(last.contains("mask: requires a last dimension of stride 1"), "{last}");
    let aligned = refused(&|spec| spec.alignment = 64, &with_strides("mask", (true, true, 5)));
    let expected = "mask: requires an address that is a multiple of 64 bytes, found a multiple of 32";
    assert!(aligned.contains(expected), "{aligned}");
    // The mask is not given, so it is not to blame.
    let output = refused(&|spec| spec.alignment = 64, &with_strides("output", (true, true, 5)));
    assert!(output.contains("output: requires an address"), "{output}");
    let layout = Shape { layout: 1, ..Shape::default() }.context();
    let layout = refused(&|spec| spec.layouts = vec!["BSHD".to_owned()], &layout);
    assert!(layout.contains("BSHD") && layout.contains("BHSD"), "{layout}");
}

/// Copying a result into a given output costs at least one point, and other conversions their own cost.
#[test]
fn copying_the_output_is_a_conversion() {
    let cost = |transform_cost, context: &Context| {
        let mut adapting = spec("adapting.x");
        adapting.strides = StrideNeeds::Contiguous;
        adapting.adapts = vec![TransformKind::Contiguous, TransformKind::Output];
        adapting.writes_into_output = false;
        adapting.transform_cost = transform_cost;
        engine([adapting]).which(attend(), context).unwrap().transform_cost
    };
    let given = with_strides("output", (true, true, 6));
    let mut both = given;
    let field = attend().fields.iter().find(|field| field.name == "strides(q)").unwrap();
    both.set(field.store, 1 | 1 << 2 | 6 << 3);
    assert_eq!([cost(0, &given), cost(7, &given), cost(0, &both), cost(7, &both)], [1.0, 7.0, 1.0, 14.0]);
    assert_eq!(cost(7, &Shape::default().context()), 0.0, "no output is given");
}

/// A version that is not in use runs calls if a lock, a list or an active rule names it, and no others.
#[test]
fn a_version_that_is_named_runs() {
    let versioned = || {
        let engine = engine([spec("a.x").priority(60), spec("b.x")]);
        let mut second = spec("a.x").priority(60);
        "2".clone_into(&mut second.version);
        engine.register_versions([crate::engine_support::entry(second)]).unwrap();
        engine
    };
    let source = || Provenance::new("test");
    let rule = |condition: Option<&str>, action: Action| Rule {
        name: String::new(),
        operations: Pattern::any(),
        condition: condition.map(str::to_owned),
        actions: vec![action],
        source: source(),
    };
    let chosen = |policy: Policy, seq: i64| {
        let engine = versioned();
        engine.set_policy(policy);
        run(&engine, &Shape { seq, ..Shape::default() }).unwrap()
    };
    assert_eq!(chosen(Policy::default(), 8), "a.x");
    let locked = |kernel: &str| {
        let lock = Lock {
            operation: Pattern::new("demo.attend"),
            kernel: kernel.to_owned(),
            condition: None,
            source: source(),
        };
        Policy { locks: vec![lock], ..Policy::default() }
    };
    assert_eq!(chosen(locked("a.x@2"), 8), "a.x@2");
    assert_eq!(chosen(locked("b.x"), 8), "b.x");
    let by_rule = |condition| Policy {
        rules: vec![rule(condition, Action::Override("a.x@2".to_owned()))],
        ..Policy::default()
    };
    assert_eq!(chosen(by_rule(None), 8), "a.x@2");
    assert_eq!(chosen(by_rule(Some("seq > 100")), 200), "a.x@2");
    assert_eq!(chosen(by_rule(Some("seq > 100")), 8), "a.x", "the rule is not active");
    for action in [Action::Prefer(Pattern::new("a.x@2")), Action::Boost(Pattern::new("a.x@2"), 5.0)] {
        let policy = Policy { rules: vec![rule(None, action)], ..Policy::default() };
        assert_eq!(chosen(policy, 8), "a.x@2");
    }
    let avoided = rule(None, Action::Avoid(Pattern::new("a.x@2")));
    assert_eq!(
        chosen(Policy { rules: vec![avoided], ..Policy::default() }, 8),
        "a.x",
        "only named to be avoided"
    );
    let listed = ListEntry { kernels: Pattern::new("a.x@2"), operations: Pattern::any(), source: source() };
    assert_eq!(chosen(Policy { prefer: vec![listed], ..Policy::default() }, 8), "a.x@2");
}

/// A lock of a rule for all operations applies to the operation of its kernel; one for a named operation applies as written.
#[test]
fn a_lock_on_a_kernel_of_another_operation_applies_only_where_it_is_named() {
    const OTHER: &str = r#"
operation: demo.other
version: 1
summary: Another operation.
doc: "output = x"
axes: { rows: { role: batch, select: ignored, fuzz: 1..4 } }
types: { T: [f32] }
inputs: { x: { shape: [rows], dtype: T, doc: "Input." } }
outputs: { output: { shape: [rows], dtype: T } }
semantics: { nan: propagate }
equivalence: { close: { f32: [1e-5, 1e-5] } }
workloads: { small: { rows: 1, T: f32 } }
"#;
    let other = lz_core::dynamic::read_operation("demo/other.yaml", OTHER).unwrap();
    let chosen = |operations: Pattern, kernel: &str| {
        let engine = engine([spec("a.x").priority(60), spec("b.x")]);
        let elsewhere = KernelSpec::new("c.other", "demo.other", "c", "1", Platform::Cpu);
        let does = crate::engine_support::Does(Box::new(|| Ok(())));
        engine.register([lz_core::KernelEntry::new(elsewhere, does).of(other)]).unwrap();
        let rule = Rule {
            name: String::new(),
            operations,
            condition: None,
            actions: vec![Action::Lock(kernel.to_owned())],
            source: Provenance::new("test"),
        };
        engine.set_policy(Policy { rules: vec![rule], ..Policy::default() });
        run(&engine, &Shape::default()).ok()
    };
    assert_eq!(chosen(Pattern::any(), "b.x").as_deref(), Some("b.x"));
    assert_eq!(chosen(Pattern::any(), "c.other").as_deref(), Some("a.x"), "a lock of the other operation");
    assert_eq!(chosen(Pattern::new("demo.attend"), "c.other"), None, "written for this operation");
    assert_eq!(chosen(Pattern::any(), "unknown.x"), None, "an unknown kernel may be one of this operation");
}

/// An alias that fixes a number: calls with other numbers are other calls, on cache hits too.
#[test]
fn a_lock_on_an_alias_reads_the_params_that_it_fixes() {
    const SCHEMA: &str = r#"
operation: demo.windowed
version: 1
summary: An operation with an alias that fixes a number.
doc: "output = x"
aliases: { demo.windowed_five: { window: 5 } }
axes: { rows: { role: batch, select: ignored, fuzz: 1..4 } }
types: { T: [f32] }
inputs: { x: { shape: [rows], dtype: T, doc: "Input." } }
params:
  window: { type: int, default: 0, range: ">= 0", doc: "Window." }
  other:  { type: int, default: 0, doc: "Not read." }
outputs: { output: { shape: [rows], dtype: T } }
semantics: { nan: propagate }
equivalence: { close: { f32: [1e-5, 1e-5] } }
workloads: { small: { rows: 1, T: f32 } }
"#;
    let windowed = lz_core::dynamic::read_operation("demo/windowed.yaml", SCHEMA).unwrap();
    // A limit may read the same param.
    for is_limited in [false, true] {
        let engine = Engine::new();
        let kernel = |id: &str, priority| {
            let mut spec = KernelSpec::new(id, "demo.windowed", "a", "1", Platform::Cpu).priority(priority);
            if is_limited {
                spec = spec.limit("window <= 1000", ReasonCode::AxisLimit);
            }
            let does = crate::engine_support::Does(Box::new(|| Ok(())));
            lz_core::KernelEntry::new(spec, does).of(windowed)
        };
        engine.register([kernel("a.one", 60), kernel("a.two", 50)]).unwrap();
        engine.lock("demo.windowed_five", "a.two").unwrap();
        let chosen = |window: i64, other: i64| {
            let mut context = Context::of(&windowed.fields);
            for (name, value) in [("rows", 3), ("window", window), ("other", other)] {
                let field = windowed.fields.iter().find(|field| field.name == name).unwrap();
                context.set(field.store, value as u64);
            }
            let mut who = String::new();
            let mut run = |entry: &lz_core::KernelEntry, _: &mut lz_core::Run<'_>| {
                who.clone_from(&entry.spec.id);
                Ok(())
            };
            engine.dispatch(windowed, &context, &mut run).unwrap();
            who
        };
        for _ in 0..4 {
            for other in [5, 0] {
                assert_eq!(
                    [chosen(5, other), chosen(6, other), chosen(0, other)],
                    ["a.two", "a.one", "a.one"]
                );
            }
        }
    }
}

/// A cold kernel loses its compile time in points where it may be compiled inside a call; a warm one does not.
#[test]
fn a_cold_kernel_is_scored_with_its_compilation() {
    let mut jit = spec("jit.x").priority(60);
    jit.jit = true;
    let engine = engine([jit, spec("plain.x").priority(50)]);
    let shape = Shape::default();
    let chosen = || engine.which(attend(), &shape.context()).unwrap().kernel;
    engine.set_policy(Policy { jit: WithSource::new(JitPolicy::Inline, "test"), ..Policy::default() });
    assert_eq!(chosen(), "plain.x", "10 points more, 20 less for compiling");
    let explained = format!("{:?}", engine.explain(attend(), &shape.context()));
    assert!(explained.contains("jit: -20"), "{explained}");
    engine.mark_warm("jit.x", attend(), &shape.context());
    assert_eq!(chosen(), "jit.x");
    assert!(!format!("{:?}", engine.explain(attend(), &shape.context())).contains("jit: -20"));
}

/// Health stores the sentence of a failure, with its code if that says more.
#[test]
fn recorded_failures_have_the_text_of_their_reason() {
    let recorded = |error: fn() -> KernelError| {
        let engine = engine([spec("reference.x")]);
        let entry = crate::engine_support::failing(spec("bad.x").priority(90), move || Err(error()));
        engine.register([entry]).unwrap();
        (0..2).for_each(|_| drop(run(&engine, &Shape::default()).unwrap()));
        engine.circuits().into_iter().map(|circuit| circuit.last_error).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(recorded(|| KernelError::failed("it broke")), "it broke");
    let other = || KernelError::because(Reason::new(ReasonCode::DtypeUnsupported).message("no such type"));
    let text = recorded(other);
    assert!(text.contains("DTYPE_UNSUPPORTED") && text.contains("no such type"), "{text}");
}

/// Replaced kernels are dropped although this thread has called them, directly and in nested calls.
#[test]
fn replaced_kernels_are_dropped_with_the_entries_of_thread_caches() {
    let witness = Arc::new(());
    let alive = Arc::downgrade(&witness);
    let engine = Arc::new(engine([spec("reference.x")]));
    let inner = Arc::downgrade(&engine);
    let nested = AtomicU64::new(0);
    let does = move || {
        let _held = &witness;
        // A nested call uses a spare state of the thread.
        if nested.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
            && let Some(engine) = inner.upgrade()
        {
            run(&engine, &Shape { seq: 9, ..Shape::default() }).unwrap();
        }
        Ok(())
    };
    engine.register([crate::engine_support::failing(spec("a.x").priority(90), does)]).unwrap();
    (0..40).for_each(|_| assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x"));
    assert!(alive.upgrade().is_some());
    let mut second = spec("a.x").priority(90);
    "2".clone_into(&mut second.version);
    let done = engine.replace_kernels(vec![crate::engine_support::entry(second)], Duration::ZERO).unwrap();
    assert!(done.is_drained && alive.upgrade().is_none(), "the thread that replaces holds nothing");
    // The entries of a thread that only calls are cleared when it sees the new snapshot.
    let witness = Arc::new(());
    let alive = Arc::downgrade(&witness);
    let does = move || {
        let _held = &witness;
        Ok(())
    };
    let mut third = spec("a.x").priority(90);
    "3".clone_into(&mut third.version);
    let third = crate::engine_support::failing(third, does);
    engine.replace_kernels(vec![third], Duration::ZERO).unwrap();
    let (called, replaced) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..40).for_each(|_| assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x"));
            called.wait();
            replaced.wait();
            // Another call of the same operation, so that the entry of the first one is not replaced.
            assert_eq!(run(&engine, &Shape { seq: 11, ..Shape::default() }).unwrap(), "reference.x");
            assert!(alive.upgrade().is_none(), "this thread holds the old kernel");
        });
        called.wait();
        engine.unregister_kernel("a.x", None).unwrap();
        replaced.wait();
    });
}

/// Scalar params that limits or workspaces read are part of the cache key, whether one or several of them read a param.
#[test]
fn decisions_are_keyed_on_the_scalars_that_kernels_read() {
    let limited = |id: &str, most: i64, priority| {
        spec(id).priority(priority).limit(&format!("window <= {most}"), ReasonCode::AxisLimit)
    };
    let engine_of_limits = engine([limited("a.x", 4, 70), limited("b.x", 9, 60), spec("c.x").priority(50)]);
    let workspace_of = |id: &str, priority| {
        let mut spec = spec(id).priority(priority);
        spec.workspace = Some("window * 8".to_owned());
        spec
    };
    let one = engine([workspace_of("a.x", 60), spec("b.x")]);
    let two = engine([workspace_of("a.x", 60), workspace_of("b.x", 50)]);
    let both = engine([workspace_of("a.x", 60), limited("b.x", 9, 50)]);
    for _ in 0..4 {
        let chosen =
            [2, 6, 20].map(|window| run(&engine_of_limits, &Shape { window, ..Shape::default() }).unwrap());
        assert_eq!(chosen, ["a.x", "b.x", "c.x"]);
        for engine in [&one, &two, &both] {
            for window in [100, 200] {
                let mut declared = 0;
                let context = Shape { window, ..Shape::default() }.context();
                let run = &mut |_: &lz_core::KernelEntry, run: &mut lz_core::Run<'_>| {
                    declared = run.declared_workspace();
                    Ok(())
                };
                engine.dispatch(attend(), &context, run).unwrap();
                assert_eq!(declared, 8 * window as u64);
            }
        }
    }
}

/// An operation that changes its inputs.
fn update() -> &'static OperationInfo {
    const SCHEMA: &str = "
operation: demo.update
version: 1
summary: Changes its inputs.
doc: It adds one.
axes:
  width: { role: feature, fuzz: [2, 4], doc: Width. }
  slots: { role: count, fuzz: [1, 2], doc: Rows of the table. }
inputs:
  state: { shape: [width], dtype: f32, access: read_write, doc: State. }
  more: { shape: [width], dtype: f32, access: read_write, optional: true, doc: More state. }
  x: { shape: [width], dtype: f32, optional: true, doc: What is added. }
  table: { shape: [slots, width], dtype: f32, optional: true, doc: Rows. }
  index: { shape: [width], dtype: i32, optional: true, values: { index_into: slots }, doc: The rows that are read. }
outputs:
  out: { shape: [width], dtype: f32, doc: The result. }
equivalence: { exact: true }
workloads:
  one: { width: 4 }
";
    static OPERATION: OnceLock<&'static OperationInfo> = OnceLock::new();
    OPERATION.get_or_init(|| {
        dynamic::read_operation("demo/update.yaml", SCHEMA).unwrap_or_else(|error| panic!("{error}"))
    })
}

/// A call of `update`; each tensor is given as dense (`true`) or strided memory, and the others are not given.
fn update_of(given: &[(&str, bool)]) -> Context {
    let mut context = Context::of(&update().fields);
    for field in update().fields.iter() {
        for (name, is_dense) in given {
            if *field.name == format!("strides({name})") {
                context.set(field.store, 1 | u64::from(*is_dense) << 1 | 1 << 2 | 6 << 3);
            }
        }
    }
    context
}

fn update_spec(id: &str, priority: u8) -> KernelSpec {
    KernelSpec::new(id, "demo.update", "a", "1", Platform::Cpu).priority(priority)
}

fn update_kernel(
    spec: KernelSpec,
    does: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static,
) -> KernelEntry {
    KernelEntry::new(spec, Does(Box::new(does))).of(update())
}

/// After a kernel may have changed its inputs, no other kernel can run the call.
#[test]
fn a_call_that_changes_its_inputs_falls_back_only_before_writing() {
    let outcome = |error: fn() -> KernelError| {
        let engine = Engine::new();
        engine
            .register([
                update_kernel(update_spec("a.fails", 90), move || Err(error())),
                update_kernel(update_spec("a.works", 10), || Ok(())),
            ])
            .unwrap();
        let mut run_one =
            |entry: &KernelEntry, run: &mut lz_core::Run<'_>| entry.kernel.run(&mut [], &mut [], run);
        engine.dispatch(update(), &update_of(&[("state", true), ("out", true)]), &mut run_one)
    };
    outcome(|| KernelError::failed("no").before_writing()).expect("nothing was written");
    let error = outcome(|| KernelError::failed("no")).expect_err("the state may have changed");
    assert!(error.has(ReasonCode::FallbackDisallowed), "{error}");
}

/// Copies of inputs that a kernel changes would lose the changes, and of an indexed table only a part is read.
#[test]
fn only_inputs_that_are_read_as_a_whole_are_copied() {
    let mut spec = update_spec("a.dense", 90);
    spec.strides = StrideNeeds::Contiguous;
    spec.copies_strided = true;
    let engine = Engine::new();
    engine.register([update_kernel(spec, || Ok(()))]).unwrap();
    let runs = |given: &[(&str, bool)]| engine.which(update(), &update_of(given)).is_ok();
    assert!(runs(&[("state", true), ("out", true)]));
    assert!(runs(&[("state", true), ("out", false)]), "the output is copied");
    assert!(runs(&[("state", true), ("more", true), ("out", true)]));
    assert!(runs(&[("state", true), ("x", false), ("index", false), ("out", true)]));
    assert!(runs(&[("state", true), ("table", true), ("out", true)]));
    assert!(!runs(&[("state", true), ("table", false), ("out", true)]));
    assert!(!runs(&[("state", false), ("out", true)]));
    assert!(!runs(&[("state", true), ("more", false), ("out", true)]));
}

/// A tokenizer that finds a difference itself has produced a wrong result; another failure is only a failure.
#[test]
fn differences_that_kernels_find_are_counted_as_wrong_results() {
    let mismatches = |code: ReasonCode| {
        let engine = engine([spec("reference.x")]);
        let fails = move || Err(KernelError::because(Reason::new(code).message("no")).before_writing());
        engine.register([failing(spec("bad.x").priority(90), fails)]).unwrap();
        assert_eq!(run(&engine, &Shape::default()).unwrap(), "reference.x");
        engine.metrics().verification_mismatches.iter().any(|one| one.kernel == "bad.x" && one.count == 1)
    };
    assert!(mismatches(ReasonCode::TokenizerNotEqual));
    assert!(!mismatches(ReasonCode::KernelFailed));
}

/// A kernel that computes with less precision runs only where the caller allows it; packed weights likewise.
#[test]
fn reduced_precision_and_packed_weights_are_asked_for() {
    let code = |change: fn(&mut KernelSpec), flag: ModeFlag| {
        let mut changed = spec("a.x");
        change(&mut changed);
        let engine = engine([changed]);
        let refused = run(&engine, &Shape::default()).unwrap_err();
        let _allowed = mode::scope(ModeOverride::NONE.set(flag, true));
        assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
        [ReasonCode::MathModeUnsupported, ReasonCode::PackedWeightsRequired].map(|code| refused.has(code))
    };
    assert_eq!(code(|spec| spec.reduced_precision = true, ModeFlag::ReducedPrecision), [true, false]);
    assert_eq!(code(|spec| spec.prepacked_weights = true, ModeFlag::PackedWeights), [false, true]);
}

fn rule(operations: &str, action: Action) -> Rule {
    Rule {
        name: String::new(),
        operations: Pattern::new(operations),
        condition: None,
        actions: vec![action],
        source: Provenance::new("test"),
    }
}

#[test]
fn rules_act_on_the_operations_and_kernels_that_they_name() {
    let chosen = |rule: Rule| {
        let engine = engine([spec("a.x").priority(51), spec("b.x").priority(50)]);
        engine.set_policy(Policy { rules: vec![rule], ..Policy::default() });
        run(&engine, &Shape::default()).unwrap()
    };
    let of = Pattern::new;
    assert_eq!(chosen(rule("demo.attend", Action::Deny(of("a.x")))), "b.x");
    assert_eq!(
        chosen(rule("demo.attend_causal", Action::Deny(of("a.x")))),
        "b.x",
        "an alias of the operation"
    );
    assert_eq!(chosen(rule("demo.other", Action::Deny(of("a.x")))), "a.x");
    assert_eq!(chosen(rule("demo.attend", Action::Avoid(of("a.x")))), "b.x");
    assert_eq!(chosen(rule("demo.attend", Action::Avoid(of("b.x")))), "a.x");
    assert_eq!(chosen(rule("demo.attend", Action::Prefer(of("b.x")))), "b.x");
    assert_eq!(chosen(rule("demo.attend", Action::Allow(of("b.x")))), "b.x");
    assert_eq!(chosen(rule("demo.attend", Action::Allow(of("a.x")))), "a.x");
}

/// A kernel that failed once loses against one that is almost as good.
#[test]
fn a_failure_costs_points() {
    let engine = engine([spec("b.x").priority(50)]);
    let failures = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&failures);
    let fails = move || match seen.fetch_add(1, Ordering::Relaxed) {
        0 => Err(KernelError::failed("once").before_writing()),
        _ => Ok(()),
    };
    engine.register([failing(spec("a.x").priority(51), fails)]).unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "b.x", "it fails");
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "b.x", "it is not tried again at once");
    assert_eq!(failures.load(Ordering::Relaxed), 1);
}

/// A limit with several failing parts is one reason, also where its parts vary within a cell.
#[test]
fn a_limit_is_reported_once() {
    let limited = spec("limited.x").limit("seq % 7 == 0 and seq % 5 == 0", ReasonCode::AxisLimit);
    let engine = engine([limited, spec("reference.x")]);
    let explanation = engine.explain(attend(), &Shape { seq: 16, ..Shape::default() }.context());
    let codes: Vec<&str> =
        explanation.candidate("limited.x").unwrap().reasons.iter().map(|reason| reason.code).collect();
    assert_eq!(codes, ["AXIS_LIMIT"]);
}

/// A kernel that lists KV-cache strategies is checked like others if the call asks for none.
#[test]
fn a_kernel_with_strategies_may_be_excluded_for_later_reasons() {
    let mut jit = spec("jit.x");
    (jit.jit, jit.kv_strategies) = (true, vec!["paged".to_owned()]);
    let engine = engine([jit]);
    engine.set_policy(Policy { jit: WithSource::new(JitPolicy::Never, "test"), ..Policy::default() });
    let error = engine.which(attend(), &Shape::default().context()).unwrap_err();
    assert!(error.has(ReasonCode::JitDisabled), "{error}");
}

/// Records requests for compilation.
#[derive(Default)]
struct Requests(std::sync::Mutex<Vec<String>>);

impl JitRequests for Requests {
    fn request(&self, kernel: &str, _: &'static OperationInfo, _: &Context) {
        self.0.lock().unwrap().push(kernel.to_owned());
    }
}

/// Kernels are compiled in the background only if nothing but that excludes them.
#[test]
fn only_cold_kernels_that_could_run_are_compiled() {
    let jit = |id: &str, priority| {
        let mut spec = spec(id).priority(priority);
        spec.jit = true;
        spec
    };
    let limited = |spec: KernelSpec| spec.limit("heads == 7", ReasonCode::AxisLimit);
    let plain = limited(spec("plain.y").priority(60));
    let engine = engine([jit("jit.cold", 90), limited(jit("jit.limited", 80)), plain, spec("reference.x")]);
    let requests = Arc::new(Requests::default());
    engine.set_jit(Some(requests.clone()));
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "reference.x");
    assert_eq!(*requests.0.lock().unwrap(), ["jit.cold"]);
}

/// Hits of one thread, by the cache that had the decision.
#[test]
fn a_loop_over_few_calls_hits_the_thread_cache() {
    let engine = engine([spec("reference.x")]);
    let hits = |shapes: &[i64]| {
        let before = engine.metrics().cache_hits_by_level;
        for seq in shapes.iter().cycle().take(600) {
            run(&engine, &Shape { seq: *seq, ..Shape::default() }).unwrap();
        }
        let after = engine.metrics().cache_hits_by_level;
        (after.thread - before.thread, after.exact - before.exact)
    };
    let (thread, exact) = hits(&[1]);
    assert!(thread > 590 && exact < 10, "{thread} {exact}");
    let (thread, exact) = hits(&[2, 3, 4]);
    assert!(thread > 500 && exact < 100, "{thread} {exact}");
    // More calls than entries: most are in the cache of all threads.
    let many: Vec<i64> = (10..60).collect();
    let (thread, exact) = hits(&many);
    assert!(exact > 400 && thread < 100, "{thread} {exact}");
}

/// A launch grid is checked on hits in the decision cache; a host has no limits, so the hit counts.
#[test]
fn a_launch_that_fits_is_a_cache_hit() {
    let mut tiled = spec("tiled.x");
    tiled.grid = Some(["1".to_owned(), "seq * 16".to_owned(), "1".to_owned()]);
    let engine = engine([tiled]);
    for seq in 200..300 {
        run(&engine, &Shape { seq, ..Shape::default() }).unwrap();
    }
    let metrics = engine.metrics();
    assert_eq!((metrics.selections, metrics.cache_misses), (100, 1));
}
