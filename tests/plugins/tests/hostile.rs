//! Hostile workers: the call fails with a reason, the host is unaffected, and the next call succeeds.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lz_conformance::assign::Prepared;
use lz_conformance::fill::Numbers;
use lz_conformance::random::{Random, case_seed};
use lz_conformance::valid::{Drawing, draw_valid};
use lz_core::device::Platform;
use lz_core::{Error, KernelSpec, OperationInfo, ReasonCode, TensorView};
use lz_engine::policy::layer::SettingInput;
use lz_engine::{Engine, dynamic};
use lz_ops::{NORM_RMS, NormRms, TOKENIZE_ENCODE, norm_rms};
use lz_worker::{Worker, WorkerOptions};

fn worker(attack: &str) -> Worker {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mark =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{}-{number}", std::process::id()));
    std::fs::remove_file(&mark).ok();
    let program = env!("CARGO_BIN_EXE_lz-hostile-worker");
    let mut options = WorkerOptions::new(program).argument(attack).argument(mark);
    options.arena_bytes = 1 << 20;
    options.arena_limit = 4 << 20;
    options.deadline = Duration::from_millis(1500);
    Worker::on_demand(options).unwrap()
}

fn engine(worker: &Worker, info: &'static OperationInfo) -> Engine {
    let engine = lz_ops::reference_engine();
    let spec = KernelSpec::new(&format!("far.{}", info.name), &info.name, "far", "1", Platform::Cpu);
    engine.register([worker.kernel(spec, info)]).unwrap();
    engine.lock(&info.name, &format!("far.{}", info.name)).unwrap();
    engine.configure([("fallback_enabled".to_owned(), SettingInput::Bool(false))]).unwrap();
    engine
}

fn normalize(engine: &Engine) -> Result<Vec<f32>, Error> {
    let x: Vec<f32> = (0..24).map(|at| at as f32 - 7.5).collect();
    let output = norm_rms(engine, NormRms::new(TensorView::from_slice(&x, &[3, 8]).unwrap()))?.output;
    Ok(output.view().as_slice::<f32>().unwrap().to_vec())
}

fn encode(engine: &Engine) -> Result<(), Error> {
    let operation = TOKENIZE_ENCODE.schema();
    let prepared = Prepared::new(operation).tame();
    let mut random = Random::new(case_seed(&operation.name, "hostile", 1));
    let drawing = Drawing { size: 20, focus: &[], numbers: Numbers::Normal, devices: false };
    let mut call = draw_valid(&prepared, &mut random, &drawing).unwrap().call;
    call.with_args(|args, outputs| dynamic::call_into(engine, &TOKENIZE_ENCODE, args, outputs))
}

/// After an attack, the restarted worker works and the whole arena is free.
fn recovers(attack: &str, worker: &Worker, engine: &Engine) {
    let expected = normalize(&lz_ops::reference_engine()).unwrap();
    let next = normalize(engine).unwrap_or_else(|error| panic!("after {attack}: {error}"));
    assert_eq!(next, expected, "after {attack}");
    assert_eq!(worker.free_bytes(), 4 << 20, "after {attack} all blocks were released");
}

#[test]
fn invalid_answers_stop_the_worker() {
    for attack in ["invalid_answer", "other_state", "length", "pending"] {
        let worker = worker(attack);
        let engine = engine(&worker, &NORM_RMS);
        let error = normalize(&engine).unwrap_err();
        assert!(error.has(ReasonCode::WorkerGarbage), "{attack}: {error}");
        assert_eq!(worker.process_id(), None, "{attack}: it was stopped");
        recovers(attack, &worker, &engine);
        assert_eq!(worker.starts(), 2, "{attack}");
    }
}

#[test]
fn an_invalid_handshake_stops_the_worker() {
    for attack in ["handshake_size", "handshake_state"] {
        let worker = worker(attack);
        let reason = worker.descriptor().unwrap_err();
        assert_eq!(reason.code, ReasonCode::WorkerGarbage, "{attack}: {reason}");
        assert_eq!(worker.process_id(), None, "{attack}: it was stopped");
        recovers(attack, &worker, &engine(&worker, &NORM_RMS));
    }
}

#[test]
fn overwritten_control_memory_stops_the_worker() {
    for seed in 1..=6u64 {
        let attack = format!("scribble:{}", seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let worker = worker(&attack);
        let engine = engine(&worker, &NORM_RMS);
        let error = normalize(&engine).unwrap_err();
        let lost = error.has(ReasonCode::WorkerGarbage) || error.has(ReasonCode::WorkerHung);
        assert!(lost, "{attack}: {error}");
        recovers(&attack, &worker, &engine);
    }
}

#[test]
fn the_shared_memory_cannot_be_truncated() {
    let worker = worker("truncate");
    let engine = engine(&worker, &NORM_RMS);
    let error = normalize(&engine).unwrap_err();
    assert!(error.to_string().contains("truncation failed: [true, true]"), "{error}");
}

#[test]
fn a_repeated_answer_is_not_accepted_for_the_next_call() {
    let worker = worker("twice");
    let engine = engine(&worker, &NORM_RMS);
    let error = normalize(&engine).unwrap_err();
    assert!(error.to_string().contains("the first answer"), "{error}");
    let error = normalize(&engine).unwrap_err();
    assert!(error.has(ReasonCode::WorkerGarbage), "{error}");
    recovers("twice", &worker, &engine);
}

#[test]
fn a_call_without_an_answer_fails_at_the_deadline() {
    for attack in ["silent", "close", "other_slot"] {
        let worker = worker(attack);
        let engine = engine(&worker, &NORM_RMS);
        let error = normalize(&engine).unwrap_err();
        assert!(error.has(ReasonCode::WorkerHung), "{attack}: {error}");
        recovers(attack, &worker, &engine);
    }
}

#[test]
fn a_worker_cannot_return_reason_codes_of_the_caller() {
    let worker = worker("code");
    let engine = engine(&worker, &NORM_RMS);
    let error = normalize(&engine).unwrap_err();
    assert!(error.has(ReasonCode::KernelFailed) && !error.has(ReasonCode::CallInterrupted), "{error}");
}

#[test]
fn outputs_with_a_wrong_dtype_or_shape_stop_the_worker() {
    for attack in ["dtype", "shape", "size", "negative", "tokenizer", "pending"] {
        let worker = worker(attack);
        let engine = engine(&worker, &TOKENIZE_ENCODE);
        let error = encode(&engine).unwrap_err();
        let lost = error.has(ReasonCode::WorkerGarbage);
        assert!(lost, "{attack}: {error}");
        encode(&engine).unwrap_or_else(|error| panic!("after {attack}: {error}"));
        assert_eq!(worker.starts(), 2, "{attack}");
    }
}
