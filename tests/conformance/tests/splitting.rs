//! Batch splitting: for every splittable operation, the parts give the result of the whole call.

use std::sync::Arc;

use lz_conformance::assign::Prepared;
use lz_conformance::fill::Numbers;
use lz_conformance::generated::SUBJECTS;
use lz_conformance::suite::{focus_of, for_each_case};
use lz_conformance::valid::{Drawing, draw_valid};
use lz_conformance::values::same;
use lz_core::{Error, KernelEntry};
use lz_engine::policy::{Policy, WithSource};
use lz_engine::{Engine, dynamic};

/// Workspace that a kernel declares per unit of the batch.
const UNIT: u64 = 1 << 20;
/// Calls drawn for each kernel.
const CASES: u64 = 24;

/// An engine with this kernel only, and limited memory for its workspace.
fn engine(entry: &KernelEntry, headroom: Option<u64>) -> Engine {
    let engine = Engine::new();
    engine.register([entry.clone()]).unwrap_or_else(|error| panic!("{error}"));
    engine.set_policy(Policy { memory_headroom: WithSource::new(headroom, "test"), ..Policy::default() });
    engine
}

#[test]
fn split_calls_match_whole_calls() {
    let mut operations = 0;
    for subject in SUBJECTS {
        let (info, operation) = (subject.info(), subject.info().schema());
        let Some(axis) = lz_engine::split::batch_axis(info) else { continue };
        let prepared = Prepared::new(operation).tame();
        let mut splits = 0;
        let of_operation =
            |entry: &&KernelEntry| entry.spec.operation == info.name && entry.spec.workspace.is_none();
        for kernel in lz_test_kernels::runnable().iter().filter(of_operation) {
            let mut spec = (*kernel.spec).clone();
            spec.workspace = Some(format!("{axis} * {UNIT}"));
            let kernel = KernelEntry { spec: Arc::new(spec), ..kernel.clone() };
            let whole = engine(&kernel, None);
            let outcome = for_each_case(&info.name, "splitting", 0..CASES, |case, random, size| {
                let focus = focus_of(&prepared, case);
                let drawing = Drawing { size, focus: &focus, numbers: Numbers::Normal, devices: false };
                let drawn = draw_valid(&prepared, random, &drawing)?;
                let mut expected = drawn.call.clone();
                match expected.with_args(|args, outputs| dynamic::call_into(&whole, info, args, outputs)) {
                    Err(Error::NoKernel { .. }) => return Ok(()),
                    outcome => outcome.map_err(|error| error.to_string())?,
                }
                let mut found = drawn.call;
                let parts = engine(&kernel, Some((1 + case % 3) * UNIT));
                match found.with_args(|args, outputs| dynamic::call_into(&parts, info, args, outputs)) {
                    // A pack is split only along its first dimension, and one step of that may already be too
                    // large.
                    Err(Error::NoKernel { .. }) => return Ok(()),
                    outcome => outcome.map_err(|error| error.to_string())?,
                }
                splits += parts.split_calls();
                same(operation, &found, &expected).map_err(|problem| format!("{problem}\n{found:?}"))
            });
            outcome.unwrap_or_else(|problem| panic!("{}: {problem}", kernel.spec.id));
        }
        assert!(splits > 0, "no call of {} was split", info.name);
        operations += 1;
    }
    assert!(operations >= 15, "only {operations} operations can be split");
}
