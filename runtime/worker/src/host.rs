//! The host's side of a worker: what a program holds, and its kernels as a registry takes them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use lz_core::descriptor::{self, Catalogue};
use lz_core::{DType, Error, KernelEntry, KernelSpec, OperationInfo, Reason, ReasonCode};
use lz_engine::Engine;

use crate::failure::{garbage, unavailable};
use crate::fork;
use crate::options::WorkerOptions;
use crate::patience::Patience;
use crate::remote::RemoteKernel;
use crate::running::Running;
use crate::supervisor::{NotRunning, Supervisor};
use crate::tensor::SharedTensor;

/// A worker. It is started again when it has ended; clones are the same worker. A forked child starts one of its own.
#[derive(Debug, Clone)]
pub struct Worker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub options: WorkerOptions,
    /// Of this process, or of the parent until the first use after a fork.
    supervisor: ArcSwap<Supervisor>,
}

impl Shared {
    /// What starts and stops the worker of this process. The parent's locks, connection and process are never touched: in a
    /// forked child a thread that does not exist may hold the locks, and the answers are for the parent.
    pub fn supervisor(&self) -> Arc<Supervisor> {
        let current = self.supervisor.load_full();
        if current.generation() == fork::generation() {
            return current;
        }
        self.supervisor.compare_and_swap(&current, Arc::new(Supervisor::new()));
        // Not even dropped: another thread may have been in the middle of changing it when the process forked.
        std::mem::forget(current);
        self.supervisor.load_full()
    }

    /// The process, started again if it has ended and the pause is over.
    fn running(&self) -> Result<Arc<Running>, Reason> {
        let patience = Patience::new(self.options.start_deadline);
        self.supervisor().running(&self.options, patience).map_err(NotRunning::reason)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // After this nothing of a parent's is left to be dropped.
        self.supervisor();
    }
}

impl Worker {
    /// Starts a worker.
    pub fn start(options: WorkerOptions) -> Result<Worker, Reason> {
        let worker = Worker::on_demand(options)?;
        worker.shared.running()?;
        Ok(worker)
    }

    /// A worker that is started by its first call.
    pub fn on_demand(options: WorkerOptions) -> Result<Worker, Reason> {
        fork::watch();
        let supervisor = Supervisor::new();
        supervisor
            .arena(&options)
            .map_err(|error| unavailable(format!("there is no shared memory: {error}")))?;
        let supervisor = ArcSwap::from_pointee(supervisor);
        Ok(Worker { shared: Arc::new(Shared { options, supervisor }) })
    }

    /// The capability descriptor that it gave; empty if it gave none.
    pub fn descriptor(&self) -> Result<String, Reason> {
        Ok(self.shared.running()?.greeting.descriptor.clone())
    }

    /// The kernels that it describes, as a registry takes them.
    pub fn kernels(&self, engine: &Engine) -> Result<Vec<KernelEntry>, Error> {
        let subject = self.shared.options.program.display().to_string();
        let refuse = |reason: Reason| Error::Configuration {
            subject: subject.clone(),
            message: reason.sentence(),
            reasons: vec![reason],
        };
        let running = self.shared.running().map_err(refuse)?;
        let registry = engine.registry();
        let catalogue = Catalogue::new(registry.operations().map(OperationInfo::schema));
        let read = descriptor::read(&subject, &running.greeting.descriptor, &catalogue)?;
        let mut entries = Vec::new();
        for spec in read.kernels {
            let there = |(id, operation): &(String, String)| *id == spec.id && *operation == spec.operation;
            if !running.greeting.kernels.iter().any(there) {
                return Err(refuse(garbage(format!("{} is described but not there", spec.id))));
            }
            let info = registry.operation(&spec.operation).ok_or_else(|| {
                refuse(Reason::new(ReasonCode::OperationUnknown).found(spec.operation.clone()))
            })?;
            entries.push(self.kernel(spec, info));
        }
        Ok(entries)
    }

    /// A kernel that the worker has, or will have once it is started, by a spec that the host knows.
    pub fn kernel(&self, mut spec: KernelSpec, info: &'static OperationInfo) -> KernelEntry {
        spec.runs_in = Some(self.shared.options.runs_in.clone());
        let kernel = RemoteKernel::new(Arc::clone(&self.shared), &spec, info);
        KernelEntry::new(spec, kernel).of(info)
    }

    /// A tensor in the shared memory of the present process: what lies there crosses to it without a copy, and to one that is
    /// started later by a copy. `None` if there is no room.
    pub fn allocate(&self, shape: &[i64], dtype: DType) -> Option<SharedTensor> {
        let arena = self.shared.supervisor().arena(&self.shared.options).ok()?;
        SharedTensor::new(arena, shape, dtype)
    }

    /// The number of its process, while it runs.
    pub fn process_id(&self) -> Option<i32> {
        self.shared.supervisor().process_id()
    }

    /// How often this process has started it.
    pub fn starts(&self) -> u64 {
        self.shared.supervisor().starts()
    }

    /// Bytes of the shared memory that nothing lies in.
    pub fn free_bytes(&self) -> usize {
        self.shared.supervisor().arena(&self.shared.options).map_or(0, |arena| arena.free_bytes())
    }
}
