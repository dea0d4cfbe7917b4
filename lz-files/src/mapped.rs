//! Files in memory without copying them.

use std::io;
use std::ops::Range;
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

    /// Gives the memory of whole pages inside these bytes back to the system. They stay readable: the next access reads them from the
    /// file again, or from the system's cache of it.
    pub fn discard(&self, bytes: Range<usize>) {
        // SAFETY: `sysconf` has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
        // The mapping begins with a page.
        let end = bytes.end.min(self.length) / page.max(1) * page;
        let start = bytes.start.checked_next_multiple_of(page.max(1)).unwrap_or(end);
        if start < end {
            // SAFETY: the pages are inside the mapping, which is private and never written: dropped pages have the file's content again.
            // The advice needs no result; if it fails, the pages stay.
            unsafe {
                libc::madvise(self.address.as_ptr().add(start).cast(), end - start, libc::MADV_DONTNEED)
            };
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

#[cfg(test)]
mod tests {
    use lz_test_support::Folder;

    use super::*;

    /// The resident bytes of mappings of this file.
    #[cfg(target_os = "linux")]
    fn resident(path: &Path) -> Option<usize> {
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut lines = maps.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap_or("?")));
        let line = lines.find(|line| line.starts_with("Rss:"))?;
        Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? << 10)
    }

    #[test]
    fn discarded_bytes_are_read_again() {
        let folder = Folder::new();
        let content: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 251) as u8).collect();
        let path = folder.write("mapped", &content);
        let file = MappedFile::open(&path).unwrap();
        assert_eq!(file.bytes(), content);
        #[cfg(target_os = "linux")]
        let before = resident(&path);
        file.discard(5000..content.len() - 3);
        #[cfg(target_os = "linux")]
        if let (Some(before), Some(after)) = (before, resident(&path)) {
            assert!(before >= content.len() && after <= 128 << 10, "{before} {after}");
        }
        assert_eq!(file.bytes(), content);
        // Ranges without a whole page, past the end, or reversed.
        for range in
            [0..0, 1..4095, content.len()..content.len() + 9000, usize::MAX - 3..usize::MAX, 0..usize::MAX]
        {
            file.discard(range);
        }
        file.discard(Range { start: 9000, end: 10 });
        assert_eq!(file.bytes(), content);
    }

    #[test]
    fn an_empty_file_has_nothing_to_discard() {
        let folder = Folder::new();
        let file = MappedFile::open(&folder.write("empty", [])).unwrap();
        file.discard(0..10);
        assert!(file.bytes().is_empty());
    }
}
