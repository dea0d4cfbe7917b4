//! Faults on purpose: several processes serve calls while kernels crash, hang and return wrong values, worker processes are killed,
//! policy files, lockfiles, plugins and databases break, system calls and allocations fail, the clock jumps, and processes die. Checks that
//! every call returns the right values or a listed error, that nothing acknowledged is lost, that nothing leaks, and that health recovers.
//!
//! `lz-chaos --seed N --seconds S [--processes P] [--threads T]`. A seed determines which faults are injected; their timing depends on
//! the machine.

mod calls;
mod counters;
mod counts;
mod driver;
mod faults;
mod leaks;
mod lockfiles;
mod memory;
mod plugins;
mod random;
mod serving;
mod system;

use std::process::ExitCode;
use std::time::Duration;

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Determines which faults are injected.
    pub seed: u64,
    /// How long faults are injected.
    pub time: Duration,
    /// Number of serving processes.
    pub processes: u64,
    /// Number of threads that call, in each process.
    pub threads: u64,
}

const USAGE: &str = "usage: lz-chaos [--seed N] [--seconds S] [--processes P] [--threads T]";

fn main() -> ExitCode {
    if lz_worker::settings::is_worker() {
        return faults::serve_worker();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, rest @ ..] = &arguments[..]
        && mode == "serve"
    {
        return serving::main(rest);
    }
    let mut options = Options { seed: 1, time: Duration::from_secs(30), processes: 3, threads: 3 };
    for pair in arguments.chunks(2) {
        let [flag, value] = pair else { return usage() };
        let Ok(value) = value.parse::<u64>() else { return usage() };
        match flag.as_str() {
            "--seed" => options.seed = value,
            "--seconds" => options.time = Duration::from_secs(value),
            "--processes" => options.processes = value.max(1),
            "--threads" => options.threads = value.max(1),
            _ => return usage(),
        }
    }
    driver::run(&options)
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::FAILURE
}
