//! Sampling of calls that are verified: which calls, and recording them while they run.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Observation, Telemetry};
use lz_core::kernel::{KernelEntry, RecordingKernel};
use lz_core::operation::OperationInfo;
use lz_core::recorded::RecordedCall;
use lz_schema::model::{Equivalence, Kind, Operation};

/// A recorded call of a kernel.
#[derive(Debug)]
pub(crate) struct Sample {
    pub operation: &'static OperationInfo,
    /// The kernel that ran it.
    pub entry: KernelEntry,
    /// The bucket and the device of the call, for its circuit.
    pub bucket: Vec<u64>,
    pub device: String,
    pub call: RecordedCall,
}

/// Verifies recorded calls off the request path.
pub(crate) trait Verifier: Send + Sync {
    /// The maximum size of the arguments of a recorded call.
    fn max_bytes(&self) -> u64;

    /// Queues a call; it is dropped if the queue is full.
    fn submit(&self, sample: Sample);
}

impl Telemetry {
    /// Whether to verify this call, which stands for `weight` calls, if one call in `every` is verified. Random, so that the calls of
    /// a loop are all sampled, whatever its length is.
    fn samples(&self, every: u32, weight: u32) -> bool {
        let number = self.sampled.fetch_add(1, Ordering::Relaxed);
        // SplitMix64.
        let mut random = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        random = (random ^ random >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        random = (random ^ random >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        random ^= random >> 31;
        random % u64::from(every.max(1)) < u64::from(weight)
    }
}

/// A call that is recorded while it runs.
pub(crate) struct Recording {
    kernel: Arc<RecordingKernel>,
    verifier: Arc<dyn Verifier>,
}

impl Recording {
    /// Decides whether a call is verified. `weight` is the number of calls that it stands for.
    pub fn sample(
        observation: &Observation,
        every: u32,
        weight: u32,
        operation: &OperationInfo,
        entry: &KernelEntry,
    ) -> Option<Recording> {
        let verifier = observation.verifier.as_ref().filter(|_| every > 0)?;
        if entry.spec.reference
            || !observation.telemetry.samples(every, weight)
            || !is_comparable(operation.schema())
        {
            return None;
        }
        let kernel = RecordingKernel::new(Arc::clone(&entry.kernel), verifier.max_bytes());
        Some(Recording { kernel: Arc::new(kernel), verifier: Arc::clone(verifier) })
    }

    /// The entry of the kernel that records its call.
    pub fn entry(&self, entry: &KernelEntry) -> KernelEntry {
        self.kernel.entry(entry)
    }

    /// Queues the recorded call. `identify` returns the bucket and the device of the call.
    pub fn finish(
        self,
        telemetry: &Telemetry,
        operation: &'static OperationInfo,
        entry: &KernelEntry,
        identify: impl FnOnce() -> (Vec<u64>, String),
    ) {
        match self.kernel.take() {
            Some(Ok(call)) => {
                let (bucket, device) = identify();
                self.verifier.submit(Sample { operation, entry: entry.clone(), bucket, device, call });
            }
            Some(Err(_)) => telemetry.metrics.verification_dropped(),
            None => telemetry.metrics.verification_skipped(),
        }
    }
}

/// Whether single calls of an operation can be compared: not draws from a distribution, and not handles, which cannot be copied.
fn is_comparable(schema: &Operation) -> bool {
    !matches!(schema.equivalence, Equivalence::Distribution(_))
        && schema.inputs.iter().all(|input| input.kind != Kind::Tokenizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_share_follows_the_setting_and_the_weight() {
        let telemetry = Telemetry::default();
        let count = |every, weight| (0..100_000).filter(|_| telemetry.samples(every, weight)).count();
        assert_eq!(count(1, 1), 100_000);
        assert_eq!(count(100, 100), 100_000);
        assert!((900..1100).contains(&count(100, 1)), "one call in a hundred");
        assert!((9_500..10_500).contains(&count(1000, 100)));
    }
}
