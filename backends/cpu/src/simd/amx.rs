//! AMX: products of bf16 tiles (16 rows of 32 elements, accumulated in f32) and int8 tiles (16 rows of 64
//! bytes, accumulated in i32).
//!
//! The intrinsics are not stable yet, so inline assembly is used. A thread configures its tiles before it
//! uses them and releases them afterwards, so that the kernel need not save them on a context switch.

use std::arch::asm;
use std::sync::OnceLock;

/// Rows of a tile, and columns of an accumulator tile.
pub(crate) const SIDE: usize = 16;

/// bf16 elements in a row of a tile: steps of K per tile product.
pub(crate) const STEP: usize = 32;

/// Bytes of a tile.
pub(crate) const BYTES: usize = 1024;

/// Bytes of a row of a tile.
pub(crate) const ROW: usize = BYTES / SIDE;

/// Whether this processor has AMX-BF16 and the operating system permits it; requests the permission.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_tiles() && permitted())
}

/// Whether it has AMX-INT8 too.
pub(crate) fn available_for_bytes() -> bool {
    // AMX-INT8.
    available() && features() >> 25 & 1 == 1
}

fn has_tiles() -> bool {
    // AMX-BF16 is bit 22, AMX-TILE bit 24.
    let wanted = 1 << 22 | 1 << 24;
    features() & wanted == wanted
}

/// CPUID leaf 7, EDX: the register with the AMX feature bits.
fn features() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx }
}

#[cfg(target_os = "linux")]
fn permitted() -> bool {
    /// `ARCH_REQ_XCOMP_PERM`, and the index of the tile data state component.
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: requests a permission for this process and accesses no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Two vertically adjacent tiles of operand A.
pub(crate) struct TilesA {
    pub tiles: [*const u8; 2],
    /// Bytes between rows.
    pub row: usize,
    /// Bytes to the next step of K: `ROW` if rows are contiguous, `BYTES` if tiles are stored one after the
    /// other.
    pub step: usize,
}

/// A 2 x 2 block of accumulator tiles (C).
pub(crate) struct TilesC {
    pub tiles: [[*mut f32; 2]; 2],
    /// Bytes between rows.
    pub row: usize,
    /// Whether the product is added to the previous contents.
    pub add: bool,
}

/// This thread's tile configuration: eight full tiles, released on drop.
pub(crate) struct Tiles(());

#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The 2 x 2 tile product with the given dot-product instruction. No tile may be used between the `asm!`
/// statements: the compiler does not track tile registers.
macro_rules! multiply {
    ($product:literal, $a:expr, $b:expr, $steps:expr, $sums:expr) => {{
        let (a, b, steps): (TilesA, [*const u8; 2], usize) = ($a, $b, $steps);
        let TilesC { tiles: results, row: result_row, add } = $sums;
        if steps > 0 || !add {
            if add {
                asm!(
                    "tileloadd tmm0, [{a} + {row}]", "tileloadd tmm1, [{b} + {row}]",
                    "tileloadd tmm2, [{c} + {row}]", "tileloadd tmm3, [{d} + {row}]",
                    a = in(reg) results[0][0], b = in(reg) results[0][1],
                    c = in(reg) results[1][0], d = in(reg) results[1][1], row = in(reg) result_row,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, readonly)
                );
            } else {
                asm!(
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, options(nostack, nomem)
                );
            }
            if steps > 0 {
                asm!(
                    "2:",
                    "tileloadd tmm4, [{a} + {row}]",
                    "tileloadd tmm6, [{c} + {side}]",
                    "tileloadd tmm7, [{d} + {side}]",
                    concat!($product, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{b} + {row}]",
                    concat!($product, " tmm1, tmm4, tmm7"),
                    concat!($product, " tmm2, tmm5, tmm6"),
                    concat!($product, " tmm3, tmm5, tmm7"),
                    "add {a}, {step}", "add {b}, {step}", "add {c}, 1024", "add {d}, 1024",
                    "dec {steps}",
                    "jnz 2b",
                    a = inout(reg) a.tiles[0] => _, b = inout(reg) a.tiles[1] => _,
                    c = inout(reg) b[0] => _, d = inout(reg) b[1] => _,
                    steps = inout(reg) steps => _, row = in(reg) a.row, step = in(reg) a.step,
                    side = in(reg) ROW,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly)
                );
            }
            asm!(
                "tilestored [{a} + {row}], tmm0", "tilestored [{b} + {row}], tmm1",
                "tilestored [{c} + {row}], tmm2", "tilestored [{d} + {row}], tmm3",
                a = in(reg) results[0][0], b = in(reg) results[0][1],
                c = in(reg) results[1][0], d = in(reg) results[1][1], row = in(reg) result_row,
                options(nostack)
            );
        }
    }};
}

impl Tiles {
    /// Configures them.
    ///
    /// # Safety
    /// [`available`] was true.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Tiles {
        let mut configuration =
            Configuration { palette: 1, start: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        configuration.row_bytes[..8].fill(64);
        configuration.rows[..8].fill(SIDE as u8);
        // SAFETY: the caller guarantees the instruction; it reads the configuration.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly)) };
        Tiles(())
    }

    /// Multiplies two tiles of A with two tiles of B over `steps` steps of K and stores or adds the four
    /// results. B tiles are in the VNNI layout: row p holds elements 2 p and 2 p + 1 of each column.
    ///
    /// # Safety
    /// All tiles are readable, those of `b` one after the other at `BYTES` per step. The accumulators are
    /// writable.
    #[inline(always)]
    pub(crate) unsafe fn multiply(&self, a: TilesA, b: [*const u8; 2], steps: usize, sums: TilesC) {
        // SAFETY: the caller guarantees the memory, `self` the configuration.
        unsafe { multiply!("tdpbf16ps", a, b, steps, sums) }
    }

    /// Multiplies two tiles of A with one tile of B over `steps` steps of K and stores or adds the two results, which are contiguous
    /// tiles.
    ///
    /// # Safety
    /// As [`Tiles::multiply`].
    #[inline(always)]
    pub(crate) unsafe fn multiply_column(
        &self,
        a: TilesA,
        b: *const u8,
        steps: usize,
        sums: [*mut f32; 2],
        add: bool,
    ) {
        if steps == 0 && add {
            return;
        }
        // SAFETY: the caller guarantees the memory, `self` the configuration. No tile is used between the statements.
        unsafe {
            if add {
                asm!(
                    "tileloadd tmm0, [{a} + {row}]", "tileloadd tmm1, [{b} + {row}]",
                    a = in(reg) sums[0], b = in(reg) sums[1], row = in(reg) ROW,
                    out("tmm0") _, out("tmm1") _, options(nostack, readonly)
                );
            } else {
                asm!("tilezero tmm0", "tilezero tmm1", out("tmm0") _, out("tmm1") _, options(nostack, nomem));
            }
            if steps > 0 {
                asm!(
                    "2:",
                    "tileloadd tmm4, [{a} + {row}]",
                    "tileloadd tmm5, [{b} + {row}]",
                    "tileloadd tmm6, [{c} + {side}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm5, tmm6",
                    "add {a}, {step}", "add {b}, {step}", "add {c}, 1024",
                    "dec {steps}",
                    "jnz 2b",
                    a = inout(reg) a.tiles[0] => _, b = inout(reg) a.tiles[1] => _, c = inout(reg) b => _,
                    steps = inout(reg) steps => _, row = in(reg) a.row, step = in(reg) a.step,
                    side = in(reg) ROW,
                    out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
                    options(nostack, readonly)
                );
            }
            asm!(
                "tilestored [{a} + {row}], tmm0", "tilestored [{b} + {row}], tmm1",
                a = in(reg) sums[0], b = in(reg) sums[1], row = in(reg) ROW, options(nostack)
            );
        }
    }

    /// As [`Tiles::multiply`] for signed bytes, 64 per step; the accumulators are i32. Row p of a B tile
    /// holds bytes 4 p … 4 p + 3.
    ///
    /// # Safety
    /// As [`Tiles::multiply`], and [`available_for_bytes`] was true.
    #[inline(always)]
    pub(crate) unsafe fn multiply_bytes(&self, a: TilesA, b: [*const u8; 2], steps: usize, sums: TilesC) {
        // SAFETY: the caller guarantees the memory and the instruction, `self` the configuration.
        unsafe { multiply!("tdpbssd", a, b, steps, sums) }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the creator of `self` guaranteed the instruction.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
