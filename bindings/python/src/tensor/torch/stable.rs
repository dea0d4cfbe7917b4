//! Functions of torch's stable C interface, found by name in the library that the process has loaded already.

use std::ffi::{c_int, c_void};
use std::ptr;

use lz_core::DType;
use lz_core::device::Platform;
use lz_core::tensor::{Dims, Place};
use pyo3::Borrowed;
use pyo3::ffi;
use pyo3::prelude::*;

/// A tensor, as torch's C interface names one.
pub type Handle = *mut c_void;
type Number = unsafe extern "C" fn() -> i32;
/// Gives a handle back.
pub type Delete = unsafe extern "C" fn(Handle) -> c_int;

/// The functions; all of them or none, but for the last ones.
pub struct Stable {
    empty_strided: unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> c_int,
    data: unsafe extern "C" fn(Handle, *mut *mut c_void) -> c_int,
    delete: Delete,
    grad_enabled: unsafe extern "C" fn() -> bool,
    /// torch's numbers of our dtypes; -1 where it has none.
    dtypes: [i32; DType::ALL.len() + 1],
    cpu: i32,
    cuda: i32,
    objects: Option<Objects>,
}

/// Between tensors and their Python objects, from torch 2.14 on.
#[derive(Clone, Copy)]
struct Objects {
    to: unsafe extern "C" fn(Handle, *mut c_void, *mut *mut c_void) -> c_int,
    from: unsafe extern "C" fn(*mut c_void, *mut Handle) -> c_int,
}

/// A reference to a tensor that is ours to give back.
pub struct TensorHandle {
    handle: Handle,
    delete: Delete,
}

// SAFETY: torch counts references atomically, and a reference may be given back on any thread.
unsafe impl Send for TensorHandle {}

impl TensorHandle {
    /// The handle, for calls during which this reference lives.
    #[inline]
    pub fn get(&self) -> Handle {
        self.handle
    }

    /// No reference yet; a function of the interface writes one to its `place`.
    #[inline]
    pub const fn empty(delete: Delete) -> TensorHandle {
        TensorHandle { handle: ptr::null_mut(), delete }
    }

    /// Where a function of the interface writes a new reference.
    #[inline]
    pub fn place(&mut self) -> *mut Handle {
        &raw mut self.handle
    }
}

impl Drop for TensorHandle {
    #[inline]
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: a reference of our own, given back once.
            unsafe { (self.delete)(self.handle) };
        }
    }
}

impl Stable {
    /// Looks them up.
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

    /// torch's number of a dtype, if it has it.
    pub fn number(&self, dtype: DType) -> Option<usize> {
        usize::try_from(*self.dtypes.get(dtype as usize)?).ok()
    }

    /// torch's numbers of the host and of GPUs.
    pub fn devices(&self) -> (i32, i32) {
        (self.cpu, self.cuda)
    }

    /// Whether this thread records gradients.
    #[inline]
    pub fn grad_enabled(&self) -> bool {
        // SAFETY: reads a thread-local flag.
        unsafe { (self.grad_enabled)() }
    }

    /// A reference to the tensor of a Python object.
    #[inline]
    pub fn handle(&self, object: Borrowed<'_, '_, PyAny>) -> Option<TensorHandle> {
        let mut handle = TensorHandle::empty(self.delete);
        // SAFETY: the object is alive; a new reference comes back, or an error with or without an exception.
        if unsafe { (self.objects?.from)(object.as_ptr().cast(), handle.place()) } != 0 {
            drop(PyErr::take(object.py()));
            return None;
        }
        Some(handle)
    }

    /// A Python object that shares the tensor of a handle.
    #[inline]
    pub fn object<'py>(&self, py: Python<'py>, handle: &TensorHandle) -> Option<Bound<'py, PyAny>> {
        let mut object = ptr::null_mut();
        // SAFETY: the handle is alive; a new reference comes back, or an error with or without an exception.
        unsafe {
            if (self.objects?.to)(handle.handle, ptr::null_mut(), &raw mut object) != 0 {
                drop(PyErr::take(py));
                return None;
            }
            Bound::from_owned_ptr_or_opt(py, object.cast::<ffi::PyObject>())
        }
    }

    /// A new tensor and its memory; nothing if torch does not make one, and then `torch.empty` says why.
    #[inline]
    pub fn empty<'py>(
        &self,
        py: Python<'py>,
        sizes: &Dims,
        strides: &Dims,
        dtype: DType,
        place: Place,
    ) -> Option<(Bound<'py, PyAny>, *mut u8)> {
        let number = self.dtypes[dtype as usize];
        let (device, index) = match place.platform {
            Platform::Cpu => (self.cpu, -1),
            Platform::Cuda | Platform::Rocm => (self.cuda, i32::from(place.index)),
            _ => return None,
        };
        if number < 0 || self.objects.is_none() {
            return None;
        }
        let mut handle = TensorHandle::empty(self.delete);
        let mut data = ptr::null_mut();
        // SAFETY: sizes and strides have as many entries as is said; a new reference comes back.
        unsafe {
            let (rank, sizes, strides) = (sizes.len() as i64, sizes.as_ptr(), strides.as_ptr());
            if (self.empty_strided)(rank, sizes, strides, number, device, index, handle.place()) != 0 {
                return None;
            }
            if (self.data)(handle.handle, &raw mut data) != 0 {
                return None;
            }
            Some((self.object(py, &handle)?, data.cast()))
        }
    }
}

/// torch's own library, which is loaded already.
pub fn library(torch: &Bound<'_, PyAny>) -> Option<libloading::os::unix::Library> {
    library_beside(torch, "torch_cpu")
}

/// Another one of torch's, if it is loaded.
pub fn library_beside(torch: &Bound<'_, PyAny>, name: &str) -> Option<libloading::os::unix::Library> {
    let folder: String = torch.getattr("__path__").ok()?.get_item(0).ok()?.extract().ok()?;
    let ending = if cfg!(target_os = "macos") { "dylib" } else { "so" };
    loaded(&std::path::Path::new(&folder).join("lib").join(format!("lib{name}.{ending}")))
}

#[cfg(unix)]
fn loaded(file: &std::path::Path) -> Option<libloading::os::unix::Library> {
    use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
    /// Finds a library that is loaded and never loads one.
    const RTLD_NOLOAD: c_int = if cfg!(target_os = "macos") { 0x10 } else { 0x4 };
    // SAFETY: nothing is loaded, so no initialiser runs.
    unsafe { Library::open(Some(file), RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL).ok() }
}
