//! Tensors by their shape: on the host with memory that reads as zero, on a device that need not be there without any.

use std::ptr;
use std::sync::OnceLock;

use lz_core::device::Platform;
use lz_core::tensor::{Dims, Layout, Place};
use lz_core::{DType, TensorView};

/// The first CUDA device.
pub const CUDA: Place = Place { platform: Platform::Cuda, index: 0 };

/// Bytes of host memory that all views share; larger tensors belong on a device.
const HOST_BYTES: usize = 64 << 20;
/// Addresses are multiples of this unless a call says otherwise.
const ALIGNMENT: usize = 64;

fn host() -> &'static [u8] {
    static ZEROS: OnceLock<Vec<u8>> = OnceLock::new();
    ZEROS.get_or_init(|| vec![0; HOST_BYTES + ALIGNMENT])
}

/// How a tensor lies in memory, beyond its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lie {
    /// Where it is.
    pub place: Place,
    /// Distance between neighbours in the last dimension, in elements; 1 is dense.
    pub last_stride: i64,
    /// Bytes by which the address misses a multiple of 64.
    pub offset: usize,
}

impl Lie {
    /// Dense and aligned, on the host.
    pub const HOST: Lie = Lie { place: Place::HOST, last_stride: 1, offset: 0 };
    /// Dense and aligned, on the first CUDA device.
    pub const CUDA: Lie = Lie { place: CUDA, last_stride: 1, offset: 0 };
}

/// A tensor of this shape that reads as zeros.
///
/// # Panics
/// When a scenario states a shape that is none, or one on the host that is too large for it.
pub fn tensor(shape: &[i64], dtype: DType, lie: Lie) -> TensorView<'static> {
    let whole = Layout::contiguous(shape, dtype).expect("scenarios state right shapes");
    let strides: Vec<i64> = whole.strides.iter().map(|stride| stride * lie.last_stride).collect();
    let strides = Dims::new(&strides).expect("as many strides as sizes");
    let layout = Layout { strides, place: lie.place, ..whole };
    let address = if lie.place.is_host() {
        let elements = whole.elements().expect("it was checked") * lie.last_stride;
        let bytes = usize::try_from(elements).expect("sizes are not negative") * 8 + lie.offset;
        assert!(bytes <= HOST_BYTES, "{shape:?} is too large for the host");
        let start = host().as_ptr();
        start.wrapping_add(start.align_offset(ALIGNMENT) + lie.offset)
    } else {
        ptr::without_provenance(4096 + lie.offset)
    };
    // SAFETY: on the host every element falls into the shared zeros, which are never written and live for ever; elsewhere
    // nothing is read through the address.
    unsafe { TensorView::from_raw(address, layout) }
}
