//! What a running kernel may use: workspace, the stream, conversions.

use crate::kernel::{KernelError, PreparedInput};
use crate::plan::Transforms;
use crate::reason::{Reason, ReasonCode};
use crate::tensor::Tensor;
use lz_schema::DType;

pub use super::stream::{CallStream, StreamScope, for_call, on_stream, stream_of_thread};

/// Passed to a kernel for one call.
#[derive(Debug)]
pub struct Run<'a> {
    scratch: &'a mut Scratch,
    declared: u64,
    /// Conversions of the kernel's adapter for this call, from the plan.
    pub transforms: Transforms,
    /// Per input what was prepared ahead of the call.
    prepared: &'a [Option<PreparedInput>],
}

/// Workspace memory that is reused between the calls of a thread.
#[derive(Debug, Default)]
pub struct Scratch {
    buffer: Option<Tensor>,
}

impl<'a> Run<'a> {
    /// For a call without an engine: the workspace is unlimited.
    #[inline]
    pub fn unbounded(scratch: &'a mut Scratch) -> Run<'a> {
        Run::new(scratch, u64::MAX)
    }

    /// For a call of a kernel that declared this much workspace.
    #[inline]
    pub fn new(scratch: &'a mut Scratch, declared: u64) -> Run<'a> {
        Run { scratch, declared, transforms: Transforms::NONE, prepared: &[] }
    }

    /// The same run with inputs that were prepared ahead of it, in the layout of the kernel that runs.
    #[inline]
    pub fn with_prepared<'b>(&'b mut self, prepared: &'b [Option<PreparedInput>]) -> Run<'b> {
        Run { scratch: self.scratch, declared: self.declared, transforms: self.transforms, prepared }
    }

    /// A prepared input; `None` if this input was not prepared, or as another type.
    #[inline]
    pub fn prepared<T: 'static>(&self, input: usize) -> Option<&'a T> {
        let prepared: &'a [Option<PreparedInput>] = self.prepared;
        prepared.get(input)?.as_ref()?.downcast_ref()
    }

    /// The caller's stream as a driver handle (see [`on_stream`]); 0 on the host and by default. Must be read on the thread that called
    /// the kernel.
    pub fn stream(&self) -> usize {
        stream_of_thread()
    }

    /// The declared workspace in bytes: the maximum that may be requested.
    pub fn declared_workspace(&self) -> u64 {
        self.declared
    }

    /// Workspace memory, 64-byte aligned, with undefined content. Requests above the declared size are refused.
    pub fn workspace(&mut self, bytes: u64) -> Result<&mut [u8], KernelError> {
        if bytes > self.declared {
            return Err(KernelError::because(
                Reason::new(ReasonCode::WorkspaceTooSmall)
                    .required(format!("{bytes} bytes of workspace"))
                    .found(format!("the {} bytes that the kernel declares", self.declared)),
            ));
        }
        let available = self.scratch.buffer.as_ref().map_or(0, |buffer| buffer.bytes().len() as u64);
        if available < bytes {
            let buffer = Tensor::zeros(&[i64::try_from(bytes).unwrap_or(i64::MAX)], DType::U8);
            self.scratch.buffer = Some(buffer.map_err(KernelError::because)?);
        }
        let whole = self.scratch.buffer.as_mut().map_or(&mut [][..], |buffer| buffer.bytes_mut());
        Ok(&mut whole[..bytes as usize])
    }
}
