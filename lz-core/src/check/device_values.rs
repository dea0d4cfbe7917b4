//! Reads index tensors in device memory, so that `debug` checks them as it does those in host memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::tensor::{Device, Layout, TensorView};

/// Copies memory of a device at an address to the host; `false` if that is not possible now, for instance during a capture.
pub type DeviceReader = fn(device: Device, address: usize, into: &mut [u8]) -> bool;

static READER: OnceLock<DeviceReader> = OnceLock::new();
static ENABLED: AtomicBool = AtomicBool::new(false);

/// Sets the reader of this process. Only the first call has an effect.
pub fn set_device_reader(reader: DeviceReader) {
    // A second reader would read the same memory.
    let _ = READER.set(reader);
}

/// Whether values in device memory are checked, if there is a reader.
pub fn check_device_values(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
}

/// Whether the values of a tensor are checked: in host memory always, in device memory for `debug`.
#[inline]
pub fn is_checked(view: &TensorView<'_>) -> bool {
    view.device().is_host() || ENABLED.load(Ordering::Relaxed) && READER.get().is_some()
}

/// Checks a tensor, or a host copy of it; `None` if it cannot be read.
#[inline]
pub(super) fn on_host<R>(view: &TensorView<'_>, check: impl FnOnce(&TensorView<'_>) -> R) -> Option<R> {
    if view.device().is_host() { Some(check(view)) } else { on_copy(view, check) }
}

#[cold]
#[inline(never)]
fn on_copy<R>(view: &TensorView<'_>, check: impl FnOnce(&TensorView<'_>) -> R) -> Option<R> {
    if is_checked(view) { with_host_copy(view, check) } else { None }
}

/// Reads a tensor, or a host copy of one in device memory; `None` if that cannot be read now. An empty tensor needs no copy.
pub fn with_host_copy<R>(view: &TensorView<'_>, read: impl FnOnce(&TensorView<'_>) -> R) -> Option<R> {
    let layout = Layout { device: Device::HOST, ..*view.layout() };
    if view.device().is_host() {
        return Some(read(view));
    }
    if view.elements() == 0 {
        // SAFETY: no element is reachable.
        return Some(read(&unsafe { TensorView::from_raw(view.as_ptr(), layout) }));
    }
    let reader = READER.get()?;
    let (start, end) = view.address_range()?;
    let (start, bytes) = (usize::try_from(start).ok()?, usize::try_from(end - start).ok()?);
    // Words, so that the copy is aligned for every dtype.
    let mut memory: Vec<u64> = Vec::new();
    memory.try_reserve_exact(bytes.div_ceil(8)).ok()?;
    memory.resize(bytes.div_ceil(8), 0);
    // SAFETY: initialized memory of `bytes` bytes or more; any bytes are valid words.
    let copy = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<u8>(), bytes) };
    if !reader(view.device(), start, copy) {
        return None;
    }
    let data = copy.as_ptr().wrapping_add(view.address() - start);
    // SAFETY: the copy has every byte that the layout reaches, and outlives the read.
    Some(read(&unsafe { TensorView::from_raw(data, layout) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::values::{index_ok, index_problem};
    use crate::device::Platform;

    #[test]
    fn device_memory_is_read_only_while_enabled() {
        static VALUES: [i32; 3] = [0, 7, 2];
        let mut layout = Layout::contiguous(&[3], lz_schema::DType::I32).expect("a layout");
        layout.device = Device { platform: Platform::Cuda, index: 0 };
        // SAFETY: not dereferenced as device memory; the reader below copies host memory.
        let view = unsafe { TensorView::from_raw(VALUES.as_ptr().cast(), layout) };
        // Other tests run at the same time and have other addresses.
        set_device_reader(|device, address, into| {
            let is_ours = address == VALUES.as_ptr() as usize && device.platform == Platform::Cuda;
            if is_ours {
                let bytes = VALUES.iter().flat_map(|value| value.to_ne_bytes());
                into.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = byte);
            }
            is_ours
        });
        assert!(!is_checked(&view) && index_ok(&view, 3), "device memory is not read by default");
        check_device_values(true);
        assert!(is_checked(&view) && !index_ok(&view, 3) && index_ok(&view, 8));
        let reason = on_host(&view, |view| index_problem(view, 3)).flatten().expect("7 is out of range");
        assert!(reason.to_string().contains("[1] is 7"), "{reason}");
        check_device_values(false);
        assert!(index_ok(&view, 3));
    }

    /// Without elements nothing is copied; memory that the reader does not know is never read as if it were the host's.
    #[test]
    fn only_empty_tensors_need_no_reader() {
        let device = |shape: &[i64]| {
            let mut layout = Layout::contiguous(shape, lz_schema::DType::I32).expect("a layout");
            layout.device = Device { platform: Platform::Cuda, index: 7 };
            // SAFETY: not dereferenced: no reader knows the address, and without elements there is none.
            unsafe { TensorView::from_raw(std::ptr::without_provenance(0x1000), layout) }
        };
        assert_eq!(with_host_copy(&device(&[0]), |view| view.elements()), Some(0));
        assert_eq!(with_host_copy(&device(&[3]), |view| view.elements()), None);
    }
}
