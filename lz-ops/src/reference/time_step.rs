//! Time steps of state space models, in f64.

/// How a time step is computed from its input.
#[derive(Debug, Clone, Copy)]
pub struct TimeStep {
    /// Whether the softplus is taken.
    pub softplus: bool,
    /// Least time step.
    pub min: f32,
    /// Largest time step; 0 means none.
    pub max: f32,
}

impl TimeStep {
    /// The time step; NaN for NaN.
    pub fn of(&self, z: f64) -> f64 {
        // For large z, the exponential overflows and the softplus is z.
        let mut step = if self.softplus && z < 700.0 { z.exp().ln_1p() } else { z };
        if step < f64::from(self.min) {
            step = f64::from(self.min);
        }
        if self.max > 0.0 && step > f64::from(self.max) {
            step = f64::from(self.max);
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_and_bounds() {
        let plain = TimeStep { softplus: true, min: 0.0, max: 0.0 };
        assert!((plain.of(0.0) - 2f64.ln()).abs() < 1e-15);
        assert_eq!(plain.of(1e4), 1e4);
        assert_eq!(plain.of(f64::NEG_INFINITY), 0.0);
        assert!(plain.of(f64::NAN).is_nan());
        let bounded = TimeStep { softplus: false, min: 0.5, max: 2.0 };
        assert_eq!([-1.0, 1.0, 3.0].map(|z| bounded.of(z)), [0.5, 1.0, 2.0]);
    }
}
