//! A piece of memory that two processes see, and waiting on words in it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Mapped memory behind a descriptor.
#[derive(Debug)]
pub struct SharedMemory {
    descriptor: OwnedFd,
    address: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to the process; what is written where is ordered by the atomics of the protocol.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory, all zero, whose size is sealed: whoever else has the descriptor cannot truncate it, which would make every
    /// access here a SIGBUS.
    pub fn create(size: usize) -> io::Result<SharedMemory> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a terminated name and flags.
        let descriptor = unsafe { libc::memfd_create(c"layerzero-worker".as_ptr(), flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and owned by nobody else.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let length = libc::off_t::try_from(size).map_err(io::Error::other)?;
        // SAFETY: a descriptor that is open.
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

    /// The memory behind a descriptor that another process made.
    pub fn open(descriptor: OwnedFd) -> io::Result<SharedMemory> {
        // SAFETY: zeroes are a value of this structure, and the call fills it in.
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
        // SAFETY: a new mapping of an open descriptor; nothing else is touched.
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

    /// The descriptor, to be handed to another process.
    pub fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Where `bytes` bytes lie at an offset; `None` outside.
    pub fn at(&self, offset: usize, bytes: usize) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        (end <= self.size).then(|| self.address.as_ptr().wrapping_add(offset))
    }

    /// Gives the pages that lie completely in a range back to the system; they are zero when they are next touched.
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
            // SAFETY: whole pages of our own mapping, which the caller says nobody uses.
            unsafe { libc::madvise(address.cast(), end - start, libc::MADV_REMOVE) };
        }
    }

    /// The offset of an address range inside; `None` outside.
    pub fn offset_of(&self, address: usize, bytes: usize) -> Option<usize> {
        let offset = address.checked_sub(self.address.as_ptr() as usize)?;
        (offset.checked_add(bytes)? <= self.size).then_some(offset)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by us, once; whoever holds pointers into it holds this as well.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.size) };
    }
}

/// Whether `word` stops being `value` within a few microseconds.
pub fn spin(word: &AtomicU32, value: u32, turns: u32) -> bool {
    for _ in 0..turns {
        if word.load(Ordering::Acquire) != value {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Sleeps until somebody wakes `word`, a signal comes or the time is over, unless it is no longer `value`.
pub fn sleep(word: &AtomicU32, value: u32, time: Duration) {
    let time = libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    // SAFETY: the word is mapped memory that both processes see; the kernel compares it before it sleeps.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time, 0usize, 0u32);
    }
}

/// Wakes everybody who sleeps on `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: as above.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0usize, 0usize, 0u32);
    }
}
