//! Calls that must all be decided alike, however the world changes meanwhile: those of one graph capture, whose replays stand for
//! what was decided while it lasted.

use std::sync::Arc;

use super::Engine;
use super::dispatch::{self, RunOne, Taken, Trouble};
use crate::selection::call::Call;
use crate::selection::snapshot::World;
use crate::selection::thread::{self, Thread};
use crate::selection::thread_scope;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;

/// The state of everything at one moment.
#[derive(Debug, Clone)]
pub struct Moment(Arc<World>);

impl Engine {
    /// The state of everything now.
    pub fn moment(&self) -> Moment {
        Moment(self.shared.published.load())
    }

    /// Runs a call as it would have been run at that moment. A kernel that fails gives way to another as ever, and what
    /// was not there is decided as it is now.
    #[cold]
    pub fn dispatch_at(
        &self,
        moment: &Moment,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let Moment(world) = moment;
        let mode = thread_scope::of_thread().apply(world.mode);
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
