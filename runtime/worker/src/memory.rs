//! Shared memory (a sealed memfd) and futexes in it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A mapped memfd.
#[derive(Debug)]
pub struct SharedMemory {
    descriptor: OwnedFd,
    address: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to the process; accesses are ordered by the atomics of the protocol.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates zeroed memory with a sealed size: the other process cannot truncate it, which would turn accesses here into SIGBUS.
    pub fn create(size: usize) -> io::Result<SharedMemory> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a null-terminated name and valid flags.
        let descriptor = unsafe { libc::memfd_create(c"layerzero-worker".as_ptr(), flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created, with no other owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let length = libc::off_t::try_from(size).map_err(io::Error::other)?;
        // SAFETY: an open descriptor.
        if unsafe { libc::ftruncate(descriptor.as_raw_fd(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: as above.
        if unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        SharedMemory::map(descriptor, size)
    }

    /// Maps the memory of a descriptor that another process created.
    pub fn open(descriptor: OwnedFd) -> io::Result<SharedMemory> {
        // SAFETY: an all-zero `stat` is valid, and the call fills it in.
        let size = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            if libc::fstat(descriptor.as_raw_fd(), &raw mut status) != 0 {
                return Err(io::Error::last_os_error());
            }
            usize::try_from(status.st_size).map_err(io::Error::other)?
        };
        SharedMemory::map(descriptor, size)
    }

    fn map(descriptor: OwnedFd, size: usize) -> io::Result<SharedMemory> {
        // SAFETY: creates a new mapping of an open descriptor.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                descriptor.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(address.cast::<u8>()) {
            Some(address) if address.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(SharedMemory { descriptor, address, size })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The file descriptor, to pass to another process.
    pub fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The address of `bytes` bytes at an offset; `None` if they are out of bounds.
    pub fn at(&self, offset: usize, bytes: usize) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        (end <= self.size).then(|| self.address.as_ptr().wrapping_add(offset))
    }

    /// Returns the pages that are completely inside a range to the system; they are zero when next touched.
    pub fn release(&self, offset: usize, bytes: usize) {
        // SAFETY: it only returns a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let start = offset.next_multiple_of(page);
        let end = offset.saturating_add(bytes).min(self.size);
        let end = end - end % page;
        if start >= end {
            return;
        }
        if let Some(address) = self.at(start, end - start) {
            // SAFETY: whole pages of our mapping, which the caller no longer uses.
            unsafe { libc::madvise(address.cast(), end - start, libc::MADV_REMOVE) };
        }
    }

    /// The offset of an address range; `None` if it is not inside the mapping.
    pub fn offset_of(&self, address: usize, bytes: usize) -> Option<usize> {
        let offset = address.checked_sub(self.address.as_ptr() as usize)?;
        (offset.checked_add(bytes)? <= self.size).then_some(offset)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by us, once; holders of pointers into it also hold this value.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.size) };
    }
}

/// Spins until `word` is no longer `value`. Returns false if it still is after `iterations`.
pub fn spin(word: &AtomicU32, value: u32, iterations: u32) -> bool {
    for _ in 0..iterations {
        if word.load(Ordering::Acquire) != value {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Sleeps while `word` is `value`, until it is woken, a signal arrives or the timeout expires.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // SAFETY: the word is in memory that both processes map; the kernel compares it before sleeping.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const timeout,
            0usize,
            0u32,
        );
    }
}

/// Wakes all threads that sleep on `word`.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: as above.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0usize, 0usize, 0u32);
    }
}
