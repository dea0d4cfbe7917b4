//! `ssm.scan`: the recurrence of linear attention without the delta rule; B is the key, C the query and x the value.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::reference::time_step::TimeStep;
use lz_ops::{SsmScanCall, SsmScanKernel, SsmScanOut};

use super::engine::{ExactPosition, LogDecay, Prepared, Recurrence, States, scratch_elements};
use super::linear::{convert, dot};
use crate::isa::require;
use crate::memory;
use crate::rows::{Rows, RowsMut, Shape, for_each_range};
use crate::simd::{Float, Simd, with_float};

/// Dense rows of any float type.
#[derive(Debug)]
pub(crate) struct Scan<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.ssm.scan",
    operation = "ssm.scan",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "(batch * seq * groups * (2 * state_dim + 2) + batch * seq * heads + min(batch * heads * head_dim, 64) * (69 * state_dim + 256)) * 4"
)]
impl<S: Simd> SsmScanKernel for Scan<S> {
    fn run(
        &self,
        call: &SsmScanCall<'_>,
        mut out: SsmScanOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        with_float!(call.dtype_t, T => scan::<S, T>(s, call, &mut out, run))
    }
}

fn scan<S: Simd, T: Float>(
    s: S,
    call: &SsmScanCall<'_>,
    out: &mut SsmScanOut<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let sizes @ [batch, seq, heads, groups] =
        [axes.batch, axes.seq, axes.heads, axes.groups].map(|size| size as usize);
    let dims @ [key_dim, value_dim] = [axes.state_dim as usize, axes.head_dim as usize];
    let (x, b, c) = (Rows::<T>::new(&call.x)?, Rows::<T>::new(&call.b)?, Rows::<T>::new(&call.c)?);
    let dt = Rows::<T>::shaped(&call.dt, Shape::Elements)?;
    let a = Rows::<f32>::shaped(&call.a, Shape::Elements)?;
    let bias = call.dt_bias.as_ref().map(|bias| Rows::<f32>::shaped(bias, Shape::Elements)).transpose()?;
    let skip = call.d.as_ref().map(Rows::<f32>::new).transpose()?;
    let initial = call.initial_state.as_ref().map(Rows::<f32>::new).transpose()?;
    let y = RowsMut::<T>::new(&mut out.output)?;
    let last = out.final_state.as_mut().map(RowsMut::<f32>::new).transpose()?;
    let time_step = TimeStep { softplus: call.dt_softplus, min: call.dt_min, max: call.dt_max };

    let prepared_elements = batch * seq * groups * Prepared::width(key_dim);
    let elements = prepared_elements + batch * seq * heads;
    let scratch = scratch_elements(batch * heads * value_dim, key_dim);
    let workspace: *mut f32 =
        run.workspace(((elements + scratch) * size_of::<f32>()) as u64)?.as_mut_ptr().cast();
    let prepared = Prepared { start: workspace, key_dim };
    for_each_range(b.count(), 4 * key_dim * size_of::<f32>(), &|range| {
        for row in range {
            // SAFETY: the workspace has space for every row, and each belongs to one task.
            let to = unsafe { prepared.row(row) };
            let (q, rest) = to.split_at_mut(key_dim);
            let (k, products) = rest.split_at_mut(key_dim);
            convert(s, c.row(row), false, q);
            convert(s, b.row(row), false, k);
            products.copy_from_slice(&[dot(s, q, k), 0.0]);
        }
    });
    let exact_step = |row: usize| {
        let head = row % heads;
        let bias = bias.map_or(0.0, |bias| f64::from(bias.row(head)[0]));
        time_step.of(f64::from(dt.row(row)[0].to_f32()) + bias)
    };
    // Time steps are computed once for all blocks of a head.
    let steps = Steps { start: workspace.wrapping_add(prepared_elements) };
    for_each_range(batch * seq * heads, 64, &|range| {
        for row in range {
            // SAFETY: the workspace has space for every row, and each belongs to one task.
            unsafe { *steps.start().add(row) = exact_step(row) as f32 };
        }
    });
    let factor = |row: usize| steps.at(row);
    let gate = |row: usize| steps.at(row) * a.row(row % heads)[0];
    let exact = |key_row: usize, row: usize| {
        let wide = |row: &[T]| memory::collect(row.len(), row.iter().map(|value| f64::from(value.to_f32())));
        let step = exact_step(row);
        let decay = (step * f64::from(a.row(row % heads)[0])).exp();
        Ok(ExactPosition {
            q: wide(c.row(key_row))?,
            k: wide(b.row(key_row))?,
            decay: memory::collect(key_dim, std::iter::repeat(decay))?,
            factor: step,
        })
    };
    let recurrence = Recurrence {
        s,
        sizes,
        key_dim,
        value_dim,
        prepared,
        log_decay: LogDecay::One(&gate),
        delta_rule: false,
        factor: &factor,
        v: x,
        y: &y,
        states: States { initial, last: last.as_ref(), in_place: false, transposed: true, dims },
        scale: 1.0,
        skip: skip.map(|skip| skip.row(0)),
        exact: &exact,
    };
    recurrence.run(workspace.wrapping_add(elements))
}

/// Time steps in the workspace.
struct Steps {
    start: *mut f32,
}

// SAFETY: each element is written by one task, and read only after all tasks finished.
unsafe impl Sync for Steps {}

impl Steps {
    fn start(&self) -> *mut f32 {
        self.start
    }

    fn at(&self, row: usize) -> f32 {
        // SAFETY: there is a step for every batch row, position and head.
        unsafe { *self.start.add(row) }
    }
}
