//! Python objects as tensor views, without copying. Which way an object is read depends on its exact type alone, and the
//! types that come in every call (`numpy.ndarray`, `torch.Tensor`, `torch.nn.Parameter`) are known by their addresses.

pub mod buffer;
mod capsule;
pub mod layout;
pub mod numpy;
pub mod torch;
mod types;

use std::cell::Cell;

use lz_core::tensor::{MAX_RANK, Place};
use lz_core::{DType, Reason, ReasonCode, TensorMut, TensorView};
use pyo3::Borrowed;
use pyo3::prelude::*;

use layout::{DLManagedTensor, DLManagedTensorVersioned};
pub use types::{computes_by_dispatch, is_usual};

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

/// What Python lends a tensor with; gives it back when dropped. The tensor itself is described where its view stays, because
/// it is too large to be handed from function to function in every call.
pub struct Hold {
    read_only: bool,
    /// Which library it belongs to.
    pub kind: Kind,
    owner: Owner,
}

/// A tensor that was lent by Python, as one thing, for those that have time.
pub struct Import {
    tensor: TensorMut<'static>,
    hold: Hold,
}

/// Who keeps the memory.
enum Owner {
    /// The caller's own object, which its caller holds for the time of the call.
    Caller,
    Buffer(Box<pyo3::ffi::Py_buffer>),
    DlPack(*mut DLManagedTensor),
    DlPackVersioned(*mut DLManagedTensorVersioned),
}

impl Drop for Hold {
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

impl Hold {
    /// Nothing yet.
    pub const NOTHING: Hold = Hold { read_only: false, kind: Kind::Numpy, owner: Owner::Caller };

    /// Borrows an object and describes it in an empty view.
    #[inline]
    pub fn fill(
        &mut self,
        object: Borrowed<'_, '_, PyAny>,
        view: &mut TensorView<'_>,
    ) -> Result<(), Problem> {
        let ty = types::of(object);
        if types::NUMPY.is(ty) {
            // SAFETY: its exact type is numpy's array.
            return unsafe { numpy::read(object, view, self) };
        }
        if types::TENSOR.is(ty) || types::PARAMETER.is(ty) {
            return torch::read(object, view, self);
        }
        types::read(object, view, self)
    }

    /// Whether it may be written.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.read_only
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

impl Import {
    /// Borrows an object.
    pub fn new(object: Borrowed<'_, '_, PyAny>) -> Result<Import, Problem> {
        let mut import = Import { tensor: TensorMut::empty(), hold: Hold::NOTHING };
        // SAFETY: what is described is the object's own memory; whoever writes asks first whether it may.
        import.hold.fill(object, unsafe { import.tensor.description() })?;
        Ok(import)
    }

    /// Its view and what holds it, to be filled.
    #[inline]
    pub fn parts(&mut self) -> (&mut TensorMut<'static>, &mut Hold) {
        (&mut self.tensor, &mut self.hold)
    }

    /// Nothing yet.
    pub const EMPTY: Import = Import { tensor: TensorMut::empty(), hold: Hold::NOTHING };

    /// Whether it may be written.
    pub fn is_read_only(&self) -> bool {
        self.hold.is_read_only()
    }

    /// The same memory as pairs of 4-bit floats, where it is meant so and the library knows only bytes.
    pub fn nibbles(&mut self, packed: bool) {
        if packed {
            // SAFETY: elements of the same size in the same memory.
            unsafe { self.tensor.description() }.take_bytes_for_nibbles();
        }
    }

    /// To read.
    pub fn view(&self) -> TensorView<'_> {
        self.tensor.as_view()
    }

    /// To write. Whoever calls lends each place once, and holds the import until the call is over.
    pub fn lend<'a>(&self) -> TensorMut<'a> {
        // SAFETY: read-only memory was refused where it was imported to be written; the rest as the comment above says.
        unsafe { self.tensor.lend() }
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

/// Describes host memory with strides in bytes.
///
/// # Safety
/// Both arrays have `rank` entries, and what they describe is the object's memory.
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
    // Sizes of elements are powers of two.
    let shift = dtype.size().trailing_zeros();
    let rest = Cell::new(0i64);
    // SAFETY: promised by the caller; `describe` asks for positions below the rank.
    unsafe {
        view.describe(data, rank, (dtype, Place::HOST), |position| {
            let (size, step) = (*shape.add(position) as i64, *strides.add(position) as i64);
            rest.set(rest.get() | step & (dtype.size() as i64 - 1));
            (size, step >> shift)
        });
    }
    if rest.get() != 0 {
        return Err(Reason::new(ReasonCode::StrideInvalid)
            .required(format!("strides that are multiples of {} bytes", dtype.size()))
            .found("strides that are not".to_owned())
            .into());
    }
    Ok(())
}
