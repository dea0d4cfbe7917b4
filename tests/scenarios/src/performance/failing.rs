//! Cost of failures: fallback, panic, open circuit, invalid call.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lz_core::{DType, KernelError};
use lz_engine::Engine;
use lz_engine::health::{CircuitConfig, Health, HealthConfig, SystemClock};
use lz_ops::{NORM_RMS, NormRms};

use super::Bench;
use super::naive::if_chain;
use super::repeating::norm;
use crate::calls::{Norm, ScenarioCall};
use crate::engines::{host_spec, register};
use crate::kernels::{kernel_fn, noop_kernel};
use crate::tensors::{Placement, tensor};

/// An engine whose circuits never open, so that every call runs into the failure, with a failing and a
/// working kernel.
fn failing(body: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static) -> Engine {
    let kernel = CircuitConfig { failure_threshold: u32::MAX, ..CircuitConfig::default() };
    let mut config = HealthConfig { kernel, ..HealthConfig::default() };
    config.penalty.max_penalty = 0.0;
    let engine = Engine::with_health(Arc::new(Health::new(config, Arc::new(SystemClock::default()))));
    let entries = [
        kernel_fn(host_spec("bad.x").priority(90), &NORM_RMS, body),
        noop_kernel(host_spec("good.x"), &NORM_RMS),
    ];
    register(&engine, entries);
    engine
}

/// The best kernel fails on every call and the fallback runs; compared with a hand-written `match` on the
/// error.
pub fn a_kernel_that_fails_and_another_that_steps_in(bench: &mut Bench) {
    let engine = failing(|| Err(KernelError::failed("a launch failure")));
    let call = Norm::default();
    let by_hand = || -> Result<(), KernelError> { Err(KernelError::failed("a launch failure")) };
    bench.compare(
        "a match by hand",
        500,
        || drop(black_box(call.serve(&engine))),
        || match black_box(by_hand()) {
            Ok(()) => {}
            Err(error) => drop(black_box(error)),
        },
    );
}

/// The best kernel panics on every call: the panic is caught and recorded, and the fallback runs.
pub fn a_kernel_that_panics(bench: &mut Bench) {
    // `resume_unwind` instead of `panic!`: the same unwind without printing a message each time.
    let engine = failing(|| std::panic::resume_unwind(Box::new("in a kernel")));
    let call = Norm::default();
    bench.measure(200, || drop(black_box(call.serve(&engine))));
}

/// One kernel's circuit is open, so that every call has to acquire a permit; compared with a deny list under
/// a mutex.
pub fn a_call_past_an_open_circuit(bench: &mut Bench) {
    let engine = Engine::new();
    let bad = kernel_fn(host_spec("bad.x").priority(90), &NORM_RMS, || {
        Err(KernelError::failed("a launch failure"))
    });
    register(&engine, [bad, noop_kernel(host_spec("good.x"), &NORM_RMS)]);
    let (call, args) = (Norm::default(), norm(4, 64));
    (0..10).for_each(|_| drop(call.serve(&engine)));
    let banned = Mutex::new(HashMap::from([("bad".to_owned(), Instant::now() + Duration::from_secs(600))]));
    bench.compare(
        "a list of the banned under a mutex",
        5_000,
        || drop(black_box(call.serve(&engine))),
        || {
            let banned = banned.lock().unwrap_or_else(PoisonError::into_inner);
            let is_banned = banned.get(black_box("bad")).is_some_and(|until| Instant::now() < *until);
            black_box((is_banned, if_chain(&args)));
        },
    );
}

/// A weight of the wrong size: the fast check fails, and the slow check collects all errors with their
/// messages.
pub fn a_wrong_call_is_refused(bench: &mut Bench) {
    let wrong = NormRms::new(tensor(&[4, 64], DType::F32, Placement::HOST)).weight(tensor(
        &[65],
        DType::F32,
        Placement::HOST,
    ));
    bench.measure(500, || drop(black_box(black_box(&wrong).check().err())));
}
