//! Cost of decision cache misses, and of `which` and `explain`.

use std::hint::black_box;

use lz_core::ReasonCode;
use lz_device::detect_cpu;
use lz_engine::Engine;
use lz_engine::policy::{CacheConfig, Policy, WithSource};
use lz_ops::NORM_RMS;
use lz_perfdb::PerfDb;

use super::Bench;
use super::naive::{best, checks};
use super::repeating::{decide, kernels, norm, norms};
use crate::calls::{Norm, ScenarioCall};
use crate::engines::{apply_policy, host_engine, host_spec};
use crate::measured::{evidence, measurement, spec_of};
use lz_test_support::Folder;

/// Disables the decision cache, so that every call runs selection.
fn uncached(engine: &Engine) {
    let mut policy = Policy::clone(&engine.policy());
    let off = CacheConfig { enabled: false, ..policy.cache.value };
    policy.cache = WithSource::new(off, "the benchmark");
    engine.set_policy(policy);
}

fn cache_misses(bench: &Bench, engine: &Engine, count: i64) {
    uncached(engine);
    let (all, closures) = (norms(64), checks(count));
    let (mut ours, mut theirs) = (all.iter().cycle(), all.iter().cycle());
    bench.compare(
        "a list of closures",
        1_000,
        || ours.next().into_iter().for_each(|args| decide(engine, black_box(args))),
        || {
            black_box(theirs.next().and_then(|args| best(&closures, black_box(args))));
        },
    );
}

/// Cache miss with 4 candidate kernels; compared with 4 hand-written checks.
pub fn the_first_call_of_a_shape_with_four_kernels(bench: &mut Bench) {
    cache_misses(bench, &kernels(4), 4);
}

/// Cache miss with 32 candidate kernels; compared with 32 hand-written checks.
pub fn the_first_call_of_a_shape_with_thirty_two_kernels(bench: &mut Bench) {
    cache_misses(bench, &kernels(32), 32);
}

/// Cache miss with 20 policy rules.
pub fn the_first_call_under_twenty_rules(bench: &mut Bench) {
    let engine = kernels(32);
    let rules: String = (0..20)
        .map(|number| {
            format!("  - {{ condition: hidden_size >= {}, prefer: backend{} }}\n", 64 * number, number % 8)
        })
        .collect();
    apply_policy(&engine, &format!("rules:\n{rules}"));
    cache_misses(bench, &engine, 32);
}

/// Cache miss with measurements loaded from disk once; compared with one database query per kernel.
pub fn the_first_call_with_figures_from_disk(bench: &mut Bench) {
    let (folder, device) = (Folder::new(), detect_cpu());
    let (database, engine) = (PerfDb::open(folder.database()).db, kernels(32));
    let call = Norm { hidden: 4096, ..Norm::default() };
    let rows: Vec<_> = engine
        .registry()
        .kernels()
        .map(|entry| measurement(&call, &spec_of(&engine, &entry.spec.id), &device, 1000.0))
        .collect();
    if database.record_all(&rows).is_err() {
        return;
    }
    engine.set_evidence(Some(evidence(&database, &device)));
    uncached(&engine);
    let (args, key) = (norm(4, 4096), rows[0].key.clone());
    bench.compare(
        "a question to SQLite",
        500,
        || decide(&engine, black_box(&args)),
        || {
            let query = lz_perfdb::Query {
                operation: &key.operation,
                setting: &key.setting,
                dtypes: &key.dtypes,
                bucket: &key.bucket,
            };
            black_box(database.lookup(query, lz_perfdb::unix_now()));
        },
    );
}

/// A call that no kernel can run: the rejection reasons of 32 kernels are built on every call.
pub fn a_call_that_nothing_can_run(bench: &mut Bench) {
    let impossible =
        |number: u8| host_spec(&format!("k{number}.x")).limit("hidden >= 100000", ReasonCode::AxisLimit);
    let engine = host_engine((0..32).map(impossible));
    let args = norm(4, 64);
    bench.measure(500, || decide(&engine, black_box(&args)));
}

/// `which` for a call with 32 kernels: the plan with all fallbacks.
pub fn asking_which_kernel_would_run(bench: &mut Bench) {
    let engine = kernels(32);
    let Ok(context) = Norm::default().context() else { return };
    bench.measure(500, || drop(black_box(engine.which(&NORM_RMS, black_box(&context)))));
}

/// `explain` for a call with 32 kernels: every candidate and every score term, as data.
pub fn explaining_a_decision(bench: &mut Bench) {
    let engine = kernels(32);
    let Ok(context) = Norm::default().context() else { return };
    bench.measure(500, || drop(black_box(engine.explain(&NORM_RMS, black_box(&context)))));
}

/// `explain` for a call with 32 kernels, formatted as text.
pub fn an_explanation_as_a_table(bench: &mut Bench) {
    let engine = kernels(32);
    let explanation = Norm::default().explain(&engine);
    bench.measure(500, || drop(black_box(black_box(&explanation).to_string())));
}
