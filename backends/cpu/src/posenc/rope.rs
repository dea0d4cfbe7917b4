//! `posenc.rope`: rotates each head of each token by the cos/sin table row of its position.

use std::marker::PhantomData;

use lz_core::{DType, KernelError, Run, TensorView};
use lz_ops::{PosencRopeCall, PosencRopeKernel, PosencRopeLayout, PosencRopeOut};

use crate::isa::require;
use crate::rows::{AnyRows, Rows, RowsMut, Shape, for_each_range};
use crate::simd::{Float, FloatKind, Simd, Span, Tail, vectors, with_float};

/// Both products are scaled down by this power of two, and their sum is scaled up again: a single product
/// might overflow f32.
const PRODUCT_SCALE: f32 = 1.0 / 16.0;

/// Dense heads, cos/sin tables of any float type.
#[derive(Debug)]
pub(crate) struct RopeRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.posenc.rope",
    operation = "posenc.rope",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], C = [f32, f16, bf16], P = [i32, i64]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> PosencRopeKernel for RopeRows<S> {
    fn run(
        &self,
        call: &PosencRopeCall<'_>,
        mut out: PosencRopeOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        with_float!(call.dtype_t, T => run::<S, T>(simd, call, &mut out))
    }
}

/// The cos/sin table row of each token.
pub(crate) enum Positions<'a> {
    Sequential,
    Short(Rows<'a, i32>),
    Long(Rows<'a, i64>),
}

impl<'a> Positions<'a> {
    pub(crate) fn new(tensor: Option<&'a TensorView<'_>>) -> Result<Positions<'a>, KernelError> {
        Ok(match tensor {
            None => Positions::Sequential,
            Some(view) if view.dtype() == DType::I32 => {
                Positions::Short(Rows::shaped(view, Shape::Elements)?)
            }
            Some(view) => Positions::Long(Rows::shaped(view, Shape::Elements)?),
        })
    }

    /// Position of token `token` of the batch, which has index `index` in its sequence.
    #[inline(always)]
    pub(crate) fn of(&self, token: usize, index: usize) -> usize {
        match self {
            Positions::Sequential => index,
            Positions::Short(rows) => rows.row(token).first().map_or(0, |&position| position as usize),
            Positions::Long(rows) => rows.row(token).first().map_or(0, |&position| position as usize),
        }
    }
}

fn run<S: Simd, T: Float>(
    simd: S,
    call: &PosencRopeCall<'_>,
    out: &mut PosencRopeOut<'_>,
) -> Result<(), KernelError> {
    let x = Rows::<T>::new(&call.x)?;
    let y = RowsMut::<T>::new(&mut out.output)?;
    let (cos, sin) = (AnyRows::new(&call.cos, Shape::Last)?, AnyRows::new(&call.sin, Shape::Last)?);
    let (kind, half) = (cos.kind()?, cos.width());
    let positions = Positions::new(call.positions.as_ref())?;
    let (heads, seq) = (call.axes.heads as usize, call.axes.seq as usize);
    let by_token = call.layout == PosencRopeLayout::Bshd;
    for_each_range(x.count(), 2 * x.width() * size_of::<T>(), &|range| {
        simd.vectorize(|| {
            for row in range {
                let (token, index) = if by_token {
                    (row / heads, row / heads % seq)
                } else {
                    (row / (heads * seq) * seq + row % seq, row % seq)
                };
                let position = positions.of(token, index);
                // SAFETY: ranges are disjoint, so no other task writes this row.
                let (from, to) = (x.row(row), unsafe { y.row(row) });
                let angles = Angles { kind, cos: cos.start(position), sin: sin.start(position), half };
                rotate(simd, from, to, angles, call.interleaved);
            }
        });
    });
    Ok(())
}

/// One row of the cos/sin tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Angles {
    pub(crate) kind: FloatKind,
    pub(crate) cos: *const u8,
    pub(crate) sin: *const u8,
    pub(crate) half: usize,
}

/// Rotates the pairs of a head and copies its other features.
#[inline(always)]
pub(crate) fn rotate<S: Simd, T: Float>(s: S, from: &[T], to: &mut [T], angles: Angles, interleaved: bool) {
    if interleaved {
        rotate_interleaved(s, from, to, angles);
    } else {
        rotate_half(s, from, to, angles);
    }
    to[2 * angles.half..].copy_from_slice(&from[2 * angles.half..]);
}

/// Rotate-half: feature f is paired with f + half.
#[inline(always)]
fn rotate_half<S: Simd, T: Float>(s: S, from: &[T], to: &mut [T], angles: Angles) {
    let Angles { kind, cos, sin, half } = angles;
    let (from, to) = (from.as_ptr(), to.as_mut_ptr());
    vectors!(S, half, |span| {
        // SAFETY: spans stay inside the halves; `2 * half` fits a row and both tables have `half` columns
        // (validated).
        unsafe {
            let (c, g) = (kind.load(s, cos, span), kind.load(s, sin, span));
            let (c, g) = (s.mul(c, s.splat(PRODUCT_SCALE)), s.mul(g, s.splat(PRODUCT_SCALE)));
            let (a, b) = (T::load(s, from, span), T::load(s, from.add(half), span));
            let first = s.sub(s.mul(a, c), s.mul(b, g));
            let second = s.fma(a, g, s.mul(b, c));
            T::store(s, to, span, s.mul(first, s.splat(1.0 / PRODUCT_SCALE)));
            T::store(s, to.add(half), span, s.mul(second, s.splat(1.0 / PRODUCT_SCALE)));
        }
    });
}

/// Interleaved: feature 2f is paired with 2f + 1.
#[inline(always)]
fn rotate_interleaved<S: Simd, T: Float>(s: S, from: &[T], to: &mut [T], angles: Angles) {
    let Angles { kind, cos, sin, half } = angles;
    let (from, to) = (from.as_ptr(), to.as_mut_ptr());
    vectors!(S, 2 * half, |span| {
        let angles = Tail(span.at() / 2, span.part().unwrap_or(S::LANES) / 2);
        // SAFETY: spans stay inside the rotated features, which have half as many angles (validated).
        unsafe {
            let c = s.mul(s.duplicate_low_lanes(kind.load(s, cos, angles)), s.splat(PRODUCT_SCALE));
            let g = s
                .mul(s.negate_even(s.duplicate_low_lanes(kind.load(s, sin, angles))), s.splat(PRODUCT_SCALE));
            let x = T::load(s, from, span);
            let rotated = s.fma(x, c, s.mul(s.swap_pairs(x), g));
            T::store(s, to, span, s.mul(rotated, s.splat(1.0 / PRODUCT_SCALE)));
        }
    });
}
