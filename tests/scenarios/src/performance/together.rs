//! Two concurrent threads: the cache hit path writes no shared memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use lz_engine::policy::Policy;
use lz_ops::NormRms;

use super::Bench;
use super::naive::MutexMap;
use super::repeating::{decide, kernels, norms};

/// Calls per thread and measurement.
const CALLS: usize = 200_000;

/// Nanoseconds per call with two concurrent threads, best of five.
fn time_two_threads(shapes: &[NormRms<'static>], work: impl Fn(&NormRms<'_>) + Sync) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Barrier::new(2);
        let nanoseconds: f64 = thread::scope(|scope| {
            let workers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        let begin = Instant::now();
                        shapes.iter().cycle().take(CALLS).for_each(|args| work(black_box(args)));
                        begin.elapsed().as_nanos() as f64
                    })
                })
                .collect();
            workers.into_iter().filter_map(|worker| worker.join().ok()).fold(0.0, f64::max)
        });
        best = best.min(nanoseconds / CALLS as f64);
    }
    best
}

fn two_threads(bench: &Bench, shapes: i64) {
    let (engine, map, all) = (kernels(32), MutexMap::default(), norms(shapes));
    let ours = time_two_threads(&all, |args| decide(&engine, args));
    let theirs = time_two_threads(&all, |args| {
        black_box(map.decide(args));
    });
    bench.report("ns", ours, Some(("a map under a mutex", theirs)));
}

/// Two threads on one shape; compared with a map under a mutex.
pub fn two_threads_on_one_shape(bench: &mut Bench) {
    two_threads(bench, 1);
}

/// Two threads on 64 shapes; compared with a map under a mutex.
pub fn two_threads_on_sixty_four_shapes(bench: &mut Bench) {
    two_threads(bench, 64);
}

/// Two threads while the policy is replaced continuously; compared with a map under a mutex that is cleared
/// continuously.
pub fn two_threads_while_the_policy_reloads(bench: &mut Bench) {
    let (engine, map, all) = (kernels(32), MutexMap::default(), norms(4));
    let during = |change: &(dyn Fn(u32) + Sync), measure: &dyn Fn() -> f64| {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    change(round);
                    thread::yield_now();
                }
            });
            let measured = measure();
            stop.store(true, Ordering::Relaxed);
            measured
        })
    };
    let reload = |round: u32| {
        engine.set_policy(Policy { prefer_points: 20.0 + f64::from(round % 2), ..Policy::default() });
    };
    let ours = during(&reload, &|| time_two_threads(&all, |args| decide(&engine, args)));
    let by_map = |args: &NormRms<'_>| {
        black_box(map.decide(args));
    };
    let theirs = during(&|_| map.clear(), &|| time_two_threads(&all, by_map));
    bench.report("ns", ours, Some(("a map under a mutex", theirs)));
}
