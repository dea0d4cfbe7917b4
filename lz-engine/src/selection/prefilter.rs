//! Who cannot run a call, and which rules act on it, a set at a time.
//!
//! Most conditions look at one variable: a dtype, a size, the platform. For each variable the table of an operation knows,
//! for every case or stretch of sizes, the candidates and the rules that stand there; a call takes one row a variable and
//! keeps what is in all of them. It costs the same however many candidates and rules there are.
//!
//! A sieve only ever leaves out what the filter would exclude for the whole cell of a call; what it lets pass is still to be
//! examined. It knows no reasons: whoever wants those asks the filter.

use lz_schema::expr::{Slots, Value};

use crate::condition_parts::{Part, Shortcut};

/// Members that have a bit; candidates and rules that come later are looked at one by one.
pub(crate) const MEMBERS: usize = u128::BITS as usize;

/// Candidates, or rules, by number.
pub(crate) type Set = u128;

/// The set of one member; empty for a number that has no bit.
#[inline]
pub(crate) fn only(number: usize) -> Set {
    if number < MEMBERS { 1 << number } else { 0 }
}

/// The members of a set, half by half: a processor has no numbers of this size.
#[inline]
pub(crate) fn members(set: Set) -> impl Iterator<Item = u16> {
    let (mut low, mut high) = (set as u64, (set >> 64) as u64);
    std::iter::from_fn(move || {
        let (half, first) = if low != 0 { (&mut low, 0) } else { (&mut high, 64) };
        let next = half.trailing_zeros() as u16;
        let there = *half != 0;
        *half &= half.wrapping_sub(1);
        there.then_some(first + next)
    })
}

/// Candidates and rules that nothing speaks against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    pub candidates: Set,
    pub rules: Set,
}

impl Standing {
    const ALL: Standing = Standing { candidates: Set::MAX, rules: Set::MAX };
    pub const NONE: Standing = Standing { candidates: 0, rules: 0 };

    /// One candidate.
    pub fn candidate(number: usize) -> Standing {
        Standing { candidates: only(number), rules: 0 }
    }

    /// One rule.
    pub fn rule(number: usize) -> Standing {
        Standing { candidates: 0, rules: only(number) }
    }

    #[inline]
    fn and(self, other: Standing) -> Standing {
        Standing { candidates: self.candidates & other.candidates, rules: self.rules & other.rules }
    }

    fn without(self, other: Standing) -> Standing {
        Standing { candidates: self.candidates & !other.candidates, rules: self.rules & !other.rules }
    }
}

/// Everything that was found out about an operation's conditions beforehand.
#[derive(Debug)]
pub(crate) struct Sieve {
    variables: Box<[Variable]>,
    first: Standing,
}

#[derive(Debug)]
struct Variable {
    /// Its index in expressions.
    index: u16,
    rows: Rows,
    /// Who stands for a value of another type, or for a case that is not known: those who do not look at it.
    others: Standing,
}

#[derive(Debug)]
enum Rows {
    /// A row below the first cut, and one from each cut on.
    Sizes { cuts: Box<[i64]>, rows: Box<[Standing]> },
    /// A row a case.
    Cases(Box<[Standing]>),
}

impl Sieve {
    /// What passes.
    #[inline]
    pub fn sift(&self, values: &impl Slots) -> Standing {
        self.variables.iter().fold(self.first, |standing, variable| {
            let row = match (&variable.rows, values.slot(usize::from(variable.index))) {
                (Rows::Sizes { cuts, rows }, Some(Value::Int(size))) => {
                    rows.get(cuts.partition_point(|cut| *cut <= size))
                }
                (Rows::Cases(rows), Some(Value::Enum(case))) => rows.get(case as usize),
                (Rows::Cases(rows), Some(Value::Bool(truth))) => rows.get(usize::from(truth)),
                _ => None,
            };
            standing.and(*row.unwrap_or(&variable.others))
        })
    }
}

/// Conditions on their way into a sieve.
#[derive(Debug, Default)]
pub(crate) struct Sieving {
    variables: Vec<Looks>,
}

/// The conditions on one variable.
#[derive(Debug)]
struct Looks {
    index: u16,
    sizes: Vec<(Box<[i64]>, u64, Standing)>,
    cases: Vec<(u64, Standing)>,
}

impl Looks {
    fn of(variables: &mut Vec<Looks>, index: u16) -> Option<&mut Looks> {
        let place = variables.iter().position(|looks| looks.index == index).unwrap_or_else(|| {
            variables.push(Looks { index, sizes: Vec::new(), cases: Vec::new() });
            variables.len() - 1
        });
        variables.get_mut(place)
    }

    fn variable(self) -> Variable {
        let looking = self.sizes.iter().map(|(_, _, who)| who).chain(self.cases.iter().map(|(_, who)| who));
        let others = looking.fold(Standing::ALL, |all, who| all.without(*who));
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

    fn row_of_case(&self, case: u32) -> Standing {
        let fails = self.cases.iter().filter(|(truths, _)| truths >> case & 1 == 0);
        fails.fold(Standing::ALL, |row, (_, who)| row.without(*who))
    }

    fn row_of_size(&self, size: i64) -> Standing {
        let fails = self
            .sizes
            .iter()
            .filter(|(cuts, truths, _)| truths >> cuts.partition_point(|cut| *cut <= size) & 1 == 0);
        fails.fold(Standing::ALL, |row, (.., who)| row.without(*who))
    }
}

impl Sieving {
    /// Somebody stands only where a part holds. False for a part that is not about one variable.
    pub fn add(&mut self, part: &Part, who: Standing) -> bool {
        match part.shortcut() {
            Some(Shortcut::Int { index, cuts, truths }) => {
                if let Some(looks) = Looks::of(&mut self.variables, *index) {
                    looks.sizes.push((cuts.clone(), *truths, who));
                }
            }
            Some(Shortcut::Case { index, truths }) => self.add_cases(*index, *truths, who),
            Some(Shortcut::Remainder { .. }) | None => return false,
        }
        true
    }

    /// Somebody stands only in some cases of a variable, one bit each.
    pub fn add_cases(&mut self, index: u16, truths: u64, who: Standing) {
        if let Some(looks) = Looks::of(&mut self.variables, index) {
            looks.cases.push((truths, who));
        }
    }

    /// The sieve. Who is in `never` does not pass it.
    pub fn finish(self, never: Standing) -> Sieve {
        Sieve {
            variables: self.variables.into_iter().map(Looks::variable).collect(),
            first: Standing::ALL.without(never),
        }
    }
}
