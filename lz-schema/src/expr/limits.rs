//! Analyzes which variables a bool expression depends on, for a selection engine that groups calls into buckets.
//!
//! A limit is split at its top-level `and`s. For each part, the analysis gives the values of an int variable at which the
//! result can change, so that the engine can place bucket bounds there, or states that the part must be evaluated on every
//! call. This module does not depend on buckets, kernels or axes.

use std::collections::{BTreeMap, BTreeSet};

use super::arith;
use super::ast::{Arithmetic, Comparison, Logic, Span};
use super::scope::NamedVariable;
use super::typed::{Node, NodeKind, Typed};
use super::value::{Type, Value};

/// The conjuncts of a bool expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// The conjuncts, in source order. Evaluate them in that order and stop at the first that is false: a later one may rely on
    /// an earlier one, as in `b != 0 and a % b == 0`.
    pub conjuncts: Vec<Conjunct>,
}

/// One conjunct of a limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Conjunct {
    /// The conjunct as an expression, with the text of the whole limit.
    pub typed: Typed,
    /// What its value depends on.
    pub limit: Limit,
}

/// What the value of a conjunct depends on.
#[derive(Debug, Clone, PartialEq)]
pub enum Limit {
    /// Nothing: it is constant.
    Constant(bool),
    /// The interval of one int variable between cut points: comparisons and memberships with constants.
    Cuts(CutPoints),
    /// The remainder of one int variable: `variable % modulus == remainder`, where the modulus is not 0.
    Modulus {
        /// The variable.
        variable: NamedVariable,
        /// The divisor.
        modulus: i64,
        /// The required remainder; out of range means that the conjunct is always false.
        remainder: i64,
    },
    /// One bool or enum variable.
    Category {
        /// The variable.
        variable: NamedVariable,
    },
    /// Several intervals and categories, joined by `and`, `or`, `not`, `==` or `if`. The value is the same for all inputs with
    /// equal categories and between the same cut points.
    Combination {
        /// The int variables with their cut points, in the order of slots.
        cuts: Vec<CutPoints>,
        /// The bool and enum variables, in the order of slots.
        categories: Vec<NamedVariable>,
    },
    /// Any other dependency on these variables: evaluate it. Only the evaluation of such a conjunct can fail.
    Other {
        /// The variables, in the order of slots.
        variables: Vec<NamedVariable>,
    },
}

/// The values of an int variable at which the result can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutPoints {
    /// The variable.
    pub variable: NamedVariable,
    /// Ascending, without duplicates: for each `c`, the result may differ between `c - 1` and `c`. It is constant between two
    /// adjacent cut points, below the first and from the last on.
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

    /// The conjuncts that must be evaluated on each call.
    pub fn guards(&self) -> impl Iterator<Item = &Conjunct> {
        self.conjuncts.iter().filter(|conjunct| matches!(conjunct.limit, Limit::Other { .. }))
    }
}

/// Splits a bool expression into conjuncts. An expression of another type is one [`Limit::Other`].
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
    /// The span of the conjunct in the text of the whole limit.
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

/// `variable % modulus == remainder`, or with exchanged operands.
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

/// The cut points and categories that partition the inputs into cells with a constant result.
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

    /// Adds the dependencies of a bool or enum node; `None` if they are not cut points and categories.
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

/// The smallest integer that satisfies a monotonic condition; `None` if all or no integers satisfy it.
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
