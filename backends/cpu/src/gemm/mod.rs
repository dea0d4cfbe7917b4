//! The f32 GEMM micro-kernel: an MR x NR tile of C held in registers, NR being a few vectors.
//!
//! `C[m][n] += A[m][k] * B[k][n]`. A is read one scalar at a time and broadcast (so its strides are
//! arbitrary), B one vector at a time. `blocked` is the blocked GEMM (MC/KC/NC, packed panels), `amx` the
//! same for bf16 on AMX tiles, `panels` the GEMM with weights that are packed ahead of the call, `dots` the skinny
//! GEMM. Nothing here depends on attention, layers or element
//! types other than f32.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod amx_in_place;
pub(crate) mod blocked;
pub(crate) mod dots;
pub(crate) mod pack;
pub(crate) mod panels;
mod tasks;

use crate::simd::{Simd, prefetch, prefetch_l2};

/// Elements of a cache line.
pub(crate) const CACHE_LINE: usize = 64 / size_of::<f32>();

/// MR: rows of a full micro-tile. Together with [`NR_VECTORS`] they fill the register file.
#[inline(always)]
pub(crate) const fn mr<S: Simd>() -> usize {
    if S::LANES >= 16 { MAX_MR } else { 6 }
}

/// MR of the widest instruction set.
pub(crate) const MAX_MR: usize = 12;

/// NR of a full micro-tile, in vectors. More vectors and fewer rows would need fewer loads, but a panel this
/// narrow stays in L1 together with the panel it is multiplied with.
pub(crate) const NR_VECTORS: usize = 2;

/// Operand A: element (m, k) is at `at + m * row + k * step`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperandA {
    pub at: *const f32,
    pub row: usize,
    pub step: usize,
}

impl OperandA {
    /// The operand from step `k` of K on.
    #[inline(always)]
    fn after(self, k: usize) -> OperandA {
        OperandA { at: self.at.wrapping_add(k * self.step), ..self }
    }
}

/// Operand B: vector n of row k is at `at + k * step + n * LANES`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperandB {
    pub at: *const f32,
    pub step: usize,
}

impl OperandB {
    /// The operand from step `k` of K on.
    #[inline(always)]
    fn after(self, k: usize) -> OperandB {
        OperandB { at: self.at.wrapping_add(k * self.step), ..self }
    }
}

/// GEMM micro-kernel: adds the product over `depth` steps of K to the register tile `sums`.
///
/// # Safety
/// All elements of both operands for `MR` rows, `NV` vectors and `depth` steps are readable.
#[inline(always)]
pub(crate) unsafe fn micro_kernel<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    mut sums: [[S::F32; NV]; MR],
    mut a: OperandA,
    mut b: OperandB,
    depth: usize,
) -> [[S::F32; NV]; MR] {
    let rows = std::array::from_fn(|m| m * a.row);
    for _ in 0..depth {
        // SAFETY: the caller guarantees both operands.
        unsafe { step::<S, MR, NV, 0>(s, &mut sums, a, &rows, b) };
        (a, b) = (a.after(1), b.after(1));
    }
    sums
}

/// Steps of K per iteration of [`micro_kernel_prefetch`]. Fewer instructions for addresses and loop leave more of a core that two
/// hardware threads share: packed products are 2 to 7 % faster there, and as fast as with four steps.
const UNROLL: usize = 2;

/// Like [`micro_kernel`], and prefetches operand B `AHEAD` steps of K ahead, and a cache line of `next` in every step into L2, for a later
/// call.
///
/// # Safety
/// As [`micro_kernel`]; `next` need not be readable.
#[inline(always)]
pub(crate) unsafe fn micro_kernel_prefetch<S: Simd, const MR: usize, const NV: usize, const AHEAD: usize>(
    s: S,
    mut sums: [[S::F32; NV]; MR],
    mut a: OperandA,
    mut b: OperandB,
    depth: usize,
    mut next: Option<*const f32>,
) -> [[S::F32; NV]; MR] {
    // Opaque, so that they stay in registers: LLVM would compute the addresses in every step, which takes slots from the products.
    let rows = std::hint::black_box(std::array::from_fn(|m| m * a.row));
    for _ in 0..depth / UNROLL {
        for k in 0..UNROLL {
            if let Some(line) = next {
                prefetch_l2(line.wrapping_add(k * CACHE_LINE));
            }
            // SAFETY: the caller guarantees both operands.
            unsafe { step::<S, MR, NV, AHEAD>(s, &mut sums, a.after(k), &rows, b.after(k)) };
        }
        (a, b) = (a.after(UNROLL), b.after(UNROLL));
        next = next.map(|line| line.wrapping_add(UNROLL * CACHE_LINE));
    }
    for k in 0..depth % UNROLL {
        // SAFETY: the caller guarantees both operands.
        unsafe { step::<S, MR, NV, AHEAD>(s, &mut sums, a.after(k), &rows, b.after(k)) };
    }
    sums
}

/// One step of K; `rows` has the offset of each row of operand A.
///
/// # Safety
/// As [`micro_kernel`], for one step.
#[inline(always)]
unsafe fn step<S: Simd, const MR: usize, const NV: usize, const AHEAD: usize>(
    s: S,
    sums: &mut [[S::F32; NV]; MR],
    a: OperandA,
    rows: &[usize; MR],
    b: OperandB,
) {
    // SAFETY: the caller guarantees both operands.
    unsafe {
        let mut vectors = [s.splat(0.0); NV];
        for (n, vector) in vectors.iter_mut().enumerate() {
            if AHEAD > 0 {
                prefetch(b.at.wrapping_add(AHEAD * b.step + n * S::LANES));
            }
            *vector = s.load(b.at.add(n * S::LANES));
        }
        for (sums, row) in sums.iter_mut().zip(rows) {
            let broadcast = s.splat(*a.at.add(*row));
            for (sum, &vector) in sums.iter_mut().zip(&vectors) {
                *sum = s.fma(broadcast, vector, *sum);
            }
        }
    }
}

/// Runs `$body` for vectors `$first .. $first + $NV` of `$count`, up to NR at a time. `$NV` is a constant.
macro_rules! for_each_panel {
    ($count:expr, |$first:ident, $NV:ident| $body:block) => {{
        let count: usize = $count;
        let mut $first: usize = 0;
        while $first < count {
            if count - $first == 1 {
                const $NV: usize = 1;
                $body
            } else {
                const $NV: usize = $crate::gemm::NR_VECTORS;
                $body
            }
            $first += $crate::gemm::NR_VECTORS;
        }
    }};
}
pub(crate) use for_each_panel;

/// Runs `$body` for rows `$first .. $first + $MR` of `$count` (even), up to MR at a time. `$MR` is a
/// constant. The conditions are constants where possible: the compiler then creates no code for tiles that are larger than those of
/// the instruction set.
macro_rules! for_each_rows {
    ($S:ty, $count:expr, |$first:ident, $MR:ident| $body:block) => {{
        let count: usize = $count;
        let mut $first: usize = 0;
        while $first < count {
            let left = count - $first;
            let rows;
            if const { $crate::gemm::mr::<$S>() == $crate::gemm::MAX_MR } && left >= $crate::gemm::MAX_MR {
                const $MR: usize = $crate::gemm::MAX_MR;
                $body
                rows = $MR;
            } else if const { $crate::gemm::mr::<$S>() == $crate::gemm::MAX_MR } && left >= 8 {
                const $MR: usize = 8;
                $body
                rows = $MR;
            } else if left >= 6 {
                const $MR: usize = 6;
                $body
                rows = $MR;
            } else if left >= 4 {
                const $MR: usize = 4;
                $body
                rows = $MR;
            } else {
                const $MR: usize = 2;
                $body
                rows = $MR;
            }
            $first += rows;
        }
    }};
}
pub(crate) use for_each_rows;
