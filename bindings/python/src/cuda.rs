//! Direct queries to the CUDA driver: whether a stream is being captured and by which capture, stream
//! synchronization, and free memory. The driver is loaded when the first device tensor arrives; without one
//! nothing is captured and synchronization does nothing.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use libloading::Library;
use lz_core::KernelError;
use lz_core::device::{DeviceSpec, Platform};
use lz_core::fork::{Mutex, MutexGuard};
use lz_core::tensor::Device;
use lz_engine::HeldSnapshot;
use lz_engine::evidence::MemoryProbe;
use lz_engine::mode::{self, ModeFlag, ModeOverride, ModeScope};
use lz_engine::telemetry::Synchronize;
use lz_schema::policy::SettingValue;
use pyo3::prelude::*;

use crate::engine::engine_if_open;
use crate::tensor::torch;

type IsCapturing = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
/// Returns the status and the id of a capture; the remaining output parameters are not used here.
type CaptureInfo =
    unsafe extern "C" fn(*mut c_void, *mut c_int, *mut u64, *mut c_void, *mut c_void, *mut c_void) -> c_int;
type Wait = unsafe extern "C" fn(*mut c_void) -> c_int;
type CopyToHost = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int;
type MemoryInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;

struct Driver {
    is_capturing: IsCapturing,
    /// Present from CUDA 11.3 on.
    capture_info: Option<CaptureInfo>,
    wait: Wait,
    memory_info: MemoryInfo,
    copy_to_host: CopyToHost,
    // Owns the functions; stays loaded as long as the process lives.
    _library: Library,
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            // SAFETY: this is the library that the caller's framework already uses; loading it again runs
            // nothing, and the functions have had these signatures since CUDA 10.
            unsafe {
                let library = Library::new("libcuda.so.1").ok()?;
                let is_capturing = *library.get::<IsCapturing>(b"cuStreamIsCapturing\0").ok()?;
                let capture_info = library.get::<CaptureInfo>(b"cuStreamGetCaptureInfo_v2\0").ok();
                let capture_info = capture_info.map(|function| *function);
                let wait = *library.get::<Wait>(b"cuStreamSynchronize\0").ok()?;
                let memory_info = *library.get::<MemoryInfo>(b"cuMemGetInfo_v2\0").ok()?;
                let copy_to_host = *library.get::<CopyToHost>(b"cuMemcpyDtoH_v2\0").ok()?;
                Some(Driver {
                    is_capturing,
                    capture_info,
                    wait,
                    memory_info,
                    copy_to_host,
                    _library: library,
                })
            }
        })
        .as_ref()
}

/// A CUDA graph capture that a call is part of.
pub struct Capture {
    /// Sets the capturing mode for the call.
    _mode: ModeScope,
    /// The moment under which every call of the capture selects its kernel.
    pub moment: Option<HeldSnapshot>,
}

/// The capture that calls on a stream are part of, if there is one.
#[inline]
pub fn capture(stream: usize) -> Option<Capture> {
    let driver = driver()?;
    let mut state: c_int = 0;
    // SAFETY: a live stream of the caller's framework; `state` is a local variable. A stream of another
    // context returns an error, and is not being captured by this thread then.
    let failed = unsafe { (driver.is_capturing)(stream as *mut c_void, &raw mut state) } != 0;
    // An invalidated capture (2) still counts: synchronization is forbidden before it ends.
    (!failed && state != 0).then(|| driver.captured(stream))
}

impl Driver {
    /// Whether a stream is known not to be captured. For the default stream the driver returns an error while another one is.
    fn is_outside_captures(&self, stream: usize) -> bool {
        let mut state: c_int = 0;
        // SAFETY: as in `capture`.
        let failed = unsafe { (self.is_capturing)(stream as *mut c_void, &raw mut state) } != 0;
        !failed && state == 0
    }

    #[cold]
    fn captured(&self, stream: usize) -> Capture {
        let (mut state, mut number) = (0, 0_u64);
        let none = std::ptr::null_mut();
        // SAFETY: as above; unused output parameters may be null.
        let known = self.capture_info.is_some_and(|get_info| unsafe {
            get_info(stream as *mut c_void, &raw mut state, &raw mut number, none, none, none) == 0
                && state == 1
        });
        Capture {
            _mode: mode::scope(ModeOverride::NONE.set(ModeFlag::Capturing, true)),
            moment: known.then(|| moment_of_capture(number)).flatten(),
        }
    }
}

/// Captures that may be in progress at once; the driver never reuses a capture id.
const MAX_CONCURRENT_CAPTURES: usize = 16;

/// The moment at which the first call of a capture was made.
fn moment_of_capture(number: u64) -> Option<HeldSnapshot> {
    static KNOWN: Mutex<VecDeque<(u64, HeldSnapshot)>> = Mutex::new(VecDeque::new());
    let mut known = KNOWN.lock();
    if let Some((_, moment)) = known.iter().find(|(one, _)| *one == number) {
        return Some(moment.clone());
    }
    let moment = engine_if_open()?.hold_snapshot();
    known.truncate(MAX_CONCURRENT_CAPTURES - 1);
    known.push_front((number, moment.clone()));
    Some(moment)
}

/// Synchronizes streams, so that kernel runs are timed and not launches.
pub struct StreamSynchronizer;

impl StreamSynchronizer {
    /// For timing.
    pub fn shared() -> Arc<dyn Synchronize> {
        Arc::new(StreamSynchronizer)
    }
}

impl Synchronize for StreamSynchronizer {
    fn synchronize(&self, stream: usize) -> Result<(), KernelError> {
        // A stream cannot be synchronized while it is captured.
        let Some(driver) = driver().filter(|_| capture(stream).is_none()) else { return Ok(()) };
        // SAFETY: as above.
        match unsafe { (driver.wait)(stream as *mut c_void) } {
            0 => Ok(()),
            code => Err(KernelError::failed(format!("cuStreamSynchronize failed with CUDA error {code}"))),
        }
    }
}

/// Copies device memory to the host, for the checks of `debug`. Not during a capture, which it would invalidate.
fn read_device_memory(device: Device, address: usize, into: &mut [u8]) -> bool {
    // Arguments are checked before the call enters its stream.
    let Some(stream) = Python::try_attach(|py| torch::stream(py, device)) else { return false };
    let Some(driver) = driver().filter(|driver| driver.is_outside_captures(stream)) else { return false };
    // Work of the caller may still be writing the tensor.
    if StreamSynchronizer.synchronize(stream).is_err() {
        return false;
    }
    // SAFETY: the caller's tensor reaches this memory; a wrong address is an error of the driver.
    unsafe { (driver.copy_to_host)(into.as_mut_ptr().cast(), address as u64, into.len()) == 0 }
}

/// Connects the engine with the driver: `debug` synchronizes streams and reads index tensors.
pub fn connect(engine: &lz_engine::Engine) {
    engine.set_synchronize(Some(StreamSynchronizer::shared()));
    lz_core::check::values::set_device_reader(read_device_memory);
}

/// Reports how much device memory Python kernels can still get: the driver's free memory plus what torch's
/// caching allocator holds.
struct DeviceMemoryProbe {
    /// Device, time and bytes of the last query: a query costs more than a call.
    /// Never locked while Python runs, because another thread may then get the GIL and lock it too.
    last: Mutex<Option<(u32, Instant, u64)>>,
}

impl DeviceMemoryProbe {}

/// How long a cached answer is used.
const PROBE_TTL: Duration = Duration::from_millis(20);

impl MemoryProbe for DeviceMemoryProbe {
    fn free_bytes(&self, device: &DeviceSpec) -> Option<u64> {
        if device.platform() != Platform::Cuda {
            return None;
        }
        let last = *self.last.lock();
        if let Some((index, at, bytes)) = last
            && index == device.index
            && at.elapsed() < PROBE_TTL
        {
            return Some(bytes);
        }
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both are local variables; without a current context the driver returns an error.
        let failed = unsafe { (driver()?.memory_info)(&raw mut free, &raw mut total) } != 0;
        if failed {
            return None;
        }
        let bytes = free as u64 + query_allocator("inactive_bytes", device.index).unwrap_or_default();
        *self.last.lock() = Some((device.index, Instant::now(), bytes));
        Some(bytes)
    }

    /// The largest free block: free memory may be fragmented by the framework's allocator.
    fn largest_block(&self, device: &DeviceSpec) -> Option<u64> {
        (device.platform() == Platform::Cuda)
            .then(|| query_allocator("largest_block", device.index))
            .flatten()
    }
}

/// Calls a function of `layerzero._device_memory` for a device; nothing if it fails.
fn query_allocator(what: &str, index: u32) -> Option<u64> {
    Python::attach(|py| {
        let answer =
            py.import("layerzero._device_memory").and_then(|module| module.call_method1(what, (index,)));
        answer.and_then(|bytes| bytes.extract::<Option<u64>>()).ok().flatten()
    })
}

/// When memory ran out, and how long that counts; nothing while there is enough.
static MEMORY_SHORTAGE: Mutex<Option<(Instant, Duration)>> = Mutex::new(None);
/// Whether memory is short: a cheap check for every call.
static IS_MEMORY_SHORT: AtomicBool = AtomicBool::new(false);
/// More than any kernel needs as workspace: with a free block of this size memory is no longer short.
const SUFFICIENT_BLOCK_BYTES: u64 = 1 << 30;

fn memory_shortage() -> MutexGuard<'static, Option<(Instant, Duration)>> {
    MEMORY_SHORTAGE.lock()
}

/// Records that a device allocation failed: from now on the engine queries free memory before it selects a
/// kernel that needs workspace. It does not do so before, because decisions that depend on more than the call
/// cannot be in the thread cache, and take longer than many kernels run.
#[cold]
pub fn record_out_of_memory() {
    let Some(engine) = engine_if_open() else { return };
    let ttl = match engine.setting("memory.probe_ttl_seconds").map(|one| one.value) {
        Some(SettingValue::Float(seconds)) => Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
        _ => Duration::from_secs(60),
    };
    *memory_shortage() = Some((Instant::now(), ttl));
    if !IS_MEMORY_SHORT.swap(true, Ordering::AcqRel) {
        engine.set_memory_probe(Some(Arc::new(DeviceMemoryProbe { last: Mutex::new(None) })));
    }
}

/// Ends the queries once there has been enough memory for a while. Checked by every call on a device.
#[inline]
pub fn refresh_memory_pressure(device: lz_core::tensor::Device) {
    if IS_MEMORY_SHORT.load(Ordering::Relaxed) {
        end_memory_pressure(device);
    }
}

#[cold]
fn end_memory_pressure(device: lz_core::tensor::Device) {
    {
        let mut since = memory_shortage();
        match *since {
            Some((at, ttl)) if at.elapsed() >= ttl => *since = Some((Instant::now(), ttl)),
            _ => return,
        }
    }
    if let Some(engine) = engine_if_open()
        && query_allocator("largest_block", u32::from(device.index))
            .is_some_and(|bytes| bytes >= SUFFICIENT_BLOCK_BYTES)
        && IS_MEMORY_SHORT.swap(false, Ordering::AcqRel)
    {
        engine.set_memory_probe(None);
    }
}

/// The current stream of torch on the GPU with this index; 0 for the host, whose tensors have a negative
/// index.
#[pyfunction]
fn current_stream(py: Python<'_>, index: i64) -> usize {
    u16::try_from(index).map_or(0, |index| torch::stream(py, Device { platform: Platform::Cuda, index }))
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(current_stream, module)?)
}
