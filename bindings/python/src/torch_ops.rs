//! `torch.ops.layerzero` without Python in between: each overload's implementation is a boxed kernel of torch's stable C
//! interface, which hands the caller's own tensors to the function of the operation.
//!
//! torch calls a kernel with nothing but its arguments, so there is one function a number, and a number an overload. Where
//! torch lacks the interface nothing is registered, and the implementation in Python stays.

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

use crate::hosted::{Made, PyObject_Vectorcall, ROOM};
use crate::private;
use crate::tensor::{Hold, torch};

type Handle = *mut c_void;
type Kernel = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

/// The functions; all of them or none.
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
    /// `PyGILState_Check`, which is public in every release of Python but not part of its limited interface.
    is_attached: Option<unsafe extern "C" fn() -> c_int>,
    /// Throws what C++ expects of a kernel that fails.
    throw: unsafe extern "C-unwind" fn(*const c_char) -> !,
}

static INTERFACE: OnceLock<Option<Interface>> = OnceLock::new();

fn find(torch: &Bound<'_, PyAny>) -> Option<Interface> {
    let library = torch::library(torch)?;
    // SAFETY: the names and types are those of torch's stable header and of the C++ library beneath it, which stay loaded.
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

/// What an argument is; the flag says whether it may be missing.
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
    /// Names of what is passed by keyword: params, what choosing this overload fixes, `out`.
    names: Py<PyTuple>,
    fixed: Vec<Py<PyAny>>,
    /// How many of the last arguments are places for results.
    places: usize,
    results: usize,
    /// Says that the arguments make another number of results.
    refuse: Py<PyAny>,
}

/// More overloads than the catalogue has.
const MOST: usize = 256;

static OVERLOADS: [OnceLock<Overload>; MOST] = [const { OnceLock::new() }; MOST];
static NEXT: AtomicUsize = AtomicUsize::new(0);

macro_rules! kernels {
    ($($high:literal)*) => { [$(kernels!(@row $high, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)),*] };
    (@row $high:literal, $($low:literal)*) => { [$(boxed::<{ $high * 16 + $low }>),*] };
}
static KERNELS: [[Kernel; 16]; 16] = kernels!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

thread_local! {
    /// What C++ is told of a failure; it reads it at once.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// What torch calls for the overload of a number. Inputs are on the stack, results go there.
///
/// # Safety
/// For torch to call, with the arguments of the schema that the number was registered for.
unsafe extern "C-unwind" fn boxed<const NUMBER: usize>(stack: *mut u64, _inputs: u64, _results: u64) {
    let (Some(Some(interface)), Some(overload)) = (INTERFACE.get(), OVERLOADS[NUMBER].get()) else { return };
    let done = if interface.is_attached() {
        // SAFETY: this thread holds the interpreter, and torch, which called us, does not let it go before we return.
        perform(unsafe { Python::assume_attached() }, interface, overload, stack)
    } else {
        Python::attach(|py| perform(py, interface, overload, stack))
    };
    if !done {
        let message = MESSAGE.with_borrow(|message| message.as_ptr());
        // SAFETY: the message is terminated and stays until this thread's next failure; nothing here needs to be dropped.
        unsafe { (interface.throw)(message) }
    }
}

/// Makes the call; after a failure the exception is set, which becomes the cause of the one that torch raises.
fn perform(py: Python<'_>, interface: &Interface, overload: &Overload, stack: *mut u64) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: promised to `boxed`.
        unsafe { call(py, interface, overload, stack) }
    }));
    let error = match outcome {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error,
        Err(_) => PanicException::new_err("a panic in an operation"),
    };
    let text = error.to_string().replace('\0', " ");
    MESSAGE.set(CString::new(text).unwrap_or_default());
    error.restore(py);
    false
}

/// # Safety
/// The stack holds the overload's arguments, and has room for its results.
unsafe fn call(py: Python<'_>, interface: &Interface, overload: &Overload, stack: *mut u64) -> PyResult<()> {
    // SAFETY: None is immortal.
    let none = unsafe { ffi::Py_None() };
    let mut made = Made::new();
    let mut arguments = [const { MaybeUninit::<*mut ffi::PyObject>::uninit() }; ROOM];
    let mut failure = None;
    // All are taken even if one cannot be: they are ours to give back.
    for (at, (place, &(kind, optional))) in arguments.iter_mut().zip(&overload.kinds).enumerate() {
        // SAFETY: as many arguments as kinds.
        let taken = unsafe { interface.take(py, kind, optional, *stack.add(at)) };
        place.write(match taken {
            Ok(object) => object.map_or(none, |object| made.keep(object)),
            Err(error) => {
                failure = Some(error);
                none
            }
        });
    }
    if let Some(error) = failure {
        return Err(error);
    }
    // Places come last for us as well, behind what the overload fixes.
    let inputs = overload.kinds.len() - overload.places;
    let places = &arguments[inputs..overload.kinds.len()];
    // SAFETY: written above, and alive.
    let mut places = places.iter().map(|place| unsafe { Borrowed::from_ptr(py, place.assume_init()) });
    let several;
    let out = if overload.places > 1 {
        several = PyTuple::new(py, places)?;
        Some(several.as_ptr())
    } else {
        places.next().map(|place| place.as_ptr())
    };
    let fixed = overload.fixed.iter().map(Py::as_ptr).chain(out);
    for (place, object) in arguments[inputs..].iter_mut().zip(fixed) {
        place.write(object);
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
    if overload.places > 0 || overload.results == 0 {
        return Ok(());
    }
    if let Ok(several) = result.cast::<PyTuple>() {
        if several.len() != overload.results {
            return Err(overload.another(py));
        }
        for (at, one) in several.iter().enumerate() {
            // SAFETY: there is room for the results.
            unsafe { *stack.add(at) = interface.give(&one)? };
        }
        return Ok(());
    }
    if overload.results != 1 {
        return Err(overload.another(py));
    }
    // SAFETY: as above.
    unsafe { *stack = interface.give(&result)? };
    Ok(())
}

impl Overload {
    #[cold]
    fn another(&self, py: Python<'_>) -> PyErr {
        let said = self.refuse.bind(py).call0().and_then(|text| text.extract::<String>());
        said.map_or_else(|error| error, PyValueError::new_err)
    }
}

impl Interface {
    /// Whether this thread holds the interpreter, as it does where Python calls: attaching it once more costs a twentieth of a call.
    #[inline]
    fn is_attached(&self) -> bool {
        // SAFETY: it only looks, on any thread.
        self.is_attached.is_some_and(|check| unsafe { check() } == 1)
    }

    /// An argument as an object; what it holds on the stack is given back.
    ///
    /// # Safety
    /// The value is one of this kind that torch handed over.
    unsafe fn take<'py>(
        &self,
        py: Python<'py>,
        kind: Kind,
        optional: bool,
        value: u64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if !optional {
            // SAFETY: passed on.
            return unsafe { self.take_one(py, kind, value) }.map(Some);
        }
        let inner = ptr::with_exposed_provenance_mut::<u64>(value as usize);
        if inner.is_null() {
            return Ok(None);
        }
        // SAFETY: a value that is there is behind a pointer that is ours to give back.
        unsafe {
            let object = self.take_one(py, kind, *inner);
            (self.delete_value)(inner);
            object.map(Some)
        }
    }

    /// # Safety
    /// As for `take`.
    unsafe fn take_one<'py>(&self, py: Python<'py>, kind: Kind, value: u64) -> PyResult<Bound<'py, PyAny>> {
        let handle = ptr::with_exposed_provenance_mut::<c_void>(value as usize);
        Ok(match kind {
            Kind::Float => f64::from_bits(value).into_pyobject(py)?.into_any(),
            Kind::Int => value.cast_signed().into_pyobject(py)?.into_any(),
            Kind::Bool => (value & 0xff != 0).into_pyobject(py)?.to_owned().into_any(),
            Kind::Text => {
                let mut text = ptr::null();
                // SAFETY: a string's handle, whose letters are there until it is given back.
                unsafe {
                    let found = (self.text)(handle, &raw mut text) == 0 && !text.is_null();
                    let letters = if found {
                        CStr::from_ptr(text).to_string_lossy().into_owned()
                    } else {
                        String::new()
                    };
                    (self.delete_text)(handle);
                    PyString::new(py, &letters).into_any()
                }
            }
            Kind::Tensor => {
                let mut object = ptr::null_mut();
                // SAFETY: a tensor's handle, given back after an object that shares its tensor was made.
                unsafe {
                    let made = (self.to_object)(handle, ptr::null_mut(), &raw mut object) == 0;
                    (self.delete_tensor)(handle);
                    if !made {
                        return Err(PyErr::take(py).unwrap_or_else(|| {
                            PyRuntimeError::new_err("torch gives no object for a tensor")
                        }));
                    }
                    Bound::from_owned_ptr_or_err(py, object)?
                }
            }
        })
    }

    /// A result as torch takes it. The fake promises dense results, and a kernel in Python may return what it likes.
    fn give(&self, result: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (mut view, mut hold) = (TensorView::empty(), Hold::NOTHING);
        let dense = hold.fill(result.as_borrowed(), &mut view).is_ok() && view.is_contiguous();
        let contiguous = if dense { None } else { Some(result.call_method0("contiguous")?) };
        let object = contiguous.as_ref().unwrap_or(result);
        let mut handle = ptr::null_mut();
        // SAFETY: an object that is alive; a new reference comes back, or an error with or without an exception.
        if unsafe { (self.from_object)(object.as_ptr(), &raw mut handle) } != 0 {
            return Err(PyErr::take(object.py()).unwrap_or_else(|| {
                PyRuntimeError::new_err("the kernel returned something that is no tensor")
            }));
        }
        Ok(handle.expose_provenance() as u64)
    }
}

/// Implements an overload that was defined; `False` where torch lacks the interface. Kinds are letters, one an argument:
/// tensor, float, int, bool, string, in capitals where it may be missing.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "what there is to know of an overload")]
fn implement_overload(
    name: &str,
    function: Py<PyAny>,
    kinds: &str,
    positional: usize,
    names: Vec<String>,
    fixed: &Bound<'_, PyDict>,
    places: usize,
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
    let fits = kinds.len() + fixed.len() < ROOM && places <= kinds.len();
    let (Some(&kernel), Some(slot), true) = (kernel, OVERLOADS.get(number), fits) else { return Ok(false) };
    let mut words: Vec<Bound<'_, PyString>> = names.iter().map(|name| PyString::intern(py, name)).collect();
    let mut values = Vec::new();
    for (name, value) in fixed {
        words.push(PyString::intern(py, name.cast::<PyString>()?.to_str()?));
        values.push(value.unbind());
    }
    if places > 0 {
        words.push(PyString::intern(py, "out"));
    }
    let names = PyTuple::new(py, words)?.unbind();
    let overload = Overload { function, kinds, positional, names, fixed: values, places, results, refuse };
    // A number is given out once, so the slot is empty.
    slot.set(overload).ok();
    // SAFETY: terminated strings; the library is never given back, and with it the registration stays.
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
