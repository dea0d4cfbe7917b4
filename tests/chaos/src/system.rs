//! System calls that fail on purpose, and a clock that jumps.
//!
//! The functions here have the names of those of the C library, so that the linker resolves every call in this program to them: of the
//! standard library, of SQLite and of LayerZero. Outside of a window they only forward. Reads, writes and syncs fail for regular files
//! only, and `mmap` for descriptors only: the standard library treats the failure of its own pipes and signal stacks as a bug.

#![allow(non_snake_case, reason = "names of the C library")]

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::counters::{self, Counter};
use crate::random::Random;

/// A group of functions that fail together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Call {
    /// `read` and `pread` fail with EIO.
    Read = 1,
    /// `write` and `pwrite` fail with ENOSPC, as on a full disk.
    Write = 2,
    /// `fsync`, `fdatasync` and `ftruncate` fail with EIO.
    Sync = 3,
    /// `mmap` of a descriptor fails with ENOMEM.
    Map = 4,
    /// `fork` and `posix_spawn` fail with EAGAIN.
    Fork = 5,
    /// `pthread_create` fails with EAGAIN.
    Thread = 6,
}

impl Call {
    /// All groups.
    pub const ALL: [Call; 6] = [Call::Read, Call::Write, Call::Sync, Call::Map, Call::Fork, Call::Thread];

    fn counter(self) -> Counter {
        match self {
            Call::Read => Counter::FailedReads,
            Call::Write => Counter::FailedWrites,
            Call::Sync => Counter::FailedSyncs,
            Call::Map => Counter::FailedMaps,
            Call::Fork => Counter::FailedForks,
            Call::Thread => Counter::FailedThreadStarts,
        }
    }
}

/// The group that fails now; 0 for none.
static FAILING: AtomicU32 = AtomicU32::new(0);
/// Every Nth call of the group fails.
static EVERY: AtomicU64 = AtomicU64::new(1);
/// Calls of the group in this window.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// Seconds that are added to the wall clock.
static OFFSET: AtomicI64 = AtomicI64::new(0);

/// Lets every Nth call of a random group fail for a moment.
pub fn fail_for_a_moment(random: &mut Random) {
    EVERY.store(1 + random.below(3), Ordering::Relaxed);
    CALLS.store(0, Ordering::Relaxed);
    FAILING.store(*random.pick(&Call::ALL) as u32, Ordering::Release);
    std::thread::sleep(Duration::from_millis(20 + random.below(60)));
    FAILING.store(0, Ordering::Release);
}

/// Moves the wall clock by up to 100 days for a moment, forward or backward. The monotonic clock does not jump.
pub fn jump_the_clock(random: &mut Random) {
    const DAYS: i64 = 100;
    let days = i64::try_from(random.below(2 * DAYS.unsigned_abs())).unwrap_or(0) - DAYS;
    OFFSET.store(days * 86_400 + 1, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(20 + random.below(60)));
    OFFSET.store(0, Ordering::Relaxed);
}

/// Nothing fails and no clock jumps any more: in a forked child, which does not have the thread that would end it.
pub fn stop() {
    FAILING.store(0, Ordering::Release);
    OFFSET.store(0, Ordering::Relaxed);
}

fn fails(call: Call) -> bool {
    if FAILING.load(Ordering::Acquire) != call as u32 {
        return false;
    }
    let fails = CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVERY.load(Ordering::Relaxed).max(1));
    if fails {
        counters::add(call.counter());
    }
    fails
}

/// Whether a descriptor is a regular file.
fn is_file(descriptor: c_int) -> bool {
    // SAFETY: an all-zero `stat` is valid, and the call fills it in.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        libc::fstat(descriptor, &raw mut status) == 0 && status.st_mode & libc::S_IFMT == libc::S_IFREG
    }
}

fn set_error(error: c_int) {
    // SAFETY: the address of this thread's error number.
    unsafe { *libc::__errno_location() = error };
}

/// The function of the C library with this name.
///
/// # Safety
/// `F` is the type of a pointer to that function.
unsafe fn real<F: Copy>(slot: &AtomicUsize, name: &CStr) -> F {
    // No `OnceLock`: a forked child could inherit it half made.
    let mut address = slot.load(Ordering::Relaxed);
    if address == 0 {
        // SAFETY: a null-terminated name.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
        slot.store(address, Ordering::Relaxed);
    }
    // SAFETY: an address is as large as a pointer to a function, and has the type that the caller guarantees.
    unsafe { (&raw const address).cast::<F>().read() }
}

/// Defines a function that fails in its window and otherwise forwards to the C library.
macro_rules! failing {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty { $when:expr => $error:ident, $failed:expr })*) => {
        $(
            /// As the function of the C library, except in a window of failures.
            ///
            /// # Safety
            /// As for the function of the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                if $when {
                    set_error(libc::$error);
                    return $failed;
                }
                static REAL: AtomicUsize = AtomicUsize::new(0);
                let name = concat!(stringify!($name), "\0");
                let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or(c"");
                type Function = unsafe extern "C" fn($($kind),*) -> $result;
                // SAFETY: the C library has a function of this name and type; the caller's guarantees are passed on.
                unsafe { real::<Function>(&REAL, name)($($argument),*) }
            }
        )*
    };
}

failing! {
    fn read(file: c_int, to: *mut c_void, bytes: usize) -> isize { fails_for(Call::Read, file) => EIO, -1 }
    fn pread64(file: c_int, to: *mut c_void, bytes: usize, at: i64) -> isize { fails_for(Call::Read, file) => EIO, -1 }
    fn write(file: c_int, from: *const c_void, bytes: usize) -> isize { fails_for(Call::Write, file) => ENOSPC, -1 }
    fn pwrite64(file: c_int, from: *const c_void, bytes: usize, at: i64) -> isize {
        fails_for(Call::Write, file) => ENOSPC, -1
    }
    fn fsync(file: c_int) -> c_int { fails_for(Call::Sync, file) => EIO, -1 }
    fn fdatasync(file: c_int) -> c_int { fails_for(Call::Sync, file) => EIO, -1 }
    fn ftruncate64(file: c_int, size: i64) -> c_int { fails_for(Call::Sync, file) => EIO, -1 }
    fn mmap(at: *mut c_void, size: usize, access: c_int, flags: c_int, file: c_int, start: i64) -> *mut c_void {
        file >= 0 && fails(Call::Map) => ENOMEM, libc::MAP_FAILED
    }
    fn mmap64(at: *mut c_void, size: usize, access: c_int, flags: c_int, file: c_int, start: i64) -> *mut c_void {
        file >= 0 && fails(Call::Map) => ENOMEM, libc::MAP_FAILED
    }
    fn fork() -> c_int { fails(Call::Fork) => EAGAIN, -1 }
    fn posix_spawn(
        child: *mut c_int, path: *const c_void, actions: *const c_void, attributes: *const c_void, arguments: *const c_void,
        environment: *const c_void
    ) -> c_int { fails(Call::Fork) => EAGAIN, libc::EAGAIN }
    fn posix_spawnp(
        child: *mut c_int, path: *const c_void, actions: *const c_void, attributes: *const c_void, arguments: *const c_void,
        environment: *const c_void
    ) -> c_int { fails(Call::Fork) => EAGAIN, libc::EAGAIN }
    fn pthread_create(
        thread: *mut c_void, attributes: *const c_void, start: *const c_void, argument: *mut c_void
    ) -> c_int { fails(Call::Thread) => EAGAIN, libc::EAGAIN }
}

fn fails_for(call: Call, file: c_int) -> bool {
    FAILING.load(Ordering::Acquire) == call as u32 && is_file(file) && fails(call)
}

/// As the function of the C library; the wall clock is moved while it jumps.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    type Function = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;
    // SAFETY: the C library has a function of this name and type; the caller's guarantees are passed on.
    let result = unsafe { real::<Function>(&REAL, c"clock_gettime")(clock, time) };
    if result == 0 && clock == libc::CLOCK_REALTIME {
        // SAFETY: the call has succeeded, so that the pointer is valid.
        unsafe { (*time).tv_sec += OFFSET.load(Ordering::Relaxed) };
    }
    result
}
