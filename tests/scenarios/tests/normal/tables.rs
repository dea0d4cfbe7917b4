//! Decisions made beforehand: dispatch tables that an engine solves and goes by, and lockfiles that prove what was decided.

use std::ops::ControlFlow;

use lz_core::{KernelSpec, ReasonCode};
use lz_engine::Engine;
use lz_engine::solver::{Problem, Work};
use lz_engine::table::Lockfile;
use lz_ops::NORM_RMS;
use lz_scenarios::calls::{Ask, Norm};
use lz_scenarios::house::{govern, host_house, host_spec, register};
use lz_scenarios::kernels::quiet;
use lz_test_support::Folder;

fn kernels() -> [KernelSpec; 3] {
    [
        host_spec("few.x").limit("rows <= 100", ReasonCode::AxisLimit).priority(90),
        host_spec("gemma.x").limit("weight_offset > 0.5", ReasonCode::ParamUnsupported).priority(95),
        host_spec("any.x"),
    ]
}

fn solved(engine: &Engine) -> String {
    let work = Work::new(&NORM_RMS, Norm::default().context().unwrap()).range("rows", 1..=4096);
    let problem = Problem { model_id: "llama3-8b".to_owned(), works: vec![work], ..Problem::default() };
    engine.solve(&problem, &mut |_| ControlFlow::Continue(())).unwrap().text
}

/// `lz solve` on one machine, loaded by the servers of the same kind: they decide by the table, and say so.
#[test]
fn a_table_is_solved_once_and_decides_for_every_server() {
    let folder = Folder::new();
    let path = folder.write("llama3.json", solved(&host_house(kernels())));
    let server = host_house(kernels());
    let state = server.load_dispatch_table(&path).unwrap();
    assert_eq!((state.operations, state.stale), (vec!["norm.rms".to_owned()], None));
    for (rows, expected) in [(1, "few.x"), (100, "few.x"), (101, "any.x"), (4096, "any.x")] {
        assert_eq!(Norm::rows(rows).serve(&server).unwrap(), expected);
        assert!(Norm::rows(rows).explain(&server).table.is_some_and(|table| table.acts), "{rows}");
    }
    let outside = Norm::rows(5000).explain(&server).table.unwrap();
    assert_eq!(outside.reason.map(|reason| reason.code), Some("PLAN_BUCKET_MISS"));
    assert_eq!(Norm::rows(5000).serve(&server).unwrap(), "any.x", "outside it is selected at run time");
}

/// A table solved for Llama must not answer for Gemma: the offset of the weight is a number, and a kernel looks at it.
#[test]
fn a_table_does_not_answer_for_another_number() {
    let server = host_house(kernels());
    server.use_dispatch_table("llama3.json", &solved(&host_house(kernels()))).unwrap();
    let gemma = Norm { weight_offset: 1.0, ..Norm::default() };
    for _ in 0..3 {
        assert_eq!(Norm::default().serve(&server).unwrap(), "few.x");
        assert_eq!(gemma.serve(&server).unwrap(), "gemma.x");
    }
    let table = gemma.explain(&server).table.unwrap();
    assert_eq!((table.acts, table.reason.map(|reason| reason.code)), (false, Some("PLAN_BUCKET_MISS")));
}

/// A plugin is installed on a running server: its table was solved without it, stands aside, and acts again when it is gone.
#[test]
fn a_table_stands_aside_while_other_kernels_are_there() {
    let server = host_house(kernels());
    server.use_dispatch_table("llama3.json", &solved(&server)).unwrap();
    register(&server, [quiet(host_spec("plugin.x").priority(99), &NORM_RMS)]);
    assert_eq!(Norm::default().serve(&server).unwrap(), "plugin.x");
    let why = server.dispatch_tables()[0].stale.clone().unwrap();
    assert!(why.contains("TABLE_CAPABILITIES_MISMATCH"), "{why}");
    server.unregister_backend("plugin");
    assert_eq!(server.dispatch_tables()[0].stale, None);
    assert!(Norm::default().explain(&server).table.is_some_and(|table| table.acts));
}

/// `lz freeze` in staging, checked in production: a preference that only production has is found with kernel and reason.
#[test]
fn a_lockfile_from_staging_shows_what_production_decides_otherwise() {
    let calls = [1, 64, 4096].map(|rows| (&NORM_RMS, Norm::rows(rows).context().unwrap()));
    let folder = Folder::new();
    let path = folder.write("layerzero.lock", host_house(kernels()).freeze_calls(&calls).unwrap().text());
    let text = std::fs::read_to_string(&path).unwrap();
    let staging = Lockfile::read("layerzero.lock", &text).unwrap();
    let production = host_house(kernels());
    assert!(production.verify_calls(&staging, &calls).unwrap().agrees());
    govern(&production, "prefer: [any.x]\n");
    govern(&production, "deny: [few.x]\n");
    let verification = production.verify_calls(&staging, &calls).unwrap();
    assert!(!verification.agrees());
    let told = format!("{:?}", verification.differing);
    assert!(told.contains("few.x") && told.contains("any.x"), "{told}");
}
