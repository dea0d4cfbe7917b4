//! Sizes for the example workload: some values that satisfy the constraints of an imported `Definition`.

use lz_schema::expr::ast::{Comparison, ExprKind, Link};
use lz_schema::expr::{Program, Type, Typed, Value, VariableTable, check_expecting, parse};

/// A constraint in our language, ready to run.
#[derive(Debug)]
pub(super) struct Condition {
    program: Program,
    slots: Vec<usize>,
    /// `slot == program`, where the constraint has that form.
    defines: Option<(usize, Program, Vec<usize>)>,
}

impl Condition {
    /// Types a constraint; `None` if it makes no sense in our language, or reads nothing that could vary.
    pub(super) fn new(text: &str, table: &VariableTable) -> Option<Condition> {
        let typed = check_expecting(text, table, &Type::Bool).ok()?;
        let slots = slots(&typed);
        (!slots.is_empty()).then(|| Condition {
            program: Program::compile(&typed),
            slots,
            defines: definition(text, table),
        })
    }

    fn holds(&self, values: &[Value]) -> bool {
        self.program.eval_bool(values).unwrap_or(false)
    }
}

fn slots(typed: &Typed) -> Vec<usize> {
    typed.variables().iter().map(|variable| usize::from(variable.index)).collect()
}

/// Reads `name == expression` or `expression == name`.
fn definition(text: &str, table: &VariableTable) -> Option<(usize, Program, Vec<usize>)> {
    let (name, other) = sides(text)?;
    let slot = check_expecting(&name, table, &Type::Int).ok()?;
    let slot = *slots(&slot).first()?;
    let typed = check_expecting(&other, table, &Type::Int).ok()?;
    let reads = slots(&typed);
    (!reads.contains(&slot)).then(|| (slot, Program::compile(&typed), reads))
}

/// The two sides of an equation of which one is a bare name, the name first.
pub(super) fn sides(text: &str) -> Option<(String, String)> {
    let ExprKind::Compare { first, links } = parse(text).ok()?.kind else { return None };
    let [Link::Compare { operator: Comparison::Equal, operand }] = links.as_slice() else { return None };
    let (left, right) = (first.span.of(text), operand.span.of(text));
    // A side in parentheses may have a span without them, so the text is cut at the operator.
    let (left, right) = match text.split_once("==") {
        Some(halves) if left != halves.0.trim() || right != halves.1.trim() => {
            (halves.0.trim(), halves.1.trim())
        }
        _ => (left, right),
    };
    match (&first.kind, &operand.kind) {
        (ExprKind::Name(name), _) => Some((name.clone(), right.to_owned())),
        (_, ExprKind::Name(name)) => Some((name.clone(), left.to_owned())),
        _ => None,
    }
}

/// What to look for.
#[derive(Debug, Clone)]
pub(super) struct Unknown {
    /// The slot in the values.
    pub slot: usize,
    /// What to try, best first.
    pub candidates: Vec<Value>,
}

/// Candidates for sizes and integers: what is easy to read first, then what constraints tend to ask for.
pub(super) fn sizes(mentioned: &[i64]) -> Vec<Value> {
    let usual = [4, 1, 2, 8, 16, 32, 64, 128, 256, 3, 0, 512, 1024, 4096];
    let mut sizes: Vec<i64> = Vec::new();
    for size in usual.into_iter().chain(mentioned.iter().copied()) {
        if !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    sizes.into_iter().map(Value::Int).collect()
}

/// How many steps one search may take: enough for every definition seen, little enough to never be felt.
const BUDGET: usize = 50_000;

/// How many values one search looks for at once; it bounds the recursion.
const MOST_UNKNOWNS: usize = 256;

/// Values that satisfy as many conditions as possible, taken greedily in their order, and which those are.
pub(super) fn solve(
    unknowns: &[Unknown],
    start: &[Value],
    conditions: &[Condition],
) -> (Vec<Value>, Vec<bool>) {
    let mut kept: Vec<&Condition> = Vec::new();
    let mut best = search(unknowns, start, &[]).unwrap_or_else(|| start.to_vec());
    let mut holds = Vec::with_capacity(conditions.len());
    for condition in conditions {
        kept.push(condition);
        let found = search(unknowns, start, &kept);
        holds.push(found.is_some());
        match found {
            Some(values) => best = values,
            None => _ = kept.pop(),
        }
    }
    (best, holds)
}

fn search(unknowns: &[Unknown], start: &[Value], conditions: &[&Condition]) -> Option<Vec<Value>> {
    // Slots that an equation gives are not searched; one equation each, and none that leads back to itself.
    let mut given: Vec<(usize, &Program, &[usize])> = Vec::new();
    for (slot, program, reads) in conditions.iter().filter_map(|condition| condition.defines.as_ref()) {
        let searched = unknowns.iter().any(|unknown| unknown.slot == *slot);
        let known = given.iter().any(|(earlier, ..)| earlier == slot);
        if searched && !known && !leads_to(reads, *slot, &given) {
            given.push((*slot, program, reads));
        }
    }
    // What nothing reads keeps its first value, so that only what matters is searched.
    let read = |slot: usize| {
        conditions.iter().any(|condition| condition.slots.contains(&slot))
            || given.iter().any(|(_, _, reads)| reads.contains(&slot))
    };
    let searched = unknowns.iter().filter(|unknown| !given.iter().any(|(slot, ..)| *slot == unknown.slot));
    let free: Vec<&Unknown> = searched.filter(|unknown| read(unknown.slot)).collect();
    if free.len() > MOST_UNKNOWNS {
        return None;
    }
    let mut values = start.to_vec();
    let mut budget = BUDGET;
    descend(&free, &given, conditions, &mut values, &mut budget).then_some(values)
}

/// Whether what an equation reads depends on the slot that it would give.
fn leads_to(reads: &[usize], slot: usize, given: &[(usize, &Program, &[usize])]) -> bool {
    let mut seen: Vec<usize> = Vec::new();
    let mut waiting: Vec<usize> = reads.to_vec();
    while let Some(read) = waiting.pop() {
        if read == slot {
            return true;
        }
        if !seen.contains(&read) {
            seen.push(read);
            let further = given.iter().filter(|(known, ..)| *known == read);
            waiting.extend(further.flat_map(|(_, _, reads)| reads.iter().copied()));
        }
    }
    false
}

fn descend(
    free: &[&Unknown],
    given: &[(usize, &Program, &[usize])],
    conditions: &[&Condition],
    values: &mut Vec<Value>,
    budget: &mut usize,
) -> bool {
    let Some((first, rest)) = free.split_first() else {
        *budget = budget.saturating_sub(conditions.len());
        return fill(given, values) && conditions.iter().all(|condition| condition.holds(values));
    };
    for candidate in &first.candidates {
        if *budget == 0 {
            return false;
        }
        if let Some(value) = values.get_mut(first.slot) {
            *value = *candidate;
        }
        *budget = budget.saturating_sub(1);
        // A condition that reads nothing still open is decided here, so that whole branches fall away.
        let open = |slot: &usize| {
            rest.iter().any(|unknown| unknown.slot == *slot) || given.iter().any(|(known, ..)| known == slot)
        };
        let decided = |condition: &&&Condition| {
            condition.slots.contains(&first.slot) && !condition.slots.iter().any(open)
        };
        if conditions.iter().filter(decided).any(|condition| !condition.holds(values)) {
            continue;
        }
        if descend(rest, given, conditions, values, budget) {
            return true;
        }
    }
    false
}

/// Evaluates the equations, in whatever order they need.
fn fill(given: &[(usize, &Program, &[usize])], values: &mut [Value]) -> bool {
    let mut done: Vec<usize> = Vec::new();
    while done.len() < given.len() {
        let ready = given.iter().find(|(slot, _, reads)| {
            let waits = |read: &usize| given.iter().any(|(known, ..)| known == read) && !done.contains(read);
            !done.contains(slot) && !reads.iter().any(waits)
        });
        let Some((slot, program, _)) = ready else { return false };
        match (program.eval_int(values), values.get_mut(*slot)) {
            (Ok(size), Some(value)) if size >= 0 => *value = Value::Int(size),
            _ => return false,
        }
        done.push(*slot);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solved(constraints: &[&str]) -> (Vec<i64>, Vec<bool>) {
        let mut table = VariableTable::new();
        for name in ["a", "b", "c", "d"] {
            table.add(name, Type::Int);
        }
        let conditions: Vec<Condition> =
            constraints.iter().map(|text| Condition::new(text, &table).expect("it makes sense")).collect();
        let unknowns: Vec<Unknown> = (0..4).map(|slot| Unknown { slot, candidates: sizes(&[]) }).collect();
        let (values, holds) = solve(&unknowns, &[Value::Int(4); 4], &conditions);
        let ints = values.iter().map(|value| if let Value::Int(value) = value { *value } else { -1 });
        (ints.collect(), holds)
    }

    #[test]
    fn equations_chains_and_comparisons_are_satisfied() {
        assert_eq!(solved(&[]).0, [4, 4, 4, 4]);
        assert_eq!(solved(&["b == a + 1", "c == b * 2"]).0, [4, 5, 10, 4]);
        assert_eq!(solved(&["a == b + 1", "b == a - 1"]).1, [true, true]);
        assert_eq!(solved(&["a % b == 0", "b > 4", "a > b"]).1, [true; 3]);
        assert_eq!(solved(&["(a + 1) // 2 == b", "a > 9"]).1, [true, true]);
    }

    #[test]
    fn equations_that_meet_again_and_again_are_solved() {
        let mut table = VariableTable::new();
        let names: Vec<String> = (0..60).map(|number| format!("a{number}")).collect();
        names.iter().for_each(|name| _ = table.add(name.clone(), Type::Int));
        let texts: Vec<String> = names
            .windows(3)
            .map(|three| format!("{} == {} + {} - 1", three[2], three[1], three[0]))
            .collect();
        let conditions: Vec<Condition> =
            texts.iter().filter_map(|text| Condition::new(text, &table)).collect();
        let unknowns: Vec<Unknown> =
            (0..names.len()).map(|slot| Unknown { slot, candidates: sizes(&[]) }).collect();
        let (_, holds) = solve(&unknowns, &vec![Value::Int(1); names.len()], &conditions);
        assert!(holds.len() == 58 && holds.iter().all(|holds| *holds));
    }

    #[test]
    fn a_contradiction_is_left_out_and_named() {
        assert_eq!(solved(&["a == 3", "a == 4", "b == a"]).1, [true, false, true]);
        assert_eq!(solved(&["a // 0 == 1"]).1, [false]);
    }
}
