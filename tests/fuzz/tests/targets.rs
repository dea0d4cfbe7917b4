//! The short form of every fuzz target: its corpus, and a fixed sequence of mutations of it.
//!
//! `LZ_FUZZ_CASE=17 cargo test -p lz-fuzz schema` runs a single mutation; `LZ_FUZZ_SEED` selects another sequence.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use lz_conformance::random::{Random, case_seed};
use lz_fuzz::{Target, corpus, mutate};

/// Time that one call of a kernel may take here, where it is some milliseconds on an idle machine.
const MAX_TIME: Duration = Duration::from_secs(3);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn short(name: &str) {
    let target = Target::find(name).unwrap_or_else(|| panic!("no target {name}"));
    let inputs = corpus::read(target);
    assert!(inputs.len() >= 3, "{name}: {} inputs in the corpus", inputs.len());
    let mut accepted = 0;
    for (file, input) in &inputs {
        accepted += u64::from(guarded(target, &format!("corpus/{name}/{file}"), input));
    }
    assert!(accepted > 0, "{name}: no input of the corpus is accepted");
    let seed = number("LZ_FUZZ_SEED").unwrap_or(0);
    let only = number("LZ_FUZZ_CASE");
    for case in only.map_or(0..u64::from(target.mutations), |case| case..case + 1) {
        let mut random = Random::new(case_seed(name, "fuzz", case ^ seed << 32));
        let input = mutate::mutate(&inputs, &mut random, target.max_bytes);
        accepted += u64::from(guarded(target, &format!("LZ_FUZZ_CASE={case} LZ_FUZZ_SEED={seed}"), &input));
    }
    println!("{name}: {accepted} inputs were accepted");
}

/// Runs an input; a failure names it and keeps it as a file. Returns whether the input was accepted.
fn guarded(target: &Target, what: &str, input: &[u8]) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(|| target.check(input)));
    outcome.unwrap_or_else(|panic| {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", target.name));
        std::fs::write(&path, input).ok();
        eprintln!("{}: {what} fails; the input is in {}", target.name, path.display());
        resume_unwind(panic)
    })
}

/// A call of every kernel, also the first one of a process. With instrumentation a call takes several times as long, and no input may
/// hold up the search.
#[test]
fn no_kernel_takes_long() {
    let target = Target::find("kernels").expect("a target");
    let subjects =
        u8::try_from(lz_conformance::generated::SUBJECTS.len()).expect("a byte selects the operation");
    for subject in 0..subjects {
        // The second byte selects the kernel, the third the largest sizes.
        for kernel in 0..12 {
            let start = Instant::now();
            guarded(target, &format!("operation {subject}, kernel {kernel}"), &[subject, kernel, 100]);
            let elapsed = start.elapsed();
            assert!(elapsed < MAX_TIME, "operation {subject}, kernel {kernel}: {elapsed:?}");
        }
    }
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                short(stringify!($name));
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            let names: Vec<&str> = lz_fuzz::TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets!(
    artifact,
    descriptor,
    elf,
    environment,
    expression,
    expression_text,
    flashinfer,
    kernels,
    lockfile,
    log_filter,
    onnx,
    perfdb_import,
    perfdb_merge,
    plugin,
    policy,
    safetensors,
    schema,
    sentencepiece,
    table,
    tokenizer,
    worker,
);
