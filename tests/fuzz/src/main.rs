//! Runs one fuzz target: with coverage guidance if it was built for it, otherwise on the files that are given.
//!
//! `lz-fuzz` lists the targets. `lz-fuzz TARGET ARGUMENTS…` passes the arguments to libFuzzer: folders of corpora, which it extends, and
//! options such as `-max_total_time=600`. Without coverage the arguments are files and folders that are replayed.

use std::process::ExitCode;

use lz_fuzz::{TARGETS, Target};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        return ExitCode::SUCCESS;
    };
    let Some(target) = Target::find(&name) else {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("unknown target `{name}`; expected one of {}", names.join(", "));
        return ExitCode::FAILURE;
    };
    run(target, arguments.collect())
}

#[cfg(feature = "coverage")]
fn run(target: &'static Target, mut arguments: Vec<String>) -> ExitCode {
    arguments.insert(0, format!("-max_len={}", target.max_bytes));
    // bolero passes the arguments of libFuzzer in this variable, separated by spaces.
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("BOLERO_LIBFUZZER_ARGS", arguments.join(" ")) };
    start(target);
    ExitCode::SUCCESS
}

#[cfg(feature = "coverage")]
fn start(target: &'static Target) {
    // Shrinking repeats the input many times; libFuzzer writes it to a file as it is.
    bolero::check!().with_shrink_time(std::time::Duration::ZERO).for_each(|input: &[u8]| {
        target.check(input);
    });
}

#[cfg(not(feature = "coverage"))]
fn run(target: &'static Target, arguments: Vec<String>) -> ExitCode {
    let (mut files, mut accepted) = (0, 0);
    for argument in arguments {
        let path = std::path::PathBuf::from(&argument);
        let inside = std::fs::read_dir(&path);
        let paths = match inside {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(_) => vec![path],
        };
        for path in paths {
            match std::fs::read(&path) {
                Ok(bytes) => accepted += u64::from(target.check(&bytes)),
                Err(error) => {
                    eprintln!("{}: {error}", path.display());
                    return ExitCode::FAILURE;
                }
            }
            files += 1;
        }
    }
    println!("{}: {files} inputs without a finding, {accepted} of them accepted", target.name);
    ExitCode::SUCCESS
}
