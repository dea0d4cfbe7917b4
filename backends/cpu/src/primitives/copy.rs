//! `primitive.copy`: dense runs by `memcpy`, transposed tensors in tiles.

use lz_core::{KernelError, OutArg, Run};
use lz_primitives::call::{Call, mismatch, output};

use super::runs::{Operand, Runs, Tiled};
use crate::pool;
use crate::rows::{TASK_BYTES, copy_bytes, should_parallelize, should_stream};
use crate::simd::{MAX_LANES, Simd};

/// `primitive.copy`.
pub(super) fn copy<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let x = call.tensor(0)?;
    let output = output(outputs, 0)?;
    if x.dtype() != output.dtype() {
        return Err(mismatch("x and the output must have the same dtype"));
    }
    let shape = output.layout().shape;
    let operand = Operand::input(x, &shape)?;
    let (elements, size) = (output.elements() as usize, x.dtype().size());
    let runs = Runs::new(&shape, [Operand::output(output), operand]);
    copy_runs(s, &runs, size, elements);
    Ok(())
}

/// Copies elements of `size` bytes from the second operand to the first.
pub(super) fn copy_runs<S: Simd>(s: S, runs: &Runs<2>, size: usize, elements: usize) {
    if runs.inner == [size as isize; 2] {
        let stream = should_stream(elements * size);
        return runs.for_each(|[to, from], len| {
            // SAFETY: both are dense runs of this length.
            s.vectorize(|| unsafe { copy_bytes(s, from, to, len * size, stream) });
            if stream {
                s.fence();
            }
        });
    }
    match size {
        1 => copy_sized::<S, u8>(s, runs),
        2 => copy_sized::<S, u16>(s, runs),
        4 => copy_sized::<S, u32>(s, runs),
        _ => copy_sized::<S, u64>(s, runs),
    }
}

fn copy_sized<S: Simd, T: Copy + Sync>(s: S, runs: &Runs<2>) {
    let size = size_of::<T>() as isize;
    let [to_step, from_step] = runs.inner;
    if to_step == size
        && from_step != 0
        && let Some(tiled) = runs.tiled(1, size)
    {
        return transpose::<S, T>(s, runs, &tiled);
    }
    runs.for_each(|[to, from], len| {
        let (to, from) = (to.cast::<T>(), from.cast::<T>());
        // SAFETY: both have an element at every multiple of their strides.
        unsafe {
            if to_step == size && from_step == 0 {
                std::slice::from_raw_parts_mut(to, len).fill(*from);
            } else {
                for index in 0..len as isize {
                    *to.wrapping_byte_offset(to_step * index) = *from.wrapping_byte_offset(from_step * index);
                }
            }
        }
    });
}

/// Rows of the output that a task writes.
const TILE_ROWS: usize = 64;

/// Elements of an output row that are written before the next row: a cache line of f32.
const TILE_COLUMNS: usize = 16;

/// Copies where the output is dense in the last dimension and the input in another one, the rows of [`Tiled`].
fn transpose<S: Simd, T: Copy + Sync>(s: S, runs: &Runs<2>, tiled: &Tiled<2>) {
    let chunks = tiled.rows.div_ceil(TILE_ROWS);
    let tasks = tiled.runs.count() * chunks;
    let bytes = 2 * runs.len * tiled.rows * size_of::<T>();
    let task = |task: usize| {
        let (run, first) = (task / chunks, task % chunks * TILE_ROWS);
        let [to, from] = tiled.runs.start(run);
        let rows = TILE_ROWS.min(tiled.rows - first);
        let tile = Tile {
            to: to.wrapping_offset(tiled.steps[0] * first as isize).cast::<T>(),
            from: from.wrapping_offset(tiled.steps[1] * first as isize).cast::<T>(),
            rows,
            columns: runs.len,
            to_step: tiled.steps[0],
            from_step: runs.inner[1],
        };
        // SAFETY: the tile is inside both operands, and tasks write disjoint rows.
        unsafe { tile.copy(s) };
    };
    let parallel = should_parallelize(bytes.saturating_mul(tiled.runs.count()));
    let per_task = (TASK_BYTES / (2 * runs.len * TILE_ROWS * size_of::<T>()).max(1)).max(1);
    pool::for_each_if(parallel, tasks.div_ceil(per_task), &|group| {
        (group * per_task..tasks.min((group + 1) * per_task)).for_each(task);
    });
}

/// Element (row, column) is at `to + row * to_step + column` and `from + row + column * from_step`; steps are in bytes.
struct Tile<T> {
    to: *mut T,
    from: *const T,
    rows: usize,
    columns: usize,
    to_step: isize,
    from_step: isize,
}

impl<T: Copy> Tile<T> {
    /// # Safety
    /// All elements are readable and writable.
    unsafe fn copy<S: Simd>(&self, s: S) {
        let mut column = 0;
        while column < self.columns {
            let columns = TILE_COLUMNS.min(self.columns - column);
            let mut row = 0;
            // SAFETY: the caller guarantees all elements; moving f32 lanes preserves the bits of four-byte elements.
            unsafe {
                if const { size_of::<T>() == 4 && S::LANES == TILE_COLUMNS } && columns == TILE_COLUMNS {
                    while row + TILE_COLUMNS <= self.rows {
                        self.copy_square(s, row, column);
                        row += TILE_COLUMNS;
                    }
                }
                for row in row..self.rows {
                    let to = self.to.wrapping_byte_offset(self.to_step * row as isize);
                    for column in column..column + columns {
                        let from = self.from.wrapping_byte_offset(self.from_step * column as isize).add(row);
                        *to.add(column) = *from;
                    }
                }
            }
            column += columns;
        }
    }

    /// # Safety
    /// `LANES` x `LANES` elements of four bytes are readable and writable.
    #[inline(always)]
    unsafe fn copy_square<S: Simd>(&self, s: S, row: usize, column: usize) {
        #[repr(align(64))]
        struct Square([f32; MAX_LANES * MAX_LANES]);
        // SAFETY: the caller guarantees the elements. Rows of the output are a multiple of their size apart, or copied one by one.
        s.vectorize(|| unsafe {
            let (mut block, mut turned) =
                (Square([0.0; MAX_LANES * MAX_LANES]), Square([0.0; MAX_LANES * MAX_LANES]));
            let block = block.0.as_mut_ptr();
            for lane in 0..S::LANES {
                let from = self.from.wrapping_byte_offset(self.from_step * (column + lane) as isize).add(row);
                s.store(block.add(lane * S::LANES), s.load(from.cast()));
            }
            let turned = turned.0.as_mut_ptr();
            s.transpose(block, turned, S::LANES);
            for lane in 0..S::LANES {
                let to = self.to.wrapping_byte_offset(self.to_step * (row + lane) as isize).add(column);
                s.store(to.cast(), s.load(turned.add(lane * S::LANES)));
            }
        });
    }
}
