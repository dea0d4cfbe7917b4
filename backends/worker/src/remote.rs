//! A kernel that runs in a worker, as the registry holds it, and tensors that both processes see.

use std::any::Any;
use std::sync::Arc;

use lz_core::tensor::{Indices, Layout, Place};
use lz_core::{Arg, DType, Kernel, KernelError, OutArg, Run, TensorMut, TensorView};

use crate::host::Shared;
use crate::message::{Placed, Request, SentArg, SentOut};

/// A kernel of a worker.
#[derive(Debug)]
pub struct RemoteKernel {
    shared: Arc<Shared>,
    number: usize,
    id: String,
}

impl RemoteKernel {
    pub(crate) fn new(shared: Arc<Shared>, number: usize, id: &str) -> RemoteKernel {
        RemoteKernel { shared, number, id: id.to_owned() }
    }

    fn declined(&self, what: &str) -> KernelError {
        KernelError::failed(format!("{} runs in a worker, and {what} do not cross", self.id)).before_writing()
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
    /// Room for a dense tensor with the sizes of `layout`.
    fn place(&mut self, layout: &Layout) -> Result<Placed, KernelError> {
        let dense = Layout { strides: layout.shape.contiguous_strides(), place: Place::HOST, ..*layout };
        let bytes = dense.elements().and_then(|elements| elements.checked_mul(dense.dtype.size() as i64));
        let block = bytes.and_then(|bytes| {
            let bytes = usize::try_from(bytes).ok()?;
            Some((self.shared.arena.take(bytes)?, bytes))
        });
        let Some((offset, bytes)) = block else {
            let message = "the worker's shared memory is full; give it more, or pass smaller tensors";
            let reason = lz_core::Reason::new(lz_core::ReasonCode::OutOfMemory).message(message);
            return Err(KernelError::because(reason).before_writing());
        };
        self.taken.push((offset, bytes));
        Ok(Placed { offset: offset as u64, layout: dense })
    }
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
        let mut request = Request {
            kernel: self.number as u32,
            workspace: run.declared_workspace(),
            args: Vec::with_capacity(args.len()),
            outputs: Vec::with_capacity(outputs.len()),
        };
        let mut written_in_place = false;
        for arg in args.iter() {
            request.args.push(match arg {
                Arg::Absent => SentArg::Absent,
                Arg::Value(value) => SentArg::Value(*value),
                Arg::Tensor(view) => SentArg::Tensor(send(shared, &mut blocks, view)?),
                Arg::TensorMut(tensor) => {
                    let view = tensor.as_view();
                    written_in_place |= inside(shared, &view).is_some();
                    SentArg::Written(send(shared, &mut blocks, &view)?)
                }
                Arg::Text(_) => return Err(self.declined("texts")),
                Arg::Handle(_) => return Err(self.declined("tokenizers")),
            });
        }
        for output in outputs.iter() {
            request.outputs.push(match output {
                OutArg::Absent => SentOut::Absent,
                OutArg::Tensor(tensor) => {
                    let view = tensor.as_view();
                    host_only(&view)?;
                    let placed = inside(shared, &view).map_or_else(|| blocks.place(view.layout()), Ok)?;
                    SentOut::Tensor(placed)
                }
                OutArg::Dynamic(_) | OutArg::Text(_) => {
                    return Err(self.declined("results whose size is not known before"));
                }
            });
        }
        let outcome = shared.call(&request);
        if let Err(error) = outcome {
            // What was copied is as it was: only tensors that lie in the shared memory can have been changed.
            return Err(if written_in_place { error } else { error.before_writing() });
        }
        for (arg, sent) in args.iter_mut().zip(&request.args) {
            if let (Arg::TensorMut(tensor), SentArg::Written(placed)) = (arg, sent) {
                fetch(shared, placed, tensor);
            }
        }
        for (output, sent) in outputs.iter_mut().zip(&request.outputs) {
            if let (OutArg::Tensor(tensor), SentOut::Tensor(placed)) = (output, sent) {
                fetch(shared, placed, tensor);
            }
        }
        Ok(())
    }
}

fn host_only(view: &TensorView<'_>) -> Result<(), KernelError> {
    if view.place().is_host() {
        return Ok(());
    }
    let message = format!("a tensor on {} does not cross to a worker", view.place());
    Err(KernelError::failed(message).before_writing())
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

/// A tensor in the shared memory.
#[derive(Debug)]
pub struct SharedTensor {
    shared: Arc<Shared>,
    placed: Placed,
    bytes: usize,
}

impl SharedTensor {
    pub(crate) fn new(shared: Arc<Shared>, shape: &[i64], dtype: DType) -> Option<SharedTensor> {
        let layout = Layout::contiguous(shape, dtype).ok()?;
        let bytes = usize::try_from(layout.elements()?.checked_mul(dtype.size() as i64)?).ok()?;
        let offset = shared.arena.take(bytes)?;
        Some(SharedTensor { shared, placed: Placed { offset: offset as u64, layout }, bytes })
    }

    /// To read.
    pub fn view(&self) -> TensorView<'_> {
        let data = self.shared.memory.at(self.placed.offset as usize, self.bytes);
        let data = data.unwrap_or(std::ptr::null_mut());
        // SAFETY: a block of our own, which lives as long as we do.
        unsafe { TensorView::from_raw(data, self.placed.layout) }
    }

    /// To write.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        let data = self.shared.memory.at(self.placed.offset as usize, self.bytes);
        let data = data.unwrap_or(std::ptr::null_mut());
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { TensorMut::from_raw(data, self.placed.layout) }
    }
}

impl Drop for SharedTensor {
    fn drop(&mut self) {
        self.shared.arena.give_back(self.placed.offset as usize, self.bytes);
    }
}
