//! Kernels: a valid call of any operation has the results of the reference, and nothing else is written.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use lz_conformance::assign::Prepared;
use lz_conformance::fill::Numbers;
use lz_conformance::generated::SUBJECTS;
use lz_conformance::random::Random;
use lz_conformance::suite::focus_of;
use lz_conformance::valid::{Drawing, Drawn, draw_valid};
use lz_conformance::values::{claims, compare, reference};
use lz_core::KernelEntry;

use crate::choices::Choices;

/// What an operation's calls are drawn from, prepared once.
fn prepared(operation: &'static lz_schema::model::Operation) -> &'static Prepared {
    static PREPARED: OnceLock<Mutex<HashMap<String, &'static Prepared>>> = OnceLock::new();
    let mut all = PREPARED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(operation.name.clone()).or_insert_with(|| Box::leak(Box::new(Prepared::new(operation).tame())))
}

/// A call with a larger product of its axes is drawn again with smaller ones. The reference takes some 20 ns for each of these steps, and
/// instrumented several times that.
const MAX_STEPS: i64 = 1 << 22;

/// An upper bound of the multiplications of a call: no reference has loops over more than its axes.
fn steps(drawn: &Drawn) -> i64 {
    drawn.bound.axes.iter().flatten().fold(1, |steps: i64, axis| steps.saturating_mul((*axis).max(1)))
}

pub fn run(input: &[u8]) -> bool {
    let mut choices = Choices::new(input);
    let subject = *choices.pick(&SUBJECTS);
    let operation = subject.info().schema();
    let kernels: Vec<&KernelEntry> = lz_test_kernels::runnable()
        .iter()
        .filter(|entry| entry.spec.operation == operation.name && !entry.spec.reference)
        // Before its first call, `tokenizers` 1.0 is compared with the definition on every code point, which takes up to a minute.
        .filter(|entry| !entry.spec.id.contains(".hf1."))
        .collect();
    let Some(reference) = reference(operation) else { panic!("{}: no reference", operation.name) };
    if kernels.is_empty() {
        return false;
    }
    let entry = *choices.pick(&kernels);
    let prepared = prepared(operation);
    let mut size = choices.byte() % 101;
    let focus = focus_of(prepared, u64::from(choices.byte()));
    let numbers = if choices.below(4) == 3 { Numbers::Awkward } else { Numbers::Normal };
    let drawn = loop {
        let drawing = Drawing { size, focus: &focus, numbers, devices: false };
        let mut random = Random::steered(choices.rest());
        // Constraints between sizes may have no solution that these draws reach.
        let Ok(drawn) = draw_valid(prepared, &mut random, &drawing) else { return false };
        if steps(&drawn) <= MAX_STEPS {
            break drawn;
        }
        if size == 0 {
            return false;
        }
        size /= 2;
    };
    let compared = compare(subject, entry, reference, &claims, drawn, &mut |_| {});
    compared.unwrap_or_else(|problem| panic!("{}: {problem}", entry.spec.id)).is_some()
}
