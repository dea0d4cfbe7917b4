//! The prefilter: excludes candidates and finds active rules by bitset.
//!
//! Most conditions depend on one variable: a dtype, a size, the platform. For each variable the prefilter stores, per enum case
//! or range of sizes, the set of candidates and rules whose conditions hold. A call ANDs one row per variable. The cost does not
//! depend on the number of candidates and rules.
//!
//! The prefilter only excludes what the filter would exclude for the whole cell; what passes is still filtered. It does not
//! produce reasons; the filter does.

use lz_schema::expr::{Slots, Value};

use crate::condition_parts::{Part, Shortcut};

/// Width of the bitsets; candidates and rules with larger numbers are checked one by one.
pub(crate) const BITSET_WIDTH: usize = u128::BITS as usize;

/// A set of candidates or rules, by number.
pub(crate) type BitSet = u128;

/// The set with one element; empty if the number exceeds the width.
#[inline]
pub(crate) fn single_bit(number: usize) -> BitSet {
    if number < BITSET_WIDTH { 1 << number } else { 0 }
}

/// Iterates over the elements, in two 64-bit halves.
#[inline]
pub(crate) fn iter_bits(set: BitSet) -> impl Iterator<Item = u16> {
    let (mut low, mut high) = (set as u64, (set >> 64) as u64);
    std::iter::from_fn(move || {
        let (half, first) = if low != 0 { (&mut low, 0) } else { (&mut high, 64) };
        let next = half.trailing_zeros() as u16;
        let there = *half != 0;
        *half &= half.wrapping_sub(1);
        there.then_some(first + next)
    })
}

/// Candidates and rules that have not been excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PassSet {
    pub candidates: BitSet,
    pub rules: BitSet,
}

impl PassSet {
    const ALL: PassSet = PassSet { candidates: BitSet::MAX, rules: BitSet::MAX };
    pub const NONE: PassSet = PassSet { candidates: 0, rules: 0 };

    /// One candidate.
    pub fn candidate(number: usize) -> PassSet {
        PassSet { candidates: single_bit(number), rules: 0 }
    }

    /// One rule.
    pub fn rule(number: usize) -> PassSet {
        PassSet { candidates: 0, rules: single_bit(number) }
    }

    #[inline]
    fn and(self, other: PassSet) -> PassSet {
        PassSet { candidates: self.candidates & other.candidates, rules: self.rules & other.rules }
    }

    fn without(self, other: PassSet) -> PassSet {
        PassSet { candidates: self.candidates & !other.candidates, rules: self.rules & !other.rules }
    }
}

/// The precomputed rows of an operation.
#[derive(Debug)]
pub(crate) struct Prefilter {
    variables: Box<[Variable]>,
    first: PassSet,
}

#[derive(Debug)]
struct Variable {
    /// Index in expressions.
    index: u16,
    rows: Rows,
    /// The row for a value of another type or an unknown case: everything without a condition on this variable.
    others: PassSet,
}

#[derive(Debug)]
enum Rows {
    /// A row for sizes below the first cut, then one from each cut on.
    Sizes { cuts: Box<[i64]>, rows: Box<[PassSet]> },
    /// A row per case.
    Cases(Box<[PassSet]>),
}

impl Prefilter {
    /// Candidates and rules that pass.
    #[inline]
    pub fn evaluate(&self, values: &impl Slots) -> PassSet {
        self.variables.iter().fold(self.first, |passing, variable| {
            let row = match (&variable.rows, values.slot(usize::from(variable.index))) {
                (Rows::Sizes { cuts, rows }, Some(Value::Int(size))) => {
                    rows.get(cuts.partition_point(|cut| *cut <= size))
                }
                (Rows::Cases(rows), Some(Value::Enum(case))) => rows.get(case as usize),
                (Rows::Cases(rows), Some(Value::Bool(truth))) => rows.get(usize::from(truth)),
                _ => None,
            };
            passing.and(*row.unwrap_or(&variable.others))
        })
    }
}

/// Collects conditions for a prefilter.
#[derive(Debug, Default)]
pub(crate) struct PrefilterBuilder {
    variables: Vec<VariableConditions>,
}

/// The conditions on one variable.
#[derive(Debug)]
struct VariableConditions {
    index: u16,
    sizes: Vec<(Box<[i64]>, u64, PassSet)>,
    cases: Vec<(u64, PassSet)>,
}

impl VariableConditions {
    fn of(variables: &mut Vec<VariableConditions>, index: u16) -> Option<&mut VariableConditions> {
        let position =
            variables.iter().position(|conditions| conditions.index == index).unwrap_or_else(|| {
                variables.push(VariableConditions { index, sizes: Vec::new(), cases: Vec::new() });
                variables.len() - 1
            });
        variables.get_mut(position)
    }

    fn variable(self) -> Variable {
        let members = self.sizes.iter().map(|(_, _, who)| who).chain(self.cases.iter().map(|(_, who)| who));
        let others = members.fold(PassSet::ALL, |all, who| all.without(*who));
        let rows = if self.sizes.is_empty() {
            let highest = self.cases.iter().map(|(truths, _)| u64::BITS - truths.leading_zeros()).max();
            Rows::Cases((0..highest.unwrap_or(0)).map(|case| self.row_of_case(case)).collect())
        } else {
            let mut cuts: Vec<i64> = self.sizes.iter().flat_map(|(cuts, ..)| cuts.iter().copied()).collect();
            cuts.sort_unstable();
            cuts.dedup();
            let below = cuts.first().and_then(|first| first.checked_sub(1)).unwrap_or(i64::MIN);
            let sizes = std::iter::once(below).chain(cuts.iter().copied());
            Rows::Sizes { rows: sizes.map(|size| self.row_of_size(size)).collect(), cuts: cuts.into() }
        };
        Variable { index: self.index, rows, others }
    }

    fn row_of_case(&self, case: u32) -> PassSet {
        let fails = self.cases.iter().filter(|(truths, _)| truths >> case & 1 == 0);
        fails.fold(PassSet::ALL, |row, (_, who)| row.without(*who))
    }

    fn row_of_size(&self, size: i64) -> PassSet {
        let fails = self
            .sizes
            .iter()
            .filter(|(cuts, truths, _)| truths >> cuts.partition_point(|cut| *cut <= size) & 1 == 0);
        fails.fold(PassSet::ALL, |row, (.., who)| row.without(*who))
    }
}

impl PrefilterBuilder {
    /// Members pass only where a part holds. Returns false if the part does not depend on a single variable.
    pub fn add(&mut self, part: &Part, who: PassSet) -> bool {
        match part.shortcut() {
            Some(Shortcut::Int { index, cuts, truths }) => {
                if let Some(conditions) = VariableConditions::of(&mut self.variables, *index) {
                    conditions.sizes.push((cuts.clone(), *truths, who));
                }
            }
            Some(Shortcut::Case { index, truths }) => self.add_cases(*index, *truths, who),
            Some(Shortcut::Remainder { .. }) | None => return false,
        }
        true
    }

    /// Members pass only in the cases whose bit is set.
    pub fn add_cases(&mut self, index: u16, truths: u64, who: PassSet) {
        if let Some(conditions) = VariableConditions::of(&mut self.variables, index) {
            conditions.cases.push((truths, who));
        }
    }

    /// Builds the prefilter; members of `never` do not pass.
    pub fn finish(self, never: PassSet) -> Prefilter {
        Prefilter {
            variables: self.variables.into_iter().map(VariableConditions::variable).collect(),
            first: PassSet::ALL.without(never),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_combined_member_by_member() {
        let set = |candidates, rules| PassSet { candidates, rules };
        assert_eq!(set(0b0110, 0b1010).and(set(0b0011, 0b0110)), set(0b0010, 0b0010));
        assert_eq!(set(0b0110, 0b1010).without(set(0b0011, 0b0110)), set(0b0100, 0b1000));
        assert_eq!(PassSet::ALL.and(PassSet::candidate(3)), set(1 << 3, 0));
        assert_eq!(PassSet::ALL.and(PassSet::rule(3)), set(0, 1 << 3));
    }
}
