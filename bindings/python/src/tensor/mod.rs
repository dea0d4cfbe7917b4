//! Python objects as tensor views, without copying. Which way an object is read depends on its exact type alone, and the
//! types that come in every call (`numpy.ndarray`, `torch.Tensor`, `torch.nn.Parameter`) are known by their addresses.

pub mod buffer;
mod capsule;
pub mod layout;
pub mod numpy;
pub mod torch;
mod types;

use lz_core::tensor::{Dims, Layout, MAX_RANK, Place};
use lz_core::{DType, Reason, ReasonCode, TensorMut, TensorView};
use pyo3::Borrowed;
use pyo3::prelude::*;

use layout::{DLManagedTensor, DLManagedTensorVersioned};
pub use types::computes_by_dispatch;

/// Which library an object belongs to, and so which one allocates results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A numpy array.
    Numpy,
    /// A torch tensor.
    Torch,
    /// Plain memory: a memoryview, an `array.array`, bytes.
    Buffer,
    /// Anything else with DLPack.
    Other,
}

impl Kind {
    /// What a person calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Numpy => "a numpy array",
            Kind::Torch => "a torch tensor",
            Kind::Buffer => "a buffer",
            Kind::Other => "a tensor of another library",
        }
    }
}

/// A tensor that was lent by Python; gives it back when dropped.
pub struct Import {
    data: *mut u8,
    layout: Layout,
    read_only: bool,
    /// Which library it belongs to.
    pub kind: Kind,
    owner: Owner,
}

/// Who keeps the memory.
enum Owner {
    /// The caller's own object, which its caller holds for the time of the call.
    Caller,
    Buffer(Box<pyo3::ffi::Py_buffer>),
    DlPack(*mut DLManagedTensor),
    DlPackVersioned(*mut DLManagedTensorVersioned),
}

impl Drop for Import {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.owner, Owner::Caller) {
            self.give_back();
        }
    }
}

/// Why an object is not a tensor that we can use.
pub enum Problem {
    /// An exception of the object's own.
    Python(PyErr),
    /// A reason; the argument's name is still to come.
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

impl Import {
    /// Nothing yet.
    pub const EMPTY: Import = Import {
        data: std::ptr::null_mut(),
        layout: Layout { shape: Dims::EMPTY, strides: Dims::EMPTY, dtype: DType::U8, place: Place::HOST },
        read_only: false,
        kind: Kind::Numpy,
        owner: Owner::Caller,
    };

    /// Borrows an object into an empty import. An import is too large to be handed from function to function: what comes in
    /// every call is written where it stays.
    #[inline]
    pub fn fill(&mut self, object: Borrowed<'_, '_, PyAny>) -> Result<(), Problem> {
        let ty = types::of(object);
        if types::NUMPY.is(ty) {
            // SAFETY: its exact type is numpy's array.
            return unsafe { numpy::read(object, self) };
        }
        if types::TENSOR.is(ty) || types::PARAMETER.is(ty) {
            return torch::read(object, self);
        }
        types::read(object, self)
    }

    /// Borrows an object.
    pub fn new(object: Borrowed<'_, '_, PyAny>) -> Result<Import, Problem> {
        let mut import = Import::EMPTY;
        import.fill(object)?;
        Ok(import)
    }

    /// From a place that was just allocated for a result.
    pub fn fresh(data: *mut u8, layout: Layout, kind: Kind) -> Import {
        Import { data, layout, read_only: false, kind, owner: Owner::Caller }
    }

    /// The same memory as pairs of 4-bit floats, where it is meant so and the library knows only bytes.
    #[inline]
    pub fn nibbles(&mut self, packed: bool) {
        if packed && self.layout.dtype == DType::U8 {
            self.layout.dtype = DType::F4E2M1x2;
        }
    }

    /// Whether it may be written.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Where it is.
    #[inline]
    pub fn place(&self) -> Place {
        self.layout.place
    }

    /// Number of elements.
    #[inline]
    pub fn elements(&self) -> i64 {
        self.layout.elements().unwrap_or(0)
    }

    /// To read.
    #[inline]
    pub fn view(&self) -> TensorView<'_> {
        // SAFETY: the owner keeps the memory alive and described it; the caller holds it for the time of the call.
        unsafe { TensorView::from_raw(self.data, self.layout) }
    }

    /// To write. Generated functions lend each place once, and hold the import until the call is over.
    #[inline]
    pub fn lend<'a>(&self) -> TensorMut<'a> {
        // SAFETY: read-only memory was refused where it was imported to be written; the rest as the comment above says.
        unsafe { TensorMut::from_raw(self.data, self.layout) }
    }

    #[cold]
    fn give_back(&mut self) {
        match &mut self.owner {
            Owner::Caller => {}
            // SAFETY: filled by PyObject_GetBuffer and released once; the interpreter is attached wherever an import is dropped.
            Owner::Buffer(buffer) => unsafe { pyo3::ffi::PyBuffer_Release(&mut **buffer) },
            Owner::DlPack(tensor) => {
                // SAFETY: taken out of its capsule, so it is ours to give back, once.
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

/// Writes a host layout from strides in bytes. The arrays have `rank` entries.
///
/// # Safety
/// Both pointers are readable for `rank` entries.
#[inline]
unsafe fn byte_layout(
    rank: usize,
    shape: *const isize,
    strides: *const isize,
    dtype: DType,
    layout: &mut Layout,
) -> Result<(), Problem> {
    if rank > MAX_RANK {
        return Err(too_many_dimensions(rank));
    }
    // Sizes of elements are powers of two.
    let shift = dtype.size().trailing_zeros();
    let (sizes, steps, mut rest) = (&mut layout.shape, &mut layout.strides, 0i64);
    for position in 0..rank {
        // SAFETY: promised by the caller.
        let (size, step) = unsafe { (*shape.add(position) as i64, *strides.add(position) as i64) };
        rest |= step & (dtype.size() as i64 - 1);
        let fits = sizes.push(size) & steps.push(step >> shift);
        debug_assert!(fits, "the rank was looked at");
    }
    if rest != 0 {
        return Err(Reason::new(ReasonCode::StrideInvalid)
            .required(format!("strides that are multiples of {} bytes", dtype.size()))
            .found("strides that are not".to_owned())
            .into());
    }
    (layout.dtype, layout.place) = (dtype, Place::HOST);
    Ok(())
}
