//! One call from Python: the steps that every generated function shares. A frame lives as long as the call.

use lz_core::run::{CallStream, Scratch};
use lz_core::tensor::Device;
use lz_core::{
    Cause, Context, Error, KernelEntry, KernelError, OperationInfo, Reason, ReasonCode, Run, TensorMut,
    TensorView,
};
use lz_engine::HeldSnapshot;
use pyo3::Borrowed;
use pyo3::exceptions::{PyException, PyMemoryError, PyNotImplementedError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::cuda;
use crate::engine::engine;
use crate::error::{raise, validation_error};
use crate::python_kernel::PythonKernel;
use crate::selection::{PlannedKernel, Selection};
use crate::tensor::{BorrowGuard, Kind, Problem, torch};
use crate::text;
use crate::vectorcall::Argument;

/// Number of elements from which the GIL is released during a call. Releasing and reacquiring it costs 65 ns
/// and lets other threads run in between; kernels process this many elements in one or two microseconds.
const GIL_RELEASE_ELEMENTS: i64 = 8192;

/// Elements that one byte of text or one token counts as: tokenizers need about 10 ns for each.
const TOKENIZER_WEIGHT: i64 = 16;

/// Python's `MemoryError`, torch's `OutOfMemoryError` for device memory (not a subclass of it), or the
/// `RuntimeError` of torch's host allocator, which has no type of its own.
fn is_out_of_memory(py: Python<'_>, error: &PyErr) -> bool {
    let named = || error.get_type(py).name().is_ok_and(|name| name == "OutOfMemoryError");
    let of_host = || {
        error.is_instance_of::<PyRuntimeError>(py)
            && error.value(py).to_string().contains("DefaultCPUAllocator: can't allocate memory")
    };
    error.is_instance_of::<PyMemoryError>(py) || named() || of_host()
}

/// Converts an exception of a kernel to a kernel error with its cause. Only an `Exception` that is neither
/// out-of-memory nor `NotImplementedError` counts as the kernel's failure.
pub fn failure_of(py: Python<'_>, error: &PyErr) -> KernelError {
    let message = error.to_string();
    if !error.is_instance_of::<PyException>(py) {
        return KernelError::interrupted(message);
    }
    if is_out_of_memory(py, error) {
        return KernelError::because(Reason::new(ReasonCode::OutOfMemory).message(message));
    }
    if error.is_instance_of::<PyNotImplementedError>(py) {
        return KernelError::declined(message);
    }
    KernelError::failed(message)
}

/// The device state of a call: its stream and, during CUDA graph capture, the capture. Lives as long as the
/// call.
pub struct DeviceScope {
    capture: Option<cuda::Capture>,
    _stream: CallStream,
}

impl DeviceScope {
    /// The moment under which the kernel is selected, if it is not the present one.
    #[inline]
    fn moment(&self) -> Option<&HeldSnapshot> {
        self.capture.as_ref().and_then(|capture| capture.moment.as_ref())
    }
}

/// The state of a call.
pub struct Frame<'a, 'py> {
    /// The interpreter.
    pub py: Python<'py>,
    /// The operation that is called.
    pub operation: &'static OperationInfo,
    /// How the kernel is selected.
    pub selection: Selection<'a>,
    /// The first tensor: outputs have its kind and are on its device.
    like: Argument<'a, 'py>,
    like_name: &'static str,
    kind: Kind,
    device: Device,
    elements: i64,
    failure: Option<PyErr>,
    stopped: bool,
    result: Option<Bound<'py, PyAny>>,
}

impl<'a, 'py> Frame<'a, 'py> {
    /// Starts a call.
    #[inline]
    pub fn new(
        py: Python<'py>,
        operation: &'static OperationInfo,
        selection: Selection<'a>,
    ) -> Frame<'a, 'py> {
        Frame {
            py,
            operation,
            selection,
            like: None,
            like_name: "",
            kind: Kind::Numpy,
            device: Device::HOST,
            elements: 0,
            failure: None,
            stopped: false,
            result: None,
        }
    }

    /// Borrows an input tensor.
    #[inline]
    pub fn tensor(
        &mut self,
        name: &'static str,
        object: Argument<'a, 'py>,
        view: &mut TensorView<'_>,
        guard: &mut BorrowGuard,
    ) -> PyResult<()> {
        let Some(object) = object else { return Err(self.refuse_missing(name)) };
        if let Err(problem) = guard.fill(object, view) {
            return Err(self.refuse_problem(name, problem));
        }
        if self.like.is_none() {
            if guard.kind == Kind::Text {
                return Err(self.refuse_text(name));
            }
            self.like = Some(object);
            self.like_name = name;
            self.kind = guard.kind;
            self.device = view.device();
        } else if self.kind != guard.kind && guard.kind != Kind::Text {
            return Err(self.refuse_kind(name, guard.kind));
        }
        self.elements = self.elements.saturating_add(view.elements());
        Ok(())
    }

    /// Borrows an optional input tensor.
    #[inline]
    pub fn optional(
        &mut self,
        name: &'static str,
        object: Argument<'a, 'py>,
        view: &mut Option<TensorView<'_>>,
        guard: &mut BorrowGuard,
    ) -> PyResult<()> {
        if object.is_none() {
            return Ok(());
        }
        self.tensor(name, object, view.insert(TensorView::empty()), guard)
    }

    /// Borrows a tensor that is written in place.
    #[inline]
    pub fn writable(
        &mut self,
        name: &'static str,
        object: Argument<'a, 'py>,
        tensor: &mut TensorMut<'_>,
        guard: &mut BorrowGuard,
    ) -> PyResult<()> {
        // SAFETY: the view describes the object's own memory; read-only memory is refused.
        self.tensor(name, object, unsafe { tensor.description() }, guard)?;
        if guard.is_read_only() {
            return Err(self.refuse_read_only(name));
        }
        Ok(())
    }

    /// Borrows an output tensor that the caller passed in `out=`.
    #[inline]
    pub fn output(
        &mut self,
        name: &'static str,
        object: Borrowed<'_, 'py, PyAny>,
        tensor: &mut TensorMut<'_>,
        guard: &mut BorrowGuard,
    ) -> PyResult<()> {
        // SAFETY: as in `writable`.
        if let Err(problem) = guard.fill(object, unsafe { tensor.description() }) {
            return Err(self.refuse_problem(name, problem));
        }
        if self.kind != guard.kind && self.like.is_some() {
            return Err(self.refuse_kind(name, guard.kind));
        }
        if guard.is_read_only() {
            return Err(self.refuse_read_only(name));
        }
        self.elements = self.elements.saturating_add(tensor.elements());
        Ok(())
    }

    /// Borrows an optional tensor that is written in place.
    #[allow(dead_code, reason = "the catalog has no such input today, but a schema may")]
    pub fn optional_writable(
        &mut self,
        name: &'static str,
        object: Argument<'a, 'py>,
        tensor: &mut Option<TensorMut<'_>>,
        guard: &mut BorrowGuard,
    ) -> PyResult<()> {
        if object.is_none() {
            return Ok(());
        }
        self.writable(name, object, tensor.insert(TensorMut::empty()), guard)
    }

    /// Strings.
    pub fn texts(&mut self, name: &'static str, object: Argument<'a, 'py>) -> PyResult<text::Texts<'py>> {
        let Some(object) = object else { return Err(self.refuse_missing(name)) };
        let texts = text::Texts::new(&self.operation.name, name, &object)?;
        self.count(i64::try_from(texts.bytes()).unwrap_or(i64::MAX));
        Ok(texts)
    }

    /// A tokenizer. Each byte or token counted so far costs as much as several tensor elements.
    pub fn tokenizer(
        &mut self,
        name: &'static str,
        object: Argument<'a, 'py>,
    ) -> PyResult<std::sync::Arc<lz_ops::tokenizer::Tokenizer>> {
        let Some(object) = object else { return Err(self.refuse_missing(name)) };
        self.elements = self.elements.saturating_mul(TOKENIZER_WEIGHT);
        text::tokenizer(&self.operation.name, name, &object)
    }

    /// A number.
    #[inline]
    pub fn float(&self, name: &'static str, object: Argument<'_, 'py>) -> PyResult<Option<f64>> {
        let Some(object) = object else { return Ok(None) };
        // SAFETY: the object is alive; -1 with an exception set means that it is not a number.
        let value = unsafe { ffi::PyFloat_AsDouble(object.as_ptr()) };
        if value == -1.0 && PyErr::occurred(self.py) {
            return Err(self.refuse_param(name, "a number", object));
        }
        Ok(Some(value))
    }

    /// A number, rounded to float32.
    #[inline]
    pub fn float32(&self, name: &'static str, object: Argument<'_, 'py>) -> PyResult<Option<f32>> {
        Ok(self.float(name, object)?.map(|value| value as f32))
    }

    /// An integer.
    #[inline]
    pub fn int(&self, name: &'static str, object: Argument<'_, 'py>) -> PyResult<Option<i64>> {
        let Some(object) = object else { return Ok(None) };
        match object.extract() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.refuse_param(name, "a 64-bit integer", object)),
        }
    }

    /// A boolean.
    #[inline]
    pub fn bool(&self, name: &'static str, object: Argument<'_, 'py>) -> PyResult<Option<bool>> {
        let Some(object) = object else { return Ok(None) };
        match object.extract() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.refuse_param(name, "True or False", object)),
        }
    }

    /// The index of an enum case by its name.
    #[inline]
    pub fn case(&self, name: &str, cases: &[&str], object: Argument<'_, 'py>) -> PyResult<Option<u32>> {
        let Some(object) = object else { return Ok(None) };
        let index =
            object.extract::<&str>().ok().and_then(|text| cases.iter().position(|case| *case == text));
        match index {
            Some(index) => Ok(Some(index as u32)),
            None => Err(self.refuse_param(name, &format!("one of {}", cases.join(", ")), object)),
        }
    }

    /// Whether an enum param is one of these cases.
    #[inline]
    pub fn is_one_of(object: Argument<'_, 'py>, cases: &[&str]) -> bool {
        object.and_then(|object| object.extract::<&str>().ok()).is_some_and(|text| cases.contains(&text))
    }

    /// A required param.
    #[inline]
    pub fn must<T>(&self, name: &'static str, value: Option<T>) -> PyResult<T> {
        value.ok_or_else(|| self.refuse_missing(name))
    }

    /// The prototype of the outputs: the first tensor, its kind and its device.
    pub fn like(&self) -> (Argument<'a, 'py>, Kind, Device) {
        (self.like, self.kind, self.device)
    }

    /// Adds the elements of an output.
    #[inline]
    pub fn count(&mut self, elements: i64) {
        self.elements = self.elements.saturating_add(elements);
    }

    /// Has the engine select a kernel and run it; a plan does one of the two.
    #[inline]
    pub fn dispatch(
        &mut self,
        context: &Context,
        mut run_one: impl FnMut(&mut Frame<'a, 'py>, &KernelEntry, &mut Run<'_>) -> Result<(), KernelError>,
    ) -> PyResult<()> {
        let engine = engine()?;
        let device = self.enter_device();
        let (operation, selection) = (self.operation, self.selection);
        let mut one = |entry: &KernelEntry, run: &mut Run<'_>| {
            if entry.spec.runs_in.is_some() {
                // A worker process does the work: release the GIL however small the call is.
                self.elements = i64::MAX;
            }
            run_one(self, entry, run)
        };
        let outcome = match (selection, device.as_ref().and_then(DeviceScope::moment)) {
            (Selection::Select, None) => engine.dispatch(operation, context, &mut one),
            (Selection::Select, Some(moment)) => {
                engine.dispatch_with_snapshot(moment, operation, context, &mut one)
            }
            (Selection::Planned(planned), _) => engine.run_pinned(&planned.pinned, context, &mut one),
            (Selection::Plan(planned), _) => engine
                .pin(operation, context, &mut |entry| match PythonKernel::of(entry) {
                    // While planning, calling a Python kernel means calling its planner.
                    Some(_) => one(entry, &mut Run::unbounded(&mut Scratch::default())),
                    None => Ok(()),
                })
                .map(|pinned| {
                    let run = self.result.take().map(Bound::unbind);
                    planned.get_or_init(|| PlannedKernel { pinned, run });
                }),
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(error) => Err(self.raise(&error)),
        }
    }

    /// Enters the caller's device: kernels run on the stream that the caller's library uses, in the capture
    /// of that stream if there is one.
    #[inline]
    pub fn enter_device(&self) -> Option<DeviceScope> {
        if self.device.is_host() {
            return None;
        }
        cuda::refresh_memory_pressure(self.device);
        let stream = torch::stream(self.py, self.device);
        Some(DeviceScope { capture: cuda::capture(stream), _stream: lz_core::run::for_call(stream) })
    }

    /// Whether kernels run on a device and return before their work is done.
    pub fn is_asynchronous(&self) -> bool {
        !self.device.is_host()
    }

    /// Runs a native kernel; releases the GIL if the call is large enough.
    #[inline]
    pub fn native(&self, run: impl FnOnce() -> Result<(), KernelError> + Send) -> Result<(), KernelError> {
        if self.elements >= GIL_RELEASE_ELEMENTS { self.py.detach(run) } else { run() }
    }

    /// Takes the result that a Python kernel returned.
    #[inline]
    pub fn take_result(&mut self) -> Option<Bound<'py, PyAny>> {
        self.result.take()
    }

    /// The result that a Python kernel returned.
    pub fn result(&self) -> Option<&Bound<'py, PyAny>> {
        self.result.as_ref()
    }

    /// Stores the result that a Python kernel returned.
    pub fn keep_result(&mut self, result: Bound<'py, PyAny>) {
        self.result = Some(result);
    }

    /// Converts an exception raised inside a kernel to a kernel error. Exceptions that end the program are
    /// not handled by the engine.
    #[cold]
    pub fn failed(&mut self, error: PyErr) -> KernelError {
        let failure = failure_of(self.py, &error);
        self.stopped = failure.reason.code == ReasonCode::CallInterrupted;
        if failure.reason.code == ReasonCode::OutOfMemory && self.is_asynchronous() {
            cuda::record_out_of_memory();
        }
        self.failure = Some(error);
        failure
    }

    /// The caller's library could not allocate an output: no kernel has run, so no kernel is at fault.
    #[cold]
    pub fn unallocated(&mut self, error: PyErr) -> KernelError {
        let failed = self.failed(error).before_writing();
        if failed.cause == Cause::Kernel { failed.cause(Cause::Environment) } else { failed }
    }

    /// Takes the exception that interrupted the call inside a kernel, if there is one.
    pub fn take_interruption(&mut self) -> Option<PyErr> {
        if self.stopped { self.failure.take() } else { None }
    }

    /// The exception for an engine error, with the kernel's exception as its cause.
    #[cold]
    pub fn raise(&mut self, error: &Error) -> PyErr {
        let Some(cause) = self.failure.take() else { return raise(self.py, error) };
        if self.stopped {
            return cause;
        }
        let raised = raise(self.py, error);
        raised.set_cause(self.py, Some(cause));
        raised
    }

    #[cold]
    fn refuse_missing(&self, name: &str) -> PyErr {
        let reason = Reason::new(ReasonCode::MissingArgument).argument(name).found("None".to_owned());
        validation_error(self.py, &self.operation.name, reason)
    }

    #[cold]
    fn refuse_problem(&self, name: &str, problem: Problem) -> PyErr {
        match problem {
            Problem::Python(error) => error,
            Problem::Reason(reason) => {
                // The tensor reader did not know the argument's name.
                let sentence = reason.message.as_ref().map(|sentence| format!("{name}: {sentence}"));
                let reason = reason.argument(name);
                let reason = sentence.into_iter().fold(reason, Reason::message);
                validation_error(self.py, &self.operation.name, reason)
            }
        }
    }

    /// The error for a `str` as the first tensor, which determines the library of the outputs.
    #[cold]
    fn refuse_text(&self, name: &str) -> PyErr {
        let reason = Reason::new(ReasonCode::ArgumentKind)
            .argument(name)
            .required("a torch tensor, a numpy array or anything with __dlpack__")
            .found(Kind::Text.name());
        validation_error(self.py, &self.operation.name, reason)
    }

    #[cold]
    fn refuse_kind(&self, name: &str, kind: Kind) -> PyErr {
        let reason = Reason::new(ReasonCode::ArgumentKind)
            .argument(name)
            .required(format!("{}, the same kind as {}", self.kind.name(), self.like_name))
            .found(kind.name().to_owned());
        validation_error(self.py, &self.operation.name, reason)
    }

    /// The error for a tensor that must be written but is read-only.
    #[cold]
    pub fn refuse_read_only(&self, name: &str) -> PyErr {
        let reason = Reason::new(ReasonCode::ReadOnlyOutput)
            .argument(name)
            .message(format!("{name} is read-only, but must be written"));
        validation_error(self.py, &self.operation.name, reason)
    }

    #[cold]
    fn refuse_param(&self, name: &str, required: &str, object: Borrowed<'_, 'py, PyAny>) -> PyErr {
        // The reason describes the problem better than the exception that the conversion set.
        drop(PyErr::take(self.py));
        let found = object.repr().map_or_else(|_| object.get_type().to_string(), |text| text.to_string());
        let reason =
            Reason::new(ReasonCode::ParamType).argument(name).required(required.to_owned()).found(found);
        validation_error(self.py, &self.operation.name, reason)
    }
}
