//! `kv.compact`: orders the moves so that no page is overwritten before it is read; cycles go through one
//! scratch page. Then every task executes the whole order on its own slice of every page.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{KvCompactCall, KvCompactKernel, KvCompactOut};

use crate::isa::require;
use crate::pool;
use crate::rows::{AnyRowsMut, Rows, Shape, should_parallelize};
use crate::simd::Simd;

/// Page index of the scratch page in a step.
pub const SCRATCH_PAGE: i32 = -1;

/// Pages with dense heads.
#[derive(Debug)]
pub(crate) struct CompactPages<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.kv.compact",
    operation = "kv.compact",
    backend = "cpu",
    priority = 60,
    dtypes(C = [f32, f16, bf16, f8_e4m3, f8_e5m2]),
    strides = last_dense,
    kv_strategies("paged"),
    workspace = "8 * num_pages + 16 * moves + 8 * page_size * kv_heads * head_dim",
    deterministic,
    tp_invariant = true
)]
impl<S: Simd> KvCompactKernel for CompactPages<S> {
    fn run(
        &self,
        call: &KvCompactCall<'_>,
        mut out: KvCompactOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        compact(require::<S>()?, call, &mut out, run)
    }
}

fn compact<S: Simd>(
    simd: S,
    call: &KvCompactCall<'_>,
    out: &mut KvCompactOut<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let page = (axes.page_size * axes.kv_heads * axes.head_dim) as usize;
    let (pages, moves) = (axes.num_pages as usize, axes.moves as usize);
    let workspace = run.workspace((8 * pages + 16 * moves + 8 * page) as u64)?;
    let (words, scratch) = workspace.split_at_mut(8 * pages + 16 * moves);
    // SAFETY: any bits are a valid i32, and the workspace alignment is larger than that of i32.
    let (_, words, _) = unsafe { words.align_to_mut::<i32>() };
    let source = Rows::<i32>::shaped(&call.source, Shape::Elements)?;
    let target = Rows::<i32>::shaped(&call.target, Shape::Elements)?;
    let moved =
        (0..moves).filter_map(|index| Some((*source.row(index).first()?, *target.row(index).first()?)));
    let steps = order(moved, words, pages);
    if steps.is_empty() || page == 0 {
        return Ok(());
    }
    let caches = [
        AnyRowsMut::new(&mut out.k_cache, Shape::Trailing(3))?,
        AnyRowsMut::new(&mut out.v_cache, Shape::Trailing(3))?,
    ];
    let size = caches[0].dtype().size();
    let scratch_pages = ScratchPages { start: scratch.as_mut_ptr(), page: page * size };
    let execute = |which: usize, part: usize, parts: usize| {
        simd.vectorize(|| {
            let width = caches[which].width().max(1);
            let (first, last) = (part * page / parts, (part + 1) * page / parts);
            for &[from, to] in steps {
                let mut at = first;
                while at < last {
                    let (row, column) = (at / width, at % width);
                    let count = (width - column).min(last - at);
                    // SAFETY: each slice of a page belongs to one task, in the cache and in the scratch page;
                    // a row is inside its page.
                    unsafe {
                        let address = |page_index: i32| {
                            if page_index == SCRATCH_PAGE {
                                return scratch_pages.of(which).add(at * size);
                            }
                            caches[which].start(page_index as usize * (page / width) + row).add(column * size)
                        };
                        std::ptr::copy_nonoverlapping(address(from), address(to), count * size);
                    }
                    at += count;
                }
            }
        });
    };
    if should_parallelize(4 * steps.len() * page * size) {
        let parts = page.min(4);
        pool::for_each(2 * parts, &|task| execute(task % 2, task / 2, parts));
    } else {
        execute(0, 0, 1);
        execute(1, 0, 1);
    }
    Ok(())
}

/// One scratch page per cache.
#[derive(Debug, Clone, Copy)]
struct ScratchPages {
    start: *mut u8,
    /// Bytes of a page.
    page: usize,
}

// SAFETY: tasks use disjoint slices.
unsafe impl Sync for ScratchPages {}

impl ScratchPages {
    /// # Safety
    /// `which` is 0 or 1.
    unsafe fn of(&self, which: usize) -> *mut u8 {
        // SAFETY: the workspace has space for two pages of elements of at most four bytes.
        unsafe { self.start.add(which * self.page) }
    }
}

/// Orders the moves. `words` has two entries per page and four per move; the steps are returned in the
/// latter.
pub fn order(
    moves: impl Iterator<Item = (i32, i32)> + Clone,
    words: &mut [i32],
    pages: usize,
) -> &[[i32; 2]] {
    const NONE: i32 = -1;
    let (sources, rest) = words.split_at_mut(pages);
    let (readers, steps) = rest.split_at_mut(pages);
    let (steps, _) = steps.as_chunks_mut::<2>();
    sources.fill(NONE);
    readers.fill(0);
    // The last move into a page wins.
    for (source, target) in moves.clone() {
        sources[target as usize] = if source == target { NONE } else { source };
    }
    for target in 0..pages {
        if sources[target] != NONE {
            readers[sources[target] as usize] += 1;
        }
    }
    let mut count = 0;
    let mut push = |from: i32, to: i32| {
        steps[count] = [from, to];
        count += 1;
    };
    // Chains, starting at their free ends: a page without pending readers can be written, which may free its
    // source.
    for (_, target) in moves.clone() {
        let mut target = target;
        while sources[target as usize] != NONE && readers[target as usize] == 0 {
            let source = sources[target as usize];
            push(source, target);
            sources[target as usize] = NONE;
            readers[source as usize] -= 1;
            target = source;
        }
    }
    // The rest are cycles, in which each page is read by exactly one other.
    for (_, start) in moves {
        if sources[start as usize] == NONE {
            continue;
        }
        push(start, SCRATCH_PAGE);
        let mut target = start;
        loop {
            let source = sources[target as usize];
            sources[target as usize] = NONE;
            if source == start {
                push(SCRATCH_PAGE, target);
                break;
            }
            push(source, target);
            target = source;
        }
    }
    &steps[..count]
}
