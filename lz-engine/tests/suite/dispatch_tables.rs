//! Solved dispatch tables: inside the buckets they decide as the engine would, outside the engine decides at run time.

use std::ops::ControlFlow;

use crate::engine_support::{Shape, attend, engine, entry, failing, run, spec};
use lz_core::{DType, Error, KernelSpec, ReasonCode};
use lz_engine::Engine;
use lz_engine::health::DegradationLevel;
use lz_engine::policy::{Action, ListEntry, Lock, Pattern, Policy, Provenance, Rule};
use lz_engine::solver::{Problem, Work};
use proptest::collection::vec as vec_of;
use proptest::prelude::*;
use proptest::sample::select;

fn kernels() -> Vec<KernelSpec> {
    vec![
        spec("reference.attend"),
        spec("small.attend").priority(50).limit("seq <= 512", ReasonCode::AxisLimit),
        spec("large.attend").priority(40).limit("seq > 100", ReasonCode::AxisLimit),
    ]
}

fn work() -> Work {
    Work::new(attend(), Shape::default().context()).range("seq", 1..=4096).range("batch", 1..=8)
}

fn problem(works: Vec<Work>) -> Problem {
    Problem { model_id: "demo".to_owned(), works, ..Problem::default() }
}

fn solve(engine: &Engine, works: Vec<Work>) -> String {
    let solution =
        engine.solve(&problem(works), &mut |_| ControlFlow::Continue(())).expect("it can be solved");
    assert!(!solution.cancelled);
    solution.text
}

/// The same table with another kernel wherever `from` was decided, to show that the table decides.
fn rewritten(text: &str, from: &str, to: &str) -> String {
    text.replace(&format!("\"kernel_id\": \"{from}\""), &format!("\"kernel_id\": \"{to}\""))
}

fn shape(seq: i64) -> Shape {
    Shape { seq, ..Shape::default() }
}

#[test]
fn cells_are_split_at_limits_and_equal_cells_are_merged() {
    let engine = engine(kernels());
    let mut reported = Vec::new();
    let solution = engine
        .solve(&problem(vec![work()]), &mut |progress| {
            reported.push((progress.done, progress.total));
            ControlFlow::Continue(())
        })
        .expect("it can be solved");
    // Bucket bounds of the schema at 128 and 2048, limits at 100 and 512, and the end; batch at 1, 4 and the end.
    assert_eq!(solution.decided, 15);
    assert_eq!(reported.first(), Some(&(0, 15)));
    assert_eq!(reported.last(), Some(&(14, 15)));
    assert!(solution.holes.is_empty());
    // Hardware signature and hash are machine-specific.
    let lines = solution.text.lines().filter(|line| {
        !["hardware_signature", "capabilities_hash", "layerzero_version"].iter().any(|key| line.contains(key))
    });
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"));
}

#[test]
fn table_decides_only_inside_its_buckets() {
    let engine = engine(kernels());
    let text = rewritten(&solve(&engine, vec![work()]), "small.attend", "reference.attend");
    let state = engine.use_dispatch_table("demo.json", &text).expect("it is this machine's");
    assert_eq!((state.operations, state.stale), (vec!["demo.attend".to_owned()], None));
    for seq in [1, 99, 100, 101, 128, 129, 512] {
        assert_eq!(run(&engine, &shape(seq)).unwrap(), "reference.attend", "{seq}");
        assert_eq!(run(&engine, &shape(seq)).unwrap(), "reference.attend", "{seq}, cached");
    }
    assert_eq!(run(&engine, &shape(513)).unwrap(), "large.attend");
    let inside = engine.explain(attend(), &shape(64).context());
    let table = inside.table.as_ref().expect("a table acts");
    assert!(table.acts && table.what == "chose reference.attend", "{table:?}");
    assert!(inside.to_string().contains("; table demo.json of demo chose reference.attend"), "{inside}");
    // Above the range, below it, and with another exact size or flag: as without a table.
    let outside = [
        shape(4097),
        Shape { seq: 64, batch: 9, ..Shape::default() },
        Shape { seq: 64, head_dim: 80, ..Shape::default() },
        Shape { seq: 64, dtype: DType::F32, ..Shape::default() },
        Shape { seq: 64, causal: true, ..Shape::default() },
        shape(0),
    ];
    for shape in outside {
        let expected = if shape.seq > 512 { "large.attend" } else { "small.attend" };
        assert_eq!(run(&engine, &shape).unwrap(), expected, "{shape:?}");
        let explanation = engine.explain(attend(), &shape.context());
        let table = explanation.table.as_ref().expect("the operation is in the table");
        assert!(!table.acts);
        assert_eq!(table.reason.as_ref().map(|reason| reason.code), Some("PLAN_BUCKET_MISS"));
        assert!(explanation.to_string().contains("PLAN_BUCKET_MISS"), "{explanation}");
    }
    engine.unload_dispatch_tables();
    assert_eq!(run(&engine, &shape(64)).unwrap(), "small.attend");
    assert!(engine.explain(attend(), &shape(64).context()).table.is_none());
}

#[test]
fn tabled_kernel_is_filtered_per_call() {
    let engine = engine(kernels());
    // The table chooses `small` for every size, also where it cannot run: then its fallbacks, or selection, decide.
    let text = rewritten(&solve(&engine, vec![work()]), "large.attend", "small.attend");
    engine.use_dispatch_table("demo.json", &text).unwrap();
    assert_eq!(run(&engine, &shape(512)).unwrap(), "small.attend");
    assert_eq!(run(&engine, &shape(513)).unwrap(), "reference.attend", "the table's own fallback is next");
}

#[test]
fn calls_outside_the_table_may_be_errors() {
    let engine = engine(kernels());
    let problem = Problem { outside_is_error: true, ..problem(vec![work()]) };
    let solution = engine.solve(&problem, &mut |_| ControlFlow::Continue(())).unwrap();
    engine.use_dispatch_table("demo.json", &solution.text).unwrap();
    assert_eq!(run(&engine, &shape(64)).unwrap(), "small.attend");
    let error = run(&engine, &shape(5000)).unwrap_err();
    assert!(matches!(&error, Error::NoKernel { .. }) && error.has(ReasonCode::PlanBucketMiss), "{error}");
    // A lock overrules the table.
    engine.set_policy(locked("large.attend"));
    assert_eq!(run(&engine, &shape(5000)).unwrap(), "large.attend");
}

fn locked(kernel: &str) -> Policy {
    let lock = Lock {
        operation: Pattern::new("demo.attend"),
        kernel: kernel.to_owned(),
        condition: None,
        source: Provenance::new("test"),
    };
    Policy { locks: vec![lock], ..Policy::default() }
}

#[test]
fn policy_overrules_the_table() {
    let engine = engine(kernels());
    let text = solve(&engine, vec![work()]);
    engine.use_dispatch_table("demo.json", &text).unwrap();
    engine.set_policy(locked("reference.attend"));
    assert_eq!(run(&engine, &shape(64)).unwrap(), "reference.attend");
    let table = engine.explain(attend(), &shape(64).context()).table.unwrap();
    assert_eq!((table.acts, table.what.as_str()), (false, "chose small.attend, overruled by a lock"));

    let listed = |kernels: &str| {
        let (operations, source) = (Pattern::any(), Provenance::new("test"));
        ListEntry { kernels: Pattern::new(kernels), operations, source }
    };
    engine.set_policy(Policy { prefer: vec![listed("reference")], ..Policy::default() });
    assert_eq!(run(&engine, &shape(600)).unwrap(), "large.attend", "a preference adds points, no more");
    let table = engine.explain(attend(), &shape(64).context()).table.unwrap();
    assert_eq!(table.what, "chose small.attend, overruled by a preference");

    engine.set_policy(Policy { deny: vec![listed("small.*")], ..Policy::default() });
    assert_eq!(run(&engine, &shape(64)).unwrap(), "reference.attend", "what is denied is denied");
}

#[test]
fn varying_rule_is_checked_on_every_hit() {
    let engine = engine(kernels());
    engine.use_dispatch_table("demo.json", &solve(&engine, vec![work()])).unwrap();
    let rule = Rule {
        name: String::new(),
        operations: Pattern::any(),
        condition: Some("seq % 2 == 1".to_owned()),
        actions: vec![Action::Boost(Pattern::new("reference"), 100.0)],
        source: Provenance::new("test"),
    };
    engine.set_policy(Policy { rules: vec![rule], ..Policy::default() });
    for seq in [64, 65, 66, 67, 64] {
        let expected = if seq % 2 == 1 { "reference.attend" } else { "small.attend" };
        assert_eq!(run(&engine, &shape(seq)).unwrap(), expected, "{seq}");
    }
}

#[test]
fn table_of_another_machine_or_kernels_is_rejected_with_differences() {
    let engine = engine(kernels());
    let text = solve(&engine, vec![work()]);
    let elsewhere = engine.with_device(lz_device::preset("h100").expect("there is such a preset"));
    let error = elsewhere.use_dispatch_table("demo.json", &text).unwrap_err();
    assert!(error.has(ReasonCode::TableHardwareMismatch), "{error}");
    assert!(!error.has(ReasonCode::TableCapabilitiesMismatch), "{error}");
    let other = crate::engine_support::engine(kernels().into_iter().take(2));
    let error = other.use_dispatch_table("demo.json", &text).unwrap_err();
    assert!(error.has(ReasonCode::TableCapabilitiesMismatch), "{error}");
    assert!(other.dispatch_tables().is_empty());
    let error = engine.use_dispatch_table("demo.json", "{").unwrap_err();
    assert!(error.has(ReasonCode::TableInvalid), "{error}");
    let error = engine.load_dispatch_table(std::path::Path::new("/nowhere/demo.json")).unwrap_err();
    assert!(error.has(ReasonCode::TableInvalid), "{error}");
}

#[test]
fn table_becomes_stale_and_valid_with_the_registry() {
    let engine = engine(kernels());
    let text = rewritten(&solve(&engine, vec![work()]), "small.attend", "reference.attend");
    engine.use_dispatch_table("demo.json", &text).unwrap();
    assert_eq!(run(&engine, &shape(64)).unwrap(), "reference.attend");
    engine.register([entry(spec("new.attend").priority(90))]).unwrap();
    assert_eq!(run(&engine, &shape(64)).unwrap(), "new.attend");
    let stale = engine.dispatch_tables().remove(0).stale.expect("it is stale");
    assert!(stale.contains("TABLE_CAPABILITIES_MISMATCH"), "{stale}");
    let table = engine.explain(attend(), &shape(64).context()).table.unwrap();
    assert_eq!(table.reason.unwrap().code, "TABLE_CAPABILITIES_MISMATCH");
    engine.unregister_backend("new");
    assert_eq!(run(&engine, &shape(64)).unwrap(), "reference.attend");
    assert_eq!(engine.dispatch_tables().remove(0).stale, None);
}

#[test]
fn cancelled_solve_keeps_its_decisions() {
    let engine = engine(kernels());
    let solution = engine
        .solve(&problem(vec![work()]), &mut |progress| {
            if progress.done < 4 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
    assert!(solution.cancelled);
    assert_eq!(solution.decided, 4);
    let text = rewritten(&solution.text, "small.attend", "reference.attend");
    engine.use_dispatch_table("demo.json", &text).expect("half a table is a table");
    let acts = |batch, seq| {
        let context = Shape { batch, seq, ..Shape::default() }.context();
        engine.explain(attend(), &context).table.expect("the operation is in it").acts
    };
    assert!(acts(1, 100) && acts(1, 2000));
    assert!(!acts(1, 4000) && !acts(2, 100));
}

#[test]
fn cell_without_a_kernel_is_a_hole_with_a_reason() {
    let engine = engine(vec![spec("small.attend").limit("seq <= 512", ReasonCode::AxisLimit)]);
    let solution = engine.solve(&problem(vec![work()]), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(solution.holes.len(), 6, "{:?}", solution.holes);
    assert!(solution.holes.iter().all(|hole| hole.why == "no kernel can run it"));
    engine.use_dispatch_table("demo.json", &solution.text).unwrap();
    let explanation = engine.explain(attend(), &shape(600).context());
    assert!(explanation.table.unwrap().what.contains("no kernel can run it"));
}

#[test]
fn degraded_engine_uses_tables_until_priorities_only() {
    for (level, expected) in [
        (DegradationLevel::Full, "reference.attend"),
        (DegradationLevel::CachedOnly, "reference.attend"),
        (DegradationLevel::PrioritiesOnly, "small.attend"),
    ] {
        let engine = engine(kernels());
        let text = rewritten(&solve(&engine, vec![work()]), "small.attend", "reference.attend");
        engine.use_dispatch_table("demo.json", &text).unwrap();
        while engine.health().level() < level {
            engine.health().record_engine_fault("a test");
        }
        assert_eq!(engine.health().level(), level);
        assert_eq!(run(&engine, &shape(64)).unwrap(), expected, "{level}");
    }
}

#[test]
fn failing_tabled_kernel_falls_back() {
    let engine = Engine::new();
    let fails =
        failing(spec("small.attend").priority(50), || Err(lz_core::KernelError::failed("it does not work")));
    engine.register([fails, entry(spec("reference.attend"))]).unwrap();
    engine.use_dispatch_table("demo.json", &solve(&engine, vec![work()])).unwrap();
    for _ in 0..20 {
        assert_eq!(run(&engine, &shape(64)).unwrap(), "reference.attend");
    }
    assert!(
        engine.explain(attend(), &shape(64).context()).candidate("small.attend").unwrap().reasons.len() == 1
    );
}

#[test]
fn schema_workloads_can_be_solved() {
    let engine = engine(kernels());
    let works = Work::of_workloads(attend(), lz_core::tensor::Device::HOST).expect("they are checked");
    let text = solve(&engine, works);
    engine.use_dispatch_table("demo.json", &text).unwrap();
    let call = Shape { batch: 1, seq: 16, heads: 2, head_dim: 8, dtype: DType::F32, ..Shape::default() };
    assert!(engine.explain(attend(), &call.context()).table.unwrap().acts);
    let error =
        engine.solve(&problem(vec![work().range("sequence", 1..=2)]), &mut |_| ControlFlow::Continue(()));
    assert!(error.unwrap_err().to_string().contains("has no axis `sequence`"));
    let many = work().range("heads", 1..=1000).range("head_dim", 1..=1000);
    let error = engine.solve(&problem(vec![many]), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("narrow the ranges"), "{error}");
}

fn drawn_kernel() -> impl Strategy<Value = KernelSpec> {
    let size = || select(vec![1i64, 4, 16, 63, 64, 100, 128, 129, 512, 2048, 3000]);
    let axis = || select(vec!["batch", "seq", "pages", "heads"]);
    let limit = prop_oneof![
        4 => (axis(), select(vec!["<", "<=", ">", ">=", "!="]), size())
            .prop_map(|(axis, op, size)| format!("{axis} {op} {size}")),
        1 => (axis(), 2i64..9).prop_map(|(axis, by)| format!("{axis} % {by} == 0")),
        1 => (axis(), axis(), size()).prop_map(|(a, b, size)| format!("{a} * {b} <= {size}")),
    ];
    (0u8..9, vec_of(limit, 0..3)).prop_map(|(priority, limits)| {
        let kernel = spec("some.x").priority(priority);
        limits.iter().fold(kernel, |kernel, limit| kernel.limit(limit, ReasonCode::AxisLimit))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// For any kernels: with the table the same kernel runs as without it wherever limits can be divided, it is always eligible, and
    /// cached decisions equal fresh ones.
    #[test]
    fn solved_table_matches_the_engine(
        kernels in vec_of(drawn_kernel(), 1..6),
        calls in vec_of((1i64..70, 1i64..4200, select(vec![6i64, 8]), 0i64..3), 1..20),
    ) {
        let numbered = kernels.into_iter().enumerate().map(|(number, mut kernel)| {
            kernel.id = format!("{}.{number}", kernel.id);
            kernel
        });
        let kernels: Vec<KernelSpec> = numbered.collect();
        let cuttable = kernels.iter().flat_map(|kernel| &kernel.limits)
            .all(|limit| !limit.check.contains('%') && !limit.check.contains('*'));
        let without = engine(kernels.clone());
        let with = engine(kernels);
        let text = solve(&with, vec![work().range("heads", 6..=8).range("batch", 1..=64)]);
        with.use_dispatch_table("t.json", &text).expect("it was just solved");
        for _ in 0..2 {
            for (batch, seq, heads, pages) in &calls {
                let call = Shape { batch: *batch, seq: *seq, heads: *heads, pages: *pages, ..Shape::default() };
                let plain = run(&without, &call).ok();
                let tabled = run(&with, &call).ok();
                if cuttable {
                    prop_assert_eq!(&tabled, &plain, "{:?}\n{}", call, text);
                }
                prop_assert_eq!(tabled.is_some(), plain.is_some());
                let fresh = with.which(attend(), &call.context()).ok().map(|plan| plan.kernel);
                prop_assert_eq!(&tabled, &fresh);
                if let Some(kernel) = tabled {
                    let explanation = with.explain(attend(), &call.context());
                    prop_assert!(explanation.candidate(&kernel).is_some_and(|one| one.reasons.is_empty()));
                }
            }
        }
    }
}

/// Kernels that read scalars, which are not part of a cell.
fn numeric() -> impl Strategy<Value = Vec<KernelSpec>> {
    let limits = select(vec![
        "window == 0",
        "window <= 16",
        "window > 4",
        "scale <= 1.5",
        "scale > 0.1 and window != 7",
        "seq <= 512",
        "seq > 100",
    ]);
    vec_of((0u8..99, limits), 1..6).prop_map(|kernels| {
        let some = kernels.into_iter().enumerate().map(|(number, (priority, limit))| {
            spec(&format!("some.{number}")).priority(priority).limit(limit, ReasonCode::ParamUnsupported)
        });
        some.chain([spec("reference.attend")]).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// For any scalars that a table was solved for: it does not answer for others, also not from the cache, so that an engine with it
    /// decides every call as the engine without it does.
    #[test]
    fn table_does_not_answer_for_other_scalars(
        kernels in numeric(),
        solved in vec_of((select(vec![0i64, 4, 7, 16, 100]), select(vec![0.1f32, 1.0, 1.5, 2.0])), 1..4),
        calls in vec_of(
            (select(vec![0i64, 4, 5, 7, 16, 17, 100]), select(vec![0.1f32, 0.5, 1.0, 1.5, 2.0]), 1i64..1000),
            1..40,
        ),
    ) {
        let numbered = |window: i64, scale: f32, seq: i64| {
            Shape { window, scale: f64::from(scale), seq, ..Shape::default() }
        };
        let without = engine(kernels.clone());
        let works = solved.iter().map(|(window, scale)| {
            Work::new(attend(), numbered(*window, *scale, 64).context()).range("seq", 1..=4096)
        });
        let text = solve(&without, works.collect());
        let with = engine(kernels);
        with.use_dispatch_table("demo.json", &text).expect("it is this machine's");
        for (window, scale, seq) in calls {
            let shape = numbered(window, scale, seq);
            let expected = run(&without, &shape).expect("the reference runs everything");
            prop_assert_eq!(run(&with, &shape).ok(), Some(expected.clone()), "{:?}", shape);
            let explanation = with.explain(attend(), &shape.context());
            prop_assert_eq!(explanation.chosen(), Some(expected.as_str()));
        // If no kernel reads a scalar, a table may answer for all values.
            let acts = explanation.table.is_some_and(|table| table.acts);
            let reads = |name: &str| text.contains(&format!("\"field\": \"{name}\""));
            let same = |(known, factor): &(i64, f32)| {
                (!reads("window") || *known == window) && (!reads("scale") || *factor == scale)
            };
            prop_assert_eq!(acts, solved.iter().any(same), "{:?}", shape);
        }
    }
}

#[test]
fn scalars_round_trip_bitwise_through_a_table() {
    let kernels = || {
        let narrow = spec("narrow.attend").priority(60).limit("scale < 0.2", ReasonCode::ScaleUnsupported);
        [narrow, spec("reference.attend"), spec("other.attend").priority(50)]
    };
    let scaled = |scale: f32| Shape { scale: f64::from(scale), ..Shape::default() };
    let text = solve(&engine(kernels()), vec![Work::new(attend(), scaled(0.1).context())]);
    assert!(text.contains("\"scale\"") && !text.contains("\"window\""), "only what is looked at: {text}");
    let engine = engine(kernels());
    let text = rewritten(&text, "narrow.attend", "reference.attend");
    engine.use_dispatch_table("demo.json", &text).unwrap();
    for _ in 0..3 {
        assert_eq!(run(&engine, &scaled(0.1)).unwrap(), "reference.attend", "as the table says");
        assert_eq!(run(&engine, &scaled(0.15)).unwrap(), "narrow.attend", "the same cell, another number");
        assert_eq!(run(&engine, &scaled(0.5)).unwrap(), "other.attend");
    }
}

#[test]
fn a_table_replaces_the_one_for_the_same_hardware() {
    let engine = engine(kernels());
    let text = solve(&engine, vec![work()]);
    for path in ["first.json", "second.json"] {
        engine.use_dispatch_table(path, &text).unwrap();
        let paths: Vec<String> = engine.dispatch_tables().into_iter().map(|table| table.path).collect();
        assert_eq!(paths, [path]);
    }
}
