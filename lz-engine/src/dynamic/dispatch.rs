//! The engine as the dispatcher of generated functions.

use lz_core::args::{Arg, OutArg};
use lz_core::run::Run;
use lz_core::{Context, Dispatch, Error, KernelEntry, KernelError, OperationInfo};

use super::split;
use crate::engine::Engine;

impl Dispatch for Engine {
    #[inline(always)]
    fn dispatch<F>(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut F,
    ) -> Result<(), Error>
    where
        F: FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError>,
    {
        Engine::dispatch(self, operation, context, run_one)
    }

    fn run_split(
        &self,
        operation: &'static OperationInfo,
        error: Error,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
    ) -> Result<(), Error> {
        split::or_split(self, operation, error, args, outputs)
    }
}
