//! `ssm.step`: one pass over each state, bound by memory.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::reference::time_step::TimeStep;
use lz_ops::{SsmStepCall, SsmStepKernel, SsmStepOut};

use crate::isa::require;
use crate::rows::{Rows, RowsMut, Shape, for_each_range};
use crate::simd::{Float, Simd, vectors, with_float};

/// Dense rows of any float type.
#[derive(Debug)]
pub(crate) struct Step<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.ssm.step",
    operation = "ssm.step",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> SsmStepKernel for Step<S> {
    fn run(
        &self,
        call: &SsmStepCall<'_>,
        mut out: SsmStepOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        with_float!(call.dtype_t, T => step::<S, T>(s, call, &mut out))
    }
}

fn step<S: Simd, T: Float>(
    s: S,
    call: &SsmStepCall<'_>,
    out: &mut SsmStepOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let [heads, head_dim, groups] = [axes.heads, axes.head_dim, axes.groups].map(|size| size as usize);
    let x = Rows::<T>::shaped(&call.x, Shape::Elements)?;
    let (b, c) = (Rows::<T>::new(&call.b)?, Rows::<T>::new(&call.c)?);
    let dt = Rows::<T>::shaped(&call.dt, Shape::Elements)?;
    let one = |view| Rows::<f32>::shaped(view, Shape::Elements);
    let a = one(&call.a)?;
    let (skip, bias) = (call.d.as_ref().map(one).transpose()?, call.dt_bias.as_ref().map(one).transpose()?);
    let state = RowsMut::<f32>::new(&mut out.state)?;
    let y = RowsMut::<T>::shaped(&mut out.output, Shape::Elements)?;
    let time_step = TimeStep { softplus: call.dt_softplus, min: call.dt_min, max: call.dt_max };
    let bytes = 2 * axes.state_dim as usize * size_of::<f32>();
    for_each_range(x.count(), bytes, &|range| {
        for row in range {
            let (item, head) = (row / head_dim / heads, row / head_dim % heads);
            let group = item * groups + head / (heads / groups);
            let input = x.row(row)[0].to_f32();
            let bias = bias.map_or(0.0, |bias| f64::from(bias.row(head)[0]));
            let step = time_step.of(f64::from(dt.row(item * heads + head)[0].to_f32()) + bias);
            let rate = f64::from(a.row(head)[0]);
            // SAFETY: every row of states and outputs belongs to one task.
            let (state, y) = unsafe { (state.row(row), y.row(row)) };
            let (b, c) = (b.row(group), c.row(group));
            let factors = [(step * rate).exp(), step * f64::from(input)];
            let sum = update(s, state, b, c, factors);
            let skipped = skip.map_or(0.0, |skip| f64::from(skip.row(head)[0]) * f64::from(input));
            y[0] = T::from_f32((sum + skipped) as f32);
        }
    });
    Ok(())
}

/// `state ← decay * state + input * b`; returns the product of the state with c.
fn update<S: Simd, T: Float>(s: S, state: &mut [f32], b: &[T], c: &[T], factors: [f64; 2]) -> f64 {
    let [decay, input] = factors.map(|factor| factor as f32);
    // Results that f32 cannot represent are found before the state is overwritten.
    if !bounded(s, state, b, c, [decay, input]) {
        return update_f64(state, b, c, factors);
    }
    f64::from(s.vectorize(|| {
        let mut sum = s.splat(0.0);
        vectors!(S, state.len(), |span| {
            // SAFETY: state, b and c have this many elements.
            unsafe {
                let added = s.mul(s.splat(input), T::load(s, b.as_ptr(), span));
                let value = s.fma(s.splat(decay), <f32 as Float>::load(s, state.as_ptr(), span), added);
                <f32 as Float>::store(s, state.as_mut_ptr(), span, value);
                sum = s.fma(value, T::load(s, c.as_ptr(), span), sum);
            }
        });
        s.sum(sum)
    }))
}

/// Whether no intermediate value can overflow: a bound on the sum of all magnitudes is small enough.
#[inline(never)]
fn bounded<S: Simd, T: Float>(s: S, state: &[f32], b: &[T], c: &[T], [decay, input]: [f32; 2]) -> bool {
    let largest = s.vectorize(|| {
        let mut largest = s.splat(0.0);
        vectors!(S, state.len(), |span| {
            // SAFETY: state, b and c have this many elements.
            unsafe {
                let old = s.mul(s.splat(decay), <f32 as Float>::load(s, state.as_ptr(), span));
                let added = s.mul(s.splat(input), T::load(s, b.as_ptr(), span));
                let bound = s.add(s.abs(old), s.abs(added));
                let read = s.mul(
                    s.add(bound, s.splat(1.0)),
                    s.add(s.abs(T::load(s, c.as_ptr(), span)), s.splat(1.0)),
                );
                largest = s.add(largest, read);
            }
        });
        s.sum(largest)
    });
    // False for NaN.
    largest < 1e37
}

#[cold]
#[inline(never)]
fn update_f64<T: Float>(state: &mut [f32], b: &[T], c: &[T], [decay, input]: [f64; 2]) -> f64 {
    let mut sum = 0.0;
    for ((state, b), c) in state.iter_mut().zip(b).zip(c) {
        let value = decay * f64::from(*state) + input * f64::from(b.to_f32());
        *state = value as f32;
        sum += value * f64::from(c.to_f32());
    }
    sum
}
