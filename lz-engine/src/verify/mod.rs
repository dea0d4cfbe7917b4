//! Shadow verification (`verify`): sampled calls are repeated by a second kernel or the reference, on a copy of their tensors, on a
//! thread of their own. A kernel whose result differs by more than the schema's tolerance is quarantined for the bucket of the call,
//! and a [reproducer](Reproducer) is written.
//!
//! Sampling and recording happen on the slow path of dispatch (`telemetry::sample`): a cache hit does nothing for it. While it is off,
//! nothing is allocated and no thread runs.

mod judge;
mod queue;
mod replay;
mod reproducer;

pub use replay::{Replay, Rerun};
pub use reproducer::{KernelIdentity, Reproducer, ReproducerError};

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lz_schema::policy::SettingValue;

use crate::engine::{Engine, WeakEngine, expanded};
use crate::health::{CircuitStatus, Subject};
use crate::telemetry::{Sample, Verifier};
use judge::WrongResult;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::spec::KernelSpec;
use queue::Queue;

/// Gives an engine its verifier. Nothing runs until the setting `verify` is on.
pub fn install(engine: &Engine) {
    let queue = engine.extension::<Queue>();
    engine.set_verifier(Arc::new(Installed { engine: engine.downgrade(), queue }));
}

struct Installed {
    engine: WeakEngine,
    queue: Arc<Queue>,
}

impl Verifier for Installed {
    fn max_bytes(&self) -> u64 {
        let setting = self.engine.upgrade().and_then(|engine| engine.setting("verify_memory_mb"));
        match setting.map(|setting| setting.value) {
            Some(SettingValue::Int(megabytes)) => u64::try_from(megabytes).unwrap_or(0) << 20,
            _ => 0,
        }
    }

    fn submit(&self, sample: Sample) {
        let Some(engine) = self.engine.upgrade() else { return };
        if !self.queue.push(sample, self.max_bytes(), &self.engine) {
            engine.snapshot().observation.telemetry.metrics.verification_dropped();
        }
    }
}

impl Engine {
    /// Waits until every sampled call so far is verified; false after the timeout.
    pub fn wait_for_verification(&self, timeout: Duration) -> bool {
        self.extension::<Queue>().wait(timeout)
    }
}

/// Verifies a recorded call.
fn verify(engine: &Engine, sample: Sample) {
    let snapshot = engine.snapshot();
    let metrics = &snapshot.observation.telemetry.metrics;
    let subject = subject(&sample.entry.spec, &sample.bucket, &sample.device);
    // An earlier sample has quarantined it already.
    if matches!(snapshot.health.circuit_status(&subject), CircuitStatus::Refused(_)) {
        return metrics.verification_skipped();
    }
    match judge::judge(engine, sample) {
        Some(Ok(())) => metrics.verification_agreed(),
        Some(Err(wrong)) => {
            metrics.result_mismatched(&wrong.sample.operation.name, &wrong.sample.entry.spec.id);
            report(engine, *wrong);
        }
        None => metrics.verification_skipped(),
    }
}

fn subject<'a>(spec: &'a KernelSpec, bucket: &'a [u64], device: &'a str) -> Subject<'a> {
    Subject {
        kernel: &spec.id,
        kernel_version: &spec.version,
        bucket,
        backend: &spec.backend,
        backend_version: &spec.version,
        device,
    }
}

/// Quarantines a kernel after a wrong result and writes the reproducer.
#[cold]
fn report(engine: &Engine, wrong: WrongResult) {
    let WrongResult { sample, difference, judge, expected } = wrong;
    let subject = subject(&sample.entry.spec, &sample.bucket, &sample.device);
    let operation = &sample.operation.name;
    let found = format!("{operation}: {difference} ({})", judge.id);
    let reason = Reason::new(ReasonCode::ResultMismatch).message(found);
    engine.health().quarantine(&subject, &reason.to_string());
    let written = directory(engine).map(|folder| {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Reproducer::of_sample(&sample, &judge, &difference, expected, time.as_secs()).save_in(&folder)
    });
    let reproducer = match &written {
        Some(Ok(path)) => path.display().to_string(),
        Some(Err(error)) => format!("not written: {error}"),
        None => "not written: verify_directory is none".to_owned(),
    };
    let kernel = subject.kernel;
    tracing::error!(target: "lz::verify", %operation, kernel, judge = %judge.id, %difference, %reproducer, "wrong result: kernel quarantined");
}

/// The folder for reproducers; `None` if none are written.
fn directory(engine: &Engine) -> Option<PathBuf> {
    match engine.setting("verify_directory").map(|setting| setting.value) {
        Some(SettingValue::Text(path)) if path != "none" => Some(expanded(&path)),
        _ => None,
    }
}
