//! Replays a reproducer: its kernel and the reference repeat the call.

use serde::Serialize;

use super::judge::{Unrepeatable, repeat};
use super::reproducer::Reproducer;
use crate::engine::Engine;
use lz_core::error::Error;
use lz_core::recorded::{self, RecordedResult};

/// What the kernel of a reproducer does now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "detail")]
pub enum Rerun {
    /// It differs from the expected result again.
    Differs(String),
    /// It returns the expected result: it is fixed, or wrong only sometimes.
    Agrees,
    /// It failed.
    Failed(String),
    /// It is not registered in this process.
    NotRegistered,
    /// It needs objects of the caller, which runs it.
    NeedsCaller,
}

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Replay {
    /// The operation.
    pub operation: String,
    /// The kernel that returned the wrong result, and its version then.
    pub kernel: String,
    /// Its version when the result was recorded.
    pub kernel_version: String,
    /// The kernel that returned the expected result then.
    pub judge: String,
    /// The difference that was recorded.
    pub recorded_difference: String,
    /// Whether the schema has changed since.
    pub contract_changed: bool,
    /// How the recorded result differs from that of the reference now; `None` if it does not, or without a reference.
    pub reference_difference: Option<String>,
    /// What the kernel does now.
    pub kernel_now: Rerun,
}

impl Engine {
    /// Repeats the call of a reproducer with its kernel and with the reference. Policy and health do not apply, and nothing is
    /// recorded in them.
    pub fn replay(&self, reproducer: &Reproducer) -> Result<Replay, Error> {
        let operation = reproducer.find_operation(&self.registry())?;
        let call = &reproducer.call;
        let reference = self.host_reference(operation);
        let by_reference = reference.and_then(|reference| repeat(&reference, operation, call, false).ok());
        let expected: &[RecordedResult] = by_reference.as_deref().unwrap_or(&reproducer.expected);
        let kernel_now = match self.runner(operation, &reproducer.kernel().id) {
            None => Rerun::NotRegistered,
            Some(runner) if runner.entry().kernel.needs_caller() => Rerun::NeedsCaller,
            Some(runner) => match repeat(&runner, operation, call, true) {
                Err(Unrepeatable(error)) => Rerun::Failed(error),
                Ok(found) => match recorded::difference(operation, &found, expected) {
                    Some(difference) => Rerun::Differs(difference),
                    None => Rerun::Agrees,
                },
            },
        };
        Ok(Replay {
            operation: reproducer.operation().to_owned(),
            kernel: reproducer.kernel().id.clone(),
            kernel_version: reproducer.kernel().version.clone(),
            judge: reproducer.judge().id.clone(),
            recorded_difference: reproducer.difference().to_owned(),
            contract_changed: !reproducer.is_same_contract(operation),
            reference_difference: by_reference
                .as_ref()
                .and_then(|expected| recorded::difference(operation, &call.results, expected)),
            kernel_now,
        })
    }
}
