//! Stored measurements prepared as points per candidate of an operation, on first use.
//!
//! Ids, versions and digests of kernels are compared once here, so that a decision finds the points of its bucket with one hash
//! lookup and without string comparisons.

use crate::evidence::Measured;
use crate::evidence::dtypes_text;
use crate::evidence::{Group, StoredEvidence};
use crate::registry::Registry;
use crate::selection::cache::{self, hash_words};
use crate::selection::operation_table::OperationTable;
use crate::selection::score;
use lz_core::context::{Context, FieldKind, Store};
use lz_core::device::DeviceSpec;
use lz_core::operation::OperationInfo;
use lz_perfdb::{decay, unix_now};

/// Prepared measurements of one operation.
#[derive(Debug)]
pub(crate) struct Prepared(Vec<PreparedDevice>);

#[derive(Debug)]
struct PreparedDevice {
    uuid: String,
    buckets: Vec<Points>,
    /// Hash table of buckets with linear probing: index of the bucket plus one, 0 for a free slot.
    slots: Box<[u32]>,
}

/// The points of one bucket.
#[derive(Debug)]
pub(crate) struct Points {
    bucket: Box<[u64]>,
    /// By candidate, weighted by confidence, before the minimum is applied; NaN for one without measurements.
    points: Box<[f64]>,
    /// When the first of its measurements expires.
    expires_at: u64,
}

impl Points {
    /// The points at load time and the decay factor since; `None` if a measurement has expired.
    pub fn now(&self, stored: &StoredEvidence) -> Option<(&[f64], f64)> {
        let now = unix_now();
        (now < self.expires_at).then(|| (&*self.points, decay(now.saturating_sub(stored.loaded_at))))
    }
}

impl Prepared {
    pub fn new(stored: &StoredEvidence, table: &OperationTable, registry: &Registry) -> Prepared {
        let devices = stored.devices.iter().map(|device| {
            let groups = device.operations.get(table.info.name.as_ref());
            // Skips rows whose dtypes do not match their bucket: they were stored under another context layout.
            let groups =
                groups.into_iter().flatten().filter(|group| group.dtypes == dtypes_of(table.info, group));
            let buckets: Vec<Points> = groups.map(|group| points(group, stored, table, registry)).collect();
            PreparedDevice { uuid: device.uuid.clone(), slots: slots(&buckets), buckets }
        });
        Prepared(devices.collect())
    }

    /// The points of a bucket on a device.
    #[inline]
    pub fn find(&self, device: &DeviceSpec, bucket: &[u64]) -> Option<&Points> {
        let device = self.0.iter().find(|known| known.uuid == device.uuid)?;
        let mask = device.slots.len().wrapping_sub(1);
        let mut slot = cache::number(0, hash_words(bucket)) as usize & mask;
        loop {
            let number = *device.slots.get(slot)? as usize;
            let known = device.buckets.get(number.wrapping_sub(1))?;
            if *known.bucket == *bucket {
                return Some(known);
            }
            slot = (slot + 1) & mask;
        }
    }
}

fn slots(buckets: &[Points]) -> Box<[u32]> {
    let mut slots = vec![0; (2 * buckets.len() + 1).next_power_of_two()];
    let mask = slots.len() - 1;
    for (known, number) in buckets.iter().zip(1u32..) {
        let mut slot = cache::number(0, hash_words(&known.bucket)) as usize & mask;
        while slots[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        slots[slot] = number;
    }
    slots.into()
}

fn points(group: &Group, stored: &StoredEvidence, table: &OperationTable, registry: &Registry) -> Points {
    let mut measured: Vec<Option<Measured>> = Vec::new();
    for row in &group.rows {
        score::merge_finding(&mut measured, table, registry, &row.finding(stored.loaded_at, 1.0));
    }
    let fastest = measured.iter().flatten().map(|one| one.median_ns).fold(f64::INFINITY, f64::min);
    let one = |one: &Option<Measured>| one.map_or(f64::NAN, |one| score::weighted(&one, fastest));
    Points {
        bucket: group.bucket.clone(),
        points: measured.iter().map(one).collect(),
        expires_at: group.rows.iter().map(|row| row.expires_at).min().unwrap_or(u64::MAX),
    }
}

/// The dtypes encoded in the bucket of a group.
fn dtypes_of(operation: &OperationInfo, group: &Group) -> String {
    let mut context = Context::of(&operation.fields);
    for field in operation.fields.iter().filter(|field| field.kind == FieldKind::DType) {
        if let Store::Flag { word, shift, .. } = field.store {
            let word = group.bucket.get(usize::from(word)).copied().unwrap_or_default();
            context.set(field.store, word >> shift);
        }
    }
    dtypes_text(operation, &context)
}
