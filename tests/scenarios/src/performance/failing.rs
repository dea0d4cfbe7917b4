//! What trouble costs: a fallback, a panic, a circuit that is open somewhere, a call that is wrong.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lz_core::{DType, KernelError};
use lz_engine::Engine;
use lz_engine::health::{CircuitConfig, Health, HealthConfig, SystemClock};
use lz_ops::{NORM_RMS, NormRms};

use super::Bench;
use super::naive::ladder;
use super::repeating::norm;
use crate::calls::{Ask, Norm};
use crate::house::{host_spec, register};
use crate::kernels::{doing, quiet};
use crate::tensors::{Lie, tensor};

/// An engine whose circuits never open, so that every call meets the failure, with a kernel that fails and one that does not.
fn failing(deed: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static) -> Engine {
    let kernel = CircuitConfig { failure_threshold: u32::MAX, ..CircuitConfig::default() };
    let mut config = HealthConfig { kernel, ..HealthConfig::default() };
    config.penalty.max_penalty = 0.0;
    let engine = Engine::with_health(Arc::new(Health::new(config, Arc::new(SystemClock::default()))));
    let entries =
        [doing(host_spec("bad.x").priority(90), &NORM_RMS, deed), quiet(host_spec("good.x"), &NORM_RMS)];
    register(&engine, entries);
    engine
}

/// The best kernel fails on every call and the next one does its work, beside a match on an error by hand.
pub fn a_kernel_that_fails_and_another_that_steps_in(bench: &mut Bench) {
    let engine = failing(|| Err(KernelError::failed("a launch failure")));
    let call = Norm::default();
    let by_hand = || -> Result<(), KernelError> { Err(KernelError::failed("a launch failure")) };
    bench.beside(
        "a match by hand",
        500,
        || drop(black_box(call.serve(&engine))),
        || match black_box(by_hand()) {
            Ok(()) => {}
            Err(error) => drop(black_box(error)),
        },
    );
}

/// The best kernel panics on every call: the panic is caught, recorded, and the next one does its work.
pub fn a_kernel_that_panics(bench: &mut Bench) {
    // A real panic would print its message each time; an unwind is what it costs.
    let engine = failing(|| std::panic::resume_unwind(Box::new("in a kernel")));
    let call = Norm::default();
    bench.alone(200, || drop(black_box(call.serve(&engine))));
}

/// One kernel's circuit is open, so that every call asks for leave, beside a list of the banned under a mutex.
pub fn a_call_past_an_open_circuit(bench: &mut Bench) {
    let engine = Engine::new();
    let bad =
        doing(host_spec("bad.x").priority(90), &NORM_RMS, || Err(KernelError::failed("a launch failure")));
    register(&engine, [bad, quiet(host_spec("good.x"), &NORM_RMS)]);
    let (call, args) = (Norm::default(), norm(4, 64));
    (0..10).for_each(|_| drop(call.serve(&engine)));
    let banned = Mutex::new(HashMap::from([("bad".to_owned(), Instant::now() + Duration::from_secs(600))]));
    bench.beside(
        "a list of the banned under a mutex",
        5_000,
        || drop(black_box(call.serve(&engine))),
        || {
            let banned = banned.lock().unwrap_or_else(PoisonError::into_inner);
            let is_banned = banned.get(black_box("bad")).is_some_and(|until| Instant::now() < *until);
            black_box((is_banned, ladder(&args)));
        },
    );
}

/// A weight of the wrong size: the fast check says no, and the slow one finds everything that is wrong and says it in words.
pub fn a_wrong_call_is_refused(bench: &mut Bench) {
    let wrong =
        NormRms::new(tensor(&[4, 64], DType::F32, Lie::HOST)).weight(tensor(&[65], DType::F32, Lie::HOST));
    bench.alone(500, || drop(black_box(black_box(&wrong).check().err())));
}
