//! Files in memory without copying them.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

use crate::RegularFile;

/// A regular file, mapped read-only. Other processes must not change or truncate it meanwhile: weights are written once.
#[derive(Debug)]
pub struct MappedFile {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is never written, so several threads may read it at once.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps a whole file; only regular files are accepted.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        let file = RegularFile::open(path)?.into_file();
        let length = usize::try_from(file.metadata()?.len())
            .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "the file exceeds the address space"))?;
        if length == 0 {
            return Ok(MappedFile { address: NonNull::dangling(), length });
        }
        // SAFETY: a new private mapping at an address that the kernel chooses does not affect other memory.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        match NonNull::new(address.cast::<u8>()) {
            Some(address) if address.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(MappedFile { address, length })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has this length, is readable, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.length) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: it was mapped with this address and length, and nothing borrows it anymore.
            unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
        }
    }
}
