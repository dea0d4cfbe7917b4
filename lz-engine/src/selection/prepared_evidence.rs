//! Stored measurements as points of an operation's candidates, worked out when the first decision needs them.
//!
//! Names, versions and digests of kernels are compared here once, so that a decision finds the points of its bucket with one
//! look and compares no text.

use crate::evidence::Measured;
use crate::evidence::dtypes_text;
use crate::evidence::{Group, StoredEvidence};
use crate::registry::Registry;
use crate::selection::cache::{self, weigh};
use crate::selection::operation_table::OperationTable;
use crate::selection::score;
use lz_core::context::{Context, FieldKind, Store};
use lz_core::device::DeviceSpec;
use lz_core::operation::OperationInfo;
use lz_perfdb::{decay, unix_now};

/// What is known of one operation's candidates.
#[derive(Debug)]
pub(crate) struct Prepared(Vec<KnownDevice>);

#[derive(Debug)]
struct KnownDevice {
    uuid: String,
    buckets: Vec<Points>,
    /// By the hashes of buckets, with room to spare: one more than the place of a bucket, 0 for none.
    places: Box<[u32]>,
}

/// The points of one bucket.
#[derive(Debug)]
pub(crate) struct Points {
    bucket: Box<[u64]>,
    /// By candidate, weighted by confidence and not floored yet; not a number for one that was not measured.
    points: Box<[f64]>,
    /// When something that they hang on counts no more.
    expires_at: u64,
}

impl Points {
    /// The points as they were loaded, and what is left of them; `None` when a measurement has expired since.
    pub fn now(&self, stored: &StoredEvidence) -> Option<(&[f64], f64)> {
        let now = unix_now();
        (now < self.expires_at).then(|| (&*self.points, decay(now.saturating_sub(stored.loaded_at))))
    }
}

impl Prepared {
    pub fn new(stored: &StoredEvidence, table: &OperationTable, registry: &Registry) -> Prepared {
        let devices = stored.devices.iter().map(|device| {
            let groups = device.operations.get(table.info.name.as_ref());
            // A row whose dtypes are not those of its bucket was stored under another layout of contexts.
            let groups =
                groups.into_iter().flatten().filter(|group| group.dtypes == dtypes_of(table.info, group));
            let buckets: Vec<Points> = groups.map(|group| points(group, stored, table, registry)).collect();
            KnownDevice { uuid: device.uuid.clone(), places: places(&buckets), buckets }
        });
        Prepared(devices.collect())
    }

    /// What is known of a bucket on a device.
    #[inline]
    pub fn find(&self, device: &DeviceSpec, bucket: &[u64]) -> Option<&Points> {
        let device = self.0.iter().find(|known| known.uuid == device.uuid)?;
        let mask = device.places.len().wrapping_sub(1);
        let mut place = cache::number(0, weigh(bucket)) as usize & mask;
        loop {
            let number = *device.places.get(place)? as usize;
            let known = device.buckets.get(number.wrapping_sub(1))?;
            if *known.bucket == *bucket {
                return Some(known);
            }
            place = (place + 1) & mask;
        }
    }
}

fn places(buckets: &[Points]) -> Box<[u32]> {
    let mut places = vec![0; (2 * buckets.len() + 1).next_power_of_two()];
    let mask = places.len() - 1;
    for (known, number) in buckets.iter().zip(1u32..) {
        let mut place = cache::number(0, weigh(&known.bucket)) as usize & mask;
        while places[place] != 0 {
            place = (place + 1) & mask;
        }
        places[place] = number;
    }
    places.into()
}

fn points(group: &Group, stored: &StoredEvidence, table: &OperationTable, registry: &Registry) -> Points {
    let mut measured: Vec<Option<Measured>> = Vec::new();
    for row in &group.rows {
        score::believe(&mut measured, table, registry, &row.finding(stored.loaded_at, 1.0));
    }
    let fastest = measured.iter().flatten().map(|one| one.median_ns).fold(f64::INFINITY, f64::min);
    let one = |one: &Option<Measured>| one.map_or(f64::NAN, |one| score::weighted(&one, fastest));
    Points {
        bucket: group.bucket.clone(),
        points: measured.iter().map(one).collect(),
        expires_at: group.rows.iter().map(|row| row.expires_at).min().unwrap_or(u64::MAX),
    }
}

/// The dtypes that the bucket of a group says.
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
