//! The worker's side: takes calls out of the ring and runs them until the host is gone.

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

use crate::memory::SharedMemory;
use crate::message::{Answer, Block, Call, HeldOut, Placed, Request, SentArg, SentOut};
use crate::process::{ARENA_VARIABLE, CONTROL_VARIABLE};
use crate::protocol::{self, Channel};
use crate::wire::{pack_texts, unpack_texts};

/// How long a worker sleeps before it looks around.
const LOOK: Duration = Duration::from_secs(1);

/// What a worker offers.
#[derive(Debug)]
pub struct Offer {
    /// The capability descriptor's JSON; empty where the host knows the kernels' specs by itself.
    pub descriptor: String,
    /// The kernels that it describes.
    pub kernels: Vec<KernelEntry>,
}

/// Says what `make` makes, then serves calls; returns only if that cannot be done. To be called once, in a process that a
/// host has started.
pub fn serve(make: impl FnOnce() -> Result<Offer, String>) -> io::Result<()> {
    let (channel, arena) = open()?;
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
    let mut server = Server {
        arena,
        kernels: offer.kernels,
        scratch: Scratch::default(),
        tokenizers: Vec::new(),
        held: (0..protocol::SLOTS).map(|_| Vec::new()).collect(),
    };
    let mut ticket = 0u32;
    loop {
        let Some(number) = channel.take(ticket, LOOK) else { continue };
        ticket = ticket.wrapping_add(1);
        let token = channel.slot(number).state.load(Ordering::Acquire);
        let answer = match channel.read(number).and_then(|bytes| Request::read(&bytes)) {
            Some(Request::Call(call)) => server.call(number, &call),
            Some(Request::Fetch(blocks)) => server.fetch(number, &blocks),
            None => Err(KernelError::failed("the request cannot be understood").before_writing()),
        };
        let answer = answer.unwrap_or_else(|error| Answer::failure(&error));
        channel.write(number, &answer.write());
        channel.answer(number, token);
    }
}

/// What the host talks through, and where tensors lie. To be called once, in a process that a host has started.
pub fn open() -> io::Result<(Channel, SharedMemory)> {
    let (control, arena) = (inherited(CONTROL_VARIABLE)?, inherited(ARENA_VARIABLE)?);
    let channel = Channel::new(SharedMemory::open(control)?)
        .filter(|channel| channel.header().magic.load(Ordering::Acquire) == protocol::MAGIC)
        .ok_or_else(|| io::Error::other("this is not the memory of a host; workers are started by one"))?;
    Ok((channel, SharedMemory::open(arena)?))
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

/// Tokenizers that a worker remembers; the one that was used longest ago goes first.
const MOST_TOKENIZERS: usize = 8;

/// What a worker has between calls.
struct Server {
    arena: SharedMemory,
    kernels: Vec<KernelEntry>,
    scratch: Scratch,
    tokenizers: Vec<Arc<Tokenizer>>,
    /// By slot: what the last call made that is still to be fetched.
    held: Vec<Vec<Made>>,
}

/// A result whose size was not known before, where it waits to be fetched.
enum Made {
    Tensor(Option<Tensor>),
    Texts(Option<Vec<String>>),
    Packed(Vec<u8>),
}

fn refuse() -> KernelError {
    KernelError::failed("the request names what is not there").before_writing()
}

impl Server {
    fn call(&mut self, slot: usize, call: &Call) -> Result<Answer, KernelError> {
        let mut texts: Vec<Vec<String>> = Vec::new();
        let mut tokenizers: Vec<Arc<Tokenizer>> = Vec::new();
        for arg in &call.args {
            match arg {
                SentArg::Texts(block) => {
                    texts.push(unpack_texts(&self.bytes(*block)?).ok_or_else(refuse)?);
                }
                SentArg::Tokenizer(digest, json) => match self.tokenizer(digest, *json)? {
                    Some(tokenizer) => tokenizers.push(tokenizer),
                    None => return Ok(Answer::Unknown(*digest)),
                },
                _ => {}
            }
        }
        let texts: Vec<Vec<&str>> =
            texts.iter().map(|batch| batch.iter().map(String::as_str).collect()).collect();
        let mut made: Vec<Made> = Vec::new();
        for output in &call.outputs {
            match output {
                SentOut::Dynamic => made.push(Made::Tensor(None)),
                SentOut::Texts => made.push(Made::Texts(None)),
                SentOut::Absent | SentOut::Tensor(_) => {}
            }
        }
        self.run(call, &texts, &tokenizers, &mut made)?;
        if made.is_empty() {
            return Ok(Answer::Done);
        }
        let outputs = made.iter_mut().map(Made::settle).collect::<Option<Vec<HeldOut>>>();
        let outputs = outputs.ok_or_else(|| KernelError::failed("the kernel left out a result"))?;
        if let Some(place) = self.held.get_mut(slot) {
            *place = made;
        }
        Ok(Answer::Held(outputs))
    }

    fn run(
        &mut self,
        call: &Call,
        texts: &[Vec<&str>],
        tokenizers: &[Arc<Tokenizer>],
        made: &mut [Made],
    ) -> Result<(), KernelError> {
        let entry = self.kernels.get(call.kernel as usize).ok_or_else(refuse)?;
        let (mut texts, mut tokenizers, mut made) = (texts.iter(), tokenizers.iter(), made.iter_mut());
        let mut args: Vec<Arg<'_>> = Vec::with_capacity(call.args.len());
        for arg in &call.args {
            args.push(match arg {
                SentArg::Absent => Arg::Absent,
                SentArg::Value(value) => Arg::Value(*value),
                SentArg::Tensor(placed) => {
                    let (data, layout) = address(&self.arena, placed).ok_or_else(refuse)?;
                    // SAFETY: inside the arena, and the host keeps it as it is until the call is answered.
                    Arg::Tensor(unsafe { TensorView::from_raw(data, layout) })
                }
                SentArg::Written(placed) => {
                    let (data, layout) = address(&self.arena, placed).ok_or_else(refuse)?;
                    // SAFETY: as above, and lent to this call alone.
                    Arg::TensorMut(unsafe { TensorMut::from_raw(data, layout) })
                }
                SentArg::Texts(_) => Arg::Text(texts.next().ok_or_else(refuse)?),
                SentArg::Tokenizer(..) => Arg::Handle(&**tokenizers.next().ok_or_else(refuse)?),
            });
        }
        let mut outputs: Vec<OutArg<'_>> = Vec::with_capacity(call.outputs.len());
        for output in &call.outputs {
            outputs.push(match output {
                SentOut::Absent => OutArg::Absent,
                SentOut::Tensor(placed) => {
                    let (data, layout) = address(&self.arena, placed).ok_or_else(refuse)?;
                    // SAFETY: as above.
                    OutArg::Tensor(unsafe { TensorMut::from_raw(data, layout) })
                }
                SentOut::Dynamic | SentOut::Texts => match made.next().ok_or_else(refuse)? {
                    Made::Tensor(place) => OutArg::Dynamic(place),
                    Made::Texts(place) => OutArg::Text(place),
                    Made::Packed(_) => return Err(refuse()),
                },
            });
        }
        let mut run = Run::new(&mut self.scratch, call.workspace);
        match catch_unwind(AssertUnwindSafe(|| entry.kernel.run(&mut args, &mut outputs, &mut run))) {
            Ok(outcome) => outcome,
            Err(_) => Err(KernelError::failed(format!("{} panicked in its worker", entry.spec.id))),
        }
    }

    /// Writes what the last call of a slot made to where the host has room for it.
    fn fetch(&mut self, slot: usize, blocks: &[Block]) -> Result<Answer, KernelError> {
        let held = self.held.get_mut(slot).map(std::mem::take).unwrap_or_default();
        if held.len() != blocks.len() {
            return Err(refuse());
        }
        for (made, block) in held.iter().zip(blocks) {
            let bytes: &[u8] = match made {
                Made::Tensor(Some(tensor)) => tensor.bytes(),
                Made::Packed(bytes) => bytes,
                Made::Tensor(None) | Made::Texts(_) => return Err(refuse()),
            };
            let to = self.block(*block).filter(|_| block.bytes == bytes.len() as u64).ok_or_else(refuse)?;
            // SAFETY: a block of that size inside the arena, lent to this call alone.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        Ok(Answer::Done)
    }

    fn block(&self, block: Block) -> Option<*mut u8> {
        self.arena.at(usize::try_from(block.offset).ok()?, usize::try_from(block.bytes).ok()?)
    }

    /// A copy of the bytes of a block.
    fn bytes(&self, block: Block) -> Result<Vec<u8>, KernelError> {
        let from = self.block(block).ok_or_else(refuse)?;
        let mut bytes = vec![0; block.bytes as usize];
        // SAFETY: inside the arena, and the host keeps it as it is until the call is answered.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(bytes)
    }

    /// A tokenizer that is known, or becomes so; `None` if its definition is needed first.
    fn tokenizer(
        &mut self,
        digest: &[u8; 32],
        json: Option<Block>,
    ) -> Result<Option<Arc<Tokenizer>>, KernelError> {
        if let Some(at) = self.tokenizers.iter().position(|known| known.digest() == *digest) {
            let known = self.tokenizers.remove(at);
            self.tokenizers.push(Arc::clone(&known));
            return Ok(Some(known));
        }
        let Some(json) = json else { return Ok(None) };
        let made = Tokenizer::from_json(&self.bytes(json)?)
            .map_err(|error| KernelError::failed(error.to_string()).before_writing())?;
        if made.digest() != *digest {
            return Err(refuse());
        }
        let made = Arc::new(made);
        self.tokenizers.push(Arc::clone(&made));
        if self.tokenizers.len() > MOST_TOKENIZERS {
            self.tokenizers.remove(0);
        }
        Ok(Some(made))
    }
}

impl Made {
    /// What the host is told of it; `None` if the kernel did not make it.
    fn settle(&mut self) -> Option<HeldOut> {
        match self {
            Made::Tensor(Some(tensor)) => {
                Some(HeldOut::Tensor(tensor.view().dtype(), tensor.view().layout().shape))
            }
            Made::Texts(Some(texts)) => {
                let packed = pack_texts(texts);
                let bytes = packed.len() as u64;
                *self = Made::Packed(packed);
                Some(HeldOut::Texts(bytes))
            }
            Made::Tensor(None) | Made::Texts(None) | Made::Packed(_) => None,
        }
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
