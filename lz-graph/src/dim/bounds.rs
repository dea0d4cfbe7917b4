//! Bounds of sizes, and sizes that are simpler within the ranges of their symbols.

use super::{Dim, Factor, Symbol};

/// Values beyond this count as unbounded; sums of products of them stay within `i128`.
const UNBOUNDED: i128 = 1 << 100;

/// The smallest and the largest value of each symbol.
pub type Ranges<'a> = &'a dyn Fn(Symbol) -> (i64, i64);

impl Dim {
    /// Numbers between which every value lies.
    pub fn bounds(&self, ranges: Ranges<'_>) -> (i128, i128) {
        self.terms.iter().fold((0, 0), |sum, (factors, coefficient)| {
            let start = (i128::from(*coefficient), i128::from(*coefficient));
            let product = factors.iter().fold(start, |product, factor| times(product, factor.bounds(ranges)));
            (limited(sum.0 + product.0), limited(sum.1 + product.1))
        })
    }

    /// The same size without `min` and `max` that the ranges of symbols decide.
    #[must_use]
    pub fn within(&self, ranges: Ranges<'_>) -> Dim {
        self.terms.iter().fold(Dim::from(0), |sum, (factors, coefficient)| {
            let start = Dim::from(*coefficient);
            sum.plus(&factors.iter().fold(start, |product, factor| product.times(&factor.within(ranges))))
        })
    }
}

impl Factor {
    fn bounds(&self, ranges: Ranges<'_>) -> (i128, i128) {
        match self {
            Factor::Symbol(symbol) => {
                let (least, most) = ranges(*symbol);
                (i128::from(least), if most == i64::MAX { UNBOUNDED } else { i128::from(most) })
            }
            Factor::FloorDiv(a, b) => match (a.bounds(ranges), b.constant()) {
                ((low, high), Some(divisor)) if divisor > 0 => {
                    let divisor = i128::from(divisor);
                    (
                        low.div_euclid(divisor),
                        if high >= UNBOUNDED { UNBOUNDED } else { high.div_euclid(divisor) },
                    )
                }
                _ => (-UNBOUNDED, UNBOUNDED),
            },
            Factor::Modulo(_, b) => match b.constant() {
                Some(divisor) if divisor > 0 => (0, i128::from(divisor) - 1),
                _ => (-UNBOUNDED, UNBOUNDED),
            },
            Factor::Min(a, b) => {
                let (a, b) = (a.bounds(ranges), b.bounds(ranges));
                (a.0.min(b.0), a.1.min(b.1))
            }
            Factor::Max(a, b) => {
                let (a, b) = (a.bounds(ranges), b.bounds(ranges));
                (a.0.max(b.0), a.1.max(b.1))
            }
        }
    }

    fn within(&self, ranges: Ranges<'_>) -> Dim {
        match self {
            Factor::Symbol(symbol) => Dim::from(*symbol),
            Factor::FloorDiv(a, b) => a.within(ranges).floor_div(&b.within(ranges)),
            Factor::Modulo(a, b) => a.within(ranges).modulo(&b.within(ranges)),
            Factor::Min(a, b) | Factor::Max(a, b) => {
                let (a, b) = (a.within(ranges), b.within(ranges));
                let (low, high) = a.minus(&b).bounds(ranges);
                let is_min = matches!(self, Factor::Min(..));
                if high <= 0 {
                    if is_min { a } else { b }
                } else if low >= 0 {
                    if is_min { b } else { a }
                } else if is_min {
                    a.smaller(&b)
                } else {
                    a.larger(&b)
                }
            }
        }
    }
}

fn limited(value: i128) -> i128 {
    value.clamp(-UNBOUNDED, UNBOUNDED)
}

fn times(a: (i128, i128), b: (i128, i128)) -> (i128, i128) {
    // Saturation keeps the sign, so that the bounds stay bounds.
    let all = [(a.0, b.0), (a.0, b.1), (a.1, b.0), (a.1, b.1)].map(|(x, y)| limited(x.saturating_mul(y)));
    all.iter().fold((all[0], all[0]), |(low, high), value| (low.min(*value), high.max(*value)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn s(index: u32) -> Dim {
        Dim::from(Symbol(index))
    }

    #[test]
    fn ranges_decide_minima() {
        let length = |_| (2, 60);
        let size = s(0).larger(&Dim::from(0)).smaller(&Dim::from(64));
        assert_eq!(size.within(&length), s(0));
        assert_eq!(s(0).smaller(&Dim::from(1)).plus(&s(0)).within(&length), s(0).plus(&Dim::from(1)));
        let unbounded = |_| (0, i64::MAX);
        assert_eq!(size.within(&unbounded), s(0).smaller(&Dim::from(64)));
        assert_eq!(s(0).times(&s(1)).bounds(&length), (4, 3600));
    }

    proptest! {
        #[test]
        fn values_lie_within_bounds(
            steps in proptest::collection::vec((0u8..6, -9i64..10), 1..8), a in -5i64..40, b in 0i64..7,
        ) {
            let ranges = |symbol: Symbol| if symbol.0 == 0 { (-5, 40) } else { (0, 6) };
            let dim = steps.iter().fold(s(0), |dim, (kind, value)| match kind {
                0 => dim.plus(&s(1)),
                1 => dim.times(&Dim::from(*value)),
                2 => dim.floor_div(&Dim::from(value.abs() + 1)),
                3 => dim.modulo(&Dim::from(value.abs() + 1)),
                4 => dim.smaller(&Dim::from(*value)),
                _ => dim.larger(&s(1).plus(&Dim::from(*value))),
            });
            let value = dim.eval(&[a, b]).unwrap();
            let (low, high) = dim.bounds(&ranges);
            prop_assert!(low <= i128::from(value) && i128::from(value) <= high, "{dim}: {low} {value} {high}");
            prop_assert_eq!(dim.within(&ranges).eval(&[a, b]), Ok(value));
        }
    }
}
