//! Measurements of one operation, with their buckets decoded.

use lz_perfdb::{Evidence, Filter, unix_now};
use serde_json::{Value, json};

use super::Source;
use super::bucket::{self, BucketLabel};

/// Maximum number of measurements of one operation on the page.
const MAX_ROWS: usize = 5000;

/// The measurements of an operation, and whether some were left out.
pub fn measurements(source: &Source, operation: &str) -> Value {
    let Some(db) = source.perfdb() else { return json!({"rows": [], "left_out": 0}) };
    let filter = Filter { operation: Some(operation.to_owned()), ..Filter::default() };
    let now = unix_now();
    let info = source.engine.registry().operation(operation);
    let row = |evidence: Evidence| {
        let words = evidence.key.bucket.words();
        let label = match info {
            Some(info) => bucket::label(info, words),
            None => BucketLabel { axes: Vec::new(), variant: evidence.key.bucket.to_string() },
        };
        let counts = evidence.counts_at(now);
        let Evidence { key, timing, .. } = evidence;
        json!({
            "kernel": key.kernel,
            "kernel_version": key.kernel_version,
            "layerzero": key.setting.layerzero,
            "driver": key.setting.driver,
            "toolkit": key.setting.toolkit,
            "torch": key.setting.torch,
            "device": key.setting.device_uuid,
            "dtypes": key.dtypes,
            "axes": label.axes,
            "variant": label.variant,
            "median_ns": timing.median_ns,
            "p95_ns": timing.p95_ns,
            "samples": timing.samples,
            "measured_at": timing.measured_at,
            "valid": counts,
        })
    };
    let rows: Vec<Value> = db.show(&filter, MAX_ROWS).into_iter().map(row).collect();
    let left_out = db.count(&filter).saturating_sub(rows.len() as u64);
    json!({"rows": rows, "left_out": left_out})
}
