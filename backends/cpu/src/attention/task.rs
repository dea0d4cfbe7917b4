//! A task: some rows of one sequence and KV head, its scratch memory and its per-row softmax state.
//!
//! A row is one query of one head. Rows are ordered by query, then by head of the GQA group, so that adjacent
//! rows share keys and nearly the same visible range.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::problem::{Key, Sequence, Shape};
use super::stream;
use crate::gemm::NR_VECTORS;
use crate::simd::{Float, Simd};

/// Keys of a KV tile; a multiple of MR and of every vector length. Small enough that the packed tile stays in
/// L1 next to a panel of queries and its scores.
pub(super) const TILE: usize = 48;

/// Maximum rows of a task; more for small head dimensions.
pub(super) const MAX_ROWS: usize = 128;

/// Key ranges, in order: the function passes each to its argument.
pub(crate) type Ranges<'r> = &'r dyn Fn(&mut dyn FnMut(Range<usize>));

/// Gathers the keys of `ranges` in tiles of `N` and passes each to `take`, with the index of its first key
/// and with the following tile as prefetch target. For the last tile that is the first tile of the next head.
pub(super) fn for_each_tile<T: Float, const N: usize>(
    task: &Task<'_, '_, T>,
    ranges: Ranges<'_>,
    mut take: impl FnMut(&[Key<T>], usize, &[Key<T>]),
) {
    // Uninitialized: zeroing two tiles would cost a short call more than its keys.
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
    // SAFETY: one tile is full, and `count` entries of the other were written.
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
        // SAFETY: `count` and `ahead` entries were written.
        unsafe { take(written(&last[..count]), start, written(&next[..ahead])) };
    }
}

/// Keys as an initialized slice.
///
/// # Safety
/// All of them were written.
unsafe fn written<K>(keys: &[MaybeUninit<K>]) -> &[K] {
    // SAFETY: guaranteed by the caller.
    unsafe { &*(std::ptr::from_ref(keys) as *const [K]) }
}

/// Some rows of one sequence and KV head, or the same rows of several consecutive KV heads.
pub(crate) struct Task<'t, 'a, T> {
    pub shape: &'t Shape,
    pub sequence: &'t Sequence<'a, T>,
    /// The first KV head.
    pub head: usize,
    /// Number of KV heads; more than one only on the streaming path.
    pub heads: usize,
    pub rows: Range<usize>,
    /// The KV head of the task that this thread will probably run next, if it covers the same keys (prefetch
    /// hint).
    pub next_head: Option<usize>,
}

impl<'t, 'a, T: Float> Task<'t, 'a, T> {
    /// The same task for one of its heads, relative to the first.
    #[inline]
    pub(super) fn one(&self, head: usize) -> Task<'t, 'a, T> {
        Task { head: self.head + head, heads: 1, rows: self.rows.clone(), next_head: None, ..*self }
    }

    /// Query and head of a row, relative to the first row of the task.
    #[inline]
    pub(super) fn row(&self, row: usize) -> (usize, usize) {
        let row = self.rows.start + row;
        (row / self.shape.group, self.head * self.shape.group + row % self.shape.group)
    }

    /// Position of a row's query among the keys.
    #[inline]
    pub(super) fn query_position(&self, row: usize) -> i64 {
        (self.row(row).0 as i64).saturating_add(self.sequence.offset)
    }

    /// The keys visible to a row.
    #[inline]
    pub(super) fn visible(&self, row: usize) -> Range<usize> {
        self.shape.visible(self.query_position(row), self.sequence.keys)
    }

    /// Whether a score depends on the positions of key and query, or on a mask.
    pub(super) fn needs_positions(&self) -> bool {
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
    /// Queries: transposed panels of rows; plain rows on the streaming path.
    pub q: *mut f32,
    /// Packed keys; on the streaming path the maximum absolute feature, one vector per head.
    pub k: *mut f32,
    pub v: *mut f32,
    /// Scores, then weights, of one panel.
    pub scores: *mut f32,
    /// Additive mask of one panel.
    pub mask: *mut f32,
    /// Output accumulators before normalization, row after row.
    pub o: *mut f32,
    /// Row stride of `o` and `v`.
    pub width: usize,
    /// Rows, rounded up to whole vectors.
    pub padded: usize,
    /// Online softmax state per row: running maximum, sum of exponentials, last correction factor.
    pub running_max: *mut f32,
    pub sum_exp: *mut f32,
    pub correction: *mut f32,
    /// Per row: first and last visible key of the current tile, slope, query position relative to the tile,
    /// bound of its scores for |k| ≤ 1.
    pub first: *mut f32,
    pub last: *mut f32,
    pub slope: *mut f32,
    pub query_position: *mut f32,
    pub bound: *mut f32,
}

impl Scratch {
    /// The same, with the row states starting at `row`.
    pub(super) fn states_from(&self, row: usize) -> Scratch {
        Scratch {
            o: self.o.wrapping_add(row * self.width),
            running_max: self.running_max.wrapping_add(row),
            sum_exp: self.sum_exp.wrapping_add(row),
            ..*self
        }
    }

    /// All null: fields that a path does not use.
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
            running_max: none,
            sum_exp: none,
            correction: none,
            first: none,
            last: none,
            slope: none,
            query_position: none,
            bound: none,
        }
    };
}

/// Rows of a panel.
#[inline(always)]
pub(super) const fn panel<S: Simd>() -> usize {
    NR_VECTORS * S::LANES
}

/// Runs `body` with scratch memory for `rows` rows. On the streaming path nothing is packed, and little
/// memory is used, because clearing it would dominate calls with few keys.
pub(super) fn with_scratch<S: Simd, R>(
    shape: &Shape,
    rows: usize,
    streams: bool,
    body: impl FnOnce(&Scratch) -> R,
) -> R {
    let (dim, width, padded) =
        (shape.dim(), shape.dim_v.next_multiple_of(S::LANES), rows.next_multiple_of(S::LANES));
    // Full-vector stores may run over the end of a row.
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
        let [
            q,
            k,
            v,
            scores,
            mask,
            o,
            running_max,
            sum_exp,
            correction,
            first,
            last,
            slope,
            query_position,
            bound,
        ] = parts;
        body(&Scratch {
            q,
            k,
            v,
            scores,
            mask,
            o,
            width,
            padded,
            running_max,
            sum_exp,
            correction,
            first,
            last,
            slope,
            query_position,
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
        debug_assert!(all <= MAX_SCRATCH, "scratch memory exceeds the limit that the kernels declare");
        on_stack::<MAX_SCRATCH, R>(run)
    }
}

/// Maximum scratch memory in f32: a little over half a megabyte of stack.
const MAX_SCRATCH: usize = 12 << 14;

#[inline(never)]
pub(super) fn on_stack<const COUNT: usize, R>(body: impl FnOnce(*mut f32) -> R) -> R {
    #[repr(align(64))]
    struct Memory<const COUNT: usize>(MaybeUninit<[f32; COUNT]>);
    let mut memory = Memory::<COUNT>(MaybeUninit::uninit());
    body(memory.0.as_mut_ptr().cast())
}

/// Maximum bound of a row's scores at which the rounding of their products is negligible for a result of this
/// type.
pub(super) fn max_accurate_bound<T: Float>() -> f32 {
    match T::DTYPE {
        lz_core::DType::F32 => 1024.0,
        _ => 65536.0,
    }
}

/// Maximum score of a row at which its own rounding is negligible for a result of this type.
pub(super) fn max_accurate_score<T: Float>() -> f32 {
    max_accurate_bound::<T>() / 8.0
}
