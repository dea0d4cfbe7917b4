//! Calls decided under a held snapshot, whatever changes meanwhile: the calls of one graph capture must be decided
//! consistently.

use std::sync::Arc;

use super::Engine;
use super::call::Call;
use super::dispatch::{self, RunOne, Taken, Trouble};
use super::world::World;
use crate::context::Context;
use crate::error::Error;
use crate::mode;
use crate::operation::OperationInfo;
use crate::thread::{self, Thread};

/// A held snapshot of the engine's state.
#[derive(Debug, Clone)]
pub struct Moment(Arc<World>);

impl Engine {
    /// Holds the current snapshot.
    pub fn moment(&self) -> Moment {
        Moment(self.shared.published.load())
    }

    /// Runs a call under a held snapshot. Fallbacks after a failure, and operations that the snapshot does not have, use the current
    /// one.
    #[cold]
    pub fn dispatch_at(
        &self,
        moment: &Moment,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let Moment(world) = moment;
        let mode = mode::of_thread().apply(world.mode);
        let scoped = world.in_scope(mode);
        let world = scoped.as_deref().unwrap_or(world);
        let Some(table) = world.table(operation) else {
            return self.shared.dispatch(operation, context, &mut |entry, run| run_one(entry, run));
        };
        let choice = self.shared.find(world, table, context, mode)?.choice();
        let Some(kernel) = world.registry.compiled(choice.kernel) else {
            return Err(dispatch::no_kernels(operation));
        };
        let bytes = choice.workspace.bytes(kernel, context);
        let mut taken = Taken::new(thread::with(Thread::take));
        let local = taken.get();
        local.refresh(&self.shared.published);
        let call = Call::new(world, table, context, mode);
        let scratch = &mut local.scratch;
        match dispatch::run_admitted(&call, kernel, bytes, choice.transforms, scratch, run_one) {
            None => Ok(()),
            Some(error) => {
                let trouble = Trouble::recorded(world.registry.shared(choice.kernel), error);
                self.shared.recover(local, operation, context, trouble, run_one)
            }
        }
    }
}
