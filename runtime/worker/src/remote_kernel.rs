//! The host-side proxy of a kernel that runs in a worker.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use lz_core::check::{self, Produced};
use lz_core::tensor::{Device, Indices, Layout};
use lz_core::{
    Arg, Kernel, KernelError, KernelSpec, OperationInfo, OutArg, Reason, ReasonCode, Run, Tensor, TensorMut,
    TensorView,
};
use lz_ops::tokenizer::Tokenizer;

use crate::arena::{AllocationError, Arena, ArenaTensor, Block, rounded};
use crate::failure::{self, no_copy, out_of_memory};
use crate::message::{Answer, Call, PendingOutput, Request, WireArg, WireOutput};
use crate::slot::SlotGuard;
use crate::wait::WaitDeadline;
use crate::wire::{UnpackError, pack_texts, try_with_capacity, unpack_texts};
use crate::worker_state::WorkerState;

/// A kernel of a worker.
#[derive(Debug)]
pub struct RemoteKernel {
    shared: Arc<WorkerState>,
    info: &'static OperationInfo,
    id: String,
}

impl RemoteKernel {
    pub(crate) fn new(
        shared: Arc<WorkerState>,
        spec: &KernelSpec,
        info: &'static OperationInfo,
    ) -> RemoteKernel {
        RemoteKernel { shared, info, id: spec.id.clone() }
    }
}

/// The arena blocks of one call; released on drop.
struct Blocks<'a> {
    arena: &'a Arena,
    allocated: Vec<(usize, usize)>,
    /// The unused rest of the block that was reserved for arguments and outputs.
    reserved: (usize, usize),
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        for (offset, bytes) in &self.allocated {
            self.arena.release(*offset, *bytes);
        }
    }
}

impl<'a> Blocks<'a> {
    /// Reserves one block, waiting for other calls to release memory. One block, because two calls that each hold half of what they need
    /// would deadlock.
    fn reserve(arena: &'a Arena, bytes: usize, deadline: Duration) -> Result<Blocks<'a>, KernelError> {
        let mut blocks = Blocks { arena, allocated: Vec::new(), reserved: (0, 0) };
        if bytes > 0 {
            let offset = arena.wait_for(bytes, WaitDeadline::new(deadline)).map_err(|why| match why {
                AllocationError::TooLarge => blocks.too_large(bytes),
                AllocationError::Wait(stop) => {
                    failure::wait_failed(stop, "enough of the worker's shared memory", deadline)
                }
            })?;
            blocks.allocated.push((offset, bytes));
            blocks.reserved = (offset, offset + bytes);
        }
        Ok(blocks)
    }

    #[cold]
    fn too_large(&self, bytes: usize) -> KernelError {
        let (bytes, limit) = (bytes.div_ceil(1 << 20), self.arena.memory().size() >> 20);
        out_of_memory(format!(
            "the call needs {bytes} MiB of the worker's shared memory, which has {limit} MiB; increase \
             `worker.arena_limit_mb` or pass smaller tensors"
        ))
    }

    /// Allocates bytes: from the reserved block, or, for sizes that become known during the call, from memory that is free now.
    fn take(&mut self, bytes: usize) -> Result<Block, KernelError> {
        let size = rounded(bytes).ok_or_else(|| self.too_large(usize::MAX))?;
        let (next, end) = self.reserved;
        let offset = if end - next >= size {
            self.reserved.0 = next + size;
            next
        } else {
            // Without waiting: the calls that hold the memory may wait for memory of this call.
            let Some(offset) = self.arena.take(size) else { return Err(self.too_large(size)) };
            self.allocated.push((offset, size));
            offset
        };
        Ok(Block { offset: offset as u64, bytes: bytes as u64 })
    }

    /// Allocates a dense tensor with the shape of `layout`.
    fn allocate(&mut self, layout: &Layout) -> Result<ArenaTensor, KernelError> {
        let dense = Layout { strides: layout.shape.contiguous_strides(), device: Device::HOST, ..*layout };
        let bytes = dense_bytes(layout).ok_or_else(|| self.too_large(usize::MAX))?;
        Ok(ArenaTensor { offset: self.take(bytes)?.offset, layout: dense })
    }

    /// Copies bytes into a new block.
    fn put(&mut self, bytes: &[u8]) -> Result<Block, KernelError> {
        let block = self.take(bytes.len())?;
        if let Some(to) = self.arena.memory().at(block.offset as usize, bytes.len()) {
            // SAFETY: a new block that is not shared yet.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        Ok(block)
    }

    /// Copies the bytes of a block.
    fn copy_to(&self, block: Block, to: &mut [u8]) {
        let bytes = to.len().min(block.bytes as usize);
        if let Some(from) = self.arena.memory().at(block.offset as usize, bytes) {
            // SAFETY: inside the memory; any bytes are valid, even if the worker writes concurrently.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes) };
        }
    }

    /// The strings of a block, parsed from a copy, which the worker cannot change.
    fn texts(&self, block: Block) -> Result<Vec<String>, UnpackError> {
        let size = block.bytes as usize;
        let mut bytes = try_with_capacity(size).ok_or(UnpackError::OutOfMemory)?;
        bytes.resize(size, 0);
        self.copy_to(block, &mut bytes);
        unpack_texts(&bytes)
    }
}

/// Bytes of a dense tensor; `None` on overflow.
fn dense_bytes(layout: &Layout) -> Option<usize> {
    usize::try_from(layout.elements()?.checked_mul(layout.dtype.size() as i64)?).ok()
}

/// The tensor in the arena if its memory is there; `None` if it is elsewhere.
fn find_in_arena(arena: &Arena, view: &TensorView<'_>) -> Option<ArenaTensor> {
    let (start, end) = view.address_range()?;
    let bytes = usize::try_from(end - start).ok()?;
    arena.memory().offset_of(usize::try_from(start).ok()?, bytes)?;
    let offset = arena.memory().offset_of(view.address(), 0)?;
    Some(ArenaTensor { offset: offset as u64, layout: *view.layout() })
}

/// A view of a tensor in the arena.
///
/// # Safety
/// The tensor is inside the arena, and nothing else writes it for `'a`.
unsafe fn view_in_arena<'a>(arena: &Arena, arena_tensor: &ArenaTensor) -> Option<TensorMut<'a>> {
    let data = arena.memory().at(usize::try_from(arena_tensor.offset).ok()?, 0)?;
    // SAFETY: forwarded to the caller.
    Some(unsafe { TensorMut::from_raw(data, arena_tensor.layout) })
}

/// Copies every element, bit for bit.
fn copy(from: &TensorView<'_>, to: &mut TensorMut<'_>) {
    if from.layout().is_contiguous() && to.layout().is_contiguous() {
        let bytes = usize::try_from(from.elements()).unwrap_or(0) * from.dtype().size();
        // SAFETY: both are valid, dense and of the same size; one of them is in its own block of the arena.
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
        let slot = SlotGuard::claim(shared)?;
        let number = slot.kernel(&self.id, &self.info.name)?;
        let arena = &*slot.running.arena;
        let mut packed: Vec<Option<Vec<u8>>> = Vec::with_capacity(args.len());
        for arg in args.iter() {
            packed.push(match arg {
                Arg::Text(texts) => Some(
                    pack_texts(texts)
                        .ok_or_else(|| no_copy(texts.iter().map(|text| text.len()).sum()).before_writing())?,
                ),
                _ => None,
            });
        }
        let bytes = required_bytes(arena, args, outputs, &packed)?;
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
                Arg::Absent => WireArg::Absent,
                Arg::Value(value) => WireArg::Value(*value),
                Arg::Tensor(view) => WireArg::Tensor(send(&mut blocks, view)?),
                Arg::TensorMut(tensor) => {
                    let view = tensor.as_view();
                    written_in_place |= find_in_arena(arena, &view).is_some();
                    WireArg::TensorMut(send(&mut blocks, &view)?)
                }
                Arg::Text(_) => WireArg::Texts(blocks.put(packed.as_deref().unwrap_or_default())?),
                Arg::Handle(handle) => WireArg::Tokenizer(handle.digest(), None),
            });
        }
        for output in outputs.iter() {
            call.outputs.push(match output {
                OutArg::Absent => WireOutput::Absent,
                OutArg::Tensor(tensor) => {
                    let view = tensor.as_view();
                    WireOutput::Tensor(
                        find_in_arena(arena, &view).map_or_else(|| blocks.allocate(view.layout()), Ok)?,
                    )
                }
                OutArg::Dynamic(_) => WireOutput::Dynamic,
                OutArg::Text(_) => WireOutput::Texts,
            });
        }
        let produced = self.perform(&slot, &mut blocks, &mut call, args).map_err(|error| {
            // Copied tensors are unchanged: only tensors in the arena may have been modified.
            if written_in_place { error } else { error.before_writing() }
        })?;
        for (arg, sent) in args.iter_mut().zip(&call.args) {
            if let (Arg::TensorMut(tensor), WireArg::TensorMut(arena_tensor)) = (arg, sent) {
                fetch(arena, arena_tensor, tensor);
            }
        }
        let mut produced = produced.into_iter();
        for (output, sent) in outputs.iter_mut().zip(&call.outputs) {
            match (output, sent) {
                (OutArg::Tensor(tensor), WireOutput::Tensor(arena_tensor)) => {
                    fetch(arena, arena_tensor, tensor)
                }
                (OutArg::Dynamic(output), WireOutput::Dynamic) => match produced.next() {
                    Some(DynamicOutput::Tensor(tensor)) => **output = Some(tensor),
                    _ => return Err(slot.invalid_answer()),
                },
                (OutArg::Text(output), WireOutput::Texts) => match produced.next() {
                    Some(DynamicOutput::Texts(texts)) => **output = Some(texts),
                    _ => return Err(slot.invalid_answer()),
                },
                _ => {}
            }
        }
        Ok(())
    }
}

/// Arena bytes of a call, without those that become known during the call.
fn required_bytes(
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
        if find_in_arena(arena, &view).is_none() {
            add(dense_bytes(view.layout()));
        }
    }
    for output in outputs {
        let OutArg::Tensor(tensor) = output else { continue };
        let view = tensor.as_view();
        host_only(&view)?;
        if find_in_arena(arena, &view).is_none() {
            add(dense_bytes(view.layout()));
        }
    }
    total.ok_or_else(|| out_of_memory("the total size of the call's tensors exceeds the address space"))
}

/// An output whose size the kernel determined.
enum DynamicOutput {
    Tensor(Tensor),
    Texts(Vec<String>),
}

impl RemoteKernel {
    /// Runs the call: sends definitions of tokenizers that the worker does not have, and fetches dynamic outputs afterwards.
    fn perform(
        &self,
        slot: &SlotGuard<'_>,
        blocks: &mut Blocks<'_>,
        call: &mut Call,
        args: &[Arg<'_>],
    ) -> Result<Vec<DynamicOutput>, KernelError> {
        let mut answer = slot.request(&Request::Call(call.clone()))?;
        // At most once for each argument, so that a worker cannot request definitions forever.
        for _ in 0..args.len() {
            let Answer::UnknownTokenizer(unknown) = answer else { break };
            for (arg, sent) in args.iter().zip(&mut call.args) {
                if let (Arg::Handle(handle), WireArg::Tokenizer(digest, json)) = (arg, sent)
                    && *digest == unknown
                {
                    *json = Some(blocks.put(Tokenizer::from_handle(*handle)?.json())?);
                }
            }
            answer = slot.request(&Request::Call(call.clone()))?;
        }
        let pending = match answer {
            Answer::Done if call.dynamic_outputs().is_empty() => return Ok(Vec::new()),
            Answer::Pending(pending) => pending,
            Answer::Failed(failed) => return Err(failed.into_error()),
            Answer::Done | Answer::UnknownTokenizer(_) => return Err(slot.invalid_answer()),
        };
        let wrong =
            |why: String| slot.protocol_violation(&format!("{}: {why}; the worker was stopped", self.id));
        let schema = self.info.schema();
        let bound = check::check_call(schema, args, None).map_err(KernelError::invalid)?;
        let reported = produced_outputs(call, &pending)
            .ok_or_else(|| wrong("the answer has other outputs than the call".to_owned()))?;
        check::check_produced(schema, &bound, &reported).map_err(|reason| wrong(reason.to_string()))?;
        let mut blocks_for_pending = Vec::with_capacity(pending.len());
        for output in &pending {
            let bytes = match output {
                PendingOutput::Tensor(dtype, shape) => {
                    Layout::contiguous(shape, *dtype).ok().as_ref().and_then(dense_bytes)
                }
                PendingOutput::Texts(bytes) => usize::try_from(*bytes).ok(),
            };
            let block = blocks.take(bytes.ok_or_else(|| slot.invalid_answer())?);
            // The kernel ran, so the caller decides whether it may have written something.
            blocks_for_pending.push(block.map_err(|error| KernelError { untouched: false, ..error })?);
        }
        match slot.request(&Request::Fetch(blocks_for_pending.clone()))? {
            Answer::Done => {}
            Answer::Failed(failed) => return Err(failed.into_error()),
            Answer::Pending(_) | Answer::UnknownTokenizer(_) => return Err(slot.invalid_answer()),
        }
        let mut outputs = Vec::with_capacity(pending.len());
        for ((output, number), block) in pending.iter().zip(&call.dynamic_outputs()).zip(blocks_for_pending) {
            outputs.push(match output {
                PendingOutput::Texts(_) => {
                    let texts = blocks.texts(block).map_err(|error| match error {
                        UnpackError::Invalid => slot.invalid_answer(),
                        UnpackError::OutOfMemory => no_copy(block.bytes as usize),
                    })?;
                    let produced = (*number, None, &[texts.len() as i64][..]);
                    check::check_produced(schema, &bound, &[produced])
                        .map_err(|reason| wrong(reason.to_string()))?;
                    DynamicOutput::Texts(texts)
                }
                PendingOutput::Tensor(dtype, shape) => {
                    let mut tensor = Tensor::zeros(shape, *dtype).map_err(KernelError::because)?;
                    match tensor.bytes_mut() {
                        memory if memory.len() as u64 == block.bytes => blocks.copy_to(block, memory),
                        _ => return Err(slot.invalid_answer()),
                    }
                    DynamicOutput::Tensor(tensor)
                }
            });
        }
        Ok(outputs)
    }
}

/// The reported outputs in the form for validation; `None` if their number or kind does not match the call.
fn produced_outputs<'h>(call: &Call, pending: &'h [PendingOutput]) -> Option<Vec<Produced<'h>>> {
    let expected = call.dynamic_outputs();
    let one = |(number, pending): (usize, &'h PendingOutput)| match (pending, call.outputs.get(number)?) {
        (PendingOutput::Tensor(dtype, shape), WireOutput::Dynamic) => {
            Some(Some((number, Some(*dtype), &shape[..])))
        }
        // The number of strings is known only after fetching.
        (PendingOutput::Texts(_), WireOutput::Texts) => Some(None),
        _ => None,
    };
    let stated: Option<Vec<Option<Produced<'h>>>> =
        (expected.len() == pending.len()).then(|| expected.into_iter().zip(pending).map(one).collect())?;
    Some(stated?.into_iter().flatten().collect())
}

fn host_only(view: &TensorView<'_>) -> Result<(), KernelError> {
    if view.device().is_host() {
        return Ok(());
    }
    let reason = Reason::new(ReasonCode::DeviceMismatch)
        .required("tensors in host memory: kernels in a worker process cannot access device memory")
        .found(view.device().to_string());
    Err(KernelError::because(reason).before_writing())
}

/// The arena tensor for an argument: the tensor itself if it is in the arena, else a copy.
fn send(blocks: &mut Blocks<'_>, view: &TensorView<'_>) -> Result<ArenaTensor, KernelError> {
    if let Some(arena_tensor) = find_in_arena(blocks.arena, view) {
        return Ok(arena_tensor);
    }
    let arena_tensor = blocks.allocate(view.layout())?;
    // SAFETY: a new block that is not shared yet.
    if let Some(mut to) = unsafe { view_in_arena(blocks.arena, &arena_tensor) } {
        copy(view, &mut to);
    }
    Ok(arena_tensor)
}

/// Copies an output into the caller's tensor, unless it is in the arena.
fn fetch(arena: &Arena, arena_tensor: &ArenaTensor, to: &mut TensorMut<'_>) {
    // SAFETY: the call is finished; a worker that still writes only changes which bytes are copied.
    if let Some(from) = unsafe { view_in_arena(arena, arena_tensor) }
        && from.address() != to.address()
    {
        copy(&from.as_view(), to);
    }
}
