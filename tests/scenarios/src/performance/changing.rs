//! Cost of changes (policy, registry, lockfile) and of the first calls after them.

use std::hint::black_box;

use lz_engine::policy::Policy;
use lz_engine::policy::file::Document;
use lz_engine::table::{LockedDecision, Lockfile};
use lz_ops::NORM_RMS;

use super::Bench;
use super::naive::MutexMap;
use super::repeating::{decide, kernels, norms};
use crate::engines::{host_spec, vocabulary};
use crate::kernels::noop_kernel;

/// Replaces the policy of an engine with 32 kernels; compared with clearing a map of decisions.
pub fn a_policy_is_replaced(bench: &mut Bench) {
    let (engine, map, mut round) = (kernels(32), MutexMap::default(), 0.0);
    bench.compare(
        "clearing a map",
        500,
        || {
            round += 1.0;
            engine.set_policy(Policy { prefer_points: round, ..Policy::default() });
        },
        || map.clear(),
    );
}

/// Registers a plugin among 32 kernels, including compiling and checking its limits, and removes it again.
pub fn a_plugin_comes_and_goes(bench: &mut Bench) {
    let engine = kernels(32);
    bench.measure(200, || {
        let plugin = host_spec("plugin.x").limit("hidden % 8 == 0", lz_core::ReasonCode::AxisLimit);
        drop(black_box(engine.register([noop_kernel(plugin, &NORM_RMS)])));
        engine.unregister_backend("plugin");
    });
}

/// Replaces the policy and decides 64 shapes again, time per shape; compared with refilling a map.
pub fn sixty_four_shapes_after_a_reload(bench: &mut Bench) {
    let (engine, map, all, mut round) = (kernels(32), MutexMap::default(), norms(64), 0.0);
    let share = |total: f64| total / 64.0;
    let ours = bench_select::time(20, || {
        round += 1.0;
        engine.set_policy(Policy { prefer_points: round, ..Policy::default() });
        all.iter().for_each(|args| decide(&engine, args));
    });
    let theirs = bench_select::time(20, || {
        map.clear();
        all.iter().for_each(|args| {
            black_box(map.decide(args));
        });
    });
    bench.report("ns", share(ours), Some(("a map under a mutex", share(theirs))));
}

/// Reads a policy file of 20 rules and checks it against the whole catalog, as hot reload does.
pub fn a_policy_file_is_read(bench: &mut Bench) {
    let rules: String = (0..20)
        .map(|number| {
            format!(
                "  - {{ match: {{ operation: norm.*, hidden_size: '>={}' }}, prefer: torch }}\n",
                64 * number
            )
        })
        .collect();
    let (text, vocabulary) = (format!("version: 1\nrules:\n{rules}"), vocabulary());
    bench.measure(3, || drop(black_box(Document::read("layerzero.yaml", black_box(&text), &vocabulary))));
}

/// Writes a lockfile of 200 decisions, reads it back with a digest check, and compares the two.
pub fn a_lockfile_of_two_hundred_decisions(bench: &mut Bench) {
    let mut lockfile = Lockfile::new("cuda_sm90_cu130", "default", "abc");
    for number in 0..200 {
        lockfile.add(LockedDecision {
            operation: "norm.rms".to_owned(),
            context: format!("T=bf16 rows<=16 hidden={number}"),
            schema: "90a506da".to_owned(),
            kernel: "flashinfer.norm.rms".to_owned(),
            kernel_version: "0.6.4".to_owned(),
            fallbacks: vec!["torch.norm.rms".to_owned()],
        });
    }
    bench.measure(2, || {
        if let Ok(read) = Lockfile::read("layerzero.lock", &lockfile.text()) {
            black_box(read.compare(&lockfile));
        }
    });
}
