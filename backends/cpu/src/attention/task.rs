//! One task: some rows of one sequence and key head, its scratch memory, and what comes out of it.
//!
//! A row is one query of one head; rows are counted through the queries, and inside a query through the heads of the group,
//! so that neighbours share keys and nearly the same view of them.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::problem::{Key, Sequence, Shape};
use super::stream;
use crate::gemm::VECTORS;
use crate::simd::{Float, Simd};

/// Keys of a tile; a multiple of the rows of a micro-tile and of every vector's lanes. So few that what is packed of them stays in the
/// first-level cache beside a panel of queries and its scores.
pub(super) const TILE: usize = 48;

/// Most rows of a task; more with few features.
pub(super) const MOST_ROWS: usize = 128;

/// Ranges of keys, in order: the function hands each to its argument.
pub(crate) type Ranges<'r> = &'r dyn Fn(&mut dyn FnMut(Range<usize>));

/// Gathers the keys of `ranges` in tiles of `N` and hands each on with the number of its first key and with the tile that follows,
/// which is worth asking the memory for: after the last one that is the first of the head that comes next.
pub(super) fn for_each_tile<T: Float, const N: usize>(
    task: &Task<'_, '_, T>,
    ranges: Ranges<'_>,
    mut take: impl FnMut(&[Key<T>], usize, &[Key<T>]),
) {
    // Written as far as they are handed on: two tiles of zeros would cost a short call more than its keys.
    let mut tiles = [[const { MaybeUninit::<Key<T>>::uninit() }; N]; 2];
    let (mut filling, mut count, mut start) = (0, 0, 0);
    let (mut full, mut first): (Option<usize>, Option<Range<usize>>) = (None, None);
    ranges(&mut |range| {
        first.get_or_insert(range.clone());
        for j in range {
            if count == N {
                if let Some(start) = full {
                    // SAFETY: both are full.
                    unsafe { take(written(&tiles[1 - filling]), start, written(&tiles[filling])) };
                }
                full = Some(start);
                (filling, count) = (1 - filling, 0);
            }
            if count == 0 {
                start = j;
            }
            tiles[filling][count].write(task.sequence.key(j, task.head));
            count += 1;
        }
    });
    // SAFETY: one tile is full, and of the other so many were written.
    unsafe {
        let rest = written(&tiles[filling][..count]);
        if let Some(start) = full {
            take(written(&tiles[1 - filling]), start, rest);
        }
    }
    let [one, other] = &mut tiles;
    let (last, next) = if filling == 0 { (one, other) } else { (other, one) };
    let mut ahead = 0;
    if let (Some(head), Some(first)) = (task.next_head, first) {
        for (j, key) in first.zip(next.iter_mut()) {
            key.write(task.sequence.key(j, head));
            ahead += 1;
        }
    }
    if count > 0 {
        // SAFETY: so many were written of both.
        unsafe { take(written(&last[..count]), start, written(&next[..ahead])) };
    }
}

/// Keys that were written.
///
/// # Safety
/// All of them were.
unsafe fn written<K>(keys: &[MaybeUninit<K>]) -> &[K] {
    // SAFETY: promised by the caller.
    unsafe { &*(std::ptr::from_ref(keys) as *const [K]) }
}

/// Some rows of one sequence and key head, or the same rows of several key heads that follow each other.
pub(crate) struct Task<'t, 'a, T> {
    pub shape: &'t Shape,
    pub sequence: &'t Sequence<'a, T>,
    /// The first key head.
    pub head: usize,
    /// How many; more than one only where keys are streamed.
    pub heads: usize,
    pub rows: Range<usize>,
    /// The key head of the task that this thread will probably do next, if it is about the same keys.
    pub next_head: Option<usize>,
}

impl<'t, 'a, T: Float> Task<'t, 'a, T> {
    /// The same for one of the heads alone, counted from the first.
    #[inline]
    pub(super) fn one(&self, head: usize) -> Task<'t, 'a, T> {
        Task { head: self.head + head, heads: 1, rows: self.rows.clone(), next_head: None, ..*self }
    }

    /// Query and head of a row, counted from the first of the task.
    #[inline]
    pub(super) fn row(&self, row: usize) -> (usize, usize) {
        let row = self.rows.start + row;
        (row / self.shape.group, self.head * self.shape.group + row % self.shape.group)
    }

    /// The place of a row's query among the keys.
    #[inline]
    pub(super) fn place(&self, row: usize) -> i64 {
        (self.row(row).0 as i64).saturating_add(self.sequence.offset)
    }

    /// The keys that a row may see.
    #[inline]
    pub(super) fn visible(&self, row: usize) -> Range<usize> {
        self.shape.visible(self.place(row), self.sequence.keys)
    }

    /// Whether a score depends on where key and query stand, or on a mask.
    pub(super) fn looks_at_places(&self) -> bool {
        let shape = self.shape;
        shape.causal
            || shape.window_left >= 0
            || shape.window_right >= 0
            || self.sequence.mask.is_some()
            || self.sequence.slopes.is_some()
    }
}

/// Scratch memory of a task, on the stack of the thread that runs it.
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    /// Queries: panels of rows, transposed. Or plain rows, where keys are streamed.
    pub q: *mut f32,
    /// Keys. Or how large their features are, a vector for each head, where they are streamed.
    pub k: *mut f32,
    pub v: *mut f32,
    /// Scores and then weights of one panel.
    pub scores: *mut f32,
    /// What a mask adds to the scores of one panel.
    pub mask: *mut f32,
    /// Averages before the division, one row after the other.
    pub o: *mut f32,
    /// Distance of the rows of `o` and `v`.
    pub width: usize,
    /// Rows, rounded up to whole vectors.
    pub padded: usize,
    /// For each row: the highest score, the sum of weights, the last correction.
    pub highest: *mut f32,
    pub total: *mut f32,
    pub correction: *mut f32,
    /// For each row: first and last visible key of the present tile, slope, place in the tile, bound of its scores by |k| ≤ 1.
    pub first: *mut f32,
    pub last: *mut f32,
    pub slope: *mut f32,
    pub place: *mut f32,
    pub bound: *mut f32,
}

impl Scratch {
    /// The same with the states of the rows from `row` on.
    pub(super) fn states_from(&self, row: usize) -> Scratch {
        Scratch {
            o: self.o.wrapping_add(row * self.width),
            highest: self.highest.wrapping_add(row),
            total: self.total.wrapping_add(row),
            ..*self
        }
    }

    /// Nothing: what a way of its own does not use.
    #[cfg(target_arch = "x86_64")]
    pub(super) const NONE: Scratch = {
        let none = std::ptr::null_mut();
        Scratch {
            q: none,
            k: none,
            v: none,
            scores: none,
            mask: none,
            o: none,
            width: 0,
            padded: 0,
            highest: none,
            total: none,
            correction: none,
            first: none,
            last: none,
            slope: none,
            place: none,
            bound: none,
        }
    };
}

/// Rows of a panel.
#[inline(always)]
pub(super) const fn panel<S: Simd>() -> usize {
    VECTORS * S::LANES
}

/// Runs `body` with the scratch memory that so many rows need. Where keys are streamed none are packed, and little memory is
/// touched: a call on few keys would spend its time on that.
pub(super) fn with_scratch<S: Simd, R>(
    shape: &Shape,
    rows: usize,
    streams: bool,
    body: impl FnOnce(&Scratch) -> R,
) -> R {
    let (dim, width, padded) =
        (shape.dim(), shape.dim_v.next_multiple_of(S::LANES), rows.next_multiple_of(S::LANES));
    // Stores of whole vectors may reach over the end of a row.
    let slack = 16;
    let packed = |size: usize| if streams { 0 } else { size };
    let sizes = [
        padded * dim.next_multiple_of(S::LANES) + slack,
        if streams { rows * S::LANES } else { TILE * dim + 2 * slack + width },
        packed(TILE * width + slack),
        if streams { rows * stream::KEYS } else { TILE * panel::<S>() },
        packed(TILE * panel::<S>()),
        padded * width,
        padded,
        padded,
        padded,
        padded,
        padded,
        padded,
        padded,
        padded,
    ];
    let all: usize = sizes.iter().map(|size| size.next_multiple_of(slack)).sum();
    let run = |memory: *mut f32| {
        let mut at = 0;
        let parts = sizes.map(|size| {
            let part = memory.wrapping_add(at);
            at += size.next_multiple_of(slack);
            part
        });
        let [q, k, v, scores, mask, o, highest, total, correction, first, last, slope, place, bound] = parts;
        body(&Scratch {
            q,
            k,
            v,
            scores,
            mask,
            o,
            width,
            padded,
            highest,
            total,
            correction,
            first,
            last,
            slope,
            place,
            bound,
        })
    };
    if all <= 1 << 12 {
        on_stack::<{ 1 << 12 }, R>(run)
    } else if all <= 1 << 14 {
        on_stack::<{ 1 << 14 }, R>(run)
    } else if all <= 3 << 14 {
        on_stack::<{ 3 << 14 }, R>(run)
    } else if all <= 6 << 14 {
        on_stack::<{ 6 << 14 }, R>(run)
    } else {
        debug_assert!(all <= MOST_SCRATCH, "kernels declare limits that keep their scratch memory small");
        on_stack::<MOST_SCRATCH, R>(run)
    }
}

/// Most numbers of scratch memory: a little over half a megabyte of stack.
const MOST_SCRATCH: usize = 12 << 14;

#[inline(never)]
pub(super) fn on_stack<const COUNT: usize, R>(body: impl FnOnce(*mut f32) -> R) -> R {
    #[repr(align(64))]
    struct Memory<const COUNT: usize>(MaybeUninit<[f32; COUNT]>);
    let mut memory = Memory::<COUNT>(MaybeUninit::uninit());
    body(memory.0.as_mut_ptr().cast())
}

/// How large the bound of a row's scores may be before rounding of their addends shows in a result of this type.
pub(super) fn trusted<T: Float>() -> f32 {
    match T::DTYPE {
        lz_core::DType::F32 => 1024.0,
        _ => 65536.0,
    }
}

/// How large the highest score of a row may be before its own rounding shows in a result of this type.
pub(super) fn trusted_highest<T: Float>() -> f32 {
    trusted::<T>() / 8.0
}
