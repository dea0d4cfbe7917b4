//! CPU kernels at the workloads of their schemas, beside what the machine can do and what torch does (and faer, where it can), in one run.
//!
//! `cargo xtask bench cpu [--json] [--op NAME] [--row TEXT]… [--threads N] [--kernel ID] [--large] [--calls FILE]`: with `--op` only operations
//! whose name contains it, with `--row` rows whose name contains one of the texts, with `--kernel` kernels whose id contains it instead
//! of the one of highest priority, with `--large` workloads of many gigabytes too. With `--calls` nothing is measured: the calls of the
//! schemas' workloads are written to a file, one a line.

mod calls;
mod cases;
mod limits;
mod peer;
mod product;
mod report;
mod sweep;

use std::io::Write;
use std::time::{Duration, Instant};

use cases::{Case, Wanted};
use limits::Limits;
use lz_conformance::generated::SUBJECTS;
use lz_core::run::Run;
use lz_cpu::pool;
use peer::Peer;
use product::Product;
use report::Report;

/// Ours and the peer's take turns so many times.
const ROUNDS: usize = 5;

/// How long one turn measures.
const TURN: Duration = Duration::from_millis(60);

/// A case whose runs take longer than this has fewer turns.
const SLOW: Duration = Duration::from_millis(300);

/// Tensors of a case without `--large`: larger than any cache, and quickly filled.
const MOST_BYTES: usize = 1280 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1).map(String::as_str)
    };
    let follows = arguments.iter().zip(arguments.iter().skip(1));
    let rows: Vec<&str> = follows.filter(|(name, _)| *name == "--row").map(|(_, row)| row.as_str()).collect();
    let most_bytes =
        if arguments.iter().any(|argument| argument == "--large") { usize::MAX } else { MOST_BYTES };
    let wanted = Wanted { kernel: value("--kernel"), rows: &rows, most_bytes };
    let report = Report { json: arguments.iter().any(|argument| argument == "--json") };
    let most = pool::threads();
    let threads: Vec<usize> = match value("--threads") {
        Some(text) => vec![text.parse()?],
        None if most > 1 => vec![1, most],
        None => vec![1],
    };
    if let Some(path) = value("--calls") {
        return write_calls(path, value("--op"), wanted);
    }
    let mut peer = Peer::start();
    report.note(&peer.describe());
    for &threads in &threads {
        let limits = pool::with_threads(threads, Limits::measure);
        limits.print(&report, threads);
        for subject in SUBJECTS {
            if value("--op").is_some_and(|wanted| !subject.info().name.contains(wanted)) {
                continue;
            }
            for case in cases::of(subject, wanted)? {
                pool::with_threads(threads, || measure(&report, &limits, &mut peer, case, threads))?;
            }
        }
    }
    Ok(())
}

/// The calls of the workloads that schemas name, without the sweep.
fn write_calls(
    path: &str,
    operation: Option<&str>,
    wanted: Wanted<'_>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for subject in SUBJECTS {
        let schema = subject.info().schema();
        if operation.is_some_and(|wanted| !schema.name.contains(wanted)) {
            continue;
        }
        for case in cases::of(subject, wanted)? {
            if schema.workloads.iter().any(|workload| workload.name == case.workload) {
                writeln!(file, "{}", calls::described(schema, &case))?;
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
    let mut product = Product::of(&case, threads);
    let (mut ours, mut theirs, mut faers, mut least) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let begin = Instant::now();
    run(&mut case)?;
    let rounds = if begin.elapsed() > SLOW { 2 } else { ROUNDS };
    for _ in 0..rounds {
        ours.push(turn(threads, || run(&mut case))?);
        least.push(turn(threads, || {
            limits.least(&case.work);
            Ok(())
        })?);
        if theirs_ready {
            theirs.extend(peer.turn(TURN));
        }
        if let Some(product) = &mut product {
            faers.push(turn(threads, || {
                product.multiply();
                Ok(())
            })?);
        }
    }
    let (ours, least) = (typical(&mut ours), typical(&mut least));
    let theirs = (!theirs.is_empty()).then(|| typical(&mut theirs));
    let limit = limits.share(&case.work, least, ours);
    report.row(&case, threads, ours, ("torch", theirs), limit);
    if product.is_some() {
        report.row(&case, threads, ours, ("faer", Some(typical(&mut faers))), limit);
    }
    Ok(())
}

fn run(case: &mut Case) -> Result<(), String> {
    let (kernel, workspace, scratch) = (&case.kernel, case.workspace, &mut case.scratch);
    let outcome =
        case.call.lend(|args, outputs| kernel.kernel.run(args, outputs, &mut Run::new(scratch, workspace)));
    outcome.map_err(|error| format!("{}: {error}", kernel.spec.id))
}

/// Nanoseconds of one run: of a turn's runs the one that a tenth was faster than. The machine is shared, and whatever else it does
/// only ever adds.
fn turn(threads: usize, mut body: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while begin.elapsed() < TURN || (times.len() < 3 && begin.elapsed() < SLOW) {
        let start = now(threads);
        body()?;
        times.push(now(threads) - start);
    }
    Ok(fast(&mut times))
}

/// Nanoseconds: of one thread those that it ran, so that what else the machine does counts less; of more, the clock's.
fn now(threads: usize) -> f64 {
    let clock = if threads == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is there, and both clocks exist.
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

/// The turn that was disturbed least, for ours and theirs alike: whatever else the machine does only ever adds.
fn typical(turns: &mut [f64]) -> f64 {
    turns.sort_by(f64::total_cmp);
    turns.first().copied().unwrap_or(f64::NAN)
}
