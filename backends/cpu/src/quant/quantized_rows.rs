//! Rows of codes that are decoded to f32 part by part, and their products with rows of floats.

use std::ops::Range;

use lz_core::KernelError;
use lz_core::element::f4_e2m1_to_f64;
use lz_core::tensor::TensorView;

use super::codes::{Code, LARGE_ZERO_POINT, Signed, Unsigned, read_code};
use super::scales::{E4M3_VALUES, Rule, Scales};
use crate::gemm::dots::dots;
use crate::rows::{AnyRows, Rows, Shape};
use crate::simd::{E2M1, E4M3, Float, Simd, vectors};

/// How a value is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stored {
    Int8,
    Uint8,
    Int4,
    Uint4,
    E4m3,
    E2m1,
}

/// Which elements share a scale. A tensor is a stack of matrices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grouping {
    /// Rows of a matrix.
    pub matrix: usize,
    /// Adjacent rows of a matrix that share scales.
    pub rows: usize,
    /// Adjacent elements of a row that share a scale.
    pub elements: usize,
}

impl Grouping {
    /// Row and index of an element's scale.
    fn of(self, row: usize, element: usize) -> (usize, usize) {
        let (matrix, rows) = (self.matrix.max(1), self.rows.max(1));
        (row / matrix * matrix.div_ceil(rows) + row % matrix / rows, element / self.elements.max(1))
    }
}

/// Rows of codes with the scales and zero points of their groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantizedRows<'a> {
    codes: AnyRows<'a>,
    stored: Stored,
    scales: Scales<'a>,
    zero_points: Option<Rows<'a, i32>>,
    grouping: Grouping,
    /// By which NVFP4 scales are divided.
    global: f32,
}

impl<'a> QuantizedRows<'a> {
    /// Scales of the shape `shape`: one per row of scales, or several.
    pub(crate) fn new(
        codes: &'a TensorView<'_>,
        stored: Stored,
        scales: &'a TensorView<'_>,
        shape: Shape,
        grouping: Grouping,
    ) -> Result<QuantizedRows<'a>, KernelError> {
        let codes = AnyRows::new(codes, Shape::Last)?;
        let scales = Scales::new(scales, shape)?;
        Ok(QuantizedRows { codes, stored, scales, zero_points: None, grouping, global: 1.0 })
    }

    /// With a zero point for each scale.
    pub(crate) fn zero_points(mut self, zero_points: Option<Rows<'a, i32>>) -> QuantizedRows<'a> {
        self.zero_points = zero_points;
        self
    }

    /// With a scale by which the others are divided.
    pub(crate) fn global(mut self, global: f32) -> QuantizedRows<'a> {
        self.global = global;
        self
    }

    /// The number of rows.
    pub(crate) fn count(&self) -> usize {
        self.codes.count()
    }

    /// Decodes a part of a row. The part starts at a byte.
    ///
    /// # Safety
    /// The row has these elements.
    pub(crate) unsafe fn decode<S: Simd>(&self, s: S, row: usize, part: Range<usize>, to: &mut [f32]) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.stored {
                Stored::Int8 => self.decode_codes::<S, Signed<8>>(s, row, part, to),
                Stored::Uint8 => self.decode_codes::<S, Unsigned<8>>(s, row, part, to),
                Stored::Int4 => self.decode_codes::<S, Signed<4>>(s, row, part, to),
                Stored::Uint4 => self.decode_codes::<S, Unsigned<4>>(s, row, part, to),
                Stored::E4m3 => self.decode_codes::<S, E4M3>(s, row, part, to),
                Stored::E2m1 => self.decode_codes::<S, E2M1>(s, row, part, to),
            }
        }
    }

    /// # Safety
    /// As [`QuantizedRows::decode`].
    unsafe fn decode_codes<S: Simd, C: Code>(&self, s: S, row: usize, part: Range<usize>, to: &mut [f32]) {
        let codes = self.codes.start(row);
        let (mut start, mut rest) = (part.start, to);
        while start < part.end {
            let (scale_row, index) = self.grouping.of(row, start);
            let end = part.end.min((index + 1).saturating_mul(self.grouping.elements.max(1)));
            let Some((to, after)) = rest.split_at_mut_checked(end - start) else { return };
            let factor = Rule::Nvfp4 { global: self.global }.factor(self.scales.get(scale_row, index));
            let zero_point = self.zero_points.map_or(0, |rows| rows.row(scale_row)[index]);
            if zero_point.unsigned_abs() < LARGE_ZERO_POINT as u32 && C::is_at_byte(start) {
                // SAFETY: the caller guarantees the codes.
                unsafe { decode_group::<S, C>(s, codes.add(C::offset(start)), factor, zero_point, to) };
            } else {
                for (element, to) in (start..end).zip(to) {
                    // SAFETY: the caller guarantees the codes. Groups of floats start at a byte and have no zero points.
                    let code = unsafe { read_code::<C>(codes, element) };
                    *to = (i64::from(code) - i64::from(zero_point)) as f32 * factor;
                }
            }
            (start, rest) = (end, after);
        }
    }

    /// One element in f64, with its exact scale.
    ///
    /// # Safety
    /// The row has this element.
    #[cold]
    pub(crate) unsafe fn value(&self, row: usize, element: usize) -> f64 {
        let codes = self.codes.start(row);
        let (scale_row, index) = self.grouping.of(row, element);
        let zero_point = i64::from(self.zero_points.map_or(0, |rows| rows.row(scale_row)[index]));
        // SAFETY: guaranteed by the caller.
        let value = unsafe {
            match self.stored {
                Stored::Int8 => (i64::from(read_code::<Signed<8>>(codes, element)) - zero_point) as f64,
                Stored::Uint8 => (i64::from(read_code::<Unsigned<8>>(codes, element)) - zero_point) as f64,
                Stored::Int4 => (i64::from(read_code::<Signed<4>>(codes, element)) - zero_point) as f64,
                Stored::Uint4 => (i64::from(read_code::<Unsigned<4>>(codes, element)) - zero_point) as f64,
                Stored::E4m3 => {
                    f64::from(E4M3_VALUES[read_code::<Unsigned<8>>(codes, element) as u8 as usize])
                }
                Stored::E2m1 => f4_e2m1_to_f64(read_code::<Unsigned<4>>(codes, element) as u8),
            }
        };
        value * (f64::from(self.scales.get(scale_row, index)) / f64::from(self.global))
    }
}

/// Decodes elements that share a scale.
///
/// # Safety
/// `codes` has the codes of all elements of `to`.
#[inline(never)]
unsafe fn decode_group<S: Simd, C: Code>(
    s: S,
    codes: *const u8,
    factor: f32,
    zero_point: i32,
    to: &mut [f32],
) {
    s.vectorize(|| {
        let (factor, zero_point) = (s.splat(factor), s.splat_i32(zero_point));
        vectors!(S, to.len(), |span| {
            // SAFETY: the caller guarantees the codes; spans stay inside.
            unsafe {
                let value = s.mul(C::load(s, codes, span, zero_point), factor);
                <f32 as Float>::store(s, to.as_mut_ptr(), span, value);
            }
        });
    });
}

/// Maximum rows of floats of a product: rows of codes are decoded once for all of them.
pub(crate) const LEFT_ROWS: usize = 64;

/// Maximum rows of codes of a product.
pub(crate) const COLUMNS: usize = 16;

/// Elements that are decoded at once: 32 KB of f32 for all rows, which stay in the first-level cache.
const PART: usize = 512;

/// Sums of products of rows of floats with rows of codes.
pub(crate) type Sums = [[f32; COLUMNS]; LEFT_ROWS];

/// Multiplies rows of floats with rows of codes.
///
/// # Safety
/// All rows have `depth` elements.
///
/// # Panics
/// If there are more than [`LEFT_ROWS`] or [`COLUMNS`] rows.
pub(crate) unsafe fn products<S: Simd, A: Float>(
    s: S,
    left: &[&[A]],
    right: &QuantizedRows<'_>,
    rows: &[usize],
    depth: usize,
) -> Sums {
    assert!(left.len() <= LEFT_ROWS && rows.len() <= COLUMNS, "too many rows");
    let mut sums = [[0.0; COLUMNS]; LEFT_ROWS];
    let mut decoded = [[0.0f32; PART]; COLUMNS];
    for start in (0..depth).step_by(PART) {
        let part = start..depth.min(start + PART);
        for (row, to) in rows.iter().zip(&mut decoded) {
            // SAFETY: the caller guarantees the rows; parts start at bytes.
            unsafe { right.decode(s, *row, part.clone(), &mut to[..part.len()]) };
        }
        let mut a: [&[A]; LEFT_ROWS] = [&[]; LEFT_ROWS];
        a.iter_mut().zip(left).for_each(|(to, row)| *to = &row[part.clone()]);
        let b = decoded.each_ref().map(|row| &row[..part.len()]);
        let take = &mut |m: usize, n: usize, sum: f32| sums[m][n] += sum;
        // SAFETY: all rows have the elements of this part.
        unsafe { dots(s, &a[..left.len()], &b[..rows.len()], part.len(), take) };
    }
    sums
}
