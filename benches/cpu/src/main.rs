//! Benchmarks CPU kernels on the workloads of their schemas, compared with the machine's limits and with
//! torch (and faer, where applicable), in one run.
//!
//! `cargo xtask bench cpu [--json] [--op NAME] [--row TEXT]… [--threads N] [--kernel ID] [--large] [--calls
//! FILE]`: `--op` runs only operations whose name contains NAME, `--row` only rows whose name contains one of
//! the texts, `--kernel` kernels whose id contains ID instead of the one with the highest priority, `--large`
//! also workloads of many gigabytes. With `--calls` nothing is measured: the calls of the schemas' workloads
//! are written to a file, one per line.

mod calls;
mod cases;
mod limits;
mod peer;
mod product;
mod report;
mod sweep;

use std::io::Write;
use std::time::{Duration, Instant};

use cases::{Case, Filter};
use limits::Limits;
use lz_conformance::generated::SUBJECTS;
use lz_core::run::Run;
use lz_cpu::pool;
use peer::Peer;
use product::FaerGemm;
use report::Report;

/// Number of interleaved rounds (ours, then the peer's).
const ROUNDS: usize = 5;

/// Duration of one sample.
const SAMPLE_DURATION: Duration = Duration::from_millis(60);

/// Cases whose runs take longer have fewer rounds.
const SLOW: Duration = Duration::from_millis(300);

/// Maximum bytes of tensors of a case without `--large`: larger than any cache, and quick to fill.
const MAX_BYTES: usize = 1280 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let position = arguments.iter().position(|argument| argument == name)?;
        arguments.get(position + 1).map(String::as_str)
    };
    let follows = arguments.iter().zip(arguments.iter().skip(1));
    let rows: Vec<&str> = follows.filter(|(name, _)| *name == "--row").map(|(_, row)| row.as_str()).collect();
    let max_bytes =
        if arguments.iter().any(|argument| argument == "--large") { usize::MAX } else { MAX_BYTES };
    let filter = Filter { kernel: value("--kernel"), rows: &rows, max_bytes };
    let report = Report { json: arguments.iter().any(|argument| argument == "--json") };
    let max_threads = pool::threads();
    let threads: Vec<usize> = match value("--threads") {
        Some(text) => vec![text.parse()?],
        None if max_threads > 1 => vec![1, max_threads],
        None => vec![1],
    };
    if let Some(path) = value("--calls") {
        return write_calls(path, value("--op"), filter);
    }
    let mut peer = Peer::start();
    report.note(&peer.describe());
    for &threads in &threads {
        let limits = pool::with_threads(threads, Limits::measure);
        limits.print(&report, threads);
        for subject in SUBJECTS {
            if value("--op").is_some_and(|name| !subject.info().name.contains(name)) {
                continue;
            }
            for case in cases::of(subject, filter)? {
                pool::with_threads(threads, || measure(&report, &limits, &mut peer, case, threads))?;
            }
        }
    }
    Ok(())
}

/// Writes the calls of the schemas' workloads, without the sweep.
fn write_calls(
    path: &str,
    operation: Option<&str>,
    filter: Filter<'_>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for subject in SUBJECTS {
        let schema = subject.info().schema();
        if operation.is_some_and(|name| !schema.name.contains(name)) {
            continue;
        }
        for case in cases::of(subject, filter)? {
            if schema.workloads.iter().any(|workload| workload.name == case.workload) {
                writeln!(file, "{}", calls::case_description(schema, &case))?;
            }
        }
    }
    Ok(())
}

fn measure(
    report: &Report,
    limits: &Limits,
    peer: &mut Peer,
    mut case: Case,
    threads: usize,
) -> Result<(), String> {
    let theirs_ready = peer.prepare(&case, threads);
    let mut product = FaerGemm::of(&case, threads);
    let (mut ours, mut theirs, mut faers, mut minimum_traffic) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let begin = Instant::now();
    run(&mut case)?;
    let rounds = if begin.elapsed() > SLOW { 2 } else { ROUNDS };
    for _ in 0..rounds {
        ours.push(sample(threads, || run(&mut case))?);
        minimum_traffic.push(sample(threads, || {
            limits.minimum_traffic(&case.work);
            Ok(())
        })?);
        if theirs_ready {
            theirs.extend(peer.sample(SAMPLE_DURATION));
        }
        if let Some(product) = &mut product {
            faers.push(sample(threads, || {
                product.run();
                Ok(())
            })?);
        }
    }
    let (ours, minimum_traffic) = (fastest(&mut ours), fastest(&mut minimum_traffic));
    let theirs = (!theirs.is_empty()).then(|| fastest(&mut theirs));
    let limit = limits.share(&case.work, minimum_traffic, ours);
    report.row(&case, threads, ours, ("torch", theirs), limit);
    if product.is_some() {
        report.row(&case, threads, ours, ("faer", Some(fastest(&mut faers))), limit);
    }
    Ok(())
}

fn run(case: &mut Case) -> Result<(), String> {
    let (kernel, workspace, scratch) = (&case.kernel, case.workspace, &mut case.scratch);
    let outcome = case
        .call
        .with_args(|args, outputs| kernel.kernel.run(args, outputs, &mut Run::new(scratch, workspace)));
    outcome.map_err(|error| format!("{}: {error}", kernel.spec.id))
}

/// Nanoseconds per run: the 10th percentile of the runs of a sample, because other load on the machine only
/// adds time.
fn sample(threads: usize, mut body: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while begin.elapsed() < SAMPLE_DURATION || (times.len() < 3 && begin.elapsed() < SLOW) {
        let start = now(threads);
        body()?;
        times.push(now(threads) - start);
    }
    Ok(fast(&mut times))
}

/// Nanoseconds: CPU time for one thread, which excludes other load; wall-clock time for several.
fn now(threads: usize) -> f64 {
    let clock = if threads == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid, and both clocks exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn fast(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 10).copied().unwrap_or(f64::NAN)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The fastest sample, for ours and theirs alike: other load on the machine only adds time.
fn fastest(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.first().copied().unwrap_or(f64::NAN)
}
