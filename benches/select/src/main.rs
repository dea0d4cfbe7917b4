//! Prints the latency of selection; with `--json` one object per line, as `cargo xtask bench` expects.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dashmap::DashMap;

use bench_select::counted::{
    INLINE_HITS, MISSES, SHARED_HITS, STATIC_CALLS, cache, direct_calls, inline_hits, misses, shared_hits,
    static_calls, whole_calls,
};
use bench_select::{
    NoopKernel, Tensors, bench_engine, call, context, decide, instructions, time, whole_call,
};
use lz_core::Error;
use lz_engine::Engine;
use lz_engine::policy::Policy;
use lz_ops::{NORM_RMS, NormRms};

struct Report {
    json: bool,
}

impl Report {
    fn line(&self, case: &str, unit: &str, ours: f64, limit: Option<f64>) {
        let peer = limit.map_or_else(|| "null".to_owned(), |limit| format!("{limit}"));
        if self.json {
            println!(
                "{{\"bench\": \"select\", \"case\": \"{case}\", \"unit\": \"{unit}\", \"ours\": {ours:.3}, \"peer\": null, \"theirs\": null, \"speedup\": null, \"limit\": {peer}}}"
            );
        } else {
            let target = limit.map_or_else(String::new, |limit| format!("   (target: {limit} {unit})"));
            println!("{case:<58} {ours:>10.2} {unit}{target}");
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let has_flag = |word: &str| std::env::args().any(|argument| argument == word);
    let report = Report { json: has_flag("--json") };
    let tensors = Tensors::new(64);
    let args = tensors.args()?;
    if has_flag("--count-static") {
        return count_static(&args[0]);
    }
    let bench = bench_engine(&args)?;
    let engine = &bench.engine;
    if has_flag("--count") {
        return count(engine, &args);
    }
    single(&report, engine, &args)?;
    threads(&report, engine, &args[0])?;
    count_instructions(&report);
    Ok(())
}

/// Runs this program under callgrind, if installed.
fn count_instructions(report: &Report) {
    let cases = [
        ("inline hit: instructions", "--count", "inline_hits", INLINE_HITS),
        ("shared hit: instructions", "--count", "shared_hits", SHARED_HITS),
        ("uncached: instructions", "--count", "misses", MISSES),
        ("whole call on an inline hit: instructions", "--count", "whole_calls", INLINE_HITS),
        ("static mode: instructions", "--count-static", "static_calls", STATIC_CALLS),
        ("the same by a direct call: instructions", "--count-static", "direct_calls", STATIC_CALLS),
    ];
    if !instructions::can_count() {
        eprintln!("valgrind is not installed: instructions were not counted");
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    for (case, argument, function, calls) in cases {
        if let Some(all) = instructions::count(&program, argument, function) {
            report.line(case, "instructions", all as f64 / calls as f64, None);
        }
    }
}

/// Direct and static-mode calls of a kernel, for counting.
fn count_static(args: &NormRms<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let call = args.check()?;
    let mut output = vec![0.0f32; args.x.elements() as usize];
    direct_calls(&NoopKernel, &call, &mut output)?;
    static_calls(&NoopKernel, &call, &mut output)?;
    Ok(())
}

/// A few calls of each kind, each in a separate function, for counting.
fn count(engine: &Engine, args: &[NormRms<'_>]) -> Result<(), Box<dyn std::error::Error>> {
    let calls: Result<Vec<_>, Error> = args.iter().map(NormRms::check).collect();
    let calls = calls?;
    for one in calls.iter().chain(&calls) {
        decide(engine, one)?;
    }
    shared_hits(engine, &calls)?;
    for _ in 0..100 {
        decide(engine, &calls[0])?;
    }
    inline_hits(engine, &calls[0])?;
    let mut output = vec![0.0f32; args[0].x.elements() as usize];
    whole_call(engine, &args[0], &mut output)?;
    whole_call(engine, &args[0], &mut output)?;
    whole_calls(engine, &args[0], &mut output)?;
    let cached = cache(engine, false);
    // The one-time cost of a new policy is not part of a decision.
    decide(engine, &calls[0])?;
    misses(engine, &calls)?;
    engine.set_policy(cached);
    Ok(())
}

fn single(report: &Report, engine: &Engine, args: &[NormRms<'_>]) -> Result<(), Error> {
    let first = &args[0];
    let checked = first.check()?;
    for one in args {
        call(engine, one)?;
    }
    report.line("check alone", "ns", time(100_000, || drop(black_box(black_box(first).check()))), None);
    report.line(
        "context alone",
        "ns",
        time(100_000, || {
            black_box(context(black_box(&checked)));
        }),
        None,
    );
    let inline = time(100_000, || drop(black_box(decide(engine, black_box(&checked)))));
    report.line("inline hit: context and decision", "ns", inline, Some(10.0));
    let whole = time(100_000, || drop(black_box(call(engine, black_box(first)))));
    report.line("inline hit: check, context and decision", "ns", whole, None);
    let mut four = args.iter().take(4).cycle();
    let cycled_calls = time(100_000, || drop(black_box(four.next().map(|one| call(engine, one)))));
    report.line("inline hit: 4 alternating calls, with check", "ns", cycled_calls, None);

    let calls: Result<Vec<_>, Error> = args.iter().map(NormRms::check).collect();
    let calls = calls?;
    let mut many = calls.iter().cycle();
    let shared = time(100_000, || drop(black_box(many.next().map(|one| decide(engine, one)))));
    report.line("shared hit: 64 alternating calls, context and decision", "ns", shared, Some(25.0));

    let by_map: DashMap<Vec<u64>, u32> =
        calls.iter().zip(0..).map(|(one, kernel)| (one.context().words().to_vec(), kernel)).collect();
    let mut many = calls.iter().cycle();
    let looked_up = time(100_000, || {
        black_box(many.next().and_then(|one| by_map.get(one.context().words()).map(|kernel| *kernel)));
    });
    report.line("for comparison: 64 alternating calls, context and DashMap lookup", "ns", looked_up, None);

    let mut output = vec![0.0f32; first.x.elements() as usize];
    let typed = time(100_000, || drop(black_box(whole_call(engine, black_box(first), &mut output))));
    report.line("inline hit: a whole call into a given output", "ns", typed, None);

    let contexts: Vec<_> = calls.iter().map(|one| one.context()).collect();
    let cached = cache(engine, false);
    let mut cycled_contexts = contexts.iter().cycle();
    let miss = time(2_000, || {
        drop(black_box(
            cycled_contexts.next().map(|one| engine.dispatch(&NORM_RMS, one, &mut |_, _| Ok(()))),
        ));
    });
    report.line("uncached: 32 candidates, 20 rules, 16 rows", "ns", miss, Some(3000.0));
    engine.set_policy(cached);
    Ok(())
}

/// Runs `work` on `threads` threads for a while; returns the sum of their rates, in runs per nanosecond.
fn rate(threads: usize, work: impl Fn() + Sync) -> f64 {
    let start = Barrier::new(threads);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    let (begin, mut runs) = (Instant::now(), 0u64);
                    while !stop.load(Ordering::Relaxed) {
                        (0..1000).for_each(|_| work());
                        runs += 1000;
                    }
                    runs as f64 / begin.elapsed().as_nanos() as f64
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(400));
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap_or(0.0)).sum()
    })
}

/// A loop without memory accesses: the gain of a second thread on this machine.
fn register_work() {
    let mut word = black_box(1u64);
    for _ in 0..16 {
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7);
    }
    black_box(word);
}

fn threads(report: &Report, engine: &Engine, args: &NormRms<'_>) -> Result<(), Error> {
    let checked = args.check()?;
    let work = || drop(black_box(decide(engine, black_box(&checked))));
    let mut quiet = Vec::new();
    let mut reloading = Vec::new();
    for _ in 0..5 {
        let machine = rate(2, register_work) / rate(1, register_work);
        quiet.push(rate(2, work) / rate(1, work) / machine);
        reloading.push(reloaded(engine, || rate(2, work)) / rate(1, work) / machine);
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    report.line("2 threads, share of a register loop's gain", "x", median(quiet), Some(0.95));
    report.line("the same, policy reloaded 100 times a second", "x", median(reloading), Some(0.85));
    Ok(())
}

/// Measures while the policy is replaced a hundred times per second.
fn reloaded(engine: &Engine, measure: impl FnOnce() -> f64) -> f64 {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0.0;
            while !stop.load(Ordering::Relaxed) {
                let mut policy = Policy::clone(&engine.policy());
                round += 1.0;
                policy.prefer_points = 20.0 + round % 2.0;
                engine.set_policy(policy);
                thread::sleep(Duration::from_millis(10));
            }
        });
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        measured
    })
}
