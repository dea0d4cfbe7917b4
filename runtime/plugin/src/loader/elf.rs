//! Whether a file is a complete ELF shared library for this machine.
//!
//! The dynamic loader maps the segments of a file without comparing them with its size: the first access beyond the end of a
//! truncated file raises SIGBUS. Only what the headers state is checked here; damaged code inside a segment is found by the hash or the
//! signature of the file, or by nothing.

use lz_core::{Reason, ReasonCode};

/// `e_ident`: class, byte order and version of this machine.
const MAGIC: &[u8] = b"\x7fELF";
const CLASS: u8 = if cfg!(target_pointer_width = "64") { 2 } else { 1 };
const BYTE_ORDER: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };

/// `e_type` of a shared library.
const SHARED_LIBRARY: u16 = 3;
/// Segments that are mapped, and the one that the dynamic loader reads first.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;

/// `e_machine` of this process; `None` where it is not known, and then not compared.
const MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};

/// A file whose headers are read by offset.
struct Elf<'a> {
    bytes: &'a [u8],
}

impl Elf<'_> {
    fn array<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let start = usize::try_from(offset).ok()?;
        self.bytes.get(start..)?.first_chunk::<N>().copied()
    }

    fn half(&self, offset: u64) -> Option<u16> {
        self.array(offset).map(u16::from_ne_bytes)
    }

    fn word(&self, offset: u64) -> Option<u32> {
        self.array(offset).map(u32::from_ne_bytes)
    }

    /// An address, an offset or a size.
    fn long(&self, offset: u64) -> Option<u64> {
        if CLASS == 2 { self.array(offset).map(u64::from_ne_bytes) } else { self.word(offset).map(u64::from) }
    }

    /// `count` entries of `size` bytes at an offset must be inside the file.
    fn table(&self, what: &str, offset: u64, count: u64, size: u64) -> Result<(), String> {
        let end = count.checked_mul(size).and_then(|bytes| offset.checked_add(bytes));
        self.contains(what, end)
    }

    fn contains(&self, what: &str, end: Option<u64>) -> Result<(), String> {
        let length = self.bytes.len() as u64;
        match end {
            Some(end) if end <= length => Ok(()),
            Some(end) => Err(format!(
                "the file is truncated: {what} ends at byte {end}, the file has {length} bytes; copy it again"
            )),
            None => Err(format!("the ELF header is invalid: {what} exceeds the address space")),
        }
    }

    fn check(&self) -> Result<(), String> {
        if !self.bytes.starts_with(MAGIC) {
            let text = "the file is no ELF shared library; expected the output of a linker with `-shared`";
            return Err(text.to_owned());
        }
        let short = || {
            format!("the file is truncated: it has only {} bytes, less than an ELF header", self.bytes.len())
        };
        let &[class, order] = self.bytes.get(4..6).and_then(|ident| ident.first_chunk()).ok_or_else(short)?;
        if (class, order) != (CLASS, BYTE_ORDER) {
            let (bits, order) = (usize::BITS, if BYTE_ORDER == 1 { "little-endian" } else { "big-endian" });
            return Err(format!("the file is built for another machine; expected {bits}-bit {order} ELF"));
        }
        self.headers().unwrap_or_else(|| Err(short()))
    }

    /// The fixed header and the tables that it names; `None` if the file ends before.
    fn headers(&self) -> Option<Result<(), String>> {
        let (kind, machine) = (self.half(16)?, self.half(18)?);
        if kind != SHARED_LIBRARY {
            return Some(Err(format!(
                "the file is no shared library (ELF type {kind}); link it with `-shared`"
            )));
        }
        if let Some(expected) = MACHINE.filter(|expected| *expected != machine) {
            return Some(Err(format!(
                "the file is built for another processor (ELF machine {machine}, expected {expected})"
            )));
        }
        // Offsets of fields differ between the classes by the size of addresses.
        let wide = CLASS == 2;
        let (programs, sections) =
            (self.long(if wide { 32 } else { 28 })?, self.long(if wide { 40 } else { 32 })?);
        let sizes = if wide { 52 } else { 40 };
        let half = |index: u64| self.half(sizes + 2 * index);
        let (program_size, program_count) = (half(1)?, half(2)?);
        let (section_size, section_count) = (half(3)?, half(4)?);
        Some(self.tables((programs, program_count, program_size), (sections, section_count, section_size)))
    }

    fn tables(&self, programs: (u64, u16, u16), sections: (u64, u16, u16)) -> Result<(), String> {
        let (offset, count, size) = programs;
        let (count, size) = (u64::from(count), u64::from(size));
        if size != if CLASS == 2 { 56 } else { 32 } {
            return Err(format!("the ELF header is invalid: program headers of {size} bytes"));
        }
        self.table("the table of program headers", offset, count, size)?;
        let mut dynamic = false;
        for number in 0..count {
            dynamic |= self.segment(offset + number * size)?;
        }
        if !dynamic {
            return Err("the file is no shared library: it has no dynamic segment".to_owned());
        }
        // The loader does not read sections, but a linker writes them last: a file without their end is truncated.
        let (offset, count, size) = sections;
        if offset == 0 {
            return Ok(());
        }
        self.table("the table of sections", offset, u64::from(count), u64::from(size))
    }

    /// Checks a program header; whether it is the dynamic segment.
    fn segment(&self, at: u64) -> Result<bool, String> {
        let wide = CLASS == 2;
        let field = |offset: u64| self.long(at + offset);
        let kind = self.word(at);
        let offset = field(if wide { 8 } else { 4 });
        let (stored, mapped) = (field(if wide { 32 } else { 16 }), field(if wide { 40 } else { 20 }));
        let (Some(kind), Some(offset), Some(stored), Some(mapped)) = (kind, offset, stored, mapped) else {
            return Err("the file is truncated inside its program headers; copy it again".to_owned());
        };
        if kind != LOAD && kind != DYNAMIC {
            return Ok(false);
        }
        if stored > mapped {
            return Err(format!(
                "the ELF header is invalid: a segment of {mapped} bytes stores {stored} bytes"
            ));
        }
        self.contains("a segment", offset.checked_add(stored))?;
        Ok(kind == DYNAMIC)
    }
}

/// Refuses a file that is not a complete shared library of this machine.
pub fn check(bytes: &[u8]) -> Result<(), Reason> {
    Elf { bytes }.check().map_err(|message| Reason::new(ReasonCode::PluginLoadFailed).message(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The C library that this process has loaded.
    fn library() -> Vec<u8> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps.split_whitespace().find(|part| part.contains("/libc.so")).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn a_complete_library_is_accepted_and_every_prefix_is_refused() {
        let whole = library();
        check(&whole).unwrap();
        let steps =
            (0..whole.len()).step_by(whole.len() / 97).chain(0..200).chain(whole.len() - 200..whole.len());
        for end in steps {
            let reason = check(&whole[..end]).unwrap_err();
            assert_eq!(reason.code, ReasonCode::PluginLoadFailed, "{end} bytes");
        }
    }

    #[test]
    fn files_of_other_kinds_are_refused_with_what_they_are() {
        let whole = library();
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            check(&bytes).unwrap_err().sentence()
        };
        assert!(check(b"#!/bin/sh").unwrap_err().sentence().contains("no ELF shared library"));
        assert!(changed(4, 3 - CLASS).contains("another machine"));
        assert!(changed(16, 2).contains("no shared library"));
        assert!(changed(18, 243).contains("another processor"));
        assert!(changed(if CLASS == 2 { 54 } else { 42 }, 1).contains("program headers of"));
    }

    #[test]
    fn tables_that_exceed_the_address_space_are_refused() {
        let mut bytes = library();
        let at = if CLASS == 2 { 32 } else { 28 };
        bytes[at..at + size_of::<usize>()].fill(0xff);
        let reason = check(&bytes).unwrap_err().sentence();
        assert!(reason.contains("the table of program headers"), "{reason}");
    }
}
