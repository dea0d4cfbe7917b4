//! Precomputed decisions: dispatch tables that an engine solves and uses, and lockfiles that record
//! decisions.

use std::ops::ControlFlow;

use lz_core::{KernelSpec, ReasonCode};
use lz_engine::Engine;
use lz_engine::solver::{Problem, Work};
use lz_engine::table::Lockfile;
use lz_ops::NORM_RMS;
use lz_scenarios::calls::{Norm, ScenarioCall};
use lz_scenarios::engines::{apply_policy, host_engine, host_spec, register};
use lz_scenarios::kernels::noop_kernel;
use lz_test_support::Folder;

fn kernels() -> [KernelSpec; 3] {
    [
        host_spec("few.x").limit("rows <= 100", ReasonCode::AxisLimit).priority(90),
        host_spec("gemma.x").limit("weight_offset > 0.5", ReasonCode::ParamUnsupported).priority(95),
        host_spec("any.x"),
    ]
}

fn solve_table(engine: &Engine) -> String {
    let work = Work::new(&NORM_RMS, Norm::default().context().unwrap()).range("rows", 1..=4096);
    let problem = Problem { model_id: "llama3-8b".to_owned(), works: vec![work], ..Problem::default() };
    engine.solve(&problem, &mut |_| ControlFlow::Continue(())).unwrap().text
}

/// `lz solve` on one machine, loaded by identical servers: they decide by the table and report it.
#[test]
fn a_table_is_solved_once_and_used_by_every_server() {
    let folder = Folder::new();
    let path = folder.write("llama3.json", solve_table(&host_engine(kernels())));
    let server = host_engine(kernels());
    let state = server.load_dispatch_table(&path).unwrap();
    assert_eq!((state.operations, state.stale), (vec!["norm.rms".to_owned()], None));
    for (rows, expected) in [(1, "few.x"), (100, "few.x"), (101, "any.x"), (4096, "any.x")] {
        assert_eq!(Norm::rows(rows).serve(&server).unwrap(), expected);
        assert!(Norm::rows(rows).explain(&server).table.is_some_and(|table| table.acts), "{rows}");
    }
    let outside = Norm::rows(5000).explain(&server).table.unwrap();
    assert_eq!(outside.reason.map(|reason| reason.code), Some("PLAN_BUCKET_MISS"));
    assert_eq!(
        Norm::rows(5000).serve(&server).unwrap(),
        "any.x",
        "outside the table, selection runs at call time"
    );
}

/// A table solved for Llama must not be used for Gemma: the weight offset is a parameter that a kernel limit
/// depends on.
#[test]
fn a_table_is_not_used_for_other_parameter_values() {
    let server = host_engine(kernels());
    server.use_dispatch_table("llama3.json", &solve_table(&host_engine(kernels()))).unwrap();
    let gemma = Norm { weight_offset: 1.0, ..Norm::default() };
    for _ in 0..3 {
        assert_eq!(Norm::default().serve(&server).unwrap(), "few.x");
        assert_eq!(gemma.serve(&server).unwrap(), "gemma.x");
    }
    let table = gemma.explain(&server).table.unwrap();
    assert_eq!((table.acts, table.reason.map(|reason| reason.code)), (false, Some("PLAN_BUCKET_MISS")));
}

/// A plugin is registered on a running server: the table was solved without it, becomes stale, and is used
/// again once the plugin is removed.
#[test]
fn a_table_is_stale_while_other_kernels_are_registered() {
    let server = host_engine(kernels());
    server.use_dispatch_table("llama3.json", &solve_table(&server)).unwrap();
    register(&server, [noop_kernel(host_spec("plugin.x").priority(99), &NORM_RMS)]);
    assert_eq!(Norm::default().serve(&server).unwrap(), "plugin.x");
    let why = server.dispatch_tables()[0].stale.clone().unwrap();
    assert!(why.contains("TABLE_CAPABILITIES_MISMATCH"), "{why}");
    server.unregister_backend("plugin");
    assert_eq!(server.dispatch_tables()[0].stale, None);
    assert!(Norm::default().explain(&server).table.is_some_and(|table| table.acts));
}

/// `lz freeze` in staging, verified in production: a decision that differs in production is reported with
/// kernel and reason.
#[test]
fn verifying_a_lockfile_reports_differing_decisions() {
    let calls = [1, 64, 4096].map(|rows| (&NORM_RMS, Norm::rows(rows).context().unwrap()));
    let folder = Folder::new();
    let path = folder.write("layerzero.lock", host_engine(kernels()).freeze_calls(&calls).unwrap().text());
    let text = std::fs::read_to_string(&path).unwrap();
    let staging = Lockfile::read("layerzero.lock", &text).unwrap();
    let production = host_engine(kernels());
    assert!(production.verify_calls(&staging, &calls).unwrap().agrees());
    apply_policy(&production, "prefer: [any.x]\n");
    apply_policy(&production, "deny: [few.x]\n");
    let verification = production.verify_calls(&staging, &calls).unwrap();
    assert!(!verification.agrees());
    let differences = format!("{:?}", verification.differing);
    assert!(differences.contains("few.x") && differences.contains("any.x"), "{differences}");
}
