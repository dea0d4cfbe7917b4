//! The lockfile of a run: identical bytes in every process, and exact differences.

use std::collections::BTreeSet;
use std::process::Command;

use crate::engine_support::{Shape, attend, engine, entry, run, spec};
use lz_core::{DType, KernelSpec, ReasonCode};
use lz_engine::Engine;
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_engine::policy::{Lock, Pattern, Policy, Provenance};
use lz_engine::table::Lockfile;
use lz_test_support::Folder;
use proptest::collection::vec as vec_of;
use proptest::prelude::*;
use proptest::sample::select;

fn kernels() -> Vec<KernelSpec> {
    let mut hungry = spec("hungry.attend").priority(60).limit("seq % 8 == 0", ReasonCode::AxisLimit);
    hungry.workspace = Some("seq * batch * 16".to_owned());
    vec![
        spec("reference.attend"),
        spec("small.attend").priority(50).limit("seq <= 512", ReasonCode::AxisLimit),
        hungry,
    ]
}

fn shapes() -> Vec<Shape> {
    let seqs = [64, 65, 72, 600, 601, 4096].map(|seq| Shape { seq, ..Shape::default() });
    let others = [
        Shape { dtype: DType::F32, ..Shape::default() },
        Shape { causal: true, batch: 100, ..Shape::default() },
        Shape { strides: (false, true, 4), ..Shape::default() },
    ];
    seqs.into_iter().chain(others).collect()
}

/// Runs the calls and freezes the decisions.
fn frozen(engine: &Engine, shapes: &[Shape]) -> Lockfile {
    engine.record_decisions(true);
    for shape in shapes {
        run(engine, shape).expect("the reference runs everything");
    }
    engine.freeze()
}

/// The text without machine-specific values.
fn portable(lockfile: &Lockfile) -> String {
    let text = lockfile.text();
    let lines = text.lines().filter(|line| {
        !["hardware:", "capabilities:", "digest:", "layerzero:", "    schema:"]
            .iter()
            .any(|key| line.starts_with(key))
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn recorded_decisions_are_readable_text() {
    let engine = engine(kernels());
    let lockfile = frozen(&engine, &shapes());
    insta::assert_snapshot!(portable(&lockfile));
    let back = Lockfile::read("layerzero.lock", &lockfile.text()).expect("it reads what it writes");
    assert_eq!(back, lockfile);
    assert_eq!(engine.decision_digest(), lockfile.digest());
    assert!(engine.verify_lockfile(&back).agrees());
}

#[test]
fn lockfile_is_independent_of_order_and_repetition() {
    let forwards = frozen(&engine(kernels()), &shapes());
    let mut all = shapes();
    all.extend(shapes());
    all.reverse();
    let backwards = frozen(&engine(kernels().into_iter().rev()), &all);
    assert_eq!(forwards.text(), backwards.text());
    let calls: Vec<_> = shapes().iter().map(|shape| (attend(), shape.context())).collect();
    let asked = engine(kernels()).freeze_calls(&calls).expect("everything can be run");
    assert_eq!(asked.text(), forwards.text(), "asking is deciding");
}

#[test]
fn nothing_is_recorded_unless_enabled() {
    let engine = engine(kernels());
    run(&engine, &Shape::default()).unwrap();
    assert_eq!(engine.freeze().decisions().count(), 0);
    engine.record_decisions(true);
    run(&engine, &Shape::default()).unwrap();
    assert_eq!(engine.freeze().decisions().count(), 1, "also what was cached before");
    engine.record_decisions(false);
    run(&engine, &Shape { heads: 3, ..Shape::default() }).unwrap();
    assert_eq!(engine.freeze().decisions().count(), 1);
    engine.record_decisions(true);
    assert_eq!(engine.freeze().decisions().count(), 0, "a new recording begins empty");
}

#[test]
fn modes_have_separate_decisions() {
    let engine = engine(kernels());
    engine.record_decisions(true);
    run(&engine, &Shape::default()).unwrap();
    {
        let _strict = mode::scope(ModeOverride::NONE.set(ModeFlag::Strict, true));
        run(&engine, &Shape::default()).unwrap();
    }
    let contexts: Vec<String> = engine.freeze().decisions().map(|one| one.context.clone()).collect();
    assert_eq!(contexts.len(), 2);
    assert!(contexts.iter().any(|context| context.contains("(strict)")), "{contexts:?}");
}

#[test]
fn adopted_decisions_are_those_of_the_other_engine() {
    let leader = engine(kernels());
    let wanted = frozen(&leader, &shapes());
    let used = |lockfile: &Lockfile| -> Vec<(String, String)> {
        lockfile.decisions().map(|one| (one.context.clone(), one.kernel.clone())).collect()
    };
    let kernels_used: BTreeSet<String> = used(&wanted).into_iter().map(|(_, kernel)| kernel).collect();
    assert_eq!(kernels_used.len(), 3, "an operation with several kernels: {kernels_used:?}");

    // Another engine would select the reference for every call.
    let follower = engine_preferring_reference();
    let own = frozen(&follower, &shapes());
    assert!(used(&own).iter().any(|one| !used(&wanted).contains(one)), "{own:?}");

    follower.adopt_decisions(&leader.adoptable_decisions()).unwrap();
    let kernel = |engine: &Engine, shape: &Shape| {
        engine.which(attend(), &shape.context()).map(|plan| plan.kernel).unwrap()
    };
    for shape in shapes() {
        assert_eq!(kernel(&follower, &shape), kernel(&leader, &shape), "{shape:?}");
    }
    follower.adopt_decisions(&[]).unwrap();
    assert_eq!(kernel(&follower, &shapes()[0]), kernel(&engine_preferring_reference(), &shapes()[0]));

    let mut unknown = leader.adoptable_decisions();
    unknown[0].condition = "color == 3".to_owned();
    assert!(follower.adopt_decisions(&unknown).unwrap_err().has(ReasonCode::PolicyInvalid));
}

fn engine_preferring_reference() -> Engine {
    let mut kernels = kernels();
    kernels[0].priority = 90;
    engine(kernels)
}

#[test]
fn differences_are_reported_with_reasons() {
    let expected = frozen(&engine(kernels()), &shapes());
    let what = |verification: &lz_engine::freeze::Verification| {
        verification.differing.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };

    // A removed kernel.
    let other = engine(kernels().into_iter().take(2));
    frozen(&other, &shapes());
    let verification = other.verify_lockfile(&expected);
    assert!(!verification.agrees());
    assert!(what(&verification).contains("[KERNEL_UNKNOWN] demo.attend has no kernel hungry.attend here"));
    assert!(what(&verification).contains("capabilities: expected"), "{}", what(&verification));

    // Another policy.
    let other = engine(kernels());
    let lock = Lock {
        operation: Pattern::new("demo.attend"),
        kernel: "reference.attend".to_owned(),
        condition: None,
        source: Provenance::new("layerzero.yaml:3"),
    };
    other.set_policy(Policy { locks: vec![lock], ..Policy::default() });
    let calls: Vec<_> = shapes().iter().map(|shape| (attend(), shape.context())).collect();
    let verification = other.verify_calls(&expected, &calls).unwrap();
    assert!(what(&verification).contains("policy: expected"), "{}", what(&verification));
    assert!(what(&verification).contains("[POLICY_LOCKED_OTHER]"), "{}", what(&verification));

    // A better kernel.
    let other = engine(kernels());
    other.register([entry(spec("new.attend").priority(90))]).unwrap();
    let verification = other.verify_calls(&expected, &calls).unwrap();
    let text = what(&verification);
    assert!(text.contains("can run it, but scores 50.0 while new.attend scores 90.0"), "{text}");

    // Fewer or more calls than were locked are not differences.
    let same = engine(kernels());
    frozen(&same, &shapes()[..2]);
    let verification = same.verify_lockfile(&expected);
    assert!(verification.agrees() && verification.unlocked.is_empty(), "{verification:?}");
    assert_eq!(verification.unmet.len(), expected.decisions().count() - 2);
}

#[test]
fn lockfile_is_compared_and_an_invalid_one_rejected() {
    let folder = Folder::new();
    let path = folder.file("layerzero.lock");
    let engine = engine(kernels());
    let lockfile = frozen(&engine, &shapes());
    std::fs::write(&path, lockfile.text()).unwrap();
    assert!(engine.verify_lockfile_at(&path).unwrap().agrees());
    std::fs::write(&path, lockfile.text().replace("small.attend", "large.attend")).unwrap();
    assert!(engine.verify_lockfile_at(&path).unwrap_err().has(ReasonCode::LockfileInvalid));
    assert!(engine.verify_lockfile_at(&folder.file("none")).unwrap_err().has(ReasonCode::LockfileInvalid));
}

const CHILD: &str = "LZ_FREEZE_CHILD";

#[test]
fn lockfile_is_identical_across_processes() {
    let here = frozen(&engine(kernels()), &shapes()).text();
    if std::env::var_os(CHILD).is_some() {
        println!("{here}<<<end");
        return;
    }
    for _ in 0..2 {
        let output = Command::new(std::env::current_exe().expect("tests know where they are"))
            .args([
                "--exact",
                "freeze::lockfile_is_identical_across_processes",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(CHILD, "1")
            .output()
            .expect("this very test can be started again");
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).expect("it is text");
        let start = text.find("# The decisions").expect("the lockfile is printed");
        let end = text.find("<<<end").expect("it is printed whole");
        assert_eq!(text[start..end], here);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// For any limits: the lockfile does not depend on the order of calls.
    #[test]
    fn digest_is_independent_of_call_order(
        limits in vec_of((0u8..9, vec_of(select(vec![
            "seq % 8 == 0", "seq % 16 == 0", "batch * seq <= 4000", "seq <= 300", "batch > 2", "window < 2",
        ]), 0..3)), 1..5),
        mut shapes in vec_of((1i64..9, 1i64..600, 0i64..4), 1..30),
    ) {
        let kernels: Vec<KernelSpec> = limits.iter().enumerate().map(|(number, (priority, limits))| {
            let kernel = spec(&format!("some.x.{number}")).priority(*priority + 1);
            limits.iter().fold(kernel, |kernel, limit| kernel.limit(limit, ReasonCode::AxisLimit))
        }).chain([spec("reference.attend")]).collect();
        let calls = |shapes: &[(i64, i64, i64)]| -> Vec<Shape> {
            let shape = |(batch, seq, window): &(i64, i64, i64)| Shape {
                batch: *batch, seq: *seq, window: *window, ..Shape::default()
            };
            shapes.iter().map(shape).collect()
        };
        let forwards = frozen(&engine(kernels.clone()), &calls(&shapes));
        shapes.reverse();
        let backwards = frozen(&engine(kernels), &calls(&shapes));
        prop_assert_eq!(forwards.text(), backwards.text());
    }
}
