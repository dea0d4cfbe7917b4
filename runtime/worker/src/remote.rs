//! A kernel that runs in a worker, as the registry holds it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use lz_core::check::{self, Produced};
use lz_core::tensor::{Indices, Layout, Place};
use lz_core::{
    Arg, Kernel, KernelError, KernelSpec, OperationInfo, OutArg, Reason, ReasonCode, Run, Tensor, TensorMut,
    TensorView,
};
use lz_ops::tokenizer::Tokenizer;

use crate::arena::{Arena, NoBlock, rounded};
use crate::failure::{self, out_of_memory};
use crate::host::Shared;
use crate::message::{Answer, Block, Call, HeldOut, Placed, Request, SentArg, SentOut};
use crate::patience::Patience;
use crate::slot::Held;
use crate::wire::{pack_texts, unpack_texts};

/// A kernel of a worker.
#[derive(Debug)]
pub struct RemoteKernel {
    shared: Arc<Shared>,
    info: &'static OperationInfo,
    id: String,
}

impl RemoteKernel {
    pub(crate) fn new(shared: Arc<Shared>, spec: &KernelSpec, info: &'static OperationInfo) -> RemoteKernel {
        RemoteKernel { shared, info, id: spec.id.clone() }
    }
}

/// Blocks of the arena that one call uses; given back when it is over.
struct Blocks<'a> {
    arena: &'a Arena,
    taken: Vec<(usize, usize)>,
    /// What is left of the block for the arguments and the outputs.
    left: (usize, usize),
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        for (offset, bytes) in &self.taken {
            self.arena.give_back(*offset, *bytes);
        }
    }
}

impl<'a> Blocks<'a> {
    /// One block for so many bytes, once other calls have given back enough. In one piece: two calls that had half of what
    /// they need each would wait for each other.
    fn reserve(arena: &'a Arena, bytes: usize, deadline: Duration) -> Result<Blocks<'a>, KernelError> {
        let mut blocks = Blocks { arena, taken: Vec::new(), left: (0, 0) };
        if bytes > 0 {
            let offset = arena.wait_for(bytes, Patience::new(deadline)).map_err(|why| match why {
                NoBlock::TooLarge => blocks.too_large(bytes),
                NoBlock::Stopped(stop) => {
                    failure::stopped(stop, "enough of the worker's shared memory", deadline)
                }
            })?;
            blocks.taken.push((offset, bytes));
            blocks.left = (offset, offset + bytes);
        }
        Ok(blocks)
    }

    #[cold]
    fn too_large(&self, bytes: usize) -> KernelError {
        let (bytes, limit) = (bytes.div_ceil(1 << 20), self.arena.memory().size() >> 20);
        out_of_memory(format!(
            "the call needs {bytes} MiB of the worker's shared memory, which has {limit} MiB; allow it more \
             (`worker.arena_limit_mb`), or pass smaller tensors"
        ))
    }

    /// Room for bytes: of what was reserved, or for what turned up during the call of what is free now.
    fn take(&mut self, bytes: usize) -> Result<Block, KernelError> {
        let size = rounded(bytes).ok_or_else(|| self.too_large(usize::MAX))?;
        let (next, end) = self.left;
        let offset = if end - next >= size {
            self.left.0 = next + size;
            next
        } else {
            // Not waited for: those who have the memory may wait in turn for what this call has.
            let Some(offset) = self.arena.take(size) else { return Err(self.too_large(size)) };
            self.taken.push((offset, size));
            offset
        };
        Ok(Block { offset: offset as u64, bytes: bytes as u64 })
    }

    /// Room for a dense tensor with the sizes of `layout`.
    fn place(&mut self, layout: &Layout) -> Result<Placed, KernelError> {
        let dense = Layout { strides: layout.shape.contiguous_strides(), place: Place::HOST, ..*layout };
        let bytes = bytes_of(layout).ok_or_else(|| self.too_large(usize::MAX))?;
        Ok(Placed { offset: self.take(bytes)?.offset, layout: dense })
    }

    /// Bytes, copied.
    fn put(&mut self, bytes: &[u8]) -> Result<Block, KernelError> {
        let block = self.take(bytes.len())?;
        if let Some(to) = self.arena.memory().at(block.offset as usize, bytes.len()) {
            // SAFETY: a block of its own, which nobody else knows yet.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        Ok(block)
    }

    /// A copy of the bytes of a block.
    fn get(&self, block: Block) -> Vec<u8> {
        let bytes = block.bytes as usize;
        let mut copy = vec![0; bytes];
        if let Some(from) = self.arena.memory().at(block.offset as usize, bytes) {
            // SAFETY: inside the memory; whatever the worker does with it meanwhile, bytes are bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), bytes) };
        }
        copy
    }
}

/// Bytes of a dense tensor; `None` if they cannot be counted.
fn bytes_of(layout: &Layout) -> Option<usize> {
    usize::try_from(layout.elements()?.checked_mul(layout.dtype.size() as i64)?).ok()
}

/// Where a tensor lies in the shared memory already; `None` if it lies elsewhere.
fn inside(arena: &Arena, view: &TensorView<'_>) -> Option<Placed> {
    let (start, end) = view.address_range()?;
    let bytes = usize::try_from(end - start).ok()?;
    arena.memory().offset_of(usize::try_from(start).ok()?, bytes)?;
    let offset = arena.memory().offset_of(view.address(), 0)?;
    Some(Placed { offset: offset as u64, layout: *view.layout() })
}

/// A view of a tensor in the shared memory.
///
/// # Safety
/// The tensor lies inside, and nobody else writes it for `'a`.
unsafe fn lent<'a>(arena: &Arena, placed: &Placed) -> Option<TensorMut<'a>> {
    let data = arena.memory().at(usize::try_from(placed.offset).ok()?, 0)?;
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
        let slot = Held::claim(shared)?;
        let number = slot.kernel(&self.id, &self.info.name)?;
        let arena = &*slot.running.arena;
        let packed: Vec<Option<Vec<u8>>> = args
            .iter()
            .map(|arg| if let Arg::Text(texts) = arg { Some(pack_texts(texts)) } else { None })
            .collect();
        let bytes = needed(arena, args, outputs, &packed)?;
        let mut blocks = Blocks::reserve(arena, bytes, shared.options.deadline)?;
        let mut call = Call {
            kernel: number,
            workspace: run.declared_workspace(),
            args: Vec::with_capacity(args.len()),
            outputs: Vec::with_capacity(outputs.len()),
        };
        let mut written_in_place = false;
        for (arg, packed) in args.iter().zip(&packed) {
            call.args.push(match arg {
                Arg::Absent => SentArg::Absent,
                Arg::Value(value) => SentArg::Value(*value),
                Arg::Tensor(view) => SentArg::Tensor(send(&mut blocks, view)?),
                Arg::TensorMut(tensor) => {
                    let view = tensor.as_view();
                    written_in_place |= inside(arena, &view).is_some();
                    SentArg::Written(send(&mut blocks, &view)?)
                }
                Arg::Text(_) => SentArg::Texts(blocks.put(packed.as_deref().unwrap_or_default())?),
                Arg::Handle(handle) => SentArg::Tokenizer(handle.digest(), None),
            });
        }
        for output in outputs.iter() {
            call.outputs.push(match output {
                OutArg::Absent => SentOut::Absent,
                OutArg::Tensor(tensor) => {
                    let view = tensor.as_view();
                    SentOut::Tensor(inside(arena, &view).map_or_else(|| blocks.place(view.layout()), Ok)?)
                }
                OutArg::Dynamic(_) => SentOut::Dynamic,
                OutArg::Text(_) => SentOut::Texts,
            });
        }
        let made = self.perform(&slot, &mut blocks, &mut call, args).map_err(|error| {
            // What was copied is as it was: only tensors that lie in the shared memory can have been changed.
            if written_in_place { error } else { error.before_writing() }
        })?;
        for (arg, sent) in args.iter_mut().zip(&call.args) {
            if let (Arg::TensorMut(tensor), SentArg::Written(placed)) = (arg, sent) {
                fetch(arena, placed, tensor);
            }
        }
        let mut made = made.into_iter();
        for (output, sent) in outputs.iter_mut().zip(&call.outputs) {
            match (output, sent) {
                (OutArg::Tensor(tensor), SentOut::Tensor(placed)) => fetch(arena, placed, tensor),
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

/// Bytes that a call needs in the arena, apart from what turns up while it runs.
fn needed(
    arena: &Arena,
    args: &[Arg<'_>],
    outputs: &[OutArg<'_>],
    packed: &[Option<Vec<u8>>],
) -> Result<usize, KernelError> {
    let mut total = Some(0usize);
    let mut add = |bytes: Option<usize>| {
        total = total.and_then(|total| total.checked_add(rounded(bytes?)?));
    };
    for (arg, packed) in args.iter().zip(packed) {
        let view = match arg {
            Arg::Tensor(view) => *view,
            Arg::TensorMut(tensor) => tensor.as_view(),
            Arg::Absent | Arg::Value(_) | Arg::Text(_) | Arg::Handle(_) => {
                packed.iter().for_each(|packed| add(Some(packed.len())));
                continue;
            }
        };
        host_only(&view)?;
        if inside(arena, &view).is_none() {
            add(bytes_of(view.layout()));
        }
    }
    for output in outputs {
        let OutArg::Tensor(tensor) = output else { continue };
        let view = tensor.as_view();
        host_only(&view)?;
        if inside(arena, &view).is_none() {
            add(bytes_of(view.layout()));
        }
    }
    total.ok_or_else(|| out_of_memory("the tensors of the call are larger than the address space"))
}

/// A result whose size was not known before.
enum Made {
    Tensor(Tensor),
    Texts(Vec<String>),
}

impl RemoteKernel {
    /// Asks until the call is done: the worker may want the definition of a tokenizer first, and results whose size it found out
    /// are fetched afterwards.
    fn perform(
        &self,
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
            Answer::Done if call.held_outputs().is_empty() => return Ok(Vec::new()),
            Answer::Held(held) => held,
            Answer::Failed(failed) => return Err(failed.into_error()),
            Answer::Done | Answer::Unknown(_) => return Err(slot.nonsense()),
        };
        let wrong = |why: String| slot.broken(&format!("{}: {why}; the worker was stopped", self.id));
        let schema = self.info.schema();
        let bound = check::check_call(schema, args, None).map_err(KernelError::invalid)?;
        let outputs =
            stated(call, &held).ok_or_else(|| wrong("other results than were asked for".to_owned()))?;
        check::check_produced(schema, &bound, &outputs).map_err(|reason| wrong(reason.to_string()))?;
        let mut placed = Vec::with_capacity(held.len());
        for output in &held {
            let bytes = match output {
                HeldOut::Tensor(dtype, shape) => {
                    Layout::contiguous(shape, *dtype).ok().as_ref().and_then(bytes_of)
                }
                HeldOut::Texts(bytes) => usize::try_from(*bytes).ok(),
            };
            placed.push(blocks.take(bytes.ok_or_else(|| slot.nonsense())?)?);
        }
        match slot.ask(&Request::Fetch(placed.clone()))? {
            Answer::Done => {}
            Answer::Failed(failed) => return Err(failed.into_error()),
            Answer::Held(_) | Answer::Unknown(_) => return Err(slot.nonsense()),
        }
        let mut made = Vec::with_capacity(held.len());
        for ((output, number), block) in held.iter().zip(&call.held_outputs()).zip(placed) {
            let bytes = blocks.get(block);
            made.push(match output {
                HeldOut::Texts(_) => {
                    let texts = unpack_texts(&bytes).ok_or_else(|| slot.nonsense())?;
                    let produced = (*number, None, &[texts.len() as i64][..]);
                    check::check_produced(schema, &bound, &[produced])
                        .map_err(|reason| wrong(reason.to_string()))?;
                    Made::Texts(texts)
                }
                HeldOut::Tensor(dtype, shape) => {
                    let mut tensor = Tensor::zeros(shape, *dtype).map_err(KernelError::because)?;
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
}

/// The results that the worker states, as they are checked; `None` if they are not as many, or text where a tensor belongs.
fn stated<'h>(call: &Call, held: &'h [HeldOut]) -> Option<Vec<Produced<'h>>> {
    let expected = call.held_outputs();
    let one = |(number, held): (usize, &'h HeldOut)| match (held, call.outputs.get(number)?) {
        (HeldOut::Tensor(dtype, shape), SentOut::Dynamic) => Some(Some((number, Some(*dtype), &shape[..]))),
        // How many there are is known once they were fetched.
        (HeldOut::Texts(_), SentOut::Texts) => Some(None),
        _ => None,
    };
    let stated: Option<Vec<Option<Produced<'h>>>> =
        (expected.len() == held.len()).then(|| expected.into_iter().zip(held).map(one).collect())?;
    Some(stated?.into_iter().flatten().collect())
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
fn send(blocks: &mut Blocks<'_>, view: &TensorView<'_>) -> Result<Placed, KernelError> {
    if let Some(placed) = inside(blocks.arena, view) {
        return Ok(placed);
    }
    let placed = blocks.place(view.layout())?;
    // SAFETY: a block of its own, which nobody else knows yet.
    if let Some(mut to) = unsafe { lent(blocks.arena, &placed) } {
        copy(view, &mut to);
    }
    Ok(placed)
}

/// Copies a result to where the caller wants it, unless it lies there already.
fn fetch(arena: &Arena, placed: &Placed, to: &mut TensorMut<'_>) {
    // SAFETY: the call is over; a worker that writes on only changes which bytes are copied.
    if let Some(from) = unsafe { lent(arena, placed) }
        && from.address() != to.address()
    {
        copy(&from.as_view(), to);
    }
}
