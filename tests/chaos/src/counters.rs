//! Counters that outlive a killed process: numbers in a file that all serving processes map.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Counter {
    FailedAllocations,
    FailedReads,
    FailedWrites,
    FailedSyncs,
    FailedMaps,
    FailedForks,
    FailedThreadStarts,
    ClockJumps,
    Forks,
    PluginsLoaded,
    PluginsRefused,
    LockfilesRead,
    LockfilesRefused,
}

impl Counter {
    /// All counters with their names.
    pub const ALL: [(Counter, &'static str); 13] = [
        (Counter::FailedAllocations, "failed allocations"),
        (Counter::FailedReads, "failed reads"),
        (Counter::FailedWrites, "failed writes"),
        (Counter::FailedSyncs, "failed syncs"),
        (Counter::FailedMaps, "failed maps of memory"),
        (Counter::FailedForks, "failed forks"),
        (Counter::FailedThreadStarts, "failed starts of threads"),
        (Counter::ClockJumps, "clock jumps"),
        (Counter::Forks, "forks in the middle"),
        (Counter::PluginsLoaded, "plugins reloaded"),
        (Counter::PluginsRefused, "broken plugins refused"),
        (Counter::LockfilesRead, "lockfiles read"),
        (Counter::LockfilesRefused, "damaged lockfiles refused"),
    ];
}

const BYTES: usize = Counter::ALL.len() * size_of::<u64>();

/// The mapped numbers; null if none are mapped, and then nothing is counted.
static MAPPED: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// Maps the numbers of a run, in a file that is created if it does not exist.
pub fn map(folder: &Path) -> io::Result<()> {
    let path = folder.join("counters");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    file.set_len(BYTES as u64)?;
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping of an open file.
    let address = unsafe { libc::mmap(null_mut(), BYTES, access, flags, file.as_raw_fd(), 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    MAPPED.store(address.cast(), Ordering::Release);
    Ok(())
}

fn find(counter: Counter) -> Option<&'static AtomicU64> {
    let numbers = MAPPED.load(Ordering::Acquire);
    // SAFETY: null, or a mapping with a number for each counter that is never unmapped.
    unsafe { numbers.wrapping_add(counter as usize).as_ref() }.filter(|_| !numbers.is_null())
}

/// Counts one.
pub fn add(counter: Counter) {
    if let Some(number) = find(counter) {
        number.fetch_add(1, Ordering::Relaxed);
    }
}

/// The number of all processes so far.
pub fn read(counter: Counter) -> u64 {
    find(counter).map_or(0, |number| number.load(Ordering::Relaxed))
}
