//! The worker's side: takes calls out of the ring and runs them until the host is gone.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lz_core::run::{Run, Scratch};
use lz_core::tensor::{Layout, TensorMut, TensorView};
use lz_core::{Arg, KernelEntry, KernelError, OutArg};

use crate::memory::SharedMemory;
use crate::message::{Answer, Placed, Request, SentArg, SentOut};
use crate::process::{ARENA_VARIABLE, CONTROL_VARIABLE};
use crate::protocol::{self, Channel};

/// How long a worker sleeps before it looks around.
const LOOK: Duration = Duration::from_secs(1);

/// What a worker offers.
#[derive(Debug)]
pub struct Offer {
    /// The capability descriptor's JSON.
    pub descriptor: String,
    /// The kernels that it describes.
    pub kernels: Vec<KernelEntry>,
}

/// Says what `make` makes, then serves calls; returns only if that cannot be done. To be called once, in a process that a
/// host has started.
pub fn serve(make: impl FnOnce() -> Result<Offer, String>) -> io::Result<()> {
    let (control, arena) = (inherited(CONTROL_VARIABLE)?, inherited(ARENA_VARIABLE)?);
    let channel = Channel::new(SharedMemory::open(control)?)
        .filter(|channel| {
            channel.header().magic.load(std::sync::atomic::Ordering::Acquire) == protocol::MAGIC
        })
        .ok_or_else(|| io::Error::other("this is not the memory of a host; workers are started by one"))?;
    let arena = SharedMemory::open(arena)?;
    let offer = match catch_unwind(AssertUnwindSafe(make)) {
        Ok(Ok(offer)) => offer,
        Ok(Err(message)) => {
            channel.greet(protocol::REFUSED, message.as_bytes());
            return Err(io::Error::other(message));
        }
        Err(_) => {
            channel.greet(protocol::REFUSED, b"the worker panicked while it started");
            return Err(io::Error::other("a panic"));
        }
    };
    let kernels: Vec<[&str; 2]> =
        offer.kernels.iter().map(|entry| [entry.spec.id.as_str(), entry.spec.operation.as_str()]).collect();
    let greeting = serde_json::json!({ "descriptor": offer.descriptor, "kernels": kernels }).to_string();
    if greeting.len() > protocol::GREETING_BYTES {
        channel.greet(protocol::REFUSED, b"the worker has too many kernels to tell");
        return Err(io::Error::other("too many kernels"));
    }
    channel.greet(protocol::READY, greeting.as_bytes());
    let mut scratch = Scratch::default();
    let mut ticket = 0u32;
    loop {
        let Some(number) = channel.take(ticket, LOOK) else { continue };
        ticket = ticket.wrapping_add(1);
        let outcome = match Request::read(&channel.read(number)) {
            Some(request) => run(&arena, &offer.kernels, request, &mut scratch),
            None => Err(KernelError::failed("the request cannot be understood").before_writing()),
        };
        channel.write(number, &Answer::of(outcome).write());
        channel.answer(number);
    }
}

/// A descriptor that the host left open for us.
fn inherited(variable: &str) -> io::Result<OwnedFd> {
    let number: Option<RawFd> = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    let number = number.ok_or_else(|| {
        io::Error::other(format!("{variable} names no descriptor; workers are started by a host"))
    })?;
    // SAFETY: the host left it open for this process and says so; nobody else here uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn run(
    arena: &SharedMemory,
    kernels: &[KernelEntry],
    request: Request,
    scratch: &mut Scratch,
) -> Result<(), KernelError> {
    let refuse = || KernelError::failed("the request names what is not there").before_writing();
    let entry = kernels.get(request.kernel as usize).ok_or_else(refuse)?;
    let mut args: Vec<Arg<'_>> = Vec::with_capacity(request.args.len());
    for arg in &request.args {
        args.push(match arg {
            SentArg::Absent => Arg::Absent,
            SentArg::Value(value) => Arg::Value(*value),
            SentArg::Tensor(placed) => {
                let (data, layout) = address(arena, placed).ok_or_else(refuse)?;
                // SAFETY: inside the arena, and the host keeps it as it is until the call is answered.
                Arg::Tensor(unsafe { TensorView::from_raw(data, layout) })
            }
            SentArg::Written(placed) => {
                let (data, layout) = address(arena, placed).ok_or_else(refuse)?;
                // SAFETY: as above, and lent to this call alone.
                Arg::TensorMut(unsafe { TensorMut::from_raw(data, layout) })
            }
        });
    }
    let mut outputs: Vec<OutArg<'_>> = Vec::with_capacity(request.outputs.len());
    for output in &request.outputs {
        outputs.push(match output {
            SentOut::Absent => OutArg::Absent,
            SentOut::Tensor(placed) => {
                let (data, layout) = address(arena, placed).ok_or_else(refuse)?;
                // SAFETY: as above.
                OutArg::Tensor(unsafe { TensorMut::from_raw(data, layout) })
            }
        });
    }
    let mut run = Run::new(scratch, request.workspace);
    match catch_unwind(AssertUnwindSafe(|| entry.kernel.run(&mut args, &mut outputs, &mut run))) {
        Ok(outcome) => outcome,
        Err(_) => Err(KernelError::failed(format!("{} panicked in its worker", entry.spec.id))),
    }
}

/// The address of a tensor, if all of it lies in the arena.
fn address(arena: &SharedMemory, placed: &Placed) -> Option<(*mut u8, Layout)> {
    let layout = placed.layout;
    if !layout.is_sound() {
        return None;
    }
    let (lowest, highest) = layout.reach()?;
    let size = layout.dtype.size() as i64;
    let first = i64::try_from(placed.offset).ok()?;
    let start = usize::try_from(first.checked_add(lowest.checked_mul(size)?)?).ok()?;
    let bytes = usize::try_from((highest - lowest + 1).checked_mul(size)?).ok()?;
    arena.at(start, bytes)?;
    Some((arena.at(usize::try_from(first).ok()?, 0)?, layout))
}
