//! The state that the handle and the kernels of a worker share: its options and the supervisor of the current process.

use std::sync::Arc;

use arc_swap::ArcSwap;
use lz_core::Reason;

use crate::fork;
use crate::options::WorkerOptions;
use crate::running_worker::{NotRunning, RunningWorker};
use crate::supervisor::Supervisor;
use crate::wait::WaitDeadline;

/// The state that the handle and the kernels of a worker share.
#[derive(Debug)]
pub(crate) struct WorkerState {
    pub options: WorkerOptions,
    /// The supervisor of this process, or of the parent until the first use after a fork.
    supervisor: ArcSwap<Supervisor>,
}

impl WorkerState {
    /// The state of a worker with the supervisor of this process.
    pub fn new(options: WorkerOptions, supervisor: Supervisor) -> WorkerState {
        WorkerState { options, supervisor: ArcSwap::from_pointee(supervisor) }
    }

    /// The supervisor of this process. After a fork, the parent's locks, channel and process are never touched: a thread that does not
    /// exist in the child may hold the locks, and the answers belong to the parent.
    pub fn supervisor(&self) -> Arc<Supervisor> {
        let current = self.supervisor.load_full();
        if current.generation() == fork::generation() {
            return current;
        }
        self.supervisor.compare_and_swap(&current, Arc::new(Supervisor::new()));
        // Leaked, not dropped: another thread may have been modifying it when the process forked.
        std::mem::forget(current);
        self.supervisor.load_full()
    }

    /// The running process, restarted if it has terminated and the backoff has elapsed.
    pub fn running(&self) -> Result<Arc<RunningWorker>, Reason> {
        let wait = WaitDeadline::new(self.options.start_deadline);
        self.supervisor().running(&self.options, wait).map_err(NotRunning::reason)
    }
}

impl Drop for WorkerState {
    fn drop(&mut self) {
        // Replaces a parent's supervisor, which must not be dropped in a forked child.
        self.supervisor();
    }
}
