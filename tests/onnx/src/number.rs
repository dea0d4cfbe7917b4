//! Minifloats as `f64`, for comparison and printing.
//!
//! Formats are described by three parameters and a rule for special values, so that one decoder handles all.
//! It is independent of the decoder that the operations use: a shared mistake would go undetected.

/// How a format uses the bit patterns of IEEE 754 infinities and NaNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// The highest exponent holds infinity and NaNs.
    Ieee,
    /// Only the pattern of all ones (apart from the sign) is NaN; no infinities.
    OnlyAllOnes,
    /// Only the pattern of negative zero is NaN; no infinities.
    OnlyNegativeZero,
    /// Every pattern is a number.
    None,
}

/// A signed float of at most eight bits.
#[derive(Clone, Copy, Debug)]
pub struct SmallFloat {
    /// Width of the exponent.
    pub exponent_bits: u32,
    /// Width of the stored mantissa.
    pub mantissa_bits: u32,
    /// Exponent bias.
    pub bias: i32,
    /// The rule for special values.
    pub specials: Specials,
}

/// `FLOAT8E4M3FN`.
pub const E4M3FN: SmallFloat =
    SmallFloat { exponent_bits: 4, mantissa_bits: 3, bias: 7, specials: Specials::OnlyAllOnes };
/// `FLOAT8E4M3FNUZ`.
pub const E4M3FNUZ: SmallFloat =
    SmallFloat { exponent_bits: 4, mantissa_bits: 3, bias: 8, specials: Specials::OnlyNegativeZero };
/// `FLOAT8E5M2`.
pub const E5M2: SmallFloat =
    SmallFloat { exponent_bits: 5, mantissa_bits: 2, bias: 15, specials: Specials::Ieee };
/// `FLOAT8E5M2FNUZ`.
pub const E5M2FNUZ: SmallFloat =
    SmallFloat { exponent_bits: 5, mantissa_bits: 2, bias: 16, specials: Specials::OnlyNegativeZero };
/// `FLOAT4E2M1`.
pub const E2M1: SmallFloat =
    SmallFloat { exponent_bits: 2, mantissa_bits: 1, bias: 1, specials: Specials::None };

impl SmallFloat {
    /// Decodes the lowest bits of `bits`.
    pub fn decode(self, bits: u8) -> f64 {
        let bits = u32::from(bits);
        let sign_bit = 1 << (self.exponent_bits + self.mantissa_bits);
        let (negative, magnitude) = (bits & sign_bit != 0, bits & (sign_bit - 1));
        let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
        let exponent = magnitude >> self.mantissa_bits;
        let highest_exponent = (1 << self.exponent_bits) - 1;
        let value = match self.specials {
            Specials::Ieee if exponent == highest_exponent && mantissa == 0 => f64::INFINITY,
            Specials::Ieee if exponent == highest_exponent => f64::NAN,
            Specials::OnlyAllOnes if magnitude == sign_bit - 1 => f64::NAN,
            Specials::OnlyNegativeZero if negative && magnitude == 0 => f64::NAN,
            _ => {
                let one = 1 << self.mantissa_bits;
                // Exponent field 0 is subnormal: no implicit one, and the scale of the lowest normal
                // exponent.
                let significand = if exponent == 0 { mantissa } else { one + mantissa };
                let scale = exponent.max(1) as i32 - self.bias - self.mantissa_bits as i32;
                f64::from(significand) * 2f64.powi(scale)
            }
        };
        if negative { -value } else { value }
    }
}

/// `FLOAT8E8M0`: a power of two, with 255 for NaN.
pub fn decode_e8m0(bits: u8) -> f64 {
    if bits == 255 { f64::NAN } else { 2f64.powi(i32::from(bits) - 127) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_known_values_of_each_format() {
        assert_eq!(E4M3FN.decode(0x7e), 448.0);
        assert_eq!(E4M3FN.decode(0x01), 2f64.powi(-9));
        assert!(E4M3FN.decode(0x7f).is_nan() && E4M3FN.decode(0xff).is_nan());
        assert_eq!(E4M3FN.decode(0x80).to_bits(), (-0.0f64).to_bits());
        assert_eq!(E4M3FNUZ.decode(0x7f), 240.0);
        assert!(E4M3FNUZ.decode(0x80).is_nan());
        assert_eq!(E5M2.decode(0x7b), 57344.0);
        assert_eq!(E5M2.decode(0xfc), f64::NEG_INFINITY);
        assert!(E5M2.decode(0x7d).is_nan());
        assert_eq!(E5M2FNUZ.decode(0xff), -57344.0);
        assert!(E5M2FNUZ.decode(0x80).is_nan());
        let magnitudes: Vec<f64> = (0..8).map(|bits| E2M1.decode(bits)).collect();
        assert_eq!(magnitudes, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(decode_e8m0(0), 2f64.powi(-127));
        assert_eq!(decode_e8m0(254), 2f64.powi(127));
        assert!(decode_e8m0(255).is_nan());
    }
}
