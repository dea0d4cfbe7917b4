//! Functions of torch's stable C ABI (AOTI), looked up by name in the library that the process has already
//! loaded.

use std::ffi::{c_int, c_void};
use std::ptr;

use lz_core::DType;
use lz_core::device::Platform;
use lz_core::tensor::{Device, Dims};
use pyo3::Borrowed;
use pyo3::ffi;
use pyo3::prelude::*;

/// An AOTI tensor handle.
pub type Handle = *mut c_void;
type Number = unsafe extern "C" fn() -> i32;
/// Releases a handle.
pub type Delete = unsafe extern "C" fn(Handle) -> c_int;

/// The functions; all required, except `objects`.
pub struct Stable {
    empty_strided: unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> c_int,
    data: unsafe extern "C" fn(Handle, *mut *mut c_void) -> c_int,
    delete: Delete,
    grad_enabled: unsafe extern "C" fn() -> bool,
    /// torch's numbers of LayerZero's dtypes; -1 where torch has none.
    dtypes: [i32; DType::ALL.len() + 1],
    cpu: i32,
    cuda: i32,
    objects: Option<Objects>,
}

/// Conversion between handles and Python objects: torch's own from 2.14 on, else the C++ extension's.
#[derive(Clone, Copy)]
pub struct Objects {
    /// From a handle; the second argument is null.
    pub to: unsafe extern "C" fn(Handle, *mut c_void, *mut *mut c_void) -> c_int,
    /// To a handle, as a new reference.
    pub from: unsafe extern "C" fn(*mut c_void, *mut Handle) -> c_int,
}

/// An owned reference to a tensor.
pub struct TensorHandle {
    handle: Handle,
    delete: Delete,
}

// SAFETY: torch counts references atomically, and a reference may be released on any thread.
unsafe impl Send for TensorHandle {}

impl TensorHandle {
    /// The handle, for calls during which this reference lives.
    #[inline]
    pub fn get(&self) -> Handle {
        self.handle
    }

    /// No reference yet; a function of the ABI writes one through `slot`.
    #[inline]
    pub const fn empty(delete: Delete) -> TensorHandle {
        TensorHandle { handle: ptr::null_mut(), delete }
    }

    /// Output parameter for a new reference.
    #[inline]
    pub fn slot(&mut self) -> *mut Handle {
        &raw mut self.handle
    }
}

impl Drop for TensorHandle {
    #[inline]
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: an owned reference, released once.
            unsafe { (self.delete)(self.handle) };
        }
    }
}

impl Stable {
    /// Looks up the functions.
    pub fn find(torch: &Bound<'_, PyAny>) -> Option<Stable> {
        let library = library(torch)?;
        // SAFETY: the names and types are those of torch's stable header; the library stays loaded.
        unsafe {
            let number = |name: &str| library.get::<Number>(name.as_bytes()).ok().map(|function| function());
            let mut dtypes = [-1; DType::ALL.len() + 1];
            for dtype in DType::ALL {
                let name = format!("aoti_torch_dtype_{}", dtype.long_name());
                dtypes[dtype as usize] = number(&name).unwrap_or(-1);
            }
            let to = library.get(b"torch_tensor_to_pyobject").ok().map(|found| *found);
            let from = library.get(b"torch_tensor_from_pyobject").ok().map(|found| *found);
            let found = Stable {
                empty_strided: *library.get(b"aoti_torch_empty_strided").ok()?,
                data: *library.get(b"aoti_torch_get_data_ptr").ok()?,
                delete: *library.get(b"aoti_torch_delete_tensor_object").ok()?,
                grad_enabled: *library.get(b"aoti_torch_grad_mode_is_enabled").ok()?,
                dtypes,
                cpu: number("aoti_torch_device_type_cpu")?,
                cuda: number("aoti_torch_device_type_cuda")?,
                objects: to.zip(from).map(|(to, from)| Objects { to, from }),
            };
            // Never closed: torch is never unloaded either.
            std::mem::forget(library);
            Some(found)
        }
    }

    /// Converts objects by these functions if torch has none.
    pub fn convert_by(&mut self, objects: Objects) {
        self.objects.get_or_insert(objects);
    }

    /// torch's number of a dtype, if it has one.
    pub fn number(&self, dtype: DType) -> Option<usize> {
        usize::try_from(*self.dtypes.get(dtype as usize)?).ok()
    }

    /// torch's numbers of the CPU and CUDA device types.
    pub fn devices(&self) -> (i32, i32) {
        (self.cpu, self.cuda)
    }

    /// Whether autograd is enabled in this thread.
    #[inline]
    pub fn grad_enabled(&self) -> bool {
        // SAFETY: reads a thread-local flag.
        unsafe { (self.grad_enabled)() }
    }

    /// A reference to the tensor of a Python object.
    #[inline]
    pub fn handle(&self, object: Borrowed<'_, '_, PyAny>) -> Option<TensorHandle> {
        let mut handle = TensorHandle::empty(self.delete);
        // SAFETY: the object is alive; the result is a new reference, or an error with or without an
        // exception.
        if unsafe { (self.objects?.from)(object.as_ptr().cast(), handle.slot()) } != 0 {
            drop(PyErr::take(object.py()));
            return None;
        }
        Some(handle)
    }

    /// A Python object that shares the tensor of a handle.
    #[inline]
    pub fn object<'py>(&self, py: Python<'py>, handle: &TensorHandle) -> Option<Bound<'py, PyAny>> {
        let mut object = ptr::null_mut();
        // SAFETY: the handle is alive; the result is a new reference, or an error with or without an
        // exception.
        unsafe {
            if (self.objects?.to)(handle.handle, ptr::null_mut(), &raw mut object) != 0 {
                drop(PyErr::take(py));
                return None;
            }
            Bound::from_owned_ptr_or_opt(py, object.cast::<ffi::PyObject>())
        }
    }

    /// Allocates a torch tensor and returns it with its memory; nothing if torch refuses, and then
    /// `new_empty` raises the error.
    #[inline]
    pub fn empty<'py>(
        &self,
        py: Python<'py>,
        sizes: &Dims,
        strides: &Dims,
        dtype: DType,
        device: Device,
    ) -> Option<(Bound<'py, PyAny>, *mut u8)> {
        let number = self.dtypes[dtype as usize];
        let (device, index) = match device.platform {
            Platform::Cpu => (self.cpu, -1),
            Platform::Cuda | Platform::Rocm => (self.cuda, i32::from(device.index)),
            _ => return None,
        };
        if number < 0 || self.objects.is_none() {
            return None;
        }
        let mut handle = TensorHandle::empty(self.delete);
        let mut data = ptr::null_mut();
        // SAFETY: sizes and strides have `rank` entries; the result is a new reference.
        unsafe {
            let (rank, sizes, strides) = (sizes.len() as i64, sizes.as_ptr(), strides.as_ptr());
            if (self.empty_strided)(rank, sizes, strides, number, device, index, handle.slot()) != 0 {
                return None;
            }
            if (self.data)(handle.handle, &raw mut data) != 0 {
                return None;
            }
            Some((self.object(py, &handle)?, data.cast()))
        }
    }
}

/// torch's main library, which is already loaded.
pub fn library(torch: &Bound<'_, PyAny>) -> Option<libloading::os::unix::Library> {
    sibling_library(torch, "torch_cpu")
}

/// Another library of torch, if it is loaded.
pub fn sibling_library(torch: &Bound<'_, PyAny>, name: &str) -> Option<libloading::os::unix::Library> {
    let folder: String = torch.getattr("__path__").ok()?.get_item(0).ok()?.extract().ok()?;
    let ending = if cfg!(target_os = "macos") { "dylib" } else { "so" };
    loaded(&std::path::Path::new(&folder).join("lib").join(format!("lib{name}.{ending}")))
}

#[cfg(unix)]
fn loaded(file: &std::path::Path) -> Option<libloading::os::unix::Library> {
    use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
    /// Finds a library that is loaded and never loads one.
    const RTLD_NOLOAD: c_int = if cfg!(target_os = "macos") { 0x10 } else { 0x4 };
    // SAFETY: nothing is loaded, so no initializer runs.
    unsafe { Library::open(Some(file), RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL).ok() }
}
