//! RMS norms whose result is quantized row by row: the normalized row stays in L1, rounded to the element type of x, so that codes
//! and scales are those of `norm.rms` (or `norm.rms.add`) followed by `quantize`.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::{KernelError, TensorMut, TensorView};
use lz_ops::QuantizeFormat as Format;

use super::rms::normalize;
use super::rms_add::add;
use crate::memory::FirstError;
use crate::quant::{
    Code, EncodeRow, Encoder, Rule, ScaleLayout, ScaleSource, Scales, ScalesMut, Signed, Unsigned,
};
use crate::rows::{AnyRow, AnyRowsMut, Rows, RowsMut, Shape, for_each_range, read_scalar, with_row};
use crate::simd::{E2M1, E4M3, E5M2, Float, FloatKind, Simd, with_float};

/// Which elements share a scale.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scaling {
    Tensor,
    Row,
    Block(usize),
}

/// Format and scales of the result.
pub(super) struct Quantization<'a> {
    pub format: Format,
    pub scaling: Scaling,
    pub scale: Option<TensorView<'a>>,
    pub zero_point: Option<TensorView<'a>>,
    pub global_scale: Option<TensorView<'a>>,
}

/// The normalization.
pub(super) struct Norm<'a> {
    pub x: TensorView<'a>,
    pub weight: Option<AnyRow>,
    pub weight_offset: f32,
    pub eps: f32,
}

/// Normalizes and quantizes all rows; with a residual, x is added to it first.
pub(super) fn run<S: Simd>(
    s: S,
    norm: &Norm<'_>,
    residual: Option<&mut TensorMut<'_>>,
    quantization: &Quantization<'_>,
    codes: &mut TensorMut<'_>,
    scale_out: Option<&mut TensorMut<'_>>,
) -> Result<(), KernelError> {
    with_float!(Some(norm.x.dtype()), T => {
        let job = Job::<S, T> {
            s,
            x: Rows::new(&norm.x)?,
            residual: residual.map(RowsMut::new).transpose()?,
            norm,
        };
        job.quantize(quantization, codes, scale_out)
    })
}

struct Job<'a, S, T> {
    s: S,
    x: Rows<'a, T>,
    residual: Option<RowsMut<'a, T>>,
    norm: &'a Norm<'a>,
}

impl<S: Simd, T: Float> Job<'_, S, T> {
    fn quantize(
        &self,
        quantization: &Quantization<'_>,
        codes: &mut TensorMut<'_>,
        scale_out: Option<&mut TensorMut<'_>>,
    ) -> Result<(), KernelError> {
        let global = quantization.global_scale.as_ref().map(read_scalar::<f32>).transpose()?.unwrap_or(1.0);
        let rule = Rule::of(quantization.format, global);
        let width = self.x.width();
        let (scale_layout, shape, block) = match quantization.scaling {
            Scaling::Tensor => (ScaleLayout::Tensor, Shape::Elements, width),
            Scaling::Row => (ScaleLayout::Row, Shape::Elements, width),
            Scaling::Block(size) => (ScaleLayout::Row, Shape::Last, size),
        };
        let block = block.max(1);
        let kind = FloatKind::of(T::DTYPE).ok_or_else(|| KernelError::failed("a dtype that is no float"))?;
        let blocks =
            if matches!(quantization.scaling, Scaling::Block(_)) { width.div_ceil(block) } else { 1 };
        let zero_points = quantization.zero_point.as_ref();
        let encoder = Encoder {
            kind,
            rule,
            scale_layout,
            block,
            blocks,
            zero_points: zero_points.map(|view| Rows::shaped(view, shape)).transpose()?,
        };
        let source = match (&quantization.scale, scale_out) {
            (Some(given), _) => ScaleSource::Given(Scales::new(given, shape)?),
            (None, Some(tensor)) if !matches!(quantization.scaling, Scaling::Tensor) => {
                ScaleSource::Row(ScalesMut::new(tensor, shape)?)
            }
            (None, _) => {
                return Err(KernelError::failed("the scale of all rows must be given").before_writing());
            }
        };
        let codes = AnyRowsMut::new(codes, Shape::Last)?;
        match quantization.format {
            Format::Int8 => self.rows::<Signed<8>>(&encoder, &source, &codes),
            Format::Int4 => self.rows::<Signed<4>>(&encoder, &source, &codes),
            Format::Uint8 => self.rows::<Unsigned<8>>(&encoder, &source, &codes),
            Format::Uint4 => self.rows::<Unsigned<4>>(&encoder, &source, &codes),
            Format::Int16 => self.rows::<Signed<16>>(&encoder, &source, &codes),
            Format::Uint16 => self.rows::<Unsigned<16>>(&encoder, &source, &codes),
            Format::Int2 => self.rows::<Signed<2>>(&encoder, &source, &codes),
            Format::Uint2 => self.rows::<Unsigned<2>>(&encoder, &source, &codes),
            Format::Fp8E4m3 => self.rows::<E4M3>(&encoder, &source, &codes),
            Format::Fp8E5m2 => self.rows::<E5M2>(&encoder, &source, &codes),
            Format::Mxfp4 | Format::Nvfp4 => self.rows::<E2M1>(&encoder, &source, &codes),
        }
    }

    fn rows<C: Code>(
        &self,
        encoder: &Encoder<'_>,
        source: &ScaleSource<'_>,
        codes: &AnyRowsMut<'_>,
    ) -> Result<(), KernelError> {
        let (s, width) = (self.s, self.x.width());
        let encode_rows = |range: Range<usize>, normalized: &mut [T]| {
            for row in range {
                self.normalize(row, normalized);
                // No other task writes this row, which has space for the codes of a row of x (validated).
                let row = EncodeRow {
                    simd: s,
                    encoder,
                    x: normalized.as_ptr().cast(),
                    len: width,
                    row,
                    to: codes.start(row),
                    source,
                    code: PhantomData::<C>,
                };
                row.encode();
            }
        };
        // The normalized row is encoded while it is in L1.
        let error = FirstError::default();
        for_each_range(self.x.count(), 4 * width * size_of::<T>(), &|range| {
            error.keep(with_row(width, |normalized| encode_rows(range, normalized)));
        });
        error.into_result()
    }

    /// Normalizes a row, after x was added to the residual if there is one. Not inlined: it is the same for every format.
    #[inline(never)]
    fn normalize(&self, row: usize, y: &mut [T]) {
        let s = self.s;
        let weight = (self.norm.weight, self.norm.weight_offset);
        let x = self.x.row(row);
        // Prefetch target while this row is normalized.
        let next_row = self.x.row((row + 1).min(self.x.count() - 1)).as_ptr();
        s.vectorize(|| match &self.residual {
            None => normalize(s, x, next_row, weight, self.norm.eps, y, false),
            Some(residual) => {
                // SAFETY: ranges are disjoint, so no other task writes this row.
                let residual = unsafe { residual.row(row) };
                add(s, x, residual);
                normalize(s, residual, next_row, weight, self.norm.eps, y, false);
            }
        });
    }
}
