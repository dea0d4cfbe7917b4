//! Tensors by shape: zero-filled host memory, or device tensors without backing memory for simulated devices.

use std::ptr;
use std::sync::OnceLock;

use lz_core::device::Platform;
use lz_core::tensor::{Device, Dims, Layout};
use lz_core::{DType, TensorView};

/// The first CUDA device.
pub const CUDA: Device = Device { platform: Platform::Cuda, index: 0 };

/// Size of the host buffer that all host views share; larger tensors must be on a device.
const HOST_BYTES: usize = 64 << 20;
/// Alignment of addresses unless the placement has an offset.
const ALIGNMENT: usize = 64;

fn host() -> &'static [u8] {
    static ZEROS: OnceLock<Vec<u8>> = OnceLock::new();
    ZEROS.get_or_init(|| vec![0; HOST_BYTES + ALIGNMENT])
}

/// Placement of a tensor: device, stride of the last dimension, and address offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Device of the tensor.
    pub device: Device,
    /// Stride of the last dimension in elements; 1 is contiguous.
    pub last_stride: i64,
    /// Byte offset of the address from a multiple of 64.
    pub offset: usize,
}

impl Placement {
    /// Contiguous and aligned, on the host.
    pub const HOST: Placement = Placement { device: Device::HOST, last_stride: 1, offset: 0 };
    /// Contiguous and aligned, on `cuda:0`.
    pub const CUDA: Placement = Placement { device: CUDA, last_stride: 1, offset: 0 };
}

/// A tensor of zeros with this shape.
///
/// # Panics
/// If the shape is invalid, or too large for the host buffer.
pub fn tensor(shape: &[i64], dtype: DType, placement: Placement) -> TensorView<'static> {
    let whole = Layout::contiguous(shape, dtype).expect("scenarios use valid shapes");
    let strides: Vec<i64> = whole.strides.iter().map(|stride| stride * placement.last_stride).collect();
    let strides = Dims::new(&strides).expect("rank of strides equals rank of shape");
    let layout = Layout { strides, device: placement.device, ..whole };
    let address = if placement.device.is_host() {
        let elements = whole.elements().expect("the shape was validated") * placement.last_stride;
        let bytes = usize::try_from(elements).expect("sizes are not negative") * 8 + placement.offset;
        assert!(bytes <= HOST_BYTES, "{shape:?} is too large for the host");
        let start = host().as_ptr();
        start.wrapping_add(start.align_offset(ALIGNMENT) + placement.offset)
    } else {
        ptr::without_provenance(4096 + placement.offset)
    };
    // SAFETY: on the host all elements are inside the shared zero buffer, which is never written and never
    // freed; device addresses are never dereferenced.
    unsafe { TensorView::from_raw(address, layout) }
}
