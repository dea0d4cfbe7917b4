//! The interface between the functions of operations and the engine. Generated functions are generic over it, so that crates with
//! operations and kernels compile without the engine.

use std::sync::Arc;

use crate::args::{Arg, OutArg};
use crate::context::Context;
use crate::error::Error;
use crate::kernel::run::Run;
use crate::kernel::{KernelEntry, KernelError};
use crate::operation::OperationInfo;

/// Selects kernels and runs calls with them.
pub trait Dispatch {
    /// Selects a kernel for the call and runs it: `run_one` runs the call with one kernel.
    fn dispatch<F>(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut F,
    ) -> Result<(), Error>
    where
        F: FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError>;

    /// Runs a call in parts after [`dispatch`](Self::dispatch) failed with `error`; returns the error if splitting does not help.
    fn run_split(
        &self,
        operation: &'static OperationInfo,
        error: Error,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
    ) -> Result<(), Error>;
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<D: Dispatch> Dispatch for $pointer {
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
                D::dispatch(self, operation, context, run_one)
            }

            fn run_split(
                &self,
                operation: &'static OperationInfo,
                error: Error,
                args: &mut [Arg<'_>],
                outputs: &mut [OutArg<'_>],
            ) -> Result<(), Error> {
                D::run_split(self, operation, error, args, outputs)
            }
        }
    )*};
}

forward!(&D, Arc<D>);
