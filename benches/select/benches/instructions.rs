//! The instructions of the same cases, for gungraun, which keeps a history and tells what has changed.
#![allow(missing_docs, clippy::disallowed_methods, reason = "that is what the macros of gungraun write")]

use std::hint::black_box;

use bench_select::counted::{cache, direct_calls, inline_hits, misses, shared_hits, static_calls};
use bench_select::{House, Nothing, Tensors, decide, full_house};
use gungraun::{library_benchmark, library_benchmark_group, main};
use lz_ops::NormRmsCall;

/// A house that has seen all of its calls.
struct Ready {
    house: House,
    calls: Vec<NormRmsCall<'static>>,
}

/// Nothing here is measured, and the process ends after one benchmark: what calls borrow may stay for ever.
fn ready() -> Ready {
    let tensors: &'static Tensors = Box::leak(Box::new(Tensors::new(64)));
    let args = Box::leak(Box::new(tensors.args().expect("the tensors fit")));
    let calls: Vec<NormRmsCall<'static>> =
        args.iter().map(|one| one.check().expect("the calls are right")).collect();
    let house = full_house(args).expect("the house can be built");
    for call in calls.iter().chain(&calls) {
        decide(&house.engine, call).expect("a kernel runs");
    }
    Ready { house, calls }
}

/// The same, where one call was the last.
fn remembered() -> Ready {
    let ready = ready();
    for _ in 0..2 {
        decide(&ready.house.engine, &ready.calls[0]).expect("a kernel runs");
    }
    ready
}

/// The same, where nothing is kept.
fn uncached() -> Ready {
    let ready = ready();
    cache(&ready.house.engine, false);
    decide(&ready.house.engine, &ready.calls[0]).expect("a kernel runs");
    ready
}

#[library_benchmark]
#[bench::thousand(remembered())]
fn inline_hit(ready: Ready) -> Ready {
    black_box(inline_hits(&ready.house.engine, &ready.calls[0])).expect("a kernel runs");
    ready
}

#[library_benchmark]
#[bench::thousand(ready())]
fn shared_hit(ready: Ready) -> Ready {
    black_box(shared_hits(&ready.house.engine, &ready.calls)).expect("a kernel runs");
    ready
}

#[library_benchmark]
#[bench::quarter_thousand(uncached())]
fn uncached_decision(ready: Ready) -> Ready {
    black_box(misses(&ready.house.engine, &ready.calls)).expect("a kernel runs");
    ready
}

#[library_benchmark]
#[bench::thousand(ready())]
fn static_mode(ready: Ready) -> Ready {
    let mut place = vec![0.0f32; 4 * 64];
    static_calls(&Nothing, &ready.calls[0], &mut place).expect("a kernel runs");
    ready
}

#[library_benchmark]
#[bench::thousand(ready())]
fn direct_call(ready: Ready) -> Ready {
    let mut place = vec![0.0f32; 4 * 64];
    direct_calls(&Nothing, &ready.calls[0], &mut place).expect("a kernel runs");
    ready
}

library_benchmark_group!(name = select, benchmarks = [inline_hit, shared_hit, uncached_decision]);
library_benchmark_group!(name = modes, compare_by_id = true, benchmarks = [direct_call, static_mode]);
main!(library_benchmark_groups = [select, modes]);
