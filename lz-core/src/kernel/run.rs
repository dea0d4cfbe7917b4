//! What a running kernel may use: scratch memory, a stream, a number of threads.

use crate::kernel::KernelError;
use crate::plan::Transforms;
use crate::reason::{Reason, ReasonCode};
use crate::tensor::Tensor;
use lz_schema::DType;

pub use super::stream::{CallStream, StreamScope, for_call, on_stream, stream_of_thread};

/// Handed to a kernel for the time of one call.
#[derive(Debug)]
pub struct Run<'a> {
    scratch: &'a mut Scratch,
    declared: u64,
    /// What the kernel's adapter has to convert for this call, as the plan says.
    pub transforms: Transforms,
}

/// Scratch memory that is kept between the calls of one thread.
#[derive(Debug, Default)]
pub struct Scratch {
    buffer: Option<Tensor>,
}

impl<'a> Run<'a> {
    /// For a call without an engine: the kernel may take as much workspace as it needs.
    #[inline]
    pub fn unbounded(scratch: &'a mut Scratch) -> Run<'a> {
        Run::new(scratch, u64::MAX)
    }

    /// For one call of a kernel that declared this much workspace.
    #[inline]
    pub fn new(scratch: &'a mut Scratch, declared: u64) -> Run<'a> {
        Run { scratch, declared, transforms: Transforms::NONE }
    }

    /// The caller's stream on its device, as the driver's handle (see [`on_stream`]); 0 on the host, and where nobody said
    /// one. A kernel asks on the thread that it was called on, before it hands work to others.
    pub fn stream(&self) -> usize {
        stream_of_thread()
    }

    /// Bytes of scratch memory that the kernel declared: the most that it may ask for.
    pub fn declared_workspace(&self) -> u64 {
        self.declared
    }

    /// Scratch memory, 64-byte aligned, with undefined content. More than the kernel declared is refused, so that what it declares stays true.
    pub fn workspace(&mut self, bytes: u64) -> Result<&mut [u8], KernelError> {
        if bytes > self.declared {
            return Err(KernelError::because(
                Reason::new(ReasonCode::MemoryHeadroomExceeded)
                    .required(format!("at most the declared {} bytes of workspace", self.declared))
                    .found(format!("a request for {bytes} bytes")),
            ));
        }
        let have = self.scratch.buffer.as_ref().map_or(0, |buffer| buffer.bytes().len() as u64);
        if have < bytes {
            let fresh = Tensor::zeros(&[i64::try_from(bytes).unwrap_or(i64::MAX)], DType::U8);
            self.scratch.buffer = Some(fresh.map_err(KernelError::because)?);
        }
        let whole = self.scratch.buffer.as_mut().map_or(&mut [][..], |buffer| buffer.bytes_mut());
        Ok(&mut whole[..bytes as usize])
    }
}
