//! Instruction counts of the same cases for gungraun, which keeps a history and reports changes.
#![allow(missing_docs, clippy::disallowed_methods, reason = "that is what the macros of gungraun write")]

use std::hint::black_box;

use bench_select::counted::{cache, direct_calls, inline_hits, misses, shared_hits, static_calls};
use bench_select::{BenchEngine, NoopKernel, Tensors, bench_engine, decide};
use gungraun::{library_benchmark, library_benchmark_group, main};
use lz_ops::NormRmsCall;

/// A benchmark engine whose caches contain all of its calls.
struct Ready {
    bench: BenchEngine,
    calls: Vec<NormRmsCall<'static>>,
}

/// Not measured. The process ends after one benchmark, so the borrowed tensors may be leaked.
fn ready() -> Ready {
    let tensors: &'static Tensors = Box::leak(Box::new(Tensors::new(64)));
    let args = Box::leak(Box::new(tensors.args().expect("the tensors fit")));
    let calls: Vec<NormRmsCall<'static>> =
        args.iter().map(|one| one.check().expect("the calls are right")).collect();
    let bench = bench_engine(args).expect("the benchmark engine can be built");
    for call in calls.iter().chain(&calls) {
        decide(&bench.engine, call).expect("a kernel runs");
    }
    Ready { bench, calls }
}

/// The same, with one call as the most recent one (inline hit).
fn inline_ready() -> Ready {
    let ready = ready();
    for _ in 0..2 {
        decide(&ready.bench.engine, &ready.calls[0]).expect("a kernel runs");
    }
    ready
}

/// The same, with the decision cache disabled.
fn uncached() -> Ready {
    let ready = ready();
    cache(&ready.bench.engine, false);
    decide(&ready.bench.engine, &ready.calls[0]).expect("a kernel runs");
    ready
}

#[library_benchmark]
#[bench::thousand(inline_ready())]
fn inline_hit(ready: Ready) -> Ready {
    black_box(inline_hits(&ready.bench.engine, &ready.calls[0])).expect("a kernel runs");
    ready
}

#[library_benchmark]
#[bench::thousand(ready())]
fn shared_hit(ready: Ready) -> Ready {
    black_box(shared_hits(&ready.bench.engine, &ready.calls)).expect("a kernel runs");
    ready
}

#[library_benchmark]
#[bench::quarter_thousand(uncached())]
fn uncached_decision(ready: Ready) -> Ready {
    black_box(misses(&ready.bench.engine, &ready.calls)).expect("a kernel runs");
    ready
}

#[library_benchmark]
#[bench::thousand(ready())]
fn static_mode(ready: Ready) -> Ready {
    let mut output = vec![0.0f32; 4 * 64];
    static_calls(&NoopKernel, &ready.calls[0], &mut output).expect("a kernel runs");
    ready
}

#[library_benchmark]
#[bench::thousand(ready())]
fn direct_call(ready: Ready) -> Ready {
    let mut output = vec![0.0f32; 4 * 64];
    direct_calls(&NoopKernel, &ready.calls[0], &mut output).expect("a kernel runs");
    ready
}

library_benchmark_group!(name = select, benchmarks = [inline_hit, shared_hit, uncached_decision]);
library_benchmark_group!(name = modes, compare_by_id = true, benchmarks = [direct_call, static_mode]);
main!(library_benchmark_groups = [select, modes]);
