//! Memory whose size comes from the texts of a call, and the caches of threads. If it is exhausted, the call fails with
//! `OUT_OF_MEMORY`; an infallible allocation would end the process.
//! Also loads memory into the processor's cache ahead of its use.

use lz_core::{KernelError, Reason, ReasonCode};

/// An allocation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    bytes: usize,
}

impl From<OutOfMemory> for Reason {
    fn from(error: OutOfMemory) -> Reason {
        let detail = format!("{} bytes of temporary memory", error.bytes);
        Reason::new(ReasonCode::OutOfMemory).message(detail)
    }
}

impl From<OutOfMemory> for KernelError {
    fn from(error: OutOfMemory) -> KernelError {
        KernelError::because(error.into())
    }
}

/// Makes room for more elements. The room grows in proportion, so that it may be called for each of them.
#[inline(always)]
pub fn reserve<T>(memory: &mut Vec<T>, additional: usize) -> Result<(), OutOfMemory> {
    if memory.capacity() - memory.len() >= additional { Ok(()) } else { grow(memory, additional) }
}

#[cold]
#[inline(never)]
fn grow<T>(memory: &mut Vec<T>, additional: usize) -> Result<(), OutOfMemory> {
    let bytes = memory.len().saturating_add(additional).saturating_mul(size_of::<T>());
    memory.try_reserve(additional).map_err(|_| OutOfMemory { bytes })
}

/// Makes room in a text.
#[inline]
pub fn reserve_text(text: &mut String, additional: usize) -> Result<(), OutOfMemory> {
    let bytes = text.len().saturating_add(additional);
    text.try_reserve(additional).map_err(|_| OutOfMemory { bytes })
}

/// An empty vector with room for `count` elements.
pub fn with_capacity<T>(count: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut memory = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    memory.try_reserve_exact(count).map_err(|_| OutOfMemory { bytes })?;
    Ok(memory)
}

/// The first `count` values.
pub fn collect<T>(count: usize, values: impl Iterator<Item = T>) -> Result<Vec<T>, OutOfMemory> {
    let mut memory = with_capacity(count)?;
    memory.extend(values.take(count));
    Ok(memory)
}

/// `count` copies of a value.
pub fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut memory = with_capacity(count)?;
    memory.resize(count, value);
    Ok(memory)
}

/// An array of copies of a value.
pub fn array<T: Clone, const N: usize>(value: T) -> Result<Box<[T; N]>, OutOfMemory> {
    let copies = filled(value, N)?.into_boxed_slice();
    copies.try_into().map_err(|_| OutOfMemory { bytes: N.saturating_mul(size_of::<T>()) })
}

/// Appends characters to a text.
pub fn extend_text(text: &mut String, characters: impl Iterator<Item = char>) -> Result<(), OutOfMemory> {
    for character in characters {
        if text.capacity() - text.len() < character.len_utf8() {
            reserve_text(text, character.len_utf8())?;
        }
        text.push(character);
    }
    Ok(())
}

/// Bytes as text; parts that are not UTF-8 become U+FFFD, as in `String::from_utf8_lossy`.
pub fn text_of(bytes: Vec<u8>) -> Result<String, OutOfMemory> {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return Ok(text),
        Err(error) => error.into_bytes(),
    };
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        reserve_text(&mut text, chunk.valid().len() + char::REPLACEMENT_CHARACTER.len_utf8())?;
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    Ok(text)
}

/// Loads the cache line of a value.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of every x86-64, and prefetching a valid address has no effect but on the cache.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above; the intrinsic is not stable, the instruction in assembly is.
    unsafe {
        let at = std::ptr::from_ref(value);
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_the_same_text_as_by_the_standard_library() {
        let cases: [&[u8]; 6] =
            [b"", b"abc", b"a\xffb", b"\xe2\x82", "é\u{10348}".as_bytes(), b"\xf0\x9f\x98\xff\xfe x"];
        for bytes in cases {
            assert_eq!(text_of(bytes.to_vec()).unwrap(), String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn sizes_that_no_machine_has_are_errors() {
        assert!(
            with_capacity::<u64>(usize::MAX).is_err() && reserve(&mut vec![1u8], usize::MAX - 1).is_err()
        );
        assert!(reserve_text(&mut String::new(), usize::MAX / 2 + 1).is_err());
        let reason = Reason::from(with_capacity::<u64>(usize::MAX).unwrap_err());
        assert_eq!(reason.code, ReasonCode::OutOfMemory);
    }
}
