//! CPU kernels at the workloads of their schemas, beside what the machine can do and what torch does, in one run.
//!
//! `cargo xtask bench cpu [--json] [--op NAME] [--threads N] [--kernel ID]`: with `--op` only operations whose name contains it, with
//! `--kernel` kernels whose id contains it instead of the one of highest priority.

mod cases;
mod limits;
mod peer;
mod report;

use std::time::{Duration, Instant};

use cases::Case;
use limits::Limits;
use lz_conformance::generated::SUBJECTS;
use lz_core::run::Run;
use lz_cpu::pool;
use peer::Peer;
use report::Report;

/// Ours and the peer's take turns so many times.
const ROUNDS: usize = 5;

/// How long one turn measures.
const TURN: Duration = Duration::from_millis(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1).map(String::as_str)
    };
    let report = Report { json: arguments.iter().any(|argument| argument == "--json") };
    let most = pool::threads();
    let threads: Vec<usize> = match value("--threads") {
        Some(text) => vec![text.parse()?],
        None if most > 1 => vec![1, most],
        None => vec![1],
    };
    let mut peer = Peer::start();
    report.note(&peer.describe());
    for &threads in &threads {
        let limits = pool::with_threads(threads, Limits::measure);
        limits.print(&report, threads);
        for subject in SUBJECTS {
            if value("--op").is_some_and(|wanted| !subject.info().name.contains(wanted)) {
                continue;
            }
            for case in cases::of(subject, value("--kernel"))? {
                pool::with_threads(threads, || measure(&report, &limits, &mut peer, case, threads))?;
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
    let (mut ours, mut theirs, mut least) = (Vec::new(), Vec::new(), Vec::new());
    run(&mut case)?;
    for _ in 0..ROUNDS {
        ours.push(turn(|| run(&mut case))?);
        least.push(turn(|| {
            limits.least(&case.work);
            Ok(())
        })?);
        if theirs_ready {
            theirs.extend(peer.turn(TURN));
        }
    }
    let (ours, least) = (typical(&mut ours), typical(&mut least));
    let theirs = (!theirs.is_empty()).then(|| typical(&mut theirs));
    let limit = limits.share(&case.work, least, ours);
    report.row(&case, threads, ours, theirs, limit);
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
fn turn(mut body: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || begin.elapsed() < TURN {
        let start = Instant::now();
        body()?;
        times.push(start.elapsed().as_nanos() as f64);
    }
    Ok(fast(&mut times))
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
