//! AMX: products of bf16 tiles, sixteen rows of thirty-two numbers, summed in f32; and of bytes, sixty-four a row, summed in i32.
//!
//! The intrinsics are not stable yet, so the instructions are written out. A thread configures its tiles before it uses them
//! and releases them afterwards, so that the system need not save them.

use std::arch::asm;
use std::sync::OnceLock;

/// Rows of a tile, and columns of a result.
pub(crate) const SIDE: usize = 16;

/// Numbers of bf16 in a row of a tile.
pub(crate) const STEP: usize = 32;

/// Bytes of a tile.
pub(crate) const BYTES: usize = 1024;

/// Bytes of a row of a tile.
pub(crate) const ROW: usize = BYTES / SIDE;

/// Whether this processor has bf16 tiles and the system lets this process use them; asks for the permission.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_tiles() && permitted())
}

/// Whether it has tiles of bytes too.
pub(crate) fn available_for_bytes() -> bool {
    // AMX-INT8.
    available() && features() >> 25 & 1 == 1
}

fn has_tiles() -> bool {
    // AMX-BF16 is bit 22, AMX-TILE bit 24.
    let wanted = 1 << 22 | 1 << 24;
    features() & wanted == wanted
}

/// The word of features that tiles are in.
fn features() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx }
}

#[cfg(target_os = "linux")]
fn permitted() -> bool {
    /// `ARCH_REQ_XCOMP_PERM`, and the number of the tiles' state.
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: asks for a permission of this process and touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Two tiles of rows of a left factor.
pub(crate) struct Left {
    pub tiles: [*const u8; 2],
    /// Bytes between rows.
    pub row: usize,
    /// Bytes to the next step: those of a row of a tile where rows lie whole, those of a tile where one tile lies after the other.
    pub step: usize,
}

/// The four tiles of a result.
pub(crate) struct Sums {
    pub tiles: [[*mut f32; 2]; 2],
    /// Bytes between rows.
    pub row: usize,
    /// Whether the product is added to what is there.
    pub add: bool,
}

/// This thread's tiles, configured as eight whole ones until it is dropped.
pub(crate) struct Tiles(());

#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The products of four pairs of tiles, by the name of their instruction. Nothing between the statements uses tiles: the compiler knows
/// of none.
macro_rules! multiply {
    ($product:literal, $left:expr, $right:expr, $steps:expr, $sums:expr) => {{
        let (left, right, steps): (Left, [*const u8; 2], usize) = ($left, $right, $steps);
        let Sums { tiles: results, row: result_row, add } = $sums;
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
                    a = inout(reg) left.tiles[0] => _, b = inout(reg) left.tiles[1] => _,
                    c = inout(reg) right[0] => _, d = inout(reg) right[1] => _,
                    steps = inout(reg) steps => _, row = in(reg) left.row, step = in(reg) left.step,
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
        // SAFETY: the caller vouches for the instruction; it reads the configuration.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly)) };
        Tiles(())
    }

    /// Multiplies two tiles of rows with two tiles of columns over `steps` tiles each and writes or adds the four results. Right tiles hold pairs of numbers: row p has numbers 2 p and 2 p + 1 of each column.
    ///
    /// # Safety
    /// All tiles are readable, those of `right` one after the other at `BYTES` a step. The results are writable.
    #[inline(always)]
    pub(crate) unsafe fn multiply(&self, left: Left, right: [*const u8; 2], steps: usize, sums: Sums) {
        // SAFETY: the caller vouches for the memory, `self` for the configuration.
        unsafe { multiply!("tdpbf16ps", left, right, steps, sums) }
    }

    /// As [`Tiles::multiply`] for signed bytes, 64 a step; the results are i32. Row p of a right tile has bytes 4 p … 4 p + 3.
    ///
    /// # Safety
    /// As [`Tiles::multiply`], and [`available_for_bytes`] was true.
    #[inline(always)]
    pub(crate) unsafe fn multiply_bytes(&self, left: Left, right: [*const u8; 2], steps: usize, sums: Sums) {
        // SAFETY: the caller vouches for the memory and the instruction, `self` for the configuration.
        unsafe { multiply!("tdpbssd", left, right, steps, sums) }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: whoever made `self` vouched for the instruction.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
