//! Where one answer ends and the next begins: buckets, limits inside of buckets, conditions that no bucket can hold, ties.

use lz_core::ReasonCode;
use lz_device::detect_cpu;
use lz_engine::policy::{Action, CacheConfig, Pattern, Policy, Provenance, Rule, Sourced};
use lz_ops::NORM_RMS;
use lz_perfdb::PerfDb;
use lz_scenarios::calls::{Ask, Norm};
use lz_scenarios::house::{host_house, host_spec, register};
use lz_scenarios::kernels::quiet;
use lz_scenarios::measured::{evidence, measurement, spec_of};
use lz_scenarios::process::rank;
use lz_test_support::Folder;

fn served(engine: &lz_engine::Engine, rows: &[i64]) -> Vec<String> {
    rows.iter().map(|rows| Norm::rows(*rows).serve(engine).unwrap()).collect()
}

/// A tactic used outside the range it was tuned for (flashinfer#5449): figures for 16 rows say nothing about 17.
#[test]
fn a_figure_counts_in_its_bucket_only() {
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

/// A plugin that is installed later has a limit in the middle of a bucket that is cached already: no cached answer survives wrongly.
#[test]
fn a_later_plugin_cuts_a_cached_bucket() {
    let engine = host_house([host_spec("old.x")]);
    assert_eq!(served(&engine, &[20, 200]), ["old.x", "old.x"]);
    assert_eq!(engine.cached_decisions(), 1, "one bucket");
    let plugin = host_spec("plugin.x").limit("rows <= 100", ReasonCode::AxisLimit).priority(90);
    register(&engine, [quiet(plugin, &NORM_RMS)]);
    for _ in 0..3 {
        assert_eq!(served(&engine, &[20, 100, 101, 200]), ["plugin.x", "plugin.x", "old.x", "old.x"]);
    }
    assert_eq!(engine.cached_decisions(), 2, "the bucket was cut");
}

/// A kernel's limit is on a product of axes, which no bucket can hold: each call of the cached bucket is looked at again.
#[test]
fn a_limit_on_a_product_is_looked_at_on_each_call() {
    let engine = host_house([
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

/// Only batches that fill whole tiles of eight: neighbours in one bucket alternate between two kernels.
#[test]
fn a_limit_on_a_remainder_alternates_inside_a_bucket() {
    let engine = host_house([
        host_spec("eights.x").limit("rows % 8 == 0", ReasonCode::AxisLimit).priority(90),
        host_spec("any.x"),
    ]);
    for _ in 0..3 {
        assert_eq!(served(&engine, &[24, 25, 32, 33]), ["eights.x", "any.x", "eights.x", "any.x"]);
    }
}

/// A rule about a float that is not part of the key: Gemma's norms and others take turns, and each gets its own kernel.
#[test]
fn a_rule_about_a_float_is_looked_at_on_each_call() {
    let engine = host_house([host_spec("alpha.x"), host_spec("gemma.x")]);
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

/// Two kernels are equally good: the one with the smaller id runs, whatever the order in which they were registered.
#[test]
fn ties_are_broken_by_name_and_not_by_order() {
    let names = ["delta.x", "alpha.x", "charlie.x", "bravo.x"];
    for turn in 0..names.len() {
        let engine =
            host_house((0..names.len()).map(|at| host_spec(names[(at + turn) % names.len()]).priority(50)));
        let plan = Norm::default().which(&engine).unwrap();
        assert_eq!(
            (plan.kernel.as_str(), plan.fallbacks),
            ("alpha.x", vec!["bravo.x".into(), "charlie.x".into(), "delta.x".into()])
        );
    }
}

fn with_cache(cache: CacheConfig) -> lz_engine::Engine {
    let engine = host_house([
        host_spec("small.x").limit("hidden <= 100", ReasonCode::AxisLimit).priority(90),
        host_spec("large.x"),
    ]);
    engine.set_policy(Policy { cache: Sourced::new(cache, "layerzero.yaml:1"), ..Policy::default() });
    engine
}

/// The cache is switched off to hunt a bug: nothing is kept, every answer is the same.
#[test]
fn without_a_cache_every_answer_is_the_same() {
    let engine = with_cache(CacheConfig { enabled: false, ..CacheConfig::default() });
    for hidden in [64, 101, 64, 101] {
        let expected = if hidden <= 100 { "small.x" } else { "large.x" };
        assert_eq!(Norm::hidden(hidden).serve(&engine).unwrap(), expected);
    }
    assert_eq!(engine.cached_decisions(), 0);
}

/// The time to live of decisions is zero: they expire at once, calls stay right over many thousands of hits.
#[test]
fn decisions_that_expire_at_once_stay_right() {
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

/// `cache.max_size: 1` on a tiny machine: one decision is kept at most, and calls of two cells in turn get each its own.
#[test]
fn a_cache_of_one_keeps_one_decision_and_every_answer_right() {
    let engine = with_cache(CacheConfig { max_entries: 1, ..CacheConfig::default() });
    for _ in 0..50 {
        for (hidden, expected) in [(64, "small.x"), (101, "large.x"), (100, "small.x")] {
            assert_eq!(Norm::hidden(hidden).serve(&engine).unwrap(), expected);
            assert!(engine.cached_decisions() <= 1, "{} are kept", engine.cached_decisions());
        }
    }
}
