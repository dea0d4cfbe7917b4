//! A kernel that runs in a worker, as the registry holds it.

use std::any::Any;
use std::sync::Arc;

use lz_core::tensor::{Indices, Layout, Place};
use lz_core::{
    Arg, Kernel, KernelError, KernelSpec, OutArg, Reason, ReasonCode, Run, Tensor, TensorMut, TensorView,
};
use lz_ops::tokenizer::Tokenizer;

use crate::host::Shared;
use crate::message::{Answer, Block, Call, HeldOut, Placed, Request, SentArg, SentOut};
use crate::slot::Held;
use crate::wire::{pack_texts, unpack_texts};

/// A kernel of a worker.
#[derive(Debug)]
pub struct RemoteKernel {
    shared: Arc<Shared>,
    id: String,
    operation: String,
}

impl RemoteKernel {
    pub(crate) fn new(shared: Arc<Shared>, spec: &KernelSpec) -> RemoteKernel {
        RemoteKernel { shared, id: spec.id.clone(), operation: spec.operation.clone() }
    }
}

/// Blocks of the arena that one call uses; given back when it is over.
struct Blocks<'a> {
    shared: &'a Shared,
    taken: Vec<(usize, usize)>,
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        for (offset, bytes) in &self.taken {
            self.shared.arena.give_back(*offset, *bytes);
        }
    }
}

impl Blocks<'_> {
    /// Room for bytes.
    fn take(&mut self, bytes: usize) -> Result<Block, KernelError> {
        let Some(offset) = self.shared.arena.take(bytes) else { return Err(full()) };
        self.taken.push((offset, bytes));
        Ok(Block { offset: offset as u64, bytes: bytes as u64 })
    }

    /// Room for a dense tensor with the sizes of `layout`.
    fn place(&mut self, layout: &Layout) -> Result<Placed, KernelError> {
        let dense = Layout { strides: layout.shape.contiguous_strides(), place: Place::HOST, ..*layout };
        let bytes = dense.elements().and_then(|elements| elements.checked_mul(dense.dtype.size() as i64));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(full)?;
        Ok(Placed { offset: self.take(bytes)?.offset, layout: dense })
    }

    /// Bytes, copied.
    fn put(&mut self, bytes: &[u8]) -> Result<Block, KernelError> {
        let block = self.take(bytes.len())?;
        if let Some(to) = self.shared.memory.at(block.offset as usize, bytes.len()) {
            // SAFETY: a block of its own, which nobody else knows yet.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        Ok(block)
    }

    /// A copy of the bytes of a block.
    fn get(&self, block: Block) -> Vec<u8> {
        let bytes = block.bytes as usize;
        let mut copy = vec![0; bytes];
        if let Some(from) = self.shared.memory.at(block.offset as usize, bytes) {
            // SAFETY: inside the memory; the worker has answered and writes it no more, and bytes are bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), bytes) };
        }
        copy
    }
}

#[cold]
fn full() -> KernelError {
    let message =
        "the worker's shared memory is full; give it more (`worker.arena_mb`), or pass smaller tensors";
    let reason = Reason::new(ReasonCode::OutOfMemory).message(message);
    KernelError::because(reason).before_writing()
}

/// Where a tensor lies in the shared memory already; `None` if it lies elsewhere.
fn inside(shared: &Shared, view: &TensorView<'_>) -> Option<Placed> {
    let (start, end) = view.address_range()?;
    let bytes = usize::try_from(end - start).ok()?;
    shared.memory.offset_of(usize::try_from(start).ok()?, bytes)?;
    let offset = shared.memory.offset_of(view.address(), 0)?;
    Some(Placed { offset: offset as u64, layout: *view.layout() })
}

/// A view of a tensor in the shared memory.
///
/// # Safety
/// The tensor lies inside, and nobody else writes it for `'a`.
unsafe fn lent<'a>(shared: &Shared, placed: &Placed) -> Option<TensorMut<'a>> {
    let data = shared.memory.at(usize::try_from(placed.offset).ok()?, 0)?;
    // SAFETY: passed on.
    Some(unsafe { TensorMut::from_raw(data, placed.layout) })
}

/// Copies every element, bit for bit.
fn copy(from: &TensorView<'_>, to: &mut TensorMut<'_>) {
    if from.layout().is_contiguous() && to.layout().is_contiguous() {
        let bytes = usize::try_from(from.elements()).unwrap_or(0) * from.dtype().size();
        // SAFETY: both are sound and dense and of the same size; one of them lies in the arena, in a block of its own.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), bytes) };
        return;
    }
    let bits = from.bits();
    let mut written = to.bits_mut();
    for index in Indices::new(bits.shape()) {
        written.set_int(&index, bits.int_at(&index));
    }
}

impl Kernel for RemoteKernel {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let shared = &*self.shared;
        let mut blocks = Blocks { shared, taken: Vec::new() };
        let mut call = Call {
            kernel: 0,
            workspace: run.declared_workspace(),
            args: Vec::with_capacity(args.len()),
            outputs: Vec::with_capacity(outputs.len()),
        };
        let mut written_in_place = false;
        for arg in args.iter() {
            call.args.push(match arg {
                Arg::Absent => SentArg::Absent,
                Arg::Value(value) => SentArg::Value(*value),
                Arg::Tensor(view) => SentArg::Tensor(send(shared, &mut blocks, view)?),
                Arg::TensorMut(tensor) => {
                    let view = tensor.as_view();
                    written_in_place |= inside(shared, &view).is_some();
                    SentArg::Written(send(shared, &mut blocks, &view)?)
                }
                Arg::Text(texts) => SentArg::Texts(blocks.put(&pack_texts(texts))?),
                Arg::Handle(handle) => SentArg::Tokenizer(handle.digest(), None),
            });
        }
        for output in outputs.iter() {
            call.outputs.push(match output {
                OutArg::Absent => SentOut::Absent,
                OutArg::Tensor(tensor) => {
                    let view = tensor.as_view();
                    host_only(&view)?;
                    let placed = inside(shared, &view).map_or_else(|| blocks.place(view.layout()), Ok)?;
                    SentOut::Tensor(placed)
                }
                OutArg::Dynamic(_) => SentOut::Dynamic,
                OutArg::Text(_) => SentOut::Texts,
            });
        }
        let slot = Held::claim(shared)?;
        call.kernel = slot.kernel(&self.id, &self.operation)?;
        let made = perform(&slot, &mut blocks, &mut call, args).map_err(|error| {
            // What was copied is as it was: only tensors that lie in the shared memory can have been changed.
            if written_in_place { error } else { error.before_writing() }
        })?;
        for (arg, sent) in args.iter_mut().zip(&call.args) {
            if let (Arg::TensorMut(tensor), SentArg::Written(placed)) = (arg, sent) {
                fetch(shared, placed, tensor);
            }
        }
        let mut made = made.into_iter();
        for (output, sent) in outputs.iter_mut().zip(&call.outputs) {
            match (output, sent) {
                (OutArg::Tensor(tensor), SentOut::Tensor(placed)) => fetch(shared, placed, tensor),
                (OutArg::Dynamic(place), SentOut::Dynamic) => match made.next() {
                    Some(Made::Tensor(tensor)) => **place = Some(tensor),
                    _ => return Err(slot.nonsense()),
                },
                (OutArg::Text(place), SentOut::Texts) => match made.next() {
                    Some(Made::Texts(texts)) => **place = Some(texts),
                    _ => return Err(slot.nonsense()),
                },
                _ => {}
            }
        }
        Ok(())
    }
}

/// A result whose size was not known before.
enum Made {
    Tensor(Tensor),
    Texts(Vec<String>),
}

/// Asks until the call is done: the worker may want the definition of a tokenizer first, and results whose size it found out
/// are fetched afterwards.
fn perform(
    slot: &Held<'_>,
    blocks: &mut Blocks<'_>,
    call: &mut Call,
    args: &[Arg<'_>],
) -> Result<Vec<Made>, KernelError> {
    let mut answer = slot.ask(&Request::Call(call.clone()))?;
    // Once for each tokenizer; a worker that asks again and again is not taken at its word.
    for _ in 0..args.len() {
        let Answer::Unknown(wanted) = answer else { break };
        for (arg, sent) in args.iter().zip(&mut call.args) {
            if let (Arg::Handle(handle), SentArg::Tokenizer(digest, json)) = (arg, sent)
                && *digest == wanted
            {
                *json = Some(blocks.put(Tokenizer::from_handle(*handle)?.json())?);
            }
        }
        answer = slot.ask(&Request::Call(call.clone()))?;
    }
    let held = match answer {
        Answer::Done => return Ok(Vec::new()),
        Answer::Held(held) => held,
        other => return Err(other.into_error()),
    };
    let mut placed = Vec::with_capacity(held.len());
    for output in &held {
        placed.push(match output {
            HeldOut::Tensor(dtype, shape) => {
                let layout = Layout::contiguous(shape, *dtype).map_err(|_| slot.nonsense())?;
                let bytes = layout.elements().and_then(|count| count.checked_mul(dtype.size() as i64));
                let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(full)?;
                blocks.take(bytes)?
            }
            HeldOut::Texts(bytes) => blocks.take(usize::try_from(*bytes).map_err(|_| full())?)?,
        });
    }
    match slot.ask(&Request::Fetch(placed.clone()))? {
        Answer::Done => {}
        other => return Err(other.into_error()),
    }
    let mut made = Vec::with_capacity(held.len());
    for (output, block) in held.iter().zip(placed) {
        let bytes = blocks.get(block);
        made.push(match output {
            HeldOut::Texts(_) => Made::Texts(unpack_texts(&bytes).ok_or_else(|| slot.nonsense())?),
            HeldOut::Tensor(dtype, shape) => {
                let mut tensor = Tensor::zeros(shape, *dtype).map_err(|_| full())?;
                match tensor.bytes_mut() {
                    place if place.len() == bytes.len() => place.copy_from_slice(&bytes),
                    _ => return Err(slot.nonsense()),
                }
                Made::Tensor(tensor)
            }
        });
    }
    Ok(made)
}

fn host_only(view: &TensorView<'_>) -> Result<(), KernelError> {
    if view.place().is_host() {
        return Ok(());
    }
    let reason = Reason::new(ReasonCode::DeviceMismatch)
        .required("memory of the host: what is on a device does not cross to another process")
        .found(view.place().to_string());
    Err(KernelError::because(reason).before_writing())
}

/// Where a tensor lies that the worker reads: where it is, or in a copy.
fn send(shared: &Shared, blocks: &mut Blocks<'_>, view: &TensorView<'_>) -> Result<Placed, KernelError> {
    host_only(view)?;
    if let Some(placed) = inside(shared, view) {
        return Ok(placed);
    }
    let placed = blocks.place(view.layout())?;
    // SAFETY: a block of its own, which nobody else knows yet.
    if let Some(mut to) = unsafe { lent(shared, &placed) } {
        copy(view, &mut to);
    }
    Ok(placed)
}

/// Copies a result to where the caller wants it, unless it lies there already.
fn fetch(shared: &Shared, placed: &Placed, to: &mut TensorMut<'_>) {
    // SAFETY: the call is over, so the worker writes it no more.
    if let Some(from) = unsafe { lent(shared, placed) }
        && from.address() != to.address()
    {
        copy(&from.as_view(), to);
    }
}
