//! The worker side: takes calls from the ring buffer and runs them until the host terminates.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lz_core::run::{Run, Scratch};
use lz_core::tensor::{Layout, TensorMut, TensorView};
use lz_core::{Arg, Handle, KernelEntry, KernelError, OutArg, Tensor};
use lz_ops::tokenizer::Tokenizer;

use crate::arena::{ArenaTensor, Block};
use crate::failure::no_copy;
use crate::handshake::Handshake;
use crate::memory::SharedMemory;
use crate::message::{Answer, Call, PendingOutput, Request, WireArg, WireOutput};
use crate::process::{ARENA_VARIABLE, CONTROL_VARIABLE};
use crate::protocol::{self, Channel};
use crate::sandbox::Sandbox;
use crate::wire::{UnpackError, pack_texts, try_with_capacity, unpack_texts};

/// Maximum sleep of a worker between two checks of the ring.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The kernels that a worker provides.
#[derive(Debug)]
pub struct WorkerKernels {
    /// The JSON of the capability descriptor; empty if the host already has the specs of the kernels.
    pub descriptor: String,
    /// The kernels of the descriptor.
    pub kernels: Vec<KernelEntry>,
}

/// Sends the result of `make` as the handshake, then serves calls. Returns only on failure. Must be called once, in a process that a host
/// has spawned.
pub fn serve(make: impl FnOnce() -> Result<WorkerKernels, String>) -> io::Result<()> {
    let (channel, arena) = open()?;
    let offer = match catch_unwind(AssertUnwindSafe(make)) {
        Ok(Ok(offer)) => offer,
        Ok(Err(message)) => {
            channel.send_handshake(protocol::REFUSED, message.as_bytes());
            return Err(io::Error::other(message));
        }
        Err(_) => {
            channel.send_handshake(protocol::REFUSED, b"the worker panicked during its start");
            return Err(io::Error::other("panic during the start of the worker"));
        }
    };
    let backend = offer.kernels.first().map_or("", |entry| entry.spec.backend.as_str());
    let sandbox = match Sandbox::from_environment().and_then(|sandbox| sandbox.enter(backend)) {
        Ok(level) => level,
        Err(error) => {
            let message = format!("the worker cannot confine itself: {error}");
            channel.send_handshake(protocol::REFUSED, message.as_bytes());
            return Err(io::Error::other(message));
        }
    };
    let kernels = offer.kernels.iter().map(|entry| (entry.spec.id.clone(), entry.spec.operation.clone()));
    let handshake =
        Handshake { descriptor: offer.descriptor, kernels: kernels.collect(), sandbox: sandbox.to_owned() };
    let handshake = handshake.write();
    if handshake.len() > protocol::HANDSHAKE_BYTES {
        let message = format!(
            "the handshake has {} bytes, more than the limit of {}: the worker has too many kernels",
            handshake.len(),
            protocol::HANDSHAKE_BYTES
        );
        channel.send_handshake(protocol::REFUSED, message.as_bytes());
        return Err(io::Error::other(message));
    }
    channel.send_handshake(protocol::READY, handshake.as_bytes());
    let mut server = Server::new(arena, offer.kernels);
    let mut ticket = 0u32;
    loop {
        let Some(number) = channel.take(ticket, POLL_INTERVAL) else { continue };
        ticket = ticket.wrapping_add(1);
        let token = channel.slot(number).state.load(Ordering::Acquire);
        let answer = server.answer(number, channel.read(number).as_deref());
        // A kernel that overwrote the shared control memory may have overwritten its inputs and outputs too.
        let is_intact = channel.slot(number).state.load(Ordering::Acquire) == token
            && channel.header().magic.load(Ordering::Acquire) == protocol::MAGIC;
        if !is_intact {
            return Err(io::Error::other("a kernel overwrote the shared control memory"));
        }
        channel.write(number, &answer.write());
        channel.answer(number, token);
    }
}

/// Opens the channel and the arena. Must be called once, in a process that a host has spawned.
pub fn open() -> io::Result<(Channel, SharedMemory)> {
    let (control, arena) = (inherited(CONTROL_VARIABLE)?, inherited(ARENA_VARIABLE)?);
    let channel = Channel::new(SharedMemory::open(control)?)
        .filter(|channel| channel.header().magic.load(Ordering::Acquire) == protocol::MAGIC)
        .ok_or_else(|| {
            io::Error::other(
                "the control memory has no valid header; a worker must be started by a LayerZero host",
            )
        })?;
    check_version(&channel)?;
    Ok((channel, SharedMemory::open(arena)?))
}

/// Refuses a host of another version.
fn check_version(channel: &Channel) -> io::Result<()> {
    let version = channel.header().version.load(Ordering::Acquire);
    if version == protocol::VERSION {
        return Ok(());
    }
    let message = format!(
        "the host uses version {version} of the worker protocol, and this worker version {}; install the same release of both",
        protocol::VERSION
    );
    channel.send_handshake(protocol::REFUSED, message.as_bytes());
    Err(io::Error::other(message))
}

/// A file descriptor that the host passed to this process.
fn inherited(variable: &str) -> io::Result<OwnedFd> {
    let number: Option<RawFd> = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    let number = number.ok_or_else(|| {
        io::Error::other(format!(
            "{variable} is not set to a file descriptor; a worker must be started by a LayerZero host"
        ))
    })?;
    // SAFETY: the host left it open for this process, and nothing else here uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Maximum number of cached tokenizers; the least recently used one is evicted.
const MAX_TOKENIZERS: usize = 8;

/// The state of a worker between calls.
pub struct Server {
    arena: SharedMemory,
    kernels: Vec<KernelEntry>,
    scratch: Scratch,
    tokenizers: Vec<Arc<Tokenizer>>,
    /// By slot: the outputs of the last call that are not fetched yet.
    pending: Vec<Vec<DynamicOutput>>,
}

/// An output whose size the kernel determines.
enum DynamicOutput {
    Tensor(Option<Tensor>),
    Texts(Option<Vec<String>>),
    Packed(Vec<u8>),
}

fn invalid_request() -> KernelError {
    KernelError::failed("the request refers to a kernel, block or output that does not exist")
        .before_writing()
}

impl Server {
    /// A server of these kernels for tensors in this arena.
    pub fn new(arena: SharedMemory, kernels: Vec<KernelEntry>) -> Server {
        Server {
            arena,
            kernels,
            scratch: Scratch::default(),
            tokenizers: Vec::new(),
            pending: (0..protocol::SLOTS).map(|_| Vec::new()).collect(),
        }
    }

    /// Executes the request of a slot. `None` is a message whose size is invalid.
    pub fn answer(&mut self, slot: usize, request: Option<&[u8]>) -> Answer {
        let answer = match request.and_then(Request::read) {
            Some(Request::Call(call)) => self.call(slot, &call),
            Some(Request::Fetch(blocks)) => self.fetch(slot, &blocks),
            None => Err(KernelError::failed("the worker received an invalid request").before_writing()),
        };
        answer.unwrap_or_else(|error| Answer::failure(&error))
    }

    fn call(&mut self, slot: usize, call: &Call) -> Result<Answer, KernelError> {
        let mut texts: Vec<Vec<String>> = Vec::new();
        let mut tokenizers: Vec<Arc<Tokenizer>> = Vec::new();
        for arg in &call.args {
            match arg {
                WireArg::Texts(block) => {
                    texts.push(unpack_texts(&self.bytes(*block)?).map_err(|error| match error {
                        UnpackError::Invalid => invalid_request(),
                        UnpackError::OutOfMemory => no_copy(block.bytes as usize).before_writing(),
                    })?);
                }
                WireArg::Tokenizer(digest, json) => match self.tokenizer(digest, *json)? {
                    Some(tokenizer) => tokenizers.push(tokenizer),
                    None => return Ok(Answer::UnknownTokenizer(*digest)),
                },
                _ => {}
            }
        }
        let texts: Vec<Vec<&str>> =
            texts.iter().map(|batch| batch.iter().map(String::as_str).collect()).collect();
        let mut dynamic: Vec<DynamicOutput> = Vec::new();
        for output in &call.outputs {
            match output {
                WireOutput::Dynamic => dynamic.push(DynamicOutput::Tensor(None)),
                WireOutput::Texts => dynamic.push(DynamicOutput::Texts(None)),
                WireOutput::Absent | WireOutput::Tensor(_) => {}
            }
        }
        self.run(call, &texts, &tokenizers, &mut dynamic)?;
        if dynamic.is_empty() {
            return Ok(Answer::Done);
        }
        let outputs = dynamic.iter_mut().map(DynamicOutput::describe).collect::<Result<Vec<_>, _>>()?;
        if let Some(pending) = self.pending.get_mut(slot) {
            *pending = dynamic;
        }
        Ok(Answer::Pending(outputs))
    }

    fn run(
        &mut self,
        call: &Call,
        texts: &[Vec<&str>],
        tokenizers: &[Arc<Tokenizer>],
        dynamic: &mut [DynamicOutput],
    ) -> Result<(), KernelError> {
        let entry = self.kernels.get(call.kernel as usize).ok_or_else(invalid_request)?;
        let (mut texts, mut tokenizers, mut dynamic) = (texts.iter(), tokenizers.iter(), dynamic.iter_mut());
        let mut args: Vec<Arg<'_>> = Vec::with_capacity(call.args.len());
        for arg in &call.args {
            args.push(match arg {
                WireArg::Absent => Arg::Absent,
                WireArg::Value(value) => Arg::Value(*value),
                WireArg::Tensor(arena_tensor) => {
                    let (data, layout) = address(&self.arena, arena_tensor).ok_or_else(invalid_request)?;
                    // SAFETY: inside the arena, and the host does not modify it until the call is answered.
                    Arg::Tensor(unsafe { TensorView::from_raw(data, layout) })
                }
                WireArg::TensorMut(arena_tensor) => {
                    let (data, layout) = address(&self.arena, arena_tensor).ok_or_else(invalid_request)?;
                    // SAFETY: as above, and exclusive to this call.
                    Arg::TensorMut(unsafe { TensorMut::from_raw(data, layout) })
                }
                WireArg::Texts(_) => Arg::Text(texts.next().ok_or_else(invalid_request)?),
                WireArg::Tokenizer(..) => Arg::Handle(&**tokenizers.next().ok_or_else(invalid_request)?),
            });
        }
        let mut outputs: Vec<OutArg<'_>> = Vec::with_capacity(call.outputs.len());
        for output in &call.outputs {
            outputs.push(match output {
                WireOutput::Absent => OutArg::Absent,
                WireOutput::Tensor(arena_tensor) => {
                    let (data, layout) = address(&self.arena, arena_tensor).ok_or_else(invalid_request)?;
                    // SAFETY: as above.
                    OutArg::Tensor(unsafe { TensorMut::from_raw(data, layout) })
                }
                WireOutput::Dynamic | WireOutput::Texts => {
                    match dynamic.next().ok_or_else(invalid_request)? {
                        DynamicOutput::Tensor(tensor) => OutArg::Dynamic(tensor),
                        DynamicOutput::Texts(texts) => OutArg::Text(texts),
                        DynamicOutput::Packed(_) => return Err(invalid_request()),
                    }
                }
            });
        }
        let mut run = Run::new(&mut self.scratch, call.workspace);
        match catch_unwind(AssertUnwindSafe(|| entry.kernel.run(&mut args, &mut outputs, &mut run))) {
            Ok(outcome) => outcome,
            Err(_) => Err(KernelError::failed(format!("kernel {} panicked in the worker", entry.spec.id))),
        }
    }

    /// Writes the pending outputs of a slot into the blocks that the host has allocated.
    fn fetch(&mut self, slot: usize, blocks: &[Block]) -> Result<Answer, KernelError> {
        let pending = self.pending.get_mut(slot).map(std::mem::take).unwrap_or_default();
        if pending.len() != blocks.len() {
            return Err(invalid_request());
        }
        for (dynamic, block) in pending.iter().zip(blocks) {
            let bytes: &[u8] = match dynamic {
                DynamicOutput::Tensor(Some(tensor)) => tensor.bytes(),
                DynamicOutput::Packed(bytes) => bytes,
                DynamicOutput::Tensor(None) | DynamicOutput::Texts(_) => return Err(invalid_request()),
            };
            let to = self
                .block(*block)
                .filter(|_| block.bytes == bytes.len() as u64)
                .ok_or_else(invalid_request)?;
            // SAFETY: a block of that size inside the arena, exclusive to this call.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        Ok(Answer::Done)
    }

    fn block(&self, block: Block) -> Option<*mut u8> {
        self.arena.at(usize::try_from(block.offset).ok()?, usize::try_from(block.bytes).ok()?)
    }

    /// A copy of the bytes of a block.
    fn bytes(&self, block: Block) -> Result<Vec<u8>, KernelError> {
        let from = self.block(block).ok_or_else(invalid_request)?;
        let size = block.bytes as usize;
        let mut bytes = try_with_capacity(size).ok_or_else(|| no_copy(size).before_writing())?;
        bytes.resize(size, 0);
        // SAFETY: inside the arena, and the host does not modify it until the call is answered.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(bytes)
    }

    /// A cached tokenizer, or one loaded from `json`; `None` if it is not cached and `json` is missing.
    fn tokenizer(
        &mut self,
        digest: &[u8; 32],
        json: Option<Block>,
    ) -> Result<Option<Arc<Tokenizer>>, KernelError> {
        if let Some(at) = self.tokenizers.iter().position(|cached| cached.digest() == *digest) {
            let cached = self.tokenizers.remove(at);
            self.tokenizers.push(Arc::clone(&cached));
            return Ok(Some(cached));
        }
        let Some(json) = json else { return Ok(None) };
        let tokenizer = Tokenizer::from_json(&self.bytes(json)?)
            .map_err(|error| KernelError::failed(error.to_string()).before_writing())?;
        if tokenizer.digest() != *digest {
            return Err(invalid_request());
        }
        let tokenizer = Arc::new(tokenizer);
        self.tokenizers.push(Arc::clone(&tokenizer));
        if self.tokenizers.len() > MAX_TOKENIZERS {
            self.tokenizers.remove(0);
        }
        Ok(Some(tokenizer))
    }
}

impl DynamicOutput {
    /// The description for the host; an error if the kernel did not produce the output.
    fn describe(&mut self) -> Result<PendingOutput, KernelError> {
        match self {
            DynamicOutput::Tensor(Some(tensor)) => {
                Ok(PendingOutput::Tensor(tensor.view().dtype(), tensor.view().layout().shape))
            }
            DynamicOutput::Texts(Some(texts)) => {
                let packed = pack_texts(texts).ok_or_else(|| no_copy(texts.iter().map(String::len).sum()))?;
                let bytes = packed.len() as u64;
                *self = DynamicOutput::Packed(packed);
                Ok(PendingOutput::Texts(bytes))
            }
            DynamicOutput::Tensor(None) | DynamicOutput::Texts(None) | DynamicOutput::Packed(_) => {
                Err(KernelError::failed("the kernel did not produce all outputs"))
            }
        }
    }
}

/// The address of a tensor, if all of it is inside the arena.
fn address(arena: &SharedMemory, arena_tensor: &ArenaTensor) -> Option<(*mut u8, Layout)> {
    let layout = arena_tensor.layout;
    if !layout.is_sound() {
        return None;
    }
    let (lowest, highest) = layout.reach()?;
    let size = layout.dtype.size() as i64;
    let first = i64::try_from(arena_tensor.offset).ok()?;
    let start = usize::try_from(first.checked_add(lowest.checked_mul(size)?)?).ok()?;
    let bytes = usize::try_from((highest - lowest + 1).checked_mul(size)?).ok()?;
    arena.at(start, bytes)?;
    Some((arena.at(usize::try_from(first).ok()?, 0)?, layout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_another_version_is_refused() {
        let channel = Channel::new(SharedMemory::create(protocol::CONTROL_BYTES).unwrap()).unwrap();
        channel.header().version.store(protocol::VERSION, Ordering::Release);
        assert!(check_version(&channel).is_ok());
        channel.header().version.store(protocol::VERSION + 1, Ordering::Release);
        let error = check_version(&channel).unwrap_err().to_string();
        assert!(error.contains("version 4") && error.contains("version 3"), "{error}");
        assert_eq!(channel.header().state.load(Ordering::Acquire), protocol::REFUSED);
        assert_eq!(channel.handshake().unwrap(), error.as_bytes());
    }
}
