//! `torch.ops.layerzero` without Python in between: each overload's implementation is a boxed kernel of
//! torch's stable C ABI, which passes the caller's own tensors to the function of the operation.
//!
//! torch calls a boxed kernel with nothing but its arguments, so there is one monomorphized function per
//! overload number. Where torch lacks the ABI nothing is registered, and the Python implementation stays.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libloading::os::unix::Library;
use lz_core::TensorView;
use pyo3::Borrowed;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::private;
use crate::tensor::{BorrowGuard, torch};
use crate::vectorcall::{MAX_ARGUMENTS, PyObject_Vectorcall, TemporaryObjects};

type Handle = *mut c_void;
type Kernel = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

/// The functions of the ABI; all are required.
struct Interface {
    init: unsafe extern "C" fn(*const c_char, *const c_char, *const c_char, u32, *mut Handle) -> c_int,
    implement: unsafe extern "C" fn(Handle, *const c_char, Kernel, u64) -> c_int,
    version: u64,
    to_object: unsafe extern "C" fn(Handle, *mut c_void, *mut *mut ffi::PyObject) -> c_int,
    from_object: unsafe extern "C" fn(*mut ffi::PyObject, *mut Handle) -> c_int,
    delete_tensor: unsafe extern "C" fn(Handle) -> c_int,
    delete_value: unsafe extern "C" fn(*mut u64) -> c_int,
    text: unsafe extern "C" fn(Handle, *mut *const c_char) -> c_int,
    delete_text: unsafe extern "C" fn(Handle) -> c_int,
    /// `PyGILState_Check`, which is public in every release of Python but not part of its limited API.
    is_attached: Option<unsafe extern "C" fn() -> c_int>,
    /// Throws the C++ exception of a failed kernel.
    throw: unsafe extern "C-unwind" fn(*const c_char) -> !,
}

static INTERFACE: OnceLock<Option<Interface>> = OnceLock::new();

fn find(torch: &Bound<'_, PyAny>) -> Option<Interface> {
    let library = torch::library(torch)?;
    // SAFETY: the names and types are those of torch's stable header and of the C++ runtime library, which
    // stay loaded.
    unsafe {
        let version: unsafe extern "C" fn() -> u64 = *library.get(b"aoti_torch_abi_version").ok()?;
        Some(Interface {
            init: *library.get(b"aoti_torch_library_init_impl").ok()?,
            implement: *library.get(b"torch_library_impl").ok()?,
            version: version(),
            to_object: *library.get(b"torch_tensor_to_pyobject").ok()?,
            from_object: *library.get(b"torch_tensor_from_pyobject").ok()?,
            delete_tensor: *library.get(b"aoti_torch_delete_tensor_object").ok()?,
            delete_value: *library.get(b"torch_delete_stable_ivalue").ok()?,
            text: *library.get(b"torch_string_c_str").ok()?,
            delete_text: *library.get(b"torch_delete_string").ok()?,
            is_attached: Library::this().get(b"PyGILState_Check").ok().map(|found| *found),
            throw: *library.get(b"_ZSt21__throw_runtime_errorPKc").ok()?,
        })
    }
}

/// The type of an argument; the flag marks optional ones.
#[derive(Clone, Copy)]
enum Kind {
    Tensor,
    Float,
    Int,
    Bool,
    Text,
}

/// One overload.
struct Overload {
    function: Py<PyAny>,
    kinds: Vec<(Kind, bool)>,
    positional: usize,
    /// Names of the keyword arguments: params, arguments fixed by the overload, `out`.
    names: Py<PyTuple>,
    fixed: Vec<Py<PyAny>>,
    /// How many of the last arguments are output tensors.
    outputs: usize,
    results: usize,
    /// Returns the message for calls whose arguments produce another number of results.
    refuse: Py<PyAny>,
}

/// Upper limit of overloads; the catalog has fewer.
const MAX_OVERLOADS: usize = 256;

static OVERLOADS: [OnceLock<Overload>; MAX_OVERLOADS] = [const { OnceLock::new() }; MAX_OVERLOADS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

macro_rules! kernels {
    ($($high:literal)*) => { [$(kernels!(@row $high, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)),*] };
    (@row $high:literal, $($low:literal)*) => { [$(boxed::<{ $high * 16 + $low }>),*] };
}
static KERNELS: [[Kernel; 16]; 16] = kernels!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

thread_local! {
    /// The message of a failure, which C++ copies at once.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// The boxed kernel of an overload number. Arguments are on the stack, results replace them.
///
/// # Safety
/// For torch to call, with the arguments of the schema that the number was registered for.
unsafe extern "C-unwind" fn boxed<const NUMBER: usize>(stack: *mut u64, _inputs: u64, _results: u64) {
    let (Some(Some(interface)), Some(overload)) = (INTERFACE.get(), OVERLOADS[NUMBER].get()) else { return };
    let done = if interface.is_attached() {
        // SAFETY: this thread holds the GIL, and torch, the caller, does not release it before this returns.
        perform(unsafe { Python::assume_attached() }, interface, overload, stack)
    } else {
        Python::attach(|py| perform(py, interface, overload, stack))
    };
    if !done {
        let message = MESSAGE.with_borrow(|message| message.as_ptr());
        // SAFETY: the message is null-terminated and lives until this thread's next failure; nothing here
        // needs to be dropped.
        unsafe { (interface.throw)(message) }
    }
}

/// Makes the call. After a failure the exception is set and becomes the cause of the one that torch raises.
fn perform(py: Python<'_>, interface: &Interface, overload: &Overload, stack: *mut u64) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: promised to `boxed`.
        unsafe { call(py, interface, overload, stack) }
    }));
    let error = match outcome {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error,
        Err(_) => PanicException::new_err("an operation panicked"),
    };
    let text = error.to_string().replace('\0', " ");
    MESSAGE.set(CString::new(text).unwrap_or_default());
    error.restore(py);
    false
}

/// # Safety
/// The stack holds the overload's arguments, and has space for its results.
unsafe fn call(py: Python<'_>, interface: &Interface, overload: &Overload, stack: *mut u64) -> PyResult<()> {
    // SAFETY: None is immortal.
    let none = unsafe { ffi::Py_None() };
    let mut temporaries = TemporaryObjects::new();
    let mut arguments = [const { MaybeUninit::<*mut ffi::PyObject>::uninit() }; MAX_ARGUMENTS];
    let mut failure = None;
    // All arguments are taken even if one fails: each holds a reference that must be released.
    for (at, (argument, &(kind, optional))) in arguments.iter_mut().zip(&overload.kinds).enumerate() {
        // SAFETY: as many arguments as kinds.
        let taken = unsafe { interface.take_argument(py, kind, optional, *stack.add(at)) };
        argument.write(match taken {
            Ok(object) => object.map_or(none, |object| temporaries.keep(object)),
            Err(error) => {
                failure = Some(error);
                none
            }
        });
    }
    if let Some(error) = failure {
        return Err(error);
    }
    // `out` is the last argument here too, after those that the overload fixes.
    let inputs = overload.kinds.len() - overload.outputs;
    let outputs = &arguments[inputs..overload.kinds.len()];
    // SAFETY: written above, and alive.
    let mut outputs = outputs.iter().map(|output| unsafe { Borrowed::from_ptr(py, output.assume_init()) });
    let several;
    let out = if overload.outputs > 1 {
        several = PyTuple::new(py, outputs)?;
        Some(several.as_ptr())
    } else {
        outputs.next().map(|output| output.as_ptr())
    };
    let fixed = overload.fixed.iter().map(Py::as_ptr).chain(out);
    for (argument, object) in arguments[inputs..].iter_mut().zip(fixed) {
        argument.write(object);
    }
    // SAFETY: as many arguments as positions and names; all are alive during the call.
    let result = unsafe {
        let names = overload.names.as_ptr();
        let result = PyObject_Vectorcall(
            overload.function.as_ptr(),
            arguments.as_ptr().cast(),
            overload.positional,
            names,
        );
        Bound::from_owned_ptr_or_err(py, result)?
    };
    if overload.outputs > 0 || overload.results == 0 {
        return Ok(());
    }
    if let Ok(several) = result.cast::<PyTuple>() {
        if several.len() != overload.results {
            return Err(overload.wrong_result_count(py));
        }
        for (at, one) in several.iter().enumerate() {
            // SAFETY: there is space for the results.
            unsafe { *stack.add(at) = interface.result_handle(&one)? };
        }
        return Ok(());
    }
    if overload.results != 1 {
        return Err(overload.wrong_result_count(py));
    }
    // SAFETY: as above.
    unsafe { *stack = interface.result_handle(&result)? };
    Ok(())
}

impl Overload {
    #[cold]
    fn wrong_result_count(&self, py: Python<'_>) -> PyErr {
        let message = self.refuse.bind(py).call0().and_then(|text| text.extract::<String>());
        message.map_or_else(|error| error, PyValueError::new_err)
    }
}

impl Interface {
    /// Whether this thread holds the GIL, as it does when Python is the caller: attaching again costs a
    /// twentieth of a call.
    #[inline]
    fn is_attached(&self) -> bool {
        // SAFETY: it only queries, on any thread.
        self.is_attached.is_some_and(|check| unsafe { check() } == 1)
    }

    /// Converts an argument to an object, and releases its reference on the stack.
    ///
    /// # Safety
    /// The value has this type and was passed by torch.
    unsafe fn take_argument<'py>(
        &self,
        py: Python<'py>,
        kind: Kind,
        optional: bool,
        value: u64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if !optional {
            // SAFETY: passed on.
            return unsafe { self.take_value(py, kind, value) }.map(Some);
        }
        let inner = ptr::with_exposed_provenance_mut::<u64>(value as usize);
        if inner.is_null() {
            return Ok(None);
        }
        // SAFETY: an optional value that is present is behind an owned pointer.
        unsafe {
            let object = self.take_value(py, kind, *inner);
            (self.delete_value)(inner);
            object.map(Some)
        }
    }

    /// # Safety
    /// As for `take_argument`.
    unsafe fn take_value<'py>(&self, py: Python<'py>, kind: Kind, value: u64) -> PyResult<Bound<'py, PyAny>> {
        let handle = ptr::with_exposed_provenance_mut::<c_void>(value as usize);
        Ok(match kind {
            Kind::Float => f64::from_bits(value).into_pyobject(py)?.into_any(),
            Kind::Int => value.cast_signed().into_pyobject(py)?.into_any(),
            Kind::Bool => (value & 0xff != 0).into_pyobject(py)?.to_owned().into_any(),
            Kind::Text => {
                let mut text = ptr::null();
                // SAFETY: a string handle, whose text lives until it is released.
                unsafe {
                    let found = (self.text)(handle, &raw mut text) == 0 && !text.is_null();
                    let string = if found {
                        CStr::from_ptr(text).to_string_lossy().into_owned()
                    } else {
                        String::new()
                    };
                    (self.delete_text)(handle);
                    PyString::new(py, &string).into_any()
                }
            }
            Kind::Tensor => {
                let mut object = ptr::null_mut();
                // SAFETY: a tensor handle, released after an object that shares its tensor was created.
                unsafe {
                    let succeeded = (self.to_object)(handle, ptr::null_mut(), &raw mut object) == 0;
                    (self.delete_tensor)(handle);
                    if !succeeded {
                        return Err(PyErr::take(py).unwrap_or_else(|| {
                            PyRuntimeError::new_err("torch returned no Python object for a tensor handle")
                        }));
                    }
                    Bound::from_owned_ptr_or_err(py, object)?
                }
            }
        })
    }

    /// Converts a result for torch. The fake kernel promises contiguous results, and a Python kernel may
    /// return others.
    fn result_handle(&self, result: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (mut view, mut guard) = (TensorView::empty(), BorrowGuard::EMPTY);
        let dense = guard.fill(result.as_borrowed(), &mut view).is_ok() && view.is_contiguous();
        let contiguous = if dense { None } else { Some(result.call_method0("contiguous")?) };
        let object = contiguous.as_ref().unwrap_or(result);
        let mut handle = ptr::null_mut();
        // SAFETY: a live object; the result is a new reference, or an error with or without an exception.
        if unsafe { (self.from_object)(object.as_ptr(), &raw mut handle) } != 0 {
            return Err(PyErr::take(object.py()).unwrap_or_else(|| {
                PyRuntimeError::new_err("the kernel returned an object that is not a tensor")
            }));
        }
        Ok(handle.expose_provenance() as u64)
    }
}

/// Implements a defined overload; `False` where torch lacks the ABI. `kinds` has one letter per argument:
/// tensor, float, int, bool, string, in capitals if the argument is optional.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the description of an overload")]
fn implement_overload(
    name: &str,
    function: Py<PyAny>,
    kinds: &str,
    positional: usize,
    names: Vec<String>,
    fixed: &Bound<'_, PyDict>,
    outputs: usize,
    results: usize,
    refuse: Py<PyAny>,
) -> PyResult<bool> {
    let py = fixed.py();
    let torch = py.import("torch")?;
    let find = || Some(torch.as_any()).filter(|_| private::allowed()).and_then(find);
    let Some(interface) = INTERFACE.get_or_init(find) else { return Ok(false) };
    let kind = |letter: char| {
        let kind = match letter.to_ascii_lowercase() {
            't' => Kind::Tensor,
            'f' => Kind::Float,
            'i' => Kind::Int,
            'b' => Kind::Bool,
            's' => Kind::Text,
            _ => return None,
        };
        Some((kind, letter.is_ascii_uppercase()))
    };
    let kinds: Option<Vec<(Kind, bool)>> = kinds.chars().map(kind).collect();
    let (Some(kinds), Ok(c_name)) = (kinds, CString::new(name)) else { return Ok(false) };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let kernel = KERNELS.get(number / 16).and_then(|row| row.get(number % 16));
    let fits = kinds.len() + fixed.len() < MAX_ARGUMENTS && outputs <= kinds.len();
    let (Some(&kernel), Some(slot), true) = (kernel, OVERLOADS.get(number), fits) else { return Ok(false) };
    let mut words: Vec<Bound<'_, PyString>> = names.iter().map(|name| PyString::intern(py, name)).collect();
    let mut values = Vec::new();
    for (name, value) in fixed {
        words.push(PyString::intern(py, name.cast::<PyString>()?.to_str()?));
        values.push(value.unbind());
    }
    if outputs > 0 {
        words.push(PyString::intern(py, "out"));
    }
    let names = PyTuple::new(py, words)?.unbind();
    let overload = Overload { function, kinds, positional, names, fixed: values, outputs, results, refuse };
    // Each number is used once, so the slot is empty.
    slot.set(overload).ok();
    // SAFETY: null-terminated strings; the library is never released, so the registration stays.
    unsafe {
        let mut library = ptr::null_mut();
        let (space, key) = (c"layerzero".as_ptr(), c"CompositeExplicitAutograd".as_ptr());
        let file = c"layerzero".as_ptr();
        Ok((interface.init)(space, key, file, 0, &raw mut library) == 0
            && (interface.implement)(library, c_name.as_ptr(), kernel, interface.version) == 0)
    }
}

/// Adds the function.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(implement_overload, module)?)
}
