//! Functions of torch's stable C interface, found by name in the library that the process has loaded already.

use std::ffi::{c_int, c_void};
use std::ptr;

use lz_core::DType;
use lz_core::device::Platform;
use lz_core::tensor::{Dims, Place};
use pyo3::ffi;
use pyo3::prelude::*;

/// A tensor, as torch's C interface names one.
pub type Handle = *mut c_void;
type ToObject = unsafe extern "C" fn(Handle, *mut c_void, *mut *mut c_void) -> c_int;
/// Makes a Python object that shares the tensor of a handle.
pub type Wrap = unsafe extern "C" fn(Handle) -> *mut ffi::PyObject;
type Number = unsafe extern "C" fn() -> i32;

/// The functions; all of them or none, but for one.
pub struct Stable {
    empty_strided: unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> c_int,
    data: unsafe extern "C" fn(Handle, *mut *mut c_void) -> c_int,
    /// From torch 2.14 on.
    to_object: Option<ToObject>,
    /// Before. Without a way to a Python object nothing is allocated here.
    wrap: Option<Wrap>,
    delete: unsafe extern "C" fn(Handle) -> c_int,
    grad_enabled: unsafe extern "C" fn() -> bool,
    /// torch's numbers of our dtypes; -1 where it has none.
    dtypes: [i32; DType::ALL.len() + 1],
    cpu: i32,
    cuda: i32,
}

impl Stable {
    /// Looks them up.
    pub fn find(torch: &Bound<'_, PyAny>) -> Option<Stable> {
        let library = library(torch)?;
        let wrap = find_wrap(torch);
        // SAFETY: the names and types are those of torch's stable header; the library stays loaded.
        unsafe {
            let number = |name: &str| library.get::<Number>(name.as_bytes()).ok().map(|function| function());
            let mut dtypes = [-1; DType::ALL.len() + 1];
            for dtype in DType::ALL {
                let name = format!("aoti_torch_dtype_{}", dtype.long_name());
                dtypes[dtype as usize] = number(&name).unwrap_or(-1);
            }
            let found = Stable {
                empty_strided: *library.get(b"aoti_torch_empty_strided").ok()?,
                data: *library.get(b"aoti_torch_get_data_ptr").ok()?,
                to_object: library.get(b"torch_tensor_to_pyobject").ok().map(|function| *function),
                wrap,
                delete: *library.get(b"aoti_torch_delete_tensor_object").ok()?,
                grad_enabled: *library.get(b"aoti_torch_grad_mode_is_enabled").ok()?,
                dtypes,
                cpu: number("aoti_torch_device_type_cpu")?,
                cuda: number("aoti_torch_device_type_cuda")?,
            };
            // Never closed: torch is never unloaded either.
            std::mem::forget(library);
            Some(found)
        }
    }

    /// torch's number of a dtype, if it has it.
    pub fn number(&self, dtype: DType) -> Option<u16> {
        u16::try_from(*self.dtypes.get(dtype as usize)?).ok()
    }

    /// Whether this thread records gradients.
    #[inline]
    pub fn grad_enabled(&self) -> bool {
        // SAFETY: reads a thread-local flag.
        unsafe { (self.grad_enabled)() }
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
        if number < 0 || (self.to_object.is_none() && self.wrap.is_none()) {
            return None;
        }
        let mut handle = ptr::null_mut();
        let mut data = ptr::null_mut();
        // SAFETY: sizes and strides have as many entries as is said; the handle is ours and deleted once, after the object that
        // shares its tensor was made; the object is a new reference.
        unsafe {
            let rank = sizes.len() as i64;
            if (self.empty_strided)(
                rank,
                sizes.as_ptr(),
                strides.as_ptr(),
                number,
                device,
                index,
                &raw mut handle,
            ) != 0
            {
                return None;
            }
            let has_memory = (self.data)(handle, &raw mut data) == 0;
            let object = if has_memory { self.object(handle) } else { ptr::null_mut() };
            (self.delete)(handle);
            if object.is_null() {
                ffi::PyErr_Clear();
            }
            Some((Bound::from_owned_ptr_or_opt(py, object)?, data.cast()))
        }
    }

    /// A new object that shares the tensor; null if torch makes none.
    ///
    /// # Safety
    /// The handle is a tensor's, and the interpreter is attached.
    unsafe fn object(&self, handle: Handle) -> *mut ffi::PyObject {
        let mut object = ptr::null_mut();
        // SAFETY: passed on; there is room for the object.
        unsafe {
            match (self.to_object, self.wrap) {
                (Some(to_object), _) if to_object(handle, ptr::null_mut(), &raw mut object) == 0 => {
                    object.cast()
                }
                (None, Some(wrap)) => wrap(handle),
                _ => ptr::null_mut(),
            }
        }
    }
}

/// What torch's own bindings make objects with: it takes a reference to a tensor, as its name says, and that is what a handle is.
pub fn find_wrap(torch: &Bound<'_, PyAny>) -> Option<Wrap> {
    let python = library_beside(torch, "torch_python")?;
    // SAFETY: the name says the type, and where it was another it had another name; the library is never unloaded, so the handle
    // to it need not be kept.
    unsafe { python.get::<Wrap>(b"_Z16THPVariable_WrapRKN2at10TensorBaseE").ok().map(|found| *found) }
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
