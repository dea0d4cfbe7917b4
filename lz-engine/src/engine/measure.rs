//! The kernels that could run a call, for measuring them one by one. Nothing here selects.

use std::sync::Arc;

use super::run_kernel::{failure_text, run_guarded};
use super::{Engine, dispatch};
use crate::compiled::CompiledKernel;
use crate::health::{Failure, Subject};
use crate::selection::call::Call;
use crate::selection::decide;
use crate::selection::filter;
use crate::selection::score::{self, PerfTerms};
use lz_core::context::Context;
use lz_core::device::{DeviceSpec, Platform};
use lz_core::error::Error;
use lz_core::kernel::{KernelEntry, KernelError};
use lz_core::operation::OperationInfo;
use lz_core::plan::Transforms;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::run::{Run, Scratch};

/// A kernel that can be measured for a call.
pub(crate) struct Runner {
    kernel: Arc<CompiledKernel>,
    transforms: Transforms,
    workspace: u64,
    /// Whether it must be compiled first.
    pub cold: bool,
}

/// The kernels that can be measured for a call, and those that cannot.
pub(crate) struct Runners {
    pub device: DeviceSpec,
    pub bucket: Vec<u64>,
    pub able: Vec<Runner>,
    pub unable: Vec<(String, Vec<Reason>)>,
}

impl Runner {
    pub fn entry(&self) -> &KernelEntry {
        &self.kernel.entry
    }

    /// Runs it; a panic inside it is returned as its error.
    pub fn run(
        &self,
        scratch: &mut Scratch,
        run_one: &mut dyn FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        match run_guarded(&self.kernel, self.workspace, self.transforms, scratch, run_one) {
            None => Ok(()),
            Some(error) => Err(*error),
        }
    }
}

impl Runner {
    /// A kernel without limits on its workspace, for calls that are known to be within its capabilities. Strides that it does not
    /// take are copied, as in the call.
    pub(crate) fn unlimited(kernel: Arc<CompiledKernel>) -> Runner {
        let kernel = kernel.copying().map_or_else(|| Arc::clone(&kernel), Arc::clone);
        Runner { kernel, transforms: Transforms::NONE, workspace: u64::MAX, cold: false }
    }
}

impl Engine {
    /// The reference of an operation in host memory. Policy and health do not apply to it.
    pub(crate) fn host_reference(&self, operation: &'static OperationInfo) -> Option<Runner> {
        let snapshot = self.snapshot();
        let kernels = snapshot.registry.compiled_of(operation).iter();
        let mut kernels = kernels.filter_map(|kernel| snapshot.registry.shared(*kernel));
        let is_ours = |kernel: &Arc<CompiledKernel>| {
            kernel.is_reference()
                && kernel.spec().platform == Platform::Cpu
                && !kernel.entry.kernel.needs_caller()
        };
        kernels.find(is_ours).map(Runner::unlimited)
    }

    /// A registered kernel of an operation. Policy and health do not apply to it.
    pub(crate) fn runner(&self, operation: &'static OperationInfo, kernel: &str) -> Option<Runner> {
        let snapshot = self.snapshot();
        let kernels = snapshot.registry.compiled_of(operation).iter();
        let mut kernels = kernels.filter_map(|kernel| snapshot.registry.shared(*kernel));
        kernels.find(|one| one.spec().id == kernel).map(Runner::unlimited)
    }

    /// All kernels that could run the call, compiled or not.
    pub(crate) fn runners(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
    ) -> Result<Runners, Error> {
        let (snapshot, mode) = self.shared.thread_snapshot();
        if !snapshot.devices.are_real() {
            return Err(dispatch::simulated_device_error(operation));
        }
        let Some(table) = snapshot.table(operation) else { return Err(dispatch::no_kernels(operation)) };
        let mut call = Call::new(&snapshot, table, context, mode);
        // Tuning compares all kernels.
        call.settles_judgments = true;
        let Some(device) = call.device.cloned() else {
            let reasons = vec![Reason::new(ReasonCode::DeviceAbsent)];
            return Err(Error::Validation { operation: operation.name.to_string(), reasons });
        };
        let mut runners =
            Runners { device, bucket: call.bucket.words().to_vec(), able: Vec::new(), unable: Vec::new() };
        for ranked in decide::rank(&call, &PerfTerms::default()) {
            let candidate = table.candidates.get(usize::from(ranked.position));
            let registry = &snapshot.registry;
            let form = candidate.map(|one| registry.adapted(one.kernel, ranked.transforms));
            let Some(kernel) = form.and_then(|form| registry.shared(form)) else {
                continue;
            };
            let mut reasons: Vec<Reason> = Vec::new();
            filter::examine(&call, ranked.position, &mut reasons);
            let cold = reasons.iter().any(|reason| reason.code == ReasonCode::JitCold);
            reasons.retain(|reason| reason.code != ReasonCode::JitCold);
            if reasons.is_empty() {
                let workspace = filter::workspace(&kernel, &call.values).unwrap_or(0);
                runners.able.push(Runner { kernel, transforms: ranked.transforms, workspace, cold });
            } else {
                runners.unable.push((kernel.spec().id.clone(), reasons));
            }
        }
        runners.able.sort_by(|a, b| a.entry().spec.id.cmp(&b.entry().spec.id));
        Ok(runners)
    }

    /// Whether several kernels can run the call and not all of them are measured.
    pub(crate) fn has_unmeasured(&self, operation: &'static OperationInfo, context: &Context) -> bool {
        let (snapshot, mode) = self.shared.thread_snapshot();
        let Some(table) = snapshot.table(operation) else { return false };
        let call = Call::new(&snapshot, table, context, mode);
        let (measured, eligible) = (score::measured(&call), decide::eligible(&call));
        let is_unmeasured =
            |one: &decide::Ranked| measured.get(usize::from(one.position)).is_none_or(Option::is_none);
        eligible.len() > 1 && eligible.iter().any(is_unmeasured)
    }

    /// Resets the circuit of a kernel for this bucket after a successful measurement.
    pub(crate) fn succeeded_in_trial(&self, runners: &Runners, runner: &Runner) {
        self.health().forgive(&subject(runners, runner));
    }

    /// Records a failure during measurement in health.
    pub(crate) fn failed_in_trial(&self, runners: &Runners, runner: &Runner, error: &KernelError) {
        let health = self.health();
        if let Ok(permit) = health.admit(subject(runners, runner)) {
            permit.failed(Failure::of(error, &failure_text(error)).in_trial());
        }
    }
}

/// The circuit-breaker subject of a measured kernel.
fn subject<'a>(runners: &'a Runners, runner: &'a Runner) -> Subject<'a> {
    let spec = runner.kernel.spec();
    Subject {
        kernel: &spec.id,
        kernel_version: &spec.version,
        bucket: &runners.bucket,
        backend: &spec.backend,
        backend_version: &spec.version,
        device: &runners.device.uuid,
    }
}
