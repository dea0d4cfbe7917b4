//! Reading tensors through handles of torch's stable C ABI, for torch versions where the negative bit can be
//! read the same way.
//!
//! The published function, `Tensor.is_neg`, releases the GIL: it costs more than the rest of reading a
//! tensor, and lets other threads run at every tensor of every call. torch's library exports the same
//! function without the Python wrapper, `at::native::is_neg`; its headers declare it without a stability
//! guarantee. So it is used only in the versions listed here; see `docs/private-interfaces.md`.

use std::ffi::{c_int, c_void};
use std::ptr;

use lz_core::device::Platform;
use lz_core::tensor::{Device, MAX_RANK};
use lz_core::{DType, TensorView};
use pyo3::Borrowed;
use pyo3::prelude::*;

use super::stable::{Handle, Stable, library};

/// Versions of torch whose headers declare the function, and that were tested.
const VERSIONS: [&str; 1] = ["2.15."];
/// Upper limit of torch's dtype numbers.
const DTYPES: usize = 64;

type Number = unsafe extern "C" fn(Handle, *mut i64) -> c_int;
type SmallNumber = unsafe extern "C" fn(Handle, *mut i32) -> c_int;
type Numbers = unsafe extern "C" fn(Handle, *mut *const i64) -> c_int;

/// The functions that read a handle.
pub struct Reader {
    layout: SmallNumber,
    strided: i32,
    /// `bool at::native::is_neg(const at::Tensor&)`; a handle is a pointer to an `at::Tensor`.
    is_neg: unsafe extern "C" fn(Handle) -> bool,
    dtype: SmallNumber,
    device: SmallNumber,
    index: SmallNumber,
    rank: Number,
    sizes: Numbers,
    strides: Numbers,
    data: unsafe extern "C" fn(Handle, *mut *mut c_void) -> c_int,
    /// LayerZero's dtype for each torch dtype number.
    dtypes: [Option<DType>; DTYPES],
    cpu: i32,
    cuda: i32,
    /// The platform that torch calls `cuda`.
    gpu: Platform,
}

/// The outcome of reading a tensor.
pub enum Outcome {
    /// It is described.
    Described,
    /// It is a view with the negative bit set.
    Negated,
    /// Not a strided tensor of the host or of a GPU; the DLPack exchange API reports what is wrong with it.
    Unusual,
}

impl Reader {
    /// Looks up the functions, in a listed version of torch.
    pub fn find(torch: &Bound<'_, PyAny>, stable: &Stable) -> Option<Reader> {
        let version: String = torch.getattr("__version__").ok()?.str().ok()?.extract().ok()?;
        if !VERSIONS.iter().any(|known| version.starts_with(known)) {
            return None;
        }
        let library = library(torch)?;
        let mut dtypes = [None; DTYPES];
        for dtype in DType::ALL {
            if let Some(entry) = stable.number(dtype).and_then(|number| dtypes.get_mut(number)) {
                *entry = Some(dtype);
            }
        }
        let (cpu, cuda) = stable.devices();
        let is_rocm = !torch.getattr("version").ok()?.getattr("hip").ok()?.is_none();
        // SAFETY: the names and types are those of torch's headers; a mangled C++ name includes the parameter
        // types.
        unsafe {
            let strided: unsafe extern "C" fn() -> i32 = *library.get(b"aoti_torch_layout_strided").ok()?;
            Some(Reader {
                layout: *library.get(b"aoti_torch_get_layout").ok()?,
                strided: strided(),
                is_neg: *library.get(b"_ZN2at6native6is_negERKNS_6TensorE").ok()?,
                dtype: *library.get(b"aoti_torch_get_dtype").ok()?,
                device: *library.get(b"aoti_torch_get_device_type").ok()?,
                index: *library.get(b"aoti_torch_get_device_index").ok()?,
                rank: *library.get(b"aoti_torch_get_dim").ok()?,
                sizes: *library.get(b"aoti_torch_get_sizes").ok()?,
                strides: *library.get(b"aoti_torch_get_strides").ok()?,
                data: *library.get(b"torch_get_mutable_data_ptr").ok()?,
                dtypes,
                cpu,
                cuda,
                gpu: if is_rocm { Platform::Rocm } else { Platform::Cuda },
            })
        }
    }

    /// Describes a tensor.
    #[inline]
    pub fn read(
        &self,
        stable: &Stable,
        tensor: Borrowed<'_, '_, PyAny>,
        view: &mut TensorView<'_>,
    ) -> Outcome {
        let Some(handle) = stable.handle(tensor) else { return Outcome::Unusual };
        let handle = handle.get();
        let (mut layout, mut dtype, mut device, mut index, mut rank) = (-1, -1, -1, 0, -1);
        let (mut sizes, mut strides, mut data) = (ptr::null(), ptr::null(), ptr::null_mut());
        // SAFETY: the handle shares the object's tensor, which the caller holds; sizes and strides have one
        // entry per dimension. Nested tensors have a strided layout but no sizes; the function for sizes
        // returns an error then.
        unsafe {
            if (self.layout)(handle, &raw mut layout) != 0 || layout != self.strided {
                return Outcome::Unusual;
            }
            if (self.is_neg)(handle) {
                return Outcome::Negated;
            }
            let succeeded = (self.dtype)(handle, &raw mut dtype) == 0
                && (self.device)(handle, &raw mut device) == 0
                && (self.rank)(handle, &raw mut rank) == 0
                && (self.sizes)(handle, &raw mut sizes) == 0
                && (self.strides)(handle, &raw mut strides) == 0
                && (self.data)(handle, &raw mut data) == 0;
            let known =
                usize::try_from(dtype).ok().and_then(|number| self.dtypes.get(number).copied().flatten());
            let (true, Some(dtype), 0..=MAX) = (succeeded, known, rank) else { return Outcome::Unusual };
            let device = if device == self.cpu {
                Device::HOST
            } else if device == self.cuda && (self.index)(handle, &raw mut index) == 0 {
                Device { platform: self.gpu, index: index as u16 }
            } else {
                return Outcome::Unusual;
            };
            view.describe(data.cast(), rank as usize, (dtype, device), |at| {
                (*sizes.add(at), *strides.add(at))
            });
        }
        Outcome::Described
    }
}

const MAX: i64 = MAX_RANK as i64;
