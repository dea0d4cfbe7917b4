//! Python objects as tensor views, without copying. The exact type of an object determines how it is read;
//! the common types (`numpy.ndarray`, `torch.Tensor`, `torch.nn.Parameter`) are recognized by the type's
//! address.

pub mod buffer;
mod capsule;
pub mod layout;
pub mod numpy;
pub mod torch;
mod types;

use std::cell::Cell;

use lz_core::tensor::{Device, Dims, MAX_RANK};
use lz_core::{DType, Reason, ReasonCode, TensorMut, TensorView};
use pyo3::Borrowed;
use pyo3::prelude::*;

use layout::{DLManagedTensor, DLManagedTensorVersioned};
pub use types::{implements_torch_dispatch, is_common_tensor};

/// The library of an object, which also allocates the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A numpy array.
    Numpy,
    /// A torch tensor.
    Torch,
    /// Memory through the buffer protocol: a memoryview, an `array.array`, bytes.
    Buffer,
    /// A `str`, as its UTF-8 bytes. Goes with tensors of any library.
    Text,
    /// Anything else with DLPack.
    Other,
}

impl Kind {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Numpy => "a numpy array",
            Kind::Torch => "a torch tensor",
            Kind::Buffer => "a buffer",
            Kind::Text => "a str",
            Kind::Other => "a tensor of another library",
        }
    }
}

/// The borrow of a tensor's memory; released when dropped. The view is kept separately, because it is too
/// large to be moved from function to function in every call.
pub struct BorrowGuard {
    read_only: bool,
    /// The library of the tensor.
    pub kind: Kind,
    owner: Owner,
}

/// A borrowed tensor and its view together, for code that is not performance-critical.
pub struct BorrowedTensor {
    tensor: TensorMut<'static>,
    guard: BorrowGuard,
}

/// The owner of the memory.
enum Owner {
    /// The caller's object, which the caller holds for the duration of the call.
    Caller,
    Buffer(Box<pyo3::ffi::Py_buffer>),
    DlPack(*mut DLManagedTensor),
    DlPackVersioned(*mut DLManagedTensorVersioned),
}

impl Drop for BorrowGuard {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.owner, Owner::Caller) {
            self.release();
        }
    }
}

/// Why an object cannot be used as a tensor.
pub enum Problem {
    /// An exception raised by the object.
    Python(PyErr),
    /// A reason; the argument's name is added later.
    Reason(Box<Reason>),
}

impl From<PyErr> for Problem {
    fn from(error: PyErr) -> Problem {
        Problem::Python(error)
    }
}

impl From<Reason> for Problem {
    fn from(reason: Reason) -> Problem {
        Problem::Reason(Box::new(reason))
    }
}

impl BorrowGuard {
    /// No borrow.
    pub const EMPTY: BorrowGuard = BorrowGuard { read_only: false, kind: Kind::Numpy, owner: Owner::Caller };

    /// Borrows an object and describes it in an empty view.
    #[inline]
    pub fn fill(
        &mut self,
        object: Borrowed<'_, '_, PyAny>,
        view: &mut TensorView<'_>,
    ) -> Result<(), Problem> {
        let ty = types::of(object);
        if types::NUMPY.is(ty) {
            // SAFETY: its exact type is `numpy.ndarray`.
            return unsafe { numpy::read(object, view, self) };
        }
        if types::TENSOR.is(ty) || types::PARAMETER.is(ty) {
            return torch::read(object, view, self);
        }
        types::read(object, view, self)
    }

    /// Whether the memory is read-only.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    #[cold]
    fn release(&mut self) {
        match &mut self.owner {
            Owner::Caller => {}
            // SAFETY: filled by PyObject_GetBuffer and released once; the GIL is held wherever a hold is
            // dropped.
            Owner::Buffer(buffer) => unsafe { pyo3::ffi::PyBuffer_Release(&mut **buffer) },
            Owner::DlPack(tensor) => {
                // SAFETY: taken out of its capsule, so this is the only owner, which releases it once.
                unsafe {
                    if let Some(deleter) = (**tensor).deleter {
                        deleter(*tensor);
                    }
                }
            }
            Owner::DlPackVersioned(tensor) => {
                // SAFETY: as above.
                unsafe {
                    if let Some(deleter) = (**tensor).deleter {
                        deleter(*tensor);
                    }
                }
            }
        }
    }
}

impl BorrowedTensor {
    /// Borrows an object.
    pub fn new(object: Borrowed<'_, '_, PyAny>) -> Result<BorrowedTensor, Problem> {
        let mut import = BorrowedTensor { tensor: TensorMut::empty(), guard: BorrowGuard::EMPTY };
        // SAFETY: the view describes the object's own memory; code that writes checks for read-only tensors
        // first.
        import.guard.fill(object, unsafe { import.tensor.description() })?;
        Ok(import)
    }

    /// The view and the guard, to be filled.
    #[inline]
    pub fn parts(&mut self) -> (&mut TensorMut<'static>, &mut BorrowGuard) {
        (&mut self.tensor, &mut self.guard)
    }

    /// No tensor.
    pub const EMPTY: BorrowedTensor =
        BorrowedTensor { tensor: TensorMut::empty(), guard: BorrowGuard::EMPTY };

    /// Whether the memory is read-only.
    pub fn is_read_only(&self) -> bool {
        self.guard.is_read_only()
    }

    /// The library of the tensor.
    pub fn kind(&self) -> Kind {
        self.guard.kind
    }

    /// Reinterprets bytes as packed 4-bit floats, for libraries that have only bytes.
    pub fn nibbles(&mut self, packed: bool) {
        if packed {
            // SAFETY: the same memory with elements of the same size.
            unsafe { self.tensor.description() }.take_bytes_for_nibbles();
        }
    }

    /// The view for reading.
    pub fn view(&self) -> TensorView<'_> {
        self.tensor.as_view()
    }

    /// The view for writing. The caller uses each tensor once and keeps the import until the call is over.
    pub fn duplicate<'a>(&self) -> TensorMut<'a> {
        // SAFETY: read-only memory was refused when it was imported for writing; the rest is the caller's
        // duty.
        unsafe { self.tensor.duplicate() }
    }
}

#[cold]
fn too_many_dimensions(rank: usize) -> Problem {
    Reason::new(ReasonCode::RankMismatch)
        .required(format!("at most {MAX_RANK} dimensions"))
        .found(format!("{rank} dimensions"))
        .into()
}

#[cold]
fn unsupported(found: &str) -> Problem {
    Reason::new(ReasonCode::DtypeUnsupported)
        .required("a native-endian number or bool dtype".to_owned())
        .found(found.to_owned())
        .into()
}

/// Describes newly allocated contiguous memory.
#[inline]
pub fn describe_contiguous(
    view: &mut TensorView<'_>,
    data: *mut u8,
    sizes: &Dims,
    dtype: DType,
    device: Device,
) {
    let strides = sizes.contiguous_strides();
    // SAFETY: the library has just allocated the memory for these sizes.
    unsafe {
        view.describe(data, sizes.len(), (dtype, device), |position| (sizes[position], strides[position]));
    }
}

/// Describes host memory with strides in bytes.
///
/// # Safety
/// Both arrays have `rank` entries and describe the object's memory.
#[inline(always)]
unsafe fn describe_bytes(
    view: &mut TensorView<'_>,
    data: *const u8,
    rank: usize,
    (shape, strides): (*const isize, *const isize),
    dtype: DType,
) -> Result<(), Problem> {
    if rank > MAX_RANK {
        return Err(too_many_dimensions(rank));
    }
    // Element sizes are powers of two.
    let shift = dtype.size().trailing_zeros();
    let rest = Cell::new(0i64);
    // SAFETY: promised by the caller; `describe` passes positions below the rank.
    unsafe {
        view.describe(data, rank, (dtype, Device::HOST), |position| {
            let (size, step) = (*shape.add(position) as i64, *strides.add(position) as i64);
            rest.set(rest.get() | step & (dtype.size() as i64 - 1));
            (size, step >> shift)
        });
    }
    if rest.get() != 0 {
        return Err(Reason::new(ReasonCode::StrideInvalid)
            .required(format!("strides that are multiples of {} bytes", dtype.size()))
            .found("strides that are not multiples of it".to_owned())
            .into());
    }
    Ok(())
}

/// The interfaces of torch in use, once a tensor was read: `exchange` (DLPack exchange API of the type),
/// `stable` (torch's stable C ABI), `is_neg` (a function of torch's library without a stability guarantee),
/// `extension` (a C++ extension that was compiled for this torch).
#[pyfunction]
fn torch_interfaces(py: Python<'_>) -> Vec<&'static str> {
    torch::interfaces(py)
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(torch_interfaces, module)?)
}
