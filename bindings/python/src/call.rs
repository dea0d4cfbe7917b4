//! One call from Python: what every generated function does around its checks. A frame lives as long as the call.

use lz_core::run::{CallStream, Scratch};
use lz_core::tensor::Place as Device;
use lz_core::{
    Cause, Context, Error, KernelEntry, KernelError, OperationInfo, Reason, ReasonCode, Run, TensorMut,
    TensorView,
};
use lz_engine::Moment;
use pyo3::Borrowed;
use pyo3::exceptions::{PyException, PyMemoryError, PyNotImplementedError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::cuda;
use crate::engine::engine;
use crate::error::{raise, refuse};
use crate::hosted::Hosted;
use crate::plan::{Planned, Way};
use crate::tensor::{Hold, Kind, Problem, torch};
use crate::text;

/// An argument that may be missing.
pub type Given<'a, 'py> = Option<Borrowed<'a, 'py, PyAny>>;

/// Elements above which a call is worth releasing the interpreter lock for. Releasing and taking it costs 65 ns and invites
/// other threads in between; kernels touch this many elements in a microsecond or two.
const WORTH_RELEASING: i64 = 8192;

/// Elements that one byte of text or one token counts as: tokenizers take about 10 ns for it.
const TOKENIZER_WEIGHT: i64 = 16;

/// Python's own error, that of torch for a device's memory, which is no kind of the former, or that of torch's allocator for
/// the host, which has no type of its own.
fn is_out_of_memory(py: Python<'_>, error: &PyErr) -> bool {
    let named = || error.get_type(py).name().is_ok_and(|name| name == "OutOfMemoryError");
    let of_host = || {
        error.is_instance_of::<PyRuntimeError>(py)
            && error.value(py).to_string().contains("DefaultCPUAllocator: can't allocate memory")
    };
    error.is_instance_of::<PyMemoryError>(py) || named() || of_host()
}

/// An exception of a kernel, with its cause: only what is an `Exception` and says nothing else is the kernel's fault.
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

/// Where a call on a device runs, for as long as it is made.
pub struct There {
    capture: Option<cuda::Capture>,
    _stream: CallStream,
}

impl There {
    /// The state in which the call is to be decided, if that is not the present one.
    #[inline]
    fn moment(&self) -> Option<&Moment> {
        self.capture.as_ref().and_then(|capture| capture.moment.as_ref())
    }
}

/// What is known of a call while it is made.
pub struct Frame<'a, 'py> {
    /// The interpreter.
    pub py: Python<'py>,
    /// What is called.
    pub operation: &'static OperationInfo,
    /// Who decides.
    pub way: Way<'a>,
    /// The first tensor: results are of its kind and on its device.
    like: Given<'a, 'py>,
    like_name: &'static str,
    kind: Kind,
    device: Device,
    elements: i64,
    failure: Option<PyErr>,
    stopped: bool,
    result: Option<Bound<'py, PyAny>>,
}

impl<'a, 'py> Frame<'a, 'py> {
    /// At the beginning of a call.
    #[inline]
    pub fn new(py: Python<'py>, operation: &'static OperationInfo, way: Way<'a>) -> Frame<'a, 'py> {
        Frame {
            py,
            operation,
            way,
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

    /// Borrows a tensor that is read.
    #[inline]
    pub fn tensor(
        &mut self,
        name: &'static str,
        object: Given<'a, 'py>,
        view: &mut TensorView<'_>,
        hold: &mut Hold,
    ) -> PyResult<()> {
        let Some(object) = object else { return Err(self.refuse_nothing(name)) };
        if let Err(problem) = hold.fill(object, view) {
            return Err(self.refuse_problem(name, problem));
        }
        if self.like.is_none() {
            self.like = Some(object);
            self.like_name = name;
            self.kind = hold.kind;
            self.device = view.place();
        } else if self.kind != hold.kind {
            return Err(self.refuse_kind(name, hold.kind));
        }
        self.elements = self.elements.saturating_add(view.elements());
        Ok(())
    }

    /// Borrows a tensor that may be missing.
    #[inline]
    pub fn optional(
        &mut self,
        name: &'static str,
        object: Given<'a, 'py>,
        view: &mut Option<TensorView<'_>>,
        hold: &mut Hold,
    ) -> PyResult<()> {
        if object.is_none() {
            return Ok(());
        }
        self.tensor(name, object, view.insert(TensorView::empty()), hold)
    }

    /// Borrows a tensor that is written.
    #[inline]
    pub fn writable(
        &mut self,
        name: &'static str,
        object: Given<'a, 'py>,
        tensor: &mut TensorMut<'_>,
        hold: &mut Hold,
    ) -> PyResult<()> {
        // SAFETY: what is described is the object's own memory, and what may not be written is refused.
        self.tensor(name, object, unsafe { tensor.description() }, hold)?;
        if hold.is_read_only() {
            return Err(self.refuse_read_only(name));
        }
        Ok(())
    }

    /// Borrows a place that the caller gave for a result.
    #[inline]
    pub fn place(
        &mut self,
        name: &'static str,
        object: Borrowed<'_, 'py, PyAny>,
        tensor: &mut TensorMut<'_>,
        hold: &mut Hold,
    ) -> PyResult<()> {
        // SAFETY: as in `writable`.
        if let Err(problem) = hold.fill(object, unsafe { tensor.description() }) {
            return Err(self.refuse_problem(name, problem));
        }
        if self.kind != hold.kind && self.like.is_some() {
            return Err(self.refuse_kind(name, hold.kind));
        }
        if hold.is_read_only() {
            return Err(self.refuse_read_only(name));
        }
        self.elements = self.elements.saturating_add(tensor.elements());
        Ok(())
    }

    /// Borrows a tensor that is written, and may be missing.
    #[allow(dead_code, reason = "the catalogue has no such input today, but a schema may")]
    pub fn optional_writable(
        &mut self,
        name: &'static str,
        object: Given<'a, 'py>,
        tensor: &mut Option<TensorMut<'_>>,
        hold: &mut Hold,
    ) -> PyResult<()> {
        if object.is_none() {
            return Ok(());
        }
        self.writable(name, object, tensor.insert(TensorMut::empty()), hold)
    }

    /// Strings.
    pub fn texts(&mut self, name: &'static str, object: Given<'a, 'py>) -> PyResult<text::Texts<'py>> {
        let Some(object) = object else { return Err(self.refuse_nothing(name)) };
        let texts = text::Texts::new(&self.operation.name, name, &object)?;
        self.count(i64::try_from(texts.bytes()).unwrap_or(i64::MAX));
        Ok(texts)
    }

    /// A tokenizer. Each byte or token so far takes it as long as several elements of a tensor.
    pub fn tokenizer(
        &mut self,
        name: &'static str,
        object: Given<'a, 'py>,
    ) -> PyResult<std::sync::Arc<lz_ops::tokenizer::Tokenizer>> {
        let Some(object) = object else { return Err(self.refuse_nothing(name)) };
        self.elements = self.elements.saturating_mul(TOKENIZER_WEIGHT);
        text::tokenizer(&self.operation.name, name, &object)
    }

    /// A number.
    #[inline]
    pub fn float(&self, name: &'static str, object: Given<'_, 'py>) -> PyResult<Option<f64>> {
        let Some(object) = object else { return Ok(None) };
        // SAFETY: the object is alive; -1 with an exception set means that it is no number.
        let value = unsafe { ffi::PyFloat_AsDouble(object.as_ptr()) };
        if value == -1.0 && PyErr::occurred(self.py) {
            return Err(self.refuse_param(name, "a number", object));
        }
        Ok(Some(value))
    }

    /// A number, rounded to single precision.
    #[inline]
    pub fn float32(&self, name: &'static str, object: Given<'_, 'py>) -> PyResult<Option<f32>> {
        Ok(self.float(name, object)?.map(|value| value as f32))
    }

    /// A whole number.
    #[inline]
    pub fn int(&self, name: &'static str, object: Given<'_, 'py>) -> PyResult<Option<i64>> {
        let Some(object) = object else { return Ok(None) };
        match object.extract() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.refuse_param(name, "a whole number of 64 bits", object)),
        }
    }

    /// A truth value.
    #[inline]
    pub fn bool(&self, name: &'static str, object: Given<'_, 'py>) -> PyResult<Option<bool>> {
        let Some(object) = object else { return Ok(None) };
        match object.extract() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.refuse_param(name, "True or False", object)),
        }
    }

    /// The number of an enum case by its spelling.
    #[inline]
    pub fn case(&self, name: &str, cases: &[&str], object: Given<'_, 'py>) -> PyResult<Option<u32>> {
        let Some(object) = object else { return Ok(None) };
        let place =
            object.extract::<&str>().ok().and_then(|text| cases.iter().position(|case| *case == text));
        match place {
            Some(place) => Ok(Some(place as u32)),
            None => Err(self.refuse_param(name, &format!("one of {}", cases.join(", ")), object)),
        }
    }

    /// Whether an enum param is one of these cases.
    #[inline]
    pub fn is_one_of(object: Given<'_, 'py>, cases: &[&str]) -> bool {
        object.and_then(|object| object.extract::<&str>().ok()).is_some_and(|text| cases.contains(&text))
    }

    /// A param that has no default.
    #[inline]
    pub fn must<T>(&self, name: &'static str, value: Option<T>) -> PyResult<T> {
        value.ok_or_else(|| self.refuse_nothing(name))
    }

    /// What results are like: whose kind, and where.
    pub fn like(&self) -> (Given<'a, 'py>, Kind, Device) {
        (self.like, self.kind, self.device)
    }

    /// Counts the elements of a result.
    #[inline]
    pub fn count(&mut self, elements: i64) {
        self.elements = self.elements.saturating_add(elements);
    }

    /// Lets the engine decide and run; or one of the two.
    #[inline]
    pub fn dispatch(
        &mut self,
        context: &Context,
        mut run_one: impl FnMut(&mut Frame<'a, 'py>, &KernelEntry, &mut Run<'_>) -> Result<(), KernelError>,
    ) -> PyResult<()> {
        let engine = engine()?;
        let there = self.on_its_device();
        let (operation, way) = (self.operation, self.way);
        let mut one = |entry: &KernelEntry, run: &mut Run<'_>| {
            if entry.spec.runs_in.is_some() {
                // Another process does the work, and however little it is, this one must not wait with the lock.
                self.elements = i64::MAX;
            }
            run_one(self, entry, run)
        };
        let outcome = match (way, there.as_ref().and_then(There::moment)) {
            (Way::Decide, None) => engine.dispatch(operation, context, &mut one),
            (Way::Decide, Some(moment)) => engine.dispatch_at(moment, operation, context, &mut one),
            (Way::Along(planned), _) => engine.run_pinned(&planned.pinned, context, &mut one),
            (Way::Plan(kept), _) => engine
                .pin(operation, context, &mut |entry| match Hosted::of(entry) {
                    // A kernel in Python that is called while something is planned plans.
                    Some(_) => one(entry, &mut Run::unbounded(&mut Scratch::default())),
                    None => Ok(()),
                })
                .map(|pinned| {
                    let run = self.result.take().map(Bound::unbind);
                    kept.get_or_init(|| Planned { pinned, run });
                }),
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(error) => Err(self.raise(&error)),
        }
    }

    /// Kernels run on the stream that the caller's library works on, and know whether that is being captured.
    #[inline]
    pub fn on_its_device(&self) -> Option<There> {
        if self.device.is_host() {
            return None;
        }
        cuda::look_whether_enough(self.device);
        let stream = torch::stream(self.py, self.device);
        Some(There { capture: cuda::capture(stream), _stream: lz_core::run::for_call(stream) })
    }

    /// Whether kernels run on a device and return before they are done.
    pub fn is_asynchronous(&self) -> bool {
        !self.device.is_host()
    }

    /// Runs a native kernel, without the interpreter lock if it takes long enough.
    #[inline]
    pub fn native(&self, run: impl FnOnce() -> Result<(), KernelError> + Send) -> Result<(), KernelError> {
        if self.elements >= WORTH_RELEASING { self.py.detach(run) } else { run() }
    }

    /// What a kernel in Python returned by itself.
    #[inline]
    pub fn take_result(&mut self) -> Option<Bound<'py, PyAny>> {
        self.result.take()
    }

    /// Keeps what a kernel in Python returned.
    pub fn keep_result(&mut self, result: Bound<'py, PyAny>) {
        self.result = Some(result);
    }

    /// An exception inside of a kernel, as the engine takes it. One that ends the program is not for the engine to handle.
    #[cold]
    pub fn failed(&mut self, error: PyErr) -> KernelError {
        let failure = failure_of(self.py, &error);
        self.stopped = failure.reason.code == ReasonCode::CallInterrupted;
        if failure.reason.code == ReasonCode::OutOfMemory && self.is_asynchronous() {
            cuda::memory_ran_out();
        }
        self.failure = Some(error);
        failure
    }

    /// The caller's library could not allocate a result: no kernel has run, so none is at fault.
    #[cold]
    pub fn unallocated(&mut self, error: PyErr) -> KernelError {
        let failed = self.failed(error).before_writing();
        if failed.cause == Cause::Kernel { failed.cause(Cause::Environment) } else { failed }
    }

    /// Takes the exception that ended the program's call inside of a kernel, if one did.
    pub fn take_interruption(&mut self) -> Option<PyErr> {
        if self.stopped { self.failure.take() } else { None }
    }

    /// The exception for an error of the engine; an exception of a kernel is its cause.
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
    fn refuse_nothing(&self, name: &str) -> PyErr {
        let reason = Reason::new(ReasonCode::MissingArgument).argument(name).found("None".to_owned());
        refuse(self.py, &self.operation.name, reason)
    }

    #[cold]
    fn refuse_problem(&self, name: &str, problem: Problem) -> PyErr {
        match problem {
            Problem::Python(error) => error,
            Problem::Reason(reason) => {
                // Whoever looked at the tensor did not know its name.
                let sentence = reason.message.as_ref().map(|sentence| format!("{name}: {sentence}"));
                let reason = reason.argument(name);
                let reason = sentence.into_iter().fold(reason, Reason::message);
                refuse(self.py, &self.operation.name, reason)
            }
        }
    }

    #[cold]
    fn refuse_kind(&self, name: &str, kind: Kind) -> PyErr {
        let reason = Reason::new(ReasonCode::ArgumentKind)
            .argument(name)
            .required(format!("{}, as {} is", self.kind.name(), self.like_name))
            .found(kind.name().to_owned());
        refuse(self.py, &self.operation.name, reason)
    }

    /// A place that cannot be written.
    #[cold]
    pub fn refuse_read_only(&self, name: &str) -> PyErr {
        let reason = Reason::new(ReasonCode::ReadOnlyOutput)
            .argument(name)
            .message(format!("{name} is read-only, but must be written"));
        refuse(self.py, &self.operation.name, reason)
    }

    #[cold]
    fn refuse_param(&self, name: &str, required: &str, object: Borrowed<'_, 'py, PyAny>) -> PyErr {
        // Whatever exception the conversion set is told better by the reason.
        drop(PyErr::take(self.py));
        let found = object.repr().map_or_else(|_| object.get_type().to_string(), |text| text.to_string());
        let reason =
            Reason::new(ReasonCode::ParamType).argument(name).required(required.to_owned()).found(found);
        refuse(self.py, &self.operation.name, reason)
    }
}
