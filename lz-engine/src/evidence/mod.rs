//! Measurements as scoring reads them, independent of their source (PerfDB, a file, a test).

mod free_blocks;
mod stored;
mod system;

use lz_core::context::{Context, dtype_of};
use lz_core::device::DeviceSpec;
use lz_core::operation::OperationInfo;

pub(crate) use free_blocks::FreeBlockCache;
pub(crate) use stored::Group;
pub use stored::StoredEvidence;
pub use system::SystemMemory;
pub(crate) use system::system_memory;

/// A query for measurements.
#[derive(Debug, Clone, Copy)]
pub struct EvidenceQuery<'a> {
    /// The operation.
    pub operation: &'static OperationInfo,
    /// The call.
    pub context: &'a Context,
    /// The bucket of the call, see [`crate::bucket::Bucket`].
    pub bucket: &'a [u64],
    /// The device of the call.
    pub device: &'a DeviceSpec,
}

/// A measurement of one kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Median in nanoseconds.
    pub median_ns: f64,
    /// Number of timed runs.
    pub samples: u64,
    /// Age in seconds.
    pub age_seconds: u64,
    /// Confidence from 0 to 1.
    pub confidence: f64,
}

/// A measurement with the kernel that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelEvidence<'a> {
    /// The kernel's id.
    pub kernel: &'a str,
    /// Its version at the time; a measurement of another version is ignored.
    pub version: &'a str,
    /// The digest of its descriptor at the time.
    pub capabilities_hash: &'a str,
    /// The measurement.
    pub measured: Measured,
}

/// A source of measurements. Queried on cache misses only; must not call the engine.
pub trait Evidence: Send + Sync {
    /// Calls `visit` with every measurement of the bucket. Of several for one kernel the one with the highest confidence is used.
    fn findings(&self, question: &EvidenceQuery<'_>, visit: &mut dyn FnMut(&KernelEvidence<'_>));

    /// Itself, if loaded from a database: the engine then prepares it once per operation instead of querying it.
    fn stored(&self) -> Option<&StoredEvidence> {
        None
    }
}

/// The dtypes of a call in the notation of PerfDB keys: `T=bf16,W=f32`.
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

/// A source of free-memory figures.
pub trait MemoryProbe: Send + Sync {
    /// Free bytes on the device; `None` if unknown. Queried on every call of a kernel with a workspace.
    fn free_bytes(&self, device: &DeviceSpec) -> Option<u64>;

    /// Size of the largest block that can be allocated; `None` if unknown. May be slow: the result is cached for
    /// `memory.probe_ttl_seconds`, or until an allocation fails.
    fn largest_block(&self, device: &DeviceSpec) -> Option<u64> {
        let _ = device;
        None
    }
}
