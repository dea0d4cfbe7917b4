//! What is known from measurements, as scoring asks for it. Where it comes from (PerfDB, a file, a test) is not known here.

mod free_blocks;
mod stored;
mod system;

use lz_core::context::{Context, dtype_of};
use lz_core::device::DeviceSpec;
use lz_core::operation::OperationInfo;

pub(crate) use free_blocks::KeptBlocks;
pub(crate) use stored::Group;
pub use stored::StoredEvidence;
pub use system::SystemMemory;
pub(crate) use system::system_memory;

/// Which measurements are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The operation.
    pub operation: &'static OperationInfo,
    /// The call.
    pub context: &'a Context,
    /// The bucket of the call, see [`crate::bucket::Bucket`].
    pub bucket: &'a [u64],
    /// The device it would run on.
    pub device: &'a DeviceSpec,
}

/// What was measured of one kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The middle of the times, in nanoseconds.
    pub median_ns: f64,
    /// How many runs were timed.
    pub samples: u64,
    /// How long ago, in seconds.
    pub age_seconds: u64,
    /// How far it is to be believed, from 0 to 1.
    pub confidence: f64,
}

/// One measured kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finding<'a> {
    /// The kernel's id.
    pub kernel: &'a str,
    /// Its version at the time; another one says nothing about the present kernel.
    pub version: &'a str,
    /// The digest of its descriptor at the time.
    pub capabilities_hash: &'a str,
    /// The figures.
    pub measured: Measured,
}

/// Somebody who knows measurements. Asked when a decision is made, never on a cached one; must not call the engine.
pub trait Evidence: Send + Sync {
    /// Tells every finding that is about this bucket. Of several about one kernel the most believable counts.
    fn findings(&self, question: &Question<'_>, tell: &mut dyn FnMut(&Finding<'_>));

    /// Itself, if it is what a database knew: an engine sorts that once, and then asks no more.
    fn stored(&self) -> Option<&StoredEvidence> {
        None
    }
}

/// The dtypes of a call as PerfDB keys write them: `T=bf16,W=f32`.
pub fn dtypes_text(operation: &OperationInfo, context: &Context) -> String {
    let mut text = String::new();
    for field in operation.fields.iter() {
        if field.kind != lz_core::context::FieldKind::DType {
            continue;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&field.name);
        text.push('=');
        text.push_str(dtype_of(context.raw(field.store)).map_or("none", |dtype| dtype.name()));
    }
    text
}

/// Somebody who knows how much memory is free.
pub trait MemoryProbe: Send + Sync {
    /// Bytes that are free on the device; `None` when that is not known. Asked on every call of a kernel that needs scratch memory.
    fn free_bytes(&self, device: &DeviceSpec) -> Option<u64>;

    /// Bytes that could be allocated in one piece, where memory is fragmented; `None` when that is not known. It may take its
    /// time: the answer is believed for `memory.probe_ttl_seconds`, or until an allocation fails.
    fn largest_block(&self, device: &DeviceSpec) -> Option<u64> {
        let _ = device;
        None
    }
}
