//! What a bool expression depends on, in the terms of a selection engine that groups calls into buckets.
//!
//! A limit is taken apart at its top-level `and`s. For each part the engine learns where along one int variable its
//! truth can change, so that it can cut its buckets there, or that it must evaluate the part on every call. Nothing
//! here knows buckets, kernels or axes.

use std::collections::{BTreeMap, BTreeSet};

use super::arith;
use super::ast::{Arithmetic, Comparison, Logic, Span};
use super::scope::NamedVariable;
use super::typed::{Node, NodeKind, Typed};
use super::value::{Type, Value};

/// The parts of a bool expression that must all hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// The parts, in the order of the text. Evaluate them in that order and stop at the first that is false: a later
    /// one may rely on an earlier one, as in `b != 0 and a % b == 0`.
    pub conjuncts: Vec<Conjunct>,
}

/// One part of a limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Conjunct {
    /// The part as an expression of its own, with the text of the whole.
    pub typed: Typed,
    /// What its truth depends on.
    pub limit: Limit,
}

/// What the truth of a part depends on.
#[derive(Debug, Clone, PartialEq)]
pub enum Limit {
    /// On nothing.
    Constant(bool),
    /// On where one int variable lies between cut points: comparisons and memberships with constants.
    Cuts(CutPoints),
    /// On the remainder of one int variable: `variable % modulus == remainder`, where the modulus is not 0.
    Modulus {
        /// The variable.
        variable: NamedVariable,
        /// The divisor.
        modulus: i64,
        /// The remainder that is asked for; nothing satisfies it when it is out of range.
        remainder: i64,
    },
    /// On one bool or enum variable.
    Category {
        /// The variable.
        variable: NamedVariable,
    },
    /// On several of the two above, joined by `and`, `or`, `not`, `==` or `if`. The truth is the same for all values
    /// that agree on every category and lie between the same cut points.
    Combination {
        /// The int variables with their cut points, in the order of slots.
        cuts: Vec<CutPoints>,
        /// The bool and enum variables, in the order of slots.
        categories: Vec<NamedVariable>,
    },
    /// On these variables in a way that cannot be cut: evaluate it. Only such a part can fail to evaluate.
    Other {
        /// The variables, in the order of slots.
        variables: Vec<NamedVariable>,
    },
}

/// Where along an int variable truth can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutPoints {
    /// The variable.
    pub variable: NamedVariable,
    /// Ascending, without repetition: for each `c`, truth may differ between `c - 1` and `c`. Between two
    /// neighbours, below the first and from the last on, it does not change.
    pub cuts: Vec<i64>,
}

impl Limits {
    /// The cut points of all parts, merged for each variable, in the order of slots.
    pub fn cut_points(&self) -> Vec<CutPoints> {
        let mut cells = Cells::default();
        for conjunct in &self.conjuncts {
            let cuts = match &conjunct.limit {
                Limit::Cuts(cuts) => std::slice::from_ref(cuts),
                Limit::Combination { cuts, .. } => cuts,
                _ => continue,
            };
            for one in cuts {
                cells.cuts_of(&one.variable).extend(&one.cuts);
            }
        }
        cells.into_parts().0
    }

    /// The parts that no cut captures, which must be evaluated on each call.
    pub fn guards(&self) -> impl Iterator<Item = &Conjunct> {
        self.conjuncts.iter().filter(|conjunct| matches!(conjunct.limit, Limit::Other { .. }))
    }
}

/// Takes a bool expression apart. Of any other type, the whole is one [`Limit::Other`].
pub fn limits(typed: &Typed) -> Limits {
    let mut conjuncts = Vec::new();
    let mut waiting = vec![&typed.root];
    while let Some(node) = waiting.pop() {
        match &node.kind {
            NodeKind::Logic { operator: Logic::And, left, right } => waiting.extend([&**right, &**left]),
            _ => {
                let part = Typed { root: node.clone(), text: typed.text.clone(), ty: node.ty.clone() };
                let limit = limit(&part);
                conjuncts.push(Conjunct { typed: part, limit });
            }
        }
    }
    Limits { conjuncts }
}

impl Conjunct {
    /// Where the part stands in the text of the whole.
    pub fn span(&self) -> Span {
        self.typed.root.span
    }
}

fn limit(part: &Typed) -> Limit {
    if let Some(Value::Bool(value)) = part.fold_constant() {
        return Limit::Constant(value);
    }
    if let Some(modulus) = modulus(&part.root) {
        return modulus;
    }
    let mut cells = Cells::default();
    if part.ty != Type::Bool || cells.truth(&part.root).is_none() {
        return Limit::Other { variables: part.variables() };
    }
    let (mut cuts, mut categories) = cells.into_parts();
    match (cuts.len(), categories.len()) {
        (1, 0) => cuts.pop().map_or(Limit::Other { variables: part.variables() }, Limit::Cuts),
        (0, 1) => match categories.pop() {
            Some(variable) => Limit::Category { variable },
            None => Limit::Other { variables: part.variables() },
        },
        _ => Limit::Combination { cuts, categories },
    }
}

/// `variable % modulus == remainder`, either way round.
fn modulus(node: &Node) -> Option<Limit> {
    let NodeKind::Compare { operator: Comparison::Equal, left, right } = &node.kind else { return None };
    [(left, right), (right, left)].into_iter().find_map(|(dividing, other)| {
        let NodeKind::Arithmetic { operator: Arithmetic::Modulo, left, right } = &dividing.kind else {
            return None;
        };
        match (int_variable(left)?, constant(right)?, constant(other)?) {
            (_, Value::Int(0), _) => None,
            (variable, Value::Int(modulus), Value::Int(remainder)) => {
                Some(Limit::Modulus { variable, modulus, remainder })
            }
            _ => None,
        }
    })
}

/// The cells of values within which truth is constant, as far as they are known.
#[derive(Default)]
struct Cells {
    cuts: BTreeMap<u16, (NamedVariable, BTreeSet<i64>)>,
    categories: BTreeMap<u16, NamedVariable>,
}

impl Cells {
    fn cuts_of(&mut self, variable: &NamedVariable) -> &mut BTreeSet<i64> {
        &mut self.cuts.entry(variable.index).or_insert_with(|| (variable.clone(), BTreeSet::new())).1
    }

    fn into_parts(self) -> (Vec<CutPoints>, Vec<NamedVariable>) {
        let cuts = self.cuts.into_values();
        let cuts =
            cuts.map(|(variable, cuts)| CutPoints { variable, cuts: cuts.into_iter().collect() }).collect();
        (cuts, self.categories.into_values().collect())
    }

    /// Adds what a bool or enum node depends on; `None` when that is not a matter of cuts and categories.
    fn truth(&mut self, node: &Node) -> Option<()> {
        if constant(node).is_some() {
            return Some(());
        }
        match &node.kind {
            NodeKind::Variable { index, name } if !node.ty.is_numeric() => {
                let variable = NamedVariable { name: name.clone(), index: *index, ty: node.ty.clone() };
                self.categories.insert(*index, variable);
                Some(())
            }
            NodeKind::Not(operand) => self.truth(operand),
            NodeKind::Logic { left, right, .. } => self.truth(left).and_then(|()| self.truth(right)),
            NodeKind::Conditional { condition, then, otherwise } => {
                self.truth(condition)?;
                self.truth(then)?;
                self.truth(otherwise)
            }
            NodeKind::Compare { operator, left, right } if left.ty.is_numeric() => {
                if let Some(right) = constant(right) {
                    self.cut(*operator, left, right)
                } else {
                    self.cut(operator.mirrored(), right, constant(left)?)
                }
            }
            NodeKind::Compare { left, right, .. } => self.truth(left).and_then(|()| self.truth(right)),
            NodeKind::Member { item, list, .. } if item.ty.is_numeric() => {
                list.iter().try_for_each(|other| self.cut(Comparison::Equal, item, constant(other)?))
            }
            NodeKind::Member { item, list, .. } => {
                self.truth(item)?;
                list.iter().try_for_each(|other| self.truth(other))
            }
            _ => None,
        }
    }

    /// Adds the cut points of `subject operator constant`.
    fn cut(&mut self, operator: Comparison, subject: &Node, constant: Value) -> Option<()> {
        let (variable, reached, passed) = match (&subject.kind, constant) {
            (NodeKind::Variable { .. }, Value::Int(limit)) => {
                let reached = (limit != i64::MIN).then_some(limit);
                (int_variable(subject)?, reached, limit.checked_add(1))
            }
            (NodeKind::Widen(inner), Value::Float(limit)) => {
                let reached = first(|value| arith::widen(value) >= limit);
                let passed = first(|value| arith::widen(value) > limit);
                (int_variable(inner)?, reached, passed)
            }
            _ => return None,
        };
        let cuts = self.cuts_of(&variable);
        match operator {
            Comparison::Less | Comparison::GreaterOrEqual => cuts.extend(reached),
            Comparison::LessOrEqual | Comparison::Greater => cuts.extend(passed),
            Comparison::Equal | Comparison::NotEqual => cuts.extend(reached.into_iter().chain(passed)),
        }
        Some(())
    }
}

/// The first integer for which a condition holds that, once true, stays true; `None` when it holds for all or none,
/// so that nothing changes anywhere.
fn first(holds: impl Fn(i64) -> bool) -> Option<i64> {
    if holds(i64::MIN) || !holds(i64::MAX) {
        return None;
    }
    let (mut without, mut with) = (i64::MIN, i64::MAX);
    while i128::from(with) - i128::from(without) > 1 {
        let middle = without.midpoint(with);
        if holds(middle) {
            with = middle;
        } else {
            without = middle;
        }
    }
    Some(with)
}

fn int_variable(node: &Node) -> Option<NamedVariable> {
    match &node.kind {
        NodeKind::Variable { index, name } if node.ty == Type::Int => {
            Some(NamedVariable { name: name.clone(), index: *index, ty: Type::Int })
        }
        _ => None,
    }
}

fn constant(node: &Node) -> Option<Value> {
    let part = Typed { root: node.clone(), text: String::new(), ty: node.ty.clone() };
    part.fold_constant()
}
