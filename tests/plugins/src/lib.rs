//! A Rust plugin: one kernel of `norm.rms` for contiguous f32, exported through the C ABI.

use std::ffi::c_void;
use std::ptr::null_mut;

use lz_plugin::abi::{self, Run, Status};
use lz_plugin::generated::norm_rms::{NormRmsArgs, NormRmsOutputSlots};
use lz_plugin::loader::library::{Host, KernelRecord, PluginRecord};
use lz_plugin::native::Vtable;

/// The ABI version of this plugin.
#[unsafe(no_mangle)]
pub static lz_plugin_abi: u32 = abi::ABI_MAJOR << 16 | abi::ABI_MINOR;

const DESCRIPTOR: &str = concat!(
    r#"{"schema_version": "1.0", "backend": "rusty", "backend_version": "1.0", "platform": "cpu", "ops": {"norm.rms": [{
    "kernel_id": "rusty.norm.rms", "dtypes": ["float32"], "requires_layouts": ["any"], "params": ["eps"],
    "requires_contiguous": true, "writes_into_output": true, "priority": 99}]}}"#,
    "\0"
);

/// Makes static tables with raw pointers `Sync`.
struct Fixed<T>(T);
// SAFETY: read-only data.
unsafe impl<T> Sync for Fixed<T> {}

static VTABLE: Fixed<Vtable<NormRmsArgs, NormRmsOutputSlots>> = Fixed(Vtable {
    size: size_of::<Vtable<NormRmsArgs, NormRmsOutputSlots>>(),
    context: null_mut(),
    workspace: None,
    run: Some(run),
    release: None,
});

static KERNELS: Fixed<[KernelRecord; 1]> = Fixed([KernelRecord {
    size: size_of::<KernelRecord>(),
    id: c"rusty.norm.rms".as_ptr(),
    operation: c"norm.rms".as_ptr(),
    operation_version: 1,
    vtable: (&raw const VTABLE.0).cast(),
}]);

/// Initializes the plugin.
///
/// # Safety
/// Called by a host according to `lz_plugin.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lz_plugin_init(_host: *const Host, plugin: *mut PluginRecord) -> Status {
    // SAFETY: the host passes a valid record.
    let plugin = unsafe { &mut *plugin };
    plugin.descriptor = DESCRIPTOR.as_ptr().cast();
    plugin.kernels = KERNELS.0.as_ptr();
    plugin.kernel_count = KERNELS.0.len();
    abi::OK
}

unsafe extern "C" fn run(
    _context: *mut c_void,
    args: *const NormRmsArgs,
    out: *const NormRmsOutputSlots,
    _run: *mut Run,
) -> Status {
    // SAFETY: the host passes a validated call: contiguous f32 tensors of equal shape.
    let (x, output, eps) = unsafe { ((*args).x.read(), (*out).output.read(), (*args).eps) };
    let hidden = x.shape[x.rank as usize - 1].max(0) as usize;
    let elements: i64 = x.shape[..x.rank as usize].iter().product();
    // SAFETY: as above.
    let (from, to) = unsafe {
        (
            std::slice::from_raw_parts(x.data.cast::<f32>(), elements as usize),
            std::slice::from_raw_parts_mut(output.data.cast::<f32>(), elements as usize),
        )
    };
    for (from, to) in from.chunks_exact(hidden).zip(to.chunks_exact_mut(hidden)) {
        let sum: f64 = from.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
        let scale = (sum / hidden as f64 + f64::from(eps)).sqrt();
        for (from, to) in from.iter().zip(to) {
            *to = (f64::from(*from) / scale) as f32;
        }
    }
    abi::OK
}
