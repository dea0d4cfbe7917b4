//! Scales: computation from the absolute maximum of a group, storage, and loading.

use lz_core::element::{F8E4M3, F8E8M0};
use lz_core::{DType, KernelError, TensorMut, TensorView};
use lz_ops::QuantizeFormat;

use crate::rows::{Rows, RowsMut, Shape};
use crate::simd::{E4M3, Simd, decode, encode, not_a_float};

/// Scales that are computed at once: the maximum number of lanes.
pub(super) const SCALE_LANES: usize = 16;

/// How a scale is computed from the absolute maximum of its group.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule {
    /// Divided by the largest value of the format.
    Quotient(f32),
    /// Power of two: the exponent of the maximum minus two (OCP floor rule).
    PowerOfTwo,
    /// The maximum / 6, times the global scale, rounded to e4m3 (NVFP4).
    Nvfp4 {
        /// The global scale.
        global: f32,
    },
}

impl Rule {
    /// The rule of a format. Unsigned formats have none (their scales are given), so that their rule is never applied.
    pub(crate) fn of(format: QuantizeFormat, global: f32) -> Rule {
        match format {
            QuantizeFormat::Int8 => Rule::Quotient(127.0),
            QuantizeFormat::Int4 => Rule::Quotient(7.0),
            QuantizeFormat::Int16 => Rule::Quotient(32767.0),
            QuantizeFormat::Int2 => Rule::Quotient(1.0),
            QuantizeFormat::Fp8E4m3 => Rule::Quotient(448.0),
            QuantizeFormat::Fp8E5m2 => Rule::Quotient(57344.0),
            QuantizeFormat::Mxfp4 => Rule::PowerOfTwo,
            QuantizeFormat::Nvfp4 => Rule::Nvfp4 { global },
            QuantizeFormat::Uint8
            | QuantizeFormat::Uint4
            | QuantizeFormat::Uint16
            | QuantizeFormat::Uint2 => Rule::Quotient(f32::NAN),
        }
    }

    /// The divisor (or multiplier) of elements for a stored scale.
    #[inline(always)]
    pub(super) fn factor(self, scale: f32) -> f32 {
        match self {
            Rule::Nvfp4 { global } => scale / global,
            _ => scale,
        }
    }

    /// Scales as f32, and their codes if they are stored in a byte.
    #[inline(always)]
    pub(super) fn scale<S: Simd>(self, s: S, largest: S::F32) -> (S::F32, S::I32) {
        let none = s.lt(largest, s.splat(f32::from_bits(1)));
        let number =
            |value: S::F32| s.select(s.is_nan(largest), largest, s.select(none, s.splat(1.0), value));
        match self {
            Rule::Quotient(by) => {
                let quotient = s.div(largest, s.splat(by));
                (number(s.max(s.splat(f32::from_bits(1)), quotient)), s.splat_i32(0))
            }
            Rule::PowerOfTwo => {
                // The exponent field minus two; denormals get the smallest scale, infinity the largest.
                let stored = s.sub_i32(s.shr_i32(s.to_bits(largest), 23), s.splat_i32(2));
                let code = s.max_i32(stored, s.splat_i32(0));
                let code = s.select_i32(s.lt(s.splat(f32::MAX), largest), s.splat_i32(254), code);
                let code = s.select_i32(none, s.splat_i32(127), code);
                let code = s.select_i32(s.is_nan(largest), s.splat_i32(255), code);
                // Code 0 is 2^-127, a denormal in f32.
                let power = s.max_i32(s.shl_i32(code, 23), s.splat_i32(1 << 22));
                (number(s.bitcast_f32(power)), code)
            }
            Rule::Nvfp4 { global } => {
                let scale = s.mul(s.div(largest, s.splat(6.0)), s.splat(global));
                let code = encode::<S, E4M3>(s, number(scale));
                let size = s.to_f32(s.and_i32(code, s.splat_i32(0x7f)));
                // A scale that rounds to 0 becomes the smallest positive number.
                let code = s.select_i32(s.lt(size, s.splat(1.0)), s.splat_i32(1), code);
                (decode::<S, E4M3>(s, code), code)
            }
        }
    }
}

/// `float8_e4m3fn` values by code.
pub static E4M3_VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0usize;
    while code < 256 {
        let (exponent, mantissa) = ((code >> 3 & 15) as i32, (code & 7) as f32);
        let size = if exponent == 0 {
            mantissa / 512.0
        } else {
            (1.0 + mantissa / 8.0) * f32::from_bits(((exponent + 120) as u32) << 23)
        };
        values[code] = if code & 0x7f == 0x7f {
            f32::NAN
        } else if code >= 128 {
            -size
        } else {
            size
        };
        code += 1;
    }
    values
};

/// Scales to read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scales<'a> {
    /// f32.
    Plain(Rows<'a, f32>),
    /// Powers of two (e8m0).
    Powers(Rows<'a, F8E8M0>),
    /// e4m3.
    Small(Rows<'a, F8E4M3>),
}

impl<'a> Scales<'a> {
    pub(crate) fn new(view: &'a TensorView<'_>, shape: Shape) -> Result<Scales<'a>, KernelError> {
        match view.dtype() {
            DType::F32 => Ok(Scales::Plain(Rows::shaped(view, shape)?)),
            DType::F8E8M0 => Ok(Scales::Powers(Rows::shaped(view, shape)?)),
            DType::F8E4M3 => Ok(Scales::Small(Rows::shaped(view, shape)?)),
            other => Err(not_a_float(Some(other))),
        }
    }

    /// One scale.
    #[inline(always)]
    pub(super) fn get(&self, row: usize, index: usize) -> f32 {
        match self {
            Scales::Plain(rows) => rows.row(row)[index],
            Scales::Powers(rows) => match rows.row(row)[index].0 {
                255 => f32::NAN,
                0 => f32::from_bits(1 << 22),
                code => f32::from_bits(u32::from(code) << 23),
            },
            Scales::Small(rows) => E4M3_VALUES[usize::from(rows.row(row)[index].0)],
        }
    }
}

/// Scales to write.
#[derive(Debug)]
pub(crate) enum ScalesMut<'a> {
    /// f32.
    Plain(RowsMut<'a, f32>),
    /// Powers of two (e8m0).
    Powers(RowsMut<'a, F8E8M0>),
    /// e4m3.
    Small(RowsMut<'a, F8E4M3>),
}

impl<'a> ScalesMut<'a> {
    pub(crate) fn new(tensor: &'a mut TensorMut<'_>, shape: Shape) -> Result<ScalesMut<'a>, KernelError> {
        match tensor.dtype() {
            DType::F32 => Ok(ScalesMut::Plain(RowsMut::shaped(tensor, shape)?)),
            DType::F8E8M0 => Ok(ScalesMut::Powers(RowsMut::shaped(tensor, shape)?)),
            DType::F8E4M3 => Ok(ScalesMut::Small(RowsMut::shaped(tensor, shape)?)),
            other => Err(not_a_float(Some(other))),
        }
    }

    /// Writes one scale.
    ///
    /// # Safety
    /// No other reference to this row exists.
    #[inline(always)]
    pub(super) unsafe fn set(&self, row: usize, index: usize, value: f32, code: i32) {
        // SAFETY: the caller guarantees the row.
        unsafe {
            match self {
                ScalesMut::Plain(rows) => rows.row(row)[index] = value,
                ScalesMut::Powers(rows) => rows.row(row)[index] = F8E8M0(code as u8),
                ScalesMut::Small(rows) => rows.row(row)[index] = F8E4M3(code as u8),
            }
        }
    }
}
