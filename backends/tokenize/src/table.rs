//! Hash tables in memory of huge pages: with ordinary pages, most probes of a large table also miss the TLB.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::memory::{self, OutOfMemory};

/// Bytes of a huge page of x86-64, and of aarch64 with ordinary pages of 4 KB.
const PAGE: usize = 1 << 21;
/// Smaller tables have ordinary pages.
const MIN_BYTES: usize = PAGE / 2;

/// Memory with the size and the alignment of a huge page.
#[repr(C, align(0x20_0000))]
struct Page([MaybeUninit<u8>; PAGE]);

/// A table of fixed size.
pub struct Table<T: Copy> {
    /// The first element, in one of the vectors, which never grow.
    first: NonNull<T>,
    count: usize,
    _small: Vec<T>,
    _pages: Vec<Page>,
}

// SAFETY: a table owns its elements, like `Box<[T]>`.
unsafe impl<T: Copy + Send> Send for Table<T> {}
// SAFETY: as above; a shared table lends only shared elements.
unsafe impl<T: Copy + Sync> Sync for Table<T> {}

impl<T: Copy> Table<T> {
    /// `count` copies of a value.
    pub fn filled(value: T, count: usize) -> Result<Table<T>, OutOfMemory> {
        const { assert!(align_of::<T>() <= PAGE) };
        let bytes = count.saturating_mul(size_of::<T>());
        if bytes < MIN_BYTES {
            let mut small = memory::filled(value, count)?;
            let first = NonNull::from(small.as_mut_slice()).cast();
            return Ok(Table { first, count, _small: small, _pages: Vec::new() });
        }
        let mut pages: Vec<Page> = memory::with_capacity(bytes.div_ceil(PAGE))?;
        let spare = pages.spare_capacity_mut();
        advise_huge(spare);
        let first = NonNull::from(&mut *spare).cast::<T>();
        for index in 0..count {
            // SAFETY: the pages have at least `count * size_of::<T>()` bytes and a greater alignment than `T`.
            unsafe { first.add(index).write(value) };
        }
        Ok(Table { first, count, _small: Vec::new(), _pages: pages })
    }
}

/// Asks for huge pages. Without them the table is only slower.
fn advise_huge(pages: &mut [MaybeUninit<Page>]) {
    #[cfg(target_os = "linux")]
    // SAFETY: the address is a multiple of the page size, and the range is allocated; the advice does not change its contents.
    unsafe {
        libc::madvise(pages.as_mut_ptr().cast(), size_of_val(pages), libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = pages;
}

impl<T: Copy> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `count` elements from `first` on were written and are in memory that `self` owns.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl<T: Copy> DerefMut for Table<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_every_kind_of_memory_keep_their_elements() {
        for count in [0, 1, 1000, MIN_BYTES / 8 - 1, MIN_BYTES / 8, PAGE / 8, PAGE / 8 + 1, 3 * PAGE / 8] {
            let mut table = Table::filled(7u64, count).unwrap();
            assert_eq!(table.len(), count);
            assert!(table.iter().all(|element| *element == 7));
            table.iter_mut().zip(0..).for_each(|(element, index)| *element = index);
            assert!(table.iter().copied().eq(0..count as u64));
        }
    }
}
