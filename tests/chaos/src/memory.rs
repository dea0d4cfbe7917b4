//! Allocations that fail.
//!
//! An allocation of data fails with an error of the call. Any other allocation ends a Rust program at once (`SIGABRT`): the process says
//! beforehand that it may end, and the driver starts it again and checks that nothing acknowledged is lost.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use lz_test_support::{FailingAllocator, fail_allocation_of};

use crate::counters::{self, Counter};
use crate::random::Random;

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

/// Where the process says that it may end; none before faults are injected.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();
/// Set at the end, when no more faults are injected.
static IS_CALM: AtomicBool = AtomicBool::new(false);

/// The start of the names of files that a process leaves if it ended because of a failed allocation.
fn mark(process: u32) -> String {
    format!("no-memory-{process}-")
}

/// Whether a process ended because of a failed allocation. Removes what it left.
pub fn has_ended(folder: &Path, process: u32) -> bool {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let marks = files.filter(|file| file.file_name().to_string_lossy().starts_with(&mark(process)));
    marks.filter(|file| fs::remove_file(file.path()).is_ok()).count() > 0
}

/// Starts to let allocations fail.
pub fn start(folder: &Path) {
    FOLDER.get_or_init(|| folder.to_owned());
}

/// No more allocations fail.
pub fn stop() {
    IS_CALM.store(true, Ordering::Relaxed);
}

/// Runs a call. Once in a while one allocation of its data, which has one of these sizes, fails in it, and rarely one of any size.
pub fn with_failures<R>(random: &mut Random, data: Range<usize>, call: impl FnOnce() -> R) -> R {
    let Some(folder) = FOLDER.get().filter(|_| !IS_CALM.load(Ordering::Relaxed)) else { return call() };
    let fail = |number: u64, sizes, call| {
        let (result, failed) = fail_allocation_of(number as u32, sizes, call);
        if failed {
            counters::add(Counter::FailedAllocations);
        }
        result
    };
    match random.below(5000) {
        0..250 => fail(random.below(2), data, call),
        250 => {
            // Another thread may be here too, so that each has a file of its own.
            let mark = folder.join(format!("{}{}", mark(std::process::id()), random.next()));
            if fs::write(&mark, b"").is_err() {
                return call();
            }
            let result = fail(random.below(30), 1..usize::MAX, call);
            fs::remove_file(mark).ok();
            result
        }
        _ => call(),
    }
}
