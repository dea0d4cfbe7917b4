//! Activation functions in f64, with their limits at both infinities. Independent of tensors.

/// Identity.
pub fn identity(z: f64) -> f64 {
    z
}

/// `max(z, 0)`; NaN for NaN.
pub fn relu(z: f64) -> f64 {
    if z > 0.0 || z.is_nan() { z } else { 0.0 }
}

/// `z / (1 + exp(-alpha z))`.
pub fn silu_with(z: f64, alpha: f64) -> f64 {
    // With alpha 0 the result is z / 2, at infinity too, where the product would be NaN.
    let exponent = if alpha == 0.0 { 0.0 } else { -alpha * z };
    over_one_plus_exp(z, exponent)
}

/// `z / (1 + exp(-z))`.
pub fn silu(z: f64) -> f64 {
    silu_with(z, 1.0)
}

/// `z Φ(z)`, computed with erfc to keep precision where Φ is small.
pub fn gelu(z: f64) -> f64 {
    if z == f64::NEG_INFINITY {
        return -0.0;
    }
    z * 0.5 * libm::erfc(-z * std::f64::consts::FRAC_1_SQRT_2)
}

/// `z/2 (1 + tanh(y))` with `y = √(2/π) (z + 0.044715 z³)`, computed as `z / (1 + exp(-2y))`, which avoids
/// cancellation.
pub fn gelu_tanh(z: f64) -> f64 {
    let y = (2.0 / std::f64::consts::PI).sqrt() * (z + 0.044715 * z * z * z);
    over_one_plus_exp(z, -2.0 * y)
}

/// `z / (1 + exp(exponent))`; 0 where both are infinite, because the exponential wins.
fn over_one_plus_exp(z: f64, exponent: f64) -> f64 {
    let denominator = 1.0 + exponent.exp();
    if z.is_infinite() && denominator.is_infinite() { 0f64.copysign(z) } else { z / denominator }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_at_both_infinities() {
        for function in [silu, gelu, gelu_tanh] {
            assert_eq!(function(f64::INFINITY), f64::INFINITY);
            assert_eq!(function(f64::NEG_INFINITY), 0.0);
            assert_eq!(function(0.0), 0.0);
            assert_eq!(function(1e30), 1e30);
            assert_eq!(function(-1e30), 0.0);
            assert!(function(f64::NAN).is_nan());
        }
        assert_eq!(silu_with(f64::INFINITY, 0.0), f64::INFINITY);
        assert_eq!(silu_with(f64::NEG_INFINITY, 0.0), f64::NEG_INFINITY);
        assert_eq!(silu_with(f64::INFINITY, -1.0), 0.0);
        assert_eq!(silu_with(f64::NEG_INFINITY, -1.0), f64::NEG_INFINITY);
        assert_eq!(silu_with(3.0, 0.0), 1.5);
    }

    #[test]
    fn known_values() {
        let near =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-13, "{found} {expected}");
        near(silu(1.0), 0.731_058_578_630_004_9);
        near(gelu(1.0), 0.841_344_746_068_542_9);
        near(gelu(-1.0), -0.158_655_253_931_457_05);
        // Far in the tail, where 1 + erf would lose all digits: -10 Φ(-10).
        near(gelu(-10.0), -7.619_853_024_160_526e-23);
        near(gelu_tanh(1.0), 0.841_191_990_608_276_8);
        assert_eq!([relu(-1.0), relu(2.0), relu(-0.0)], [0.0, 2.0, 0.0]);
        assert!(relu(f64::NAN).is_nan());
    }
}
