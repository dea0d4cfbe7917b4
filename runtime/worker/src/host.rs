//! The host side of a worker: the handle, and its kernels for the registry.

use std::sync::{Arc, Weak};

use lz_core::descriptor::{self, Catalog};
use lz_core::{DType, Error, KernelEntry, KernelSpec, OperationInfo, Reason, ReasonCode};
use lz_engine::Engine;

use crate::failure::{protocol_error, unavailable};
use crate::fork;
use crate::options::WorkerOptions;
use crate::remote_kernel::RemoteKernel;
use crate::supervisor::Supervisor;
use crate::tensor::SharedTensor;
use crate::worker_state::WorkerState;

/// A worker. It is restarted after it terminates. Clones share the worker. A forked child starts its own.
#[derive(Debug, Clone)]
pub struct Worker {
    shared: Arc<WorkerState>,
}

/// A weak reference to a worker.
#[derive(Debug, Clone)]
pub struct WeakWorker(Weak<WorkerState>);

impl WeakWorker {
    /// The worker, while a kernel or a handle uses it.
    pub fn upgrade(&self) -> Option<Worker> {
        self.0.upgrade().map(|shared| Worker { shared })
    }
}

impl Worker {
    /// A reference that does not keep the worker running.
    pub fn downgrade(&self) -> WeakWorker {
        WeakWorker(Arc::downgrade(&self.shared))
    }

    /// Starts a worker.
    pub fn start(options: WorkerOptions) -> Result<Worker, Reason> {
        let worker = Worker::on_demand(options)?;
        worker.shared.running()?;
        Ok(worker)
    }

    /// Creates a worker that is started by its first call.
    pub fn on_demand(options: WorkerOptions) -> Result<Worker, Reason> {
        fork::watch();
        let supervisor = Supervisor::new();
        supervisor
            .arena(&options)
            .map_err(|error| unavailable(format!("cannot create shared memory for the worker: {error}")))?;
        Ok(Worker { shared: Arc::new(WorkerState::new(options, supervisor)) })
    }

    /// The capability descriptor from the handshake; empty if it has none.
    pub fn descriptor(&self) -> Result<String, Reason> {
        Ok(self.shared.running()?.handshake.descriptor.clone())
    }

    /// The confinement that it reports: `off`, `network` or `strict`.
    pub fn sandbox(&self) -> Result<String, Reason> {
        Ok(self.shared.running()?.handshake.sandbox.clone())
    }

    /// The kernels of its descriptor, for the registry.
    pub fn kernels(&self, engine: &Engine) -> Result<Vec<KernelEntry>, Error> {
        let subject = self.shared.options.program.display().to_string();
        let refuse = |reason: Reason| Error::Configuration {
            subject: subject.clone(),
            message: reason.sentence(),
            reasons: vec![reason],
        };
        let running = self.shared.running().map_err(refuse)?;
        let registry = engine.registry();
        let catalog = Catalog::new(registry.operations().map(OperationInfo::schema));
        let read = descriptor::read(&subject, &running.handshake.descriptor, &catalog)?;
        let mut entries = Vec::new();
        for spec in read.kernels {
            let matches = |(id, operation): &(String, String)| *id == spec.id && *operation == spec.operation;
            if !running.handshake.kernels.iter().any(matches) {
                let message = format!(
                    "the descriptor contains kernel {} of {}, but the worker does not provide it",
                    spec.id, spec.operation
                );
                return Err(refuse(protocol_error(message)));
            }
            let info = registry.operation(&spec.operation).ok_or_else(|| {
                refuse(Reason::new(ReasonCode::OperationUnknown).found(spec.operation.clone()))
            })?;
            entries.push(self.kernel(spec, info));
        }
        Ok(entries)
    }

    /// A kernel that the worker provides once it is started, for a spec that the host already has.
    pub fn kernel(&self, mut spec: KernelSpec, info: &'static OperationInfo) -> KernelEntry {
        spec.runs_in = Some(self.shared.options.runs_in.clone());
        let kernel = RemoteKernel::new(Arc::clone(&self.shared), &spec, info);
        KernelEntry::new(spec, kernel).of(info)
    }

    /// Allocates a tensor in the shared memory of the current worker process. It is passed to that process without a copy, and to a
    /// restarted one with a copy. `None` if the arena is full.
    pub fn allocate(&self, shape: &[i64], dtype: DType) -> Option<SharedTensor> {
        let arena = self.shared.supervisor().arena(&self.shared.options).ok()?;
        SharedTensor::new(arena, shape, dtype)
    }

    /// Its process id, while it runs.
    pub fn process_id(&self) -> Option<i32> {
        self.shared.supervisor().process_id()
    }

    /// How many times this process has started it.
    pub fn starts(&self) -> u64 {
        self.shared.supervisor().starts()
    }

    /// Free bytes of the shared memory.
    pub fn free_bytes(&self) -> usize {
        self.shared.supervisor().arena(&self.shared.options).map_or(0, |arena| arena.free_bytes())
    }
}
