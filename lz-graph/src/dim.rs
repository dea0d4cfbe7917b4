//! Sizes of dimensions: integers and polynomials of symbols.
//!
//! A [`Dim`] is in normal form (a sorted sum of products), so equal polynomials compare equal: `2*s + s` is `3*s`. What a polynomial
//! cannot state (`floor_div`, `modulo`, `min`, `max`) is a factor of its own.

mod bounds;

use std::fmt;

pub use bounds::Ranges;

/// A symbol of a graph, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(pub u32);

/// A factor of a product.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Factor {
    /// A symbol.
    Symbol(Symbol),
    /// A quotient, rounded down.
    FloorDiv(Box<Dim>, Box<Dim>),
    /// A remainder with the sign of the divisor.
    Modulo(Box<Dim>, Box<Dim>),
    /// The smaller one.
    Min(Box<Dim>, Box<Dim>),
    /// The larger one.
    Max(Box<Dim>, Box<Dim>),
}

/// A size, or any other integer that depends on sizes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Dim {
    /// Products (sorted factors) and their coefficients; sorted, no coefficient is 0.
    terms: Vec<(Vec<Factor>, i64)>,
}

/// A size that cannot be computed for these symbol values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DimError {
    /// The result exceeds 64 bits.
    Overflow,
    /// A divisor is 0.
    DivisionByZero,
    /// A symbol has no value.
    UnknownSymbol(Symbol),
}

impl fmt::Display for DimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DimError::Overflow => f.write_str("the result exceeds 64 bits"),
            DimError::DivisionByZero => f.write_str("a divisor is 0"),
            DimError::UnknownSymbol(symbol) => write!(f, "symbol s{} has no value", symbol.0),
        }
    }
}

impl std::error::Error for DimError {}

impl From<i64> for Dim {
    fn from(value: i64) -> Dim {
        Dim { terms: if value == 0 { Vec::new() } else { vec![(Vec::new(), value)] } }
    }
}

impl From<Symbol> for Dim {
    fn from(symbol: Symbol) -> Dim {
        Dim::factor(Factor::Symbol(symbol))
    }
}

impl Dim {
    fn factor(factor: Factor) -> Dim {
        Dim { terms: vec![(vec![factor], 1)] }
    }

    fn from_terms(mut terms: Vec<(Vec<Factor>, i64)>) -> Dim {
        terms.sort();
        let mut merged: Vec<(Vec<Factor>, i64)> = Vec::with_capacity(terms.len());
        for (factors, coefficient) in terms {
            match merged.last_mut() {
                Some((last, sum)) if *last == factors => *sum = sum.saturating_add(coefficient),
                _ => merged.push((factors, coefficient)),
            }
        }
        merged.retain(|(_, coefficient)| *coefficient != 0);
        Dim { terms: merged }
    }

    /// The value, if it does not depend on symbols.
    pub fn constant(&self) -> Option<i64> {
        match self.terms.as_slice() {
            [] => Some(0),
            [(factors, value)] if factors.is_empty() => Some(*value),
            _ => None,
        }
    }

    /// Whether it is this number.
    pub fn is(&self, value: i64) -> bool {
        self.constant() == Some(value)
    }

    /// Its products: factors and a coefficient.
    pub fn terms(&self) -> &[(Vec<Factor>, i64)] {
        &self.terms
    }

    /// The number of its terms.
    pub fn term_count(&self) -> usize {
        self.terms.len()
    }

    /// Whether it cannot be negative, provided that no symbol is: sizes never are.
    pub fn is_non_negative(&self) -> bool {
        self.terms.iter().all(|(factors, coefficient)| {
            *coefficient > 0
                && factors.iter().all(|factor| match factor {
                    Factor::Symbol(_) => true,
                    Factor::FloorDiv(a, b) | Factor::Min(a, b) => a.is_non_negative() && b.is_non_negative(),
                    Factor::Modulo(_, divisor) => divisor.is_non_negative(),
                    Factor::Max(a, b) => a.is_non_negative() || b.is_non_negative(),
                })
        })
    }

    /// The symbol, if it is nothing else.
    pub fn symbol(&self) -> Option<Symbol> {
        match self.terms.as_slice() {
            [(factors, 1)] => match factors.as_slice() {
                [Factor::Symbol(symbol)] => Some(*symbol),
                _ => None,
            },
            _ => None,
        }
    }

    /// The sum.
    #[must_use]
    pub fn plus(&self, other: &Dim) -> Dim {
        Dim::from_terms(self.terms.iter().chain(&other.terms).cloned().collect())
    }

    /// The difference.
    #[must_use]
    pub fn minus(&self, other: &Dim) -> Dim {
        self.plus(&other.times(&Dim::from(-1)))
    }

    /// The product.
    #[must_use]
    pub fn times(&self, other: &Dim) -> Dim {
        let mut terms = Vec::with_capacity(self.terms.len() * other.terms.len());
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                let mut factors: Vec<Factor> = left.iter().chain(right).cloned().collect();
                factors.sort();
                terms.push((factors, a.saturating_mul(*b)));
            }
        }
        Dim::from_terms(terms)
    }

    /// The quotient, rounded down. Exact divisions are resolved; a symbolic divisor counts as not zero.
    #[must_use]
    pub fn floor_div(&self, divisor: &Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.constant(), divisor.constant())
            && let Ok(quotient) = floor_div(a, b)
        {
            return Dim::from(quotient);
        }
        if divisor.is(1) || self.is(0) {
            return self.clone();
        }
        if self == divisor {
            return Dim::from(1);
        }
        if let [(factors, coefficient)] = divisor.terms.as_slice() {
            let mut quotient = Vec::new();
            let mut rest = Vec::new();
            for term in &self.terms {
                match divide_term(term, factors, *coefficient) {
                    Some(divided) => quotient.push(divided),
                    None => rest.push(term.clone()),
                }
            }
            let rest = Dim::from_terms(rest);
            if rest.is(0) {
                return Dim::from_terms(quotient);
            }
            // floor((n*d + r) / d) is n + floor(r / d) for integers.
            if !quotient.is_empty() && *coefficient > 0 && factors.is_empty() {
                return Dim::from_terms(quotient).plus(&rest.floor_div(divisor));
            }
        }
        Dim::factor(Factor::FloorDiv(Box::new(self.clone()), Box::new(divisor.clone())))
    }

    /// The remainder with the sign of the divisor.
    #[must_use]
    pub fn modulo(&self, divisor: &Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.constant(), divisor.constant())
            && b > 0
        {
            return Dim::from(a.rem_euclid(b));
        }
        let remainder = self.minus(&self.floor_div(divisor).times(divisor));
        if remainder.constant().is_some() {
            return remainder;
        }
        Dim::factor(Factor::Modulo(Box::new(self.clone()), Box::new(divisor.clone())))
    }

    /// The smaller one.
    #[must_use]
    pub fn smaller(&self, other: &Dim) -> Dim {
        match self.minus(other).constant() {
            Some(difference) => {
                if difference <= 0 {
                    self.clone()
                } else {
                    other.clone()
                }
            }
            None => Dim::factor(Factor::Min(Box::new(self.clone()), Box::new(other.clone()))),
        }
    }

    /// The larger one.
    #[must_use]
    pub fn larger(&self, other: &Dim) -> Dim {
        match self.minus(other).constant() {
            Some(difference) => {
                if difference >= 0 {
                    self.clone()
                } else {
                    other.clone()
                }
            }
            None => Dim::factor(Factor::Max(Box::new(self.clone()), Box::new(other.clone()))),
        }
    }

    /// The product of all sizes.
    pub fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Dim {
        dims.into_iter().fold(Dim::from(1), |product, dim| product.times(dim))
    }

    /// Its value; `values` has one entry per symbol.
    pub fn eval(&self, values: &[i64]) -> Result<i64, DimError> {
        let mut sum = 0i64;
        for (factors, coefficient) in &self.terms {
            let mut product = *coefficient;
            for factor in factors {
                product = product.checked_mul(factor.eval(values)?).ok_or(DimError::Overflow)?;
            }
            sum = sum.checked_add(product).ok_or(DimError::Overflow)?;
        }
        Ok(sum)
    }

    /// Replaces symbols by other sizes.
    #[must_use]
    pub fn substitute(&self, replace: &dyn Fn(Symbol) -> Option<Dim>) -> Dim {
        self.terms.iter().fold(Dim::from(0), |sum, (factors, coefficient)| {
            let product = factors
                .iter()
                .fold(Dim::from(*coefficient), |product, factor| product.times(&factor.substitute(replace)));
            sum.plus(&product)
        })
    }

    /// Calls `visit` for every symbol in it.
    pub fn symbols(&self, visit: &mut dyn FnMut(Symbol)) {
        for factor in self.terms.iter().flat_map(|(factors, _)| factors) {
            match factor {
                Factor::Symbol(symbol) => visit(*symbol),
                Factor::FloorDiv(a, b) | Factor::Modulo(a, b) | Factor::Min(a, b) | Factor::Max(a, b) => {
                    a.symbols(visit);
                    b.symbols(visit);
                }
            }
        }
    }
}

/// Divides one product exactly by another; `None` if it does not divide.
fn divide_term(
    (factors, coefficient): &(Vec<Factor>, i64),
    by: &[Factor],
    by_coefficient: i64,
) -> Option<(Vec<Factor>, i64)> {
    if coefficient.checked_rem(by_coefficient)? != 0 {
        return None;
    }
    let mut left = factors.clone();
    for factor in by {
        let position = left.iter().position(|one| one == factor)?;
        left.remove(position);
    }
    Some((left, coefficient / by_coefficient))
}

/// The quotient, rounded down. The smallest integer divided by -1 exceeds 64 bits.
fn floor_div(a: i64, b: i64) -> Result<i64, DimError> {
    if b == 0 {
        return Err(DimError::DivisionByZero);
    }
    let (quotient, remainder) = (a.checked_div(b), a.wrapping_rem(b));
    Ok(quotient.ok_or(DimError::Overflow)? - i64::from(remainder != 0 && (a < 0) != (b < 0)))
}

impl Factor {
    fn eval(&self, values: &[i64]) -> Result<i64, DimError> {
        let both = |a: &Dim, b: &Dim| Ok::<_, DimError>((a.eval(values)?, b.eval(values)?));
        match self {
            Factor::Symbol(symbol) => {
                values.get(symbol.0 as usize).copied().ok_or(DimError::UnknownSymbol(*symbol))
            }
            Factor::FloorDiv(a, b) => {
                let (a, b) = both(a, b)?;
                floor_div(a, b)
            }
            Factor::Modulo(a, b) => {
                let (a, b) = both(a, b)?;
                if b == 0 {
                    return Err(DimError::DivisionByZero);
                }
                let remainder = a.wrapping_rem(b);
                Ok(if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder })
            }
            Factor::Min(a, b) => both(a, b).map(|(a, b)| a.min(b)),
            Factor::Max(a, b) => both(a, b).map(|(a, b)| a.max(b)),
        }
    }

    fn substitute(&self, replace: &dyn Fn(Symbol) -> Option<Dim>) -> Dim {
        match self {
            Factor::Symbol(symbol) => replace(*symbol).unwrap_or_else(|| Dim::from(*symbol)),
            Factor::FloorDiv(a, b) => a.substitute(replace).floor_div(&b.substitute(replace)),
            Factor::Modulo(a, b) => a.substitute(replace).modulo(&b.substitute(replace)),
            Factor::Min(a, b) => a.substitute(replace).smaller(&b.substitute(replace)),
            Factor::Max(a, b) => a.substitute(replace).larger(&b.substitute(replace)),
        }
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Factor::Symbol(symbol) => write!(f, "s{}", symbol.0),
            Factor::FloorDiv(a, b) => write!(f, "floor({a} / {b})"),
            Factor::Modulo(a, b) => write!(f, "mod({a}, {b})"),
            Factor::Min(a, b) => write!(f, "min({a}, {b})"),
            Factor::Max(a, b) => write!(f, "max({a}, {b})"),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("0");
        }
        // Constants last, as people write them.
        let ordered = self.terms.iter().filter(|(factors, _)| !factors.is_empty());
        let ordered = ordered.chain(self.terms.iter().filter(|(factors, _)| factors.is_empty()));
        for (position, (factors, coefficient)) in ordered.enumerate() {
            match (position, *coefficient < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let size = coefficient.unsigned_abs();
            if factors.is_empty() {
                write!(f, "{size}")?;
                continue;
            }
            if size != 1 {
                write!(f, "{size}*")?;
            }
            for (index, factor) in factors.iter().enumerate() {
                if index > 0 {
                    f.write_str("*")?;
                }
                write!(f, "{factor}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn s(index: u32) -> Dim {
        Dim::from(Symbol(index))
    }

    #[test]
    fn equal_polynomials_are_equal() {
        let twice = s(0).plus(&s(0));
        assert_eq!(twice, s(0).times(&Dim::from(2)));
        assert_eq!(s(0).times(&s(1)), s(1).times(&s(0)));
        assert_eq!(s(0).plus(&Dim::from(3)).minus(&s(0)), Dim::from(3));
        assert_eq!(s(0).times(&Dim::from(64)).floor_div(&Dim::from(64)), s(0));
        assert_eq!(s(0).times(&s(1)).times(&Dim::from(8)).floor_div(&s(1)), s(0).times(&Dim::from(8)));
        assert_eq!(s(0).times(&Dim::from(4)).plus(&Dim::from(2)).floor_div(&Dim::from(4)), s(0));
        assert_eq!(s(0).times(&Dim::from(4)).modulo(&Dim::from(4)), Dim::from(0));
        assert_eq!(s(0).plus(&Dim::from(1)).larger(&s(0)), s(0).plus(&Dim::from(1)));
    }

    #[test]
    fn sizes_are_printed_as_formulas() {
        let dim = s(0).times(&Dim::from(2)).plus(&Dim::from(1)).minus(&s(1)).floor_div(&Dim::from(3));
        assert_eq!(dim.to_string(), "floor(2*s0 - s1 + 1 / 3)");
        assert_eq!(Dim::from(0).to_string(), "0");
        assert_eq!(Dim::from(-3).plus(&s(0)).to_string(), "s0 - 3");
    }

    #[test]
    fn division_by_zero_is_an_error() {
        let dim = s(0).floor_div(&s(1));
        assert_eq!(dim.eval(&[4, 0]), Err(DimError::DivisionByZero));
        assert_eq!(dim.eval(&[7, 2]), Ok(3));
        assert_eq!(s(2).eval(&[1]), Err(DimError::UnknownSymbol(Symbol(2))));
    }

    #[test]
    fn smallest_integer_divided_by_minus_one_is_an_error() {
        let (smallest, minus_one) = (Dim::from(i64::MIN), Dim::from(-1));
        assert_eq!(smallest.floor_div(&minus_one).eval(&[]), Err(DimError::Overflow));
        assert_eq!(smallest.modulo(&minus_one).eval(&[]), Ok(0));
        let symbolic = s(0).floor_div(&s(1));
        assert_eq!(symbolic.eval(&[i64::MIN, -1]), Err(DimError::Overflow));
        assert_eq!(s(0).modulo(&s(1)).eval(&[i64::MIN, -1]), Ok(0));
        assert_eq!(s(0).times(&smallest).floor_div(&minus_one).eval(&[0]), Ok(0));
        assert_eq!(Dim::from(7).floor_div(&Dim::from(-2)), Dim::from(-4));
        assert_eq!(Dim::from(-7).floor_div(&Dim::from(2)), Dim::from(-4));
    }

    /// A random expression, built both symbolically and as a closure over symbol values.
    fn expression() -> impl Strategy<Value = (Dim, Vec<(u8, i64)>)> {
        proptest::collection::vec((0u8..7, -5i64..6), 1..8).prop_map(|steps| {
            let dim = steps.iter().fold(s(0), |dim, step| apply(&dim, *step));
            (dim, steps)
        })
    }

    fn apply(dim: &Dim, (kind, value): (u8, i64)) -> Dim {
        let other = Dim::from(value);
        match kind {
            0 => dim.plus(&other),
            1 => dim.minus(&s(1)),
            2 => dim.times(&other),
            3 => dim.floor_div(&Dim::from(value.abs() + 1)),
            4 => dim.modulo(&Dim::from(value.abs() + 1)),
            5 => dim.smaller(&other),
            _ => dim.larger(&s(1)),
        }
    }

    proptest! {
        #[test]
        fn evaluation_agrees_with_arithmetic((dim, steps) in expression(), a in -20i64..21, b in -20i64..21) {
            let mut value = i128::from(a);
            for (kind, operand) in steps {
                let operand = i128::from(operand);
                value = match kind {
                    0 => value + operand,
                    1 => value - i128::from(b),
                    2 => value * operand,
                    3 => value.div_euclid(operand.abs() + 1),
                    4 => value.rem_euclid(operand.abs() + 1),
                    5 => value.min(operand),
                    _ => value.max(i128::from(b)),
                };
            }
            prop_assert_eq!(dim.eval(&[a, b]).map(i128::from), Ok(value));
        }
    }
}
