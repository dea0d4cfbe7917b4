//! Large, long-lived host memory in huge pages: packed weights and the arenas of sessions.
//!
//! A product that streams 100 MB of weights touches 25 000 pages of 4 KiB, far more than a TLB holds, and the hardware prefetcher stops
//! at each of their ends. Memory of at least one huge page is therefore aligned to huge pages and advised (`MADV_HUGEPAGE`) before it is
//! touched. The advice is a request: a kernel that has transparent huge pages switched off, or no free ones, uses ordinary pages, and
//! nothing here can tell. Other systems than Linux have no such advice; there the memory is aligned only as other buffers are.

use std::alloc::{Layout as AllocLayout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use super::owned::BUFFER_ALIGNMENT;

/// The size of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Zeroed bytes, aligned to [`BUFFER_ALIGNMENT`], and to [`HUGE_PAGE`] if there are at least so many on Linux.
#[derive(Debug)]
pub struct Pages {
    data: NonNull<u8>,
    bytes: usize,
    memory: Memory,
}

/// How the memory is released.
#[derive(Debug)]
enum Memory {
    /// No bytes.
    Empty,
    Allocated(AllocLayout),
    #[cfg(target_os = "linux")]
    Mapped,
}

// SAFETY: the bytes are owned and plain.
unsafe impl Send for Pages {}
// SAFETY: shared references only read.
unsafe impl Sync for Pages {}

impl Pages {
    /// This many zeros; `None` if there is no memory for them.
    pub fn zeroed(bytes: usize) -> Option<Pages> {
        if bytes == 0 {
            let data = NonNull::new(std::ptr::without_provenance_mut(BUFFER_ALIGNMENT))?;
            return Some(Pages { data, bytes, memory: Memory::Empty });
        }
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_PAGE {
            return Some(Pages { data: map(bytes)?, bytes, memory: Memory::Mapped });
        }
        let layout = AllocLayout::from_size_align(bytes, BUFFER_ALIGNMENT).ok()?;
        // SAFETY: the size is not 0.
        let data = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Pages { data, bytes, memory: Memory::Allocated(layout) })
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.data.as_ptr()
    }

    /// The first byte, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.data.as_ptr()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        match self.memory {
            Memory::Empty => {}
            // SAFETY: allocated with this layout.
            Memory::Allocated(layout) => unsafe { dealloc(self.data.as_ptr(), layout) },
            // SAFETY: mapped with this size.
            #[cfg(target_os = "linux")]
            Memory::Mapped => unsafe {
                libc::munmap(self.data.as_ptr().cast(), self.bytes);
            },
        }
    }
}

/// Asks for huge pages for memory of somebody else that is about to be written, for example a large new output: where the allocator just
/// got it from the system, writing it costs a fault per page. Only whole huge pages inside it are concerned. The content does not change.
///
/// # Safety
/// `bytes` bytes from `data` on are allocated.
pub unsafe fn advise_huge_pages(data: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let before = data.addr().next_multiple_of(HUGE_PAGE) - data.addr();
        let whole = bytes.saturating_sub(before) / HUGE_PAGE * HUGE_PAGE;
        if whole > 0 {
            // SAFETY: the pages are inside the caller's memory, and the advice changes no byte of them. Its result only says whether the
            // kernel knows huge pages.
            unsafe { libc::madvise(data.wrapping_add(before).cast(), whole, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (data, bytes);
}

/// Maps anonymous memory at a multiple of [`HUGE_PAGE`] and asks for huge pages.
#[cfg(target_os = "linux")]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let reserved = bytes.checked_add(HUGE_PAGE)?;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), reserved, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.cast::<u8>();
    let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
    let data = start.wrapping_add(before);
    // SAFETY: `sysconf` has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).ok().filter(|page| *page > 0).unwrap_or(HUGE_PAGE);
    let kept = bytes.next_multiple_of(page);
    // SAFETY: only the ends of the new mapping are released, which nobody has seen; if that fails, they stay reserved and untouched.
    // The result of the advice only says whether the kernel knows huge pages.
    unsafe {
        if before > 0 {
            libc::munmap(start.cast(), before);
        }
        if kept < reserved - before {
            libc::munmap(data.wrapping_add(kept).cast(), reserved - before - kept);
        }
        libc::madvise(data.cast(), bytes, libc::MADV_HUGEPAGE);
    }
    NonNull::new(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(pages: &Pages) -> &[u8] {
        // SAFETY: all bytes are initialized.
        unsafe { std::slice::from_raw_parts(pages.as_ptr(), pages.len()) }
    }

    #[test]
    #[cfg_attr(miri, ignore = "megabytes, byte by byte")]
    fn memory_of_any_size_is_zeroed_aligned_and_writable() {
        for size in [0, 1, 63, 4096, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 3 * HUGE_PAGE + 5000] {
            let mut pages = Pages::zeroed(size).unwrap();
            assert_eq!((pages.len(), pages.is_empty()), (size, size == 0));
            assert_eq!(pages.as_ptr().addr() % BUFFER_ALIGNMENT, 0, "{size}");
            if cfg!(target_os = "linux") && size >= HUGE_PAGE {
                assert_eq!(pages.as_ptr().addr() % HUGE_PAGE, 0, "{size}");
            }
            assert!(bytes(&pages).iter().all(|byte| *byte == 0), "{size}");
            // SAFETY: the bytes are owned.
            unsafe { std::ptr::write_bytes(pages.as_mut_ptr(), 7, size) };
            assert!(bytes(&pages).iter().all(|byte| *byte == 7), "{size}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter ends if it has no memory")]
    fn sizes_without_memory_are_refused() {
        assert!(Pages::zeroed(usize::MAX).is_none());
        assert!(Pages::zeroed(usize::MAX / 4).is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "megabytes, byte by byte")]
    fn advice_keeps_the_content() {
        for size in [0, 10, HUGE_PAGE, 5 * HUGE_PAGE + 123] {
            let mut memory: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
            // SAFETY: the vector's memory.
            unsafe { advise_huge_pages(memory.as_mut_ptr(), memory.len()) };
            assert!(memory.iter().enumerate().all(|(index, byte)| *byte == (index % 251) as u8), "{size}");
        }
    }

    /// The kernel reports per mapping whether huge pages were advised (`hg` in `VmFlags`).
    #[cfg(target_os = "linux")]
    #[test]
    #[cfg_attr(miri, ignore = "reads what the kernel reports")]
    fn huge_pages_are_requested() {
        let pages = Pages::zeroed(4 * HUGE_PAGE).unwrap();
        let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else { return };
        let holds = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            let [start, end] = [start, end].map(|part| usize::from_str_radix(part, 16).ok());
            Some((start?..end?).contains(&pages.as_ptr().addr()))
        };
        let flags = maps
            .lines()
            .skip_while(|line| holds(line) != Some(true))
            .find(|line| line.starts_with("VmFlags:"))
            .unwrap_or_default();
        let supported = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(
            flags.split_whitespace().any(|flag| flag == "hg"),
            supported && !flags.is_empty(),
            "{flags}"
        );
    }
}
