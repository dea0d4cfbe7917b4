//! What has to be asked of the CUDA driver itself: whether a stream is being captured and by which capture, to wait for one, how
//! much memory is free. The driver is looked for when the first tensor on a device comes; without one nothing is captured and
//! nothing is waited for.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libloading::Library;
use lz_core::KernelError;
use lz_core::device::{DeviceSpec, Platform};
use lz_core::tensor::Place;
use lz_engine::Moment;
use lz_engine::evidence::MemoryProbe;
use lz_engine::mode::{self, Ask, ModeChange, ModeScope};
use lz_engine::telemetry::Synchronize;
use lz_schema::policy::SettingValue;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::engine::{engine, opened};
use crate::inspect::{context, operation};
use crate::tensor::torch;

type IsCapturing = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
/// The status and the number of a capture; the places behind them are for what nobody here asks.
type CaptureInfo =
    unsafe extern "C" fn(*mut c_void, *mut c_int, *mut u64, *mut c_void, *mut c_void, *mut c_void) -> c_int;
type Wait = unsafe extern "C" fn(*mut c_void) -> c_int;
type MemoryInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;

struct Driver {
    is_capturing: IsCapturing,
    /// Where the driver has it (from CUDA 11.3 on).
    capture_info: Option<CaptureInfo>,
    wait: Wait,
    memory_info: MemoryInfo,
    // What the functions belong to; it stays loaded as long as the process lives.
    _library: Library,
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            // SAFETY: the driver's library is the one that the caller's framework works with already; loading it again runs
            // nothing, and the functions have had these signatures since CUDA 10.
            unsafe {
                let library = Library::new("libcuda.so.1").ok()?;
                let is_capturing = *library.get::<IsCapturing>(b"cuStreamIsCapturing\0").ok()?;
                let capture_info = library.get::<CaptureInfo>(b"cuStreamGetCaptureInfo_v2\0").ok();
                let capture_info = capture_info.map(|function| *function);
                let wait = *library.get::<Wait>(b"cuStreamSynchronize\0").ok()?;
                let memory_info = *library.get::<MemoryInfo>(b"cuMemGetInfo_v2\0").ok()?;
                Some(Driver { is_capturing, capture_info, wait, memory_info, _library: library })
            }
        })
        .as_ref()
}

/// A capture that a call is part of.
pub struct Capture {
    /// Has the call know.
    _mode: ModeScope,
    /// The state in which every call of the capture is decided.
    pub moment: Option<Moment>,
}

/// The capture that calls on a stream are part of.
#[inline]
pub fn capture(stream: usize) -> Option<Capture> {
    let driver = driver()?;
    let mut state: c_int = 0;
    // SAFETY: a stream of the caller's framework, which is alive; the place is ours. A stream of another context answers with
    // an error, and is not captured by this thread then.
    let failed = unsafe { (driver.is_capturing)(stream as *mut c_void, &raw mut state) } != 0;
    // A capture that broke (2) is one still: nothing may be waited for before it ends.
    (!failed && state != 0).then(|| driver.captured(stream))
}

impl Driver {
    #[cold]
    fn captured(&self, stream: usize) -> Capture {
        let (mut state, mut number) = (0, 0_u64);
        let none = std::ptr::null_mut();
        // SAFETY: as above; what is not asked for is null, as the driver allows.
        let known = self.capture_info.is_some_and(|ask| unsafe {
            ask(stream as *mut c_void, &raw mut state, &raw mut number, none, none, none) == 0 && state == 1
        });
        Capture {
            _mode: mode::scope(ModeChange::NONE.set(Ask::Capturing, true)),
            moment: known.then(|| first_seen(number)).flatten(),
        }
    }
}

/// Captures that may be under way at once; the driver never uses a number again.
const CAPTURES: usize = 16;

/// The state of everything when the first call of a capture came.
fn first_seen(number: u64) -> Option<Moment> {
    static KNOWN: Mutex<VecDeque<(u64, Moment)>> = Mutex::new(VecDeque::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, moment)) = known.iter().find(|(one, _)| *one == number) {
        return Some(moment.clone());
    }
    let moment = opened()?.moment();
    known.truncate(CAPTURES - 1);
    known.push_front((number, moment.clone()));
    Some(moment)
}

/// Waits for streams, so that runs are timed and not launches.
pub struct Waits;

impl Waits {
    /// For those who time.
    pub fn shared() -> Arc<dyn Synchronize> {
        Arc::new(Waits)
    }
}

impl Synchronize for Waits {
    fn synchronize(&self, stream: usize) -> Result<(), KernelError> {
        let Some(driver) = driver() else { return Ok(()) };
        // SAFETY: as above.
        match unsafe { (driver.wait)(stream as *mut c_void) } {
            0 => Ok(()),
            code => Err(KernelError::failed(format!("the device reports error {code}"))),
        }
    }
}

/// Knows how much memory kernels in Python could still get: what the driver has, and what torch holds back of it for the next who asks.
struct Memory {
    /// Who was asked last, when, and the answer: asking costs more than a call.
    last: Mutex<Option<(u32, Instant, u64)>>,
}

impl Memory {
    /// Nobody holds it while Python is asked, where another thread may get its turn and come here too.
    fn last(&self) -> MutexGuard<'_, Option<(u32, Instant, u64)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long an answer is believed.
const BELIEVED: Duration = Duration::from_millis(20);

impl MemoryProbe for Memory {
    fn free_bytes(&self, device: &DeviceSpec) -> Option<u64> {
        if device.platform() != Platform::Cuda {
            return None;
        }
        let last = *self.last();
        if let Some((index, at, bytes)) = last
            && index == device.index
            && at.elapsed() < BELIEVED
        {
            return Some(bytes);
        }
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both places are ours; without a current context the driver answers with an error.
        let failed = unsafe { (driver()?.memory_info)(&raw mut free, &raw mut total) } != 0;
        if failed {
            return None;
        }
        let bytes = free as u64 + asked("held_back", device.index).unwrap_or_default();
        *self.last() = Some((device.index, Instant::now(), bytes));
        Some(bytes)
    }

    /// Free memory may be cut up by what a framework has given away of it.
    fn largest_block(&self, device: &DeviceSpec) -> Option<u64> {
        (device.platform() == Platform::Cuda).then(|| asked("largest_block", device.index)).flatten()
    }
}

/// What `layerzero._room` says of a device; nothing if it cannot.
fn asked(what: &str, index: u32) -> Option<u64> {
    Python::attach(|py| {
        let answer = py.import("layerzero._room").and_then(|module| module.call_method1(what, (index,)));
        answer.and_then(|bytes| bytes.extract::<Option<u64>>()).ok().flatten()
    })
}

/// Since when memory has run short, and for how long that is believed; nothing while there is enough.
static SHORT: Mutex<Option<(Instant, Duration)>> = Mutex::new(None);
/// The same in short, for every call.
static IS_SHORT: AtomicBool = AtomicBool::new(false);
/// More than any kernel wants for scratch: with so much in one piece memory is not short any more.
const ENOUGH: u64 = 1 << 30;

fn short() -> MutexGuard<'static, Option<(Instant, Duration)>> {
    SHORT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An allocation on a device has failed: from now on the engine asks for free memory before it chooses a kernel that needs scratch. It
/// does not ask before, because decisions that hang on more than the call cannot be kept by a thread, and take longer than many a kernel.
#[cold]
pub fn memory_ran_out() {
    let Some(engine) = opened() else { return };
    let believed = match engine.setting("memory.probe_ttl_seconds").map(|one| one.value) {
        Some(SettingValue::Float(seconds)) => Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
        _ => Duration::from_secs(60),
    };
    *short() = Some((Instant::now(), believed));
    if !IS_SHORT.swap(true, Ordering::AcqRel) {
        engine.set_memory_probe(Some(Arc::new(Memory { last: Mutex::new(None) })));
    }
}

/// Stops asking once there has been enough for a while. Looked at by every call on a device.
#[inline]
pub fn look_whether_enough(device: lz_core::tensor::Place) {
    if IS_SHORT.load(Ordering::Relaxed) {
        look_again(device);
    }
}

#[cold]
fn look_again(device: lz_core::tensor::Place) {
    {
        let mut since = short();
        match *since {
            Some((at, believed)) if at.elapsed() >= believed => *since = Some((Instant::now(), believed)),
            _ => return,
        }
    }
    if let Some(engine) = opened()
        && asked("largest_block", u32::from(device.index)).is_some_and(|bytes| bytes >= ENOUGH)
        && IS_SHORT.swap(false, Ordering::AcqRel)
    {
        engine.set_memory_probe(None);
    }
}

/// Says that a kernel survived a trial capture of calls like this one; with `graph_strict_mode` only such calls of it are captured.
#[pyfunction]
fn mark_captured<'py>(
    py: Python<'py>,
    kernel: &str,
    operation_name: &str,
    arguments: &Bound<'py, PyTuple>,
    keywords: &Bound<'py, PyDict>,
) -> PyResult<()> {
    let info = operation(operation_name)?;
    let context = context(py, info, arguments, Some(keywords))?;
    engine()?.mark_captured(kernel, info, &context);
    Ok(())
}

/// The stream that torch works on, on the GPU of this number; 0 for the host, whose tensors have a negative one.
#[pyfunction]
fn current_stream(py: Python<'_>, index: i64) -> usize {
    u16::try_from(index).map_or(0, |index| torch::stream(py, Place { platform: Platform::Cuda, index }))
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(current_stream, module)?)?;
    module.add_function(wrap_pyfunction!(mark_captured, module)?)
}
