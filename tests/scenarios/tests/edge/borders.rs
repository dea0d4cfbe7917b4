//! Boundaries between decisions: buckets, limits inside buckets, conditions that no bucket can represent,
//! ties.

use lz_core::ReasonCode;
use lz_device::detect_cpu;
use lz_engine::policy::{Action, CacheConfig, Pattern, Policy, Provenance, Rule, WithSource};
use lz_ops::NORM_RMS;
use lz_perfdb::PerfDb;
use lz_scenarios::calls::{Norm, ScenarioCall};
use lz_scenarios::engines::{host_engine, host_spec, register};
use lz_scenarios::kernels::noop_kernel;
use lz_scenarios::measured::{evidence, measurement, spec_of};
use lz_scenarios::process::rank;
use lz_test_support::Folder;

fn served(engine: &lz_engine::Engine, rows: &[i64]) -> Vec<String> {
    rows.iter().map(|rows| Norm::rows(*rows).serve(engine).unwrap()).collect()
}

/// A tactic used outside the range it was tuned for (flashinfer#5449): measurements for 16 rows do not apply
/// to 17.
#[test]
fn a_measurement_applies_to_its_bucket_only() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    let engine = rank();
    database
        .record(&measurement(&Norm::rows(16), &spec_of(&engine, "gamma.norm.rms"), &detect_cpu(), 9.0))
        .unwrap();
    engine.set_evidence(Some(evidence(&database, &detect_cpu())));
    assert_eq!(
        served(&engine, &[1, 2, 16, 17, 256]),
        ["alpha.norm.rms", "gamma.norm.rms", "gamma.norm.rms", "alpha.norm.rms", "alpha.norm.rms"]
    );
}

/// A plugin that is registered later has a limit inside a bucket that is already cached: no cached decision
/// stays wrong.
#[test]
fn a_later_plugin_splits_a_cached_bucket() {
    let engine = host_engine([host_spec("old.x")]);
    assert_eq!(served(&engine, &[20, 200]), ["old.x", "old.x"]);
    assert_eq!(engine.cached_decisions(), 1, "one bucket");
    let plugin = host_spec("plugin.x").limit("rows <= 100", ReasonCode::AxisLimit).priority(90);
    register(&engine, [noop_kernel(plugin, &NORM_RMS)]);
    for _ in 0..3 {
        assert_eq!(served(&engine, &[20, 100, 101, 200]), ["plugin.x", "plugin.x", "old.x", "old.x"]);
    }
    assert_eq!(engine.cached_decisions(), 2, "the bucket was cut");
}

/// A kernel has a limit on a product of axes, which no bucket can represent: it is evaluated on each call of
/// the cached bucket.
#[test]
fn a_limit_on_a_product_is_evaluated_on_each_call() {
    let engine = host_engine([
        host_spec("tiled.x").limit("rows * hidden <= 6400", ReasonCode::AxisLimit).priority(90),
        host_spec("plain.x"),
    ]);
    for _ in 0..3 {
        assert_eq!(
            served(&engine, &[100, 101, 100, 250, 17]),
            ["tiled.x", "plain.x", "tiled.x", "plain.x", "tiled.x"]
        );
    }
}

/// A kernel needs batches that are multiples of eight: consecutive sizes in one bucket alternate between two
/// kernels.
#[test]
fn a_limit_on_a_remainder_alternates_inside_a_bucket() {
    let engine = host_engine([
        host_spec("eights.x").limit("rows % 8 == 0", ReasonCode::AxisLimit).priority(90),
        host_spec("any.x"),
    ]);
    for _ in 0..3 {
        assert_eq!(served(&engine, &[24, 25, 32, 33]), ["eights.x", "any.x", "eights.x", "any.x"]);
    }
}

/// A rule depends on a float that is not part of the cache key: Gemma's norms and others alternate, and each
/// gets its own kernel.
#[test]
fn a_rule_about_a_float_is_evaluated_on_each_call() {
    let engine = host_engine([host_spec("alpha.x"), host_spec("gemma.x")]);
    let rule = Rule {
        name: "gemma".to_owned(),
        operations: Pattern::new("norm.*"),
        condition: Some("weight_offset > 0.5".to_owned()),
        actions: vec![Action::Lock("gemma.x".to_owned())],
        source: Provenance::new("layerzero.yaml:2"),
    };
    engine.set_policy(Policy { rules: vec![rule], ..Policy::default() });
    let gemma = Norm { weight_offset: 1.0, ..Norm::default() };
    for _ in 0..3 {
        assert_eq!(Norm::default().serve(&engine).unwrap(), "alpha.x");
        assert_eq!(gemma.serve(&engine).unwrap(), "gemma.x");
    }
}

/// Two kernels have equal scores: the one with the smaller id runs, independent of registration order.
#[test]
fn ties_are_broken_by_id() {
    let names = ["delta.x", "alpha.x", "charlie.x", "bravo.x"];
    for turn in 0..names.len() {
        let engine =
            host_engine((0..names.len()).map(|at| host_spec(names[(at + turn) % names.len()]).priority(50)));
        let plan = Norm::default().which(&engine).unwrap();
        assert_eq!(
            (plan.kernel.as_str(), plan.fallbacks),
            ("alpha.x", vec!["bravo.x".into(), "charlie.x".into(), "delta.x".into()])
        );
    }
}

fn with_cache(cache: CacheConfig) -> lz_engine::Engine {
    let engine = host_engine([
        host_spec("small.x").limit("hidden <= 100", ReasonCode::AxisLimit).priority(90),
        host_spec("large.x"),
    ]);
    engine.set_policy(Policy { cache: WithSource::new(cache, "layerzero.yaml:1"), ..Policy::default() });
    engine
}

/// The cache is disabled for debugging: nothing is stored, every decision is the same.
#[test]
fn without_a_cache_every_decision_is_the_same() {
    let engine = with_cache(CacheConfig { enabled: false, ..CacheConfig::default() });
    for hidden in [64, 101, 64, 101] {
        let expected = if hidden <= 100 { "small.x" } else { "large.x" };
        assert_eq!(Norm::hidden(hidden).serve(&engine).unwrap(), expected);
    }
    assert_eq!(engine.cached_decisions(), 0);
}

/// The time to live of decisions is zero: they expire immediately, and decisions stay correct over many
/// thousands of hits.
#[test]
fn decisions_with_zero_ttl_stay_correct() {
    let engine =
        with_cache(CacheConfig { time_to_live: std::time::Duration::ZERO, ..CacheConfig::default() });
    let (small, context) = (Norm::hidden(64), Norm::hidden(64).context().unwrap());
    let before = engine.generation();
    for _ in 0..70_000 {
        engine
            .dispatch(small.operation(), &context, &mut |entry, _| {
                assert_eq!(entry.spec.id, "small.x");
                Ok(())
            })
            .unwrap();
    }
    assert!(engine.generation() > before, "a new state followed when the old one had expired");
}

/// `cache.max_size: 1`: at most one decision is stored, and alternating calls of two cache keys each get
/// their own kernel.
#[test]
fn a_cache_of_one_entry_stays_correct() {
    let engine = with_cache(CacheConfig { max_entries: 1, ..CacheConfig::default() });
    for _ in 0..50 {
        for (hidden, expected) in [(64, "small.x"), (101, "large.x"), (100, "small.x")] {
            assert_eq!(Norm::hidden(hidden).serve(&engine).unwrap(), expected);
            assert!(engine.cached_decisions() <= 1, "{} are kept", engine.cached_decisions());
        }
    }
}
