//! Reading and converting tensors through a C++ extension that was compiled against the headers of the installed torch
//! (`lz torch-extension build`). torch's C++ API has no stable ABI, so an extension is used only with the
//! build of torch and the Python ABI that it was compiled for, and only if it describes sample tensors as the
//! DLPack exchange API does.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::os::unix::Library;
use lz_core::TensorView;
use lz_files::RegularFile;
use pyo3::Borrowed;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::ffi;
use pyo3::prelude::*;

use super::Outcome;
use super::numbers::Numbers;
use super::stable::Objects;

/// The symbols; their numbers change with their signatures.
const DESCRIBE: &[u8] = b"layerzero_describe_tensor_1";
const FROM_OBJECT: &[u8] = b"layerzero_tensor_from_object_1";
const TO_OBJECT: &[u8] = b"layerzero_object_from_tensor_1";

/// A tensor as the extension describes it; the same as in `reader.cpp`.
#[repr(C)]
struct Description {
    data: *mut c_void,
    sizes: *const i64,
    strides: *const i64,
    rank: i64,
    dtype: i32,
    device_type: i32,
    device_index: i32,
}

type Describe = unsafe extern "C" fn(*mut ffi::PyObject, *mut Description) -> i32;

/// The loaded extension.
pub struct Extension {
    describe: Describe,
    /// Conversion between handles and objects.
    pub objects: Objects,
    numbers: Numbers,
}

impl Extension {
    /// Loads the extension of this torch, if it was built. Warns about one that cannot be used.
    pub fn find(torch: &Bound<'_, PyAny>, numbers: &Numbers) -> PyResult<Option<Extension>> {
        let package = torch.py().import("layerzero._torch_extension")?;
        let Some(path) = package.call_method1("find", (torch,))?.extract::<Option<PathBuf>>()? else {
            return Ok(None);
        };
        let checked = load(&path).and_then(|(describe, objects)| {
            let extension = Extension { describe, objects, numbers: numbers.clone() };
            let samples = package.call_method1("samples", (torch,));
            match samples.and_then(|samples| extension.is_correct(torch, &samples)) {
                Ok(true) => Ok(extension),
                Ok(false) => Err("it does not describe tensors as torch does".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        });
        let problem = match checked {
            Ok(extension) => return Ok(Some(extension)),
            Err(problem) => problem,
        };
        let text = format!("the torch extension {} is not used: {problem}", path.display());
        let text = CString::new(text.replace('\0', " "))?;
        PyErr::warn(torch.py(), &torch.py().get_type::<PyRuntimeWarning>(), &text, 2)?;
        Ok(None)
    }

    /// Describes a tensor.
    ///
    /// # Safety
    /// The object's exact type is `torch.Tensor` or `torch.nn.Parameter`.
    #[inline]
    pub unsafe fn read(&self, tensor: Borrowed<'_, '_, PyAny>, view: &mut TensorView<'_>) -> Outcome {
        let mut description = Description {
            data: ptr::null_mut(),
            sizes: ptr::null(),
            strides: ptr::null(),
            rank: 0,
            dtype: -1,
            device_type: -1,
            device_index: 0,
        };
        // SAFETY: promised by the caller.
        let outcome = unsafe { (self.describe)(tensor.as_ptr(), &raw mut description) };
        match outcome {
            0 => {}
            1 => return Outcome::Negated,
            2 => return Outcome::RequiresGrad,
            _ => return Outcome::Unusual,
        }
        let Description { data, sizes, strides, rank, dtype, device_type, device_index } = description;
        let Some((dtype, device)) = self.numbers.known(dtype, device_type, rank, || Some(device_index))
        else {
            return Outcome::Unusual;
        };
        // SAFETY: sizes and strides have one entry per dimension and live as long as the tensor, which the
        // caller holds.
        unsafe {
            view.describe(data.cast(), rank as usize, (dtype, device), |at| {
                (*sizes.add(at), *strides.add(at))
            });
        }
        Outcome::Described
    }

    /// Whether it describes sample tensors as torch's Python API does.
    fn is_correct(&self, torch: &Bound<'_, PyAny>, samples: &Bound<'_, PyAny>) -> PyResult<bool> {
        let class = torch.getattr("Tensor")?;
        let is_grad_enabled = torch.call_method0("is_grad_enabled")?.is_truthy()?;
        for tensor in samples.try_iter()? {
            let tensor = tensor?;
            // A torch mode may have created something else.
            if !tensor.get_type().is(&class) {
                return Ok(false);
            }
            let expected = if is_grad_enabled && tensor.getattr("requires_grad")?.is_truthy()? {
                Outcome::RequiresGrad
            } else if tensor.call_method0("is_neg")?.is_truthy()? {
                Outcome::Negated
            } else {
                Outcome::Described
            };
            let mut view = TensorView::empty();
            // SAFETY: its type was checked.
            if unsafe { self.read(tensor.as_borrowed(), &mut view) } != expected {
                return Ok(false);
            }
            let described = (view.address(), view.shape().to_vec(), view.strides().to_vec());
            let reported: (usize, Vec<i64>, Vec<i64>) = (
                tensor.call_method0("data_ptr")?.extract()?,
                tensor.getattr("shape")?.extract()?,
                tensor.call_method0("stride")?.extract()?,
            );
            let dtype = format!("torch.{}", view.dtype().long_name());
            let is_same_dtype = tensor.getattr("dtype")?.str()? == dtype.as_str();
            if expected == Outcome::Described
                && (described != reported || !is_same_dtype || !view.device().is_host())
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn missing(name: &[u8]) -> impl FnOnce(libloading::Error) -> String {
    move |_| format!("it has no function {}", String::from_utf8_lossy(name))
}

/// Loads the library, if only this user or root could have written it.
fn load(path: &Path) -> Result<(Describe, Objects), String> {
    let file = RegularFile::open(path).map_err(|error| error.to_string())?;
    file.check_trust().map_err(|why| why.to_string())?;
    // SAFETY: this user or root compiled it from LayerZero's source; it is never closed.
    unsafe {
        let library = Library::new(path).map_err(|error| error.to_string())?;
        let describe = *library.get(DESCRIBE).map_err(missing(DESCRIBE))?;
        let to = *library.get(TO_OBJECT).map_err(missing(TO_OBJECT))?;
        let from = *library.get(FROM_OBJECT).map_err(missing(FROM_OBJECT))?;
        std::mem::forget(library);
        Ok((describe, Objects { to, from }))
    }
}
