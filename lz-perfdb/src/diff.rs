//! Compares the measurements of two environments: which calls got slower or faster, and for which another kernel is the fastest now.
//!
//! An environment is a file, or the part of a file that was measured with certain versions. A difference counts if it exceeds the
//! threshold and the noise of both measurements.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::merge::{MergeError, check_reads, open_existing};
use super::{Evidence, Filter, Setting, Timing, unix_now};

type ReadField = fn(&Setting) -> &str;

/// The fields of a setting that select an environment, in the notation of [`Side::parse`].
const FIELDS: [(&str, ReadField); 5] = [
    ("device", |setting| &setting.device_uuid),
    ("driver", |setting| &setting.driver),
    ("toolkit", |setting| &setting.toolkit),
    ("torch", |setting| &setting.torch),
    ("layerzero", |setting| &setting.layerzero),
];

/// Variance of a median, relative to the variance of a mean, for normally distributed times.
const MEDIAN_VARIANCE: f64 = std::f64::consts::FRAC_PI_2;

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// The file.
    pub path: PathBuf,
    /// Required values: `device`, `driver`, `toolkit`, `torch` or `layerzero`. With any, invalidated rows count as well: an upgrade
    /// invalidates the rows of the versions before it.
    pub fields: BTreeMap<String, String>,
}

impl Side {
    /// Parses `FILE` or `FILE@torch=2.14,driver=580.1`.
    ///
    /// # Errors
    ///
    /// If a field is unknown.
    pub fn parse(text: &str) -> Result<Side, String> {
        let whole = || Side { path: PathBuf::from(text), fields: BTreeMap::new() };
        let Some((path, fields)) = text.rsplit_once('@').filter(|(_, fields)| fields.contains('=')) else {
            return Ok(whole());
        };
        if Path::new(text).exists() {
            return Ok(whole());
        }
        let mut side = Side { path: PathBuf::from(path), fields: BTreeMap::new() };
        for field in fields.split(',') {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            if !FIELDS.iter().any(|(known, _)| *known == name) {
                let known = FIELDS.map(|(known, _)| known).join(", ");
                return Err(format!("unknown field `{name}` in `{text}`; expected one of {known}"));
            }
            side.fields.insert(name.to_owned(), value.to_owned());
        }
        Ok(side)
    }

    /// The measurements of this side.
    fn rows(&self) -> Result<Vec<Evidence>, MergeError> {
        let db = open_existing(&self.path)?;
        let mut rows = db.show(&Filter::default(), usize::MAX);
        check_reads(&db)?;
        let now = unix_now();
        rows.retain(|row| {
            let has = |(name, value): (&String, &String)| {
                FIELDS.iter().any(|(known, of)| known == name && of(&row.key.setting) == value)
            };
            self.fields.iter().all(has) && (!self.fields.is_empty() || row.counts_at(now))
        });
        Ok(rows)
    }
}

/// When a difference counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiffOptions {
    /// The relative difference of two times that counts: 0.05 for 5 percent.
    pub threshold: f64,
    /// How many standard errors of both medians the difference must exceed.
    pub deviations: f64,
}

impl Default for DiffOptions {
    fn default() -> Self {
        DiffOptions { threshold: 0.05, deviations: 3.0 }
    }
}

/// How a time changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Within the threshold or the noise, or measured on one side only.
    None,
    /// Slower than before.
    Slower,
    /// Faster than before.
    Faster,
}

/// A measurement of one side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Median in nanoseconds.
    pub median_ns: f64,
    /// 95th percentile in nanoseconds.
    pub p95_ns: f64,
    /// Number of timed runs.
    pub samples: u64,
    /// The kernel's version.
    pub version: String,
}

/// The times of one kernel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelDifference {
    /// The kernel.
    pub kernel: String,
    /// Before; `None` if it was not measured.
    pub before: Option<Measured>,
    /// After; `None` if it was not measured.
    pub after: Option<Measured>,
    /// Time after, divided by time before.
    pub ratio: Option<f64>,
    /// How the time changed.
    pub change: Change,
}

/// The times of one call: an operation, dtypes and a bucket of shapes on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallDifference {
    /// The operation.
    pub operation: String,
    /// The dtypes.
    pub dtypes: String,
    /// The bucket, as [`super::Bucket`] prints it.
    pub bucket: String,
    /// The bucket in words; empty until the caller, which knows operations, sets it.
    pub shape: String,
    /// The device.
    pub device: String,
    /// The fastest kernel before.
    pub before: String,
    /// The fastest kernel after.
    pub after: String,
    /// Whether they differ.
    pub decision_changed: bool,
    /// Time of the fastest kernel after, divided by that before.
    pub ratio: f64,
    /// How the time of the fastest kernel changed.
    pub change: Change,
    /// All kernels of the call.
    pub kernels: Vec<KernelDifference>,
}

/// A name whose versions differ: of a driver, a toolkit, torch, LayerZero or a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VersionDifference {
    /// The name.
    pub name: String,
    /// Versions before.
    pub before: Vec<String>,
    /// Versions after.
    pub after: Vec<String>,
}

/// The differences between two environments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Calls measured on both sides that changed, slower ones first.
    pub calls: Vec<CallDifference>,
    /// Versions that differ.
    pub versions: Vec<VersionDifference>,
    /// Number of calls measured on both sides.
    pub compared: usize,
    /// Number of calls measured before only.
    pub only_before: usize,
    /// Number of calls measured after only.
    pub only_after: usize,
    /// Number of calls whose fastest kernel is slower than the fastest one before.
    pub slower: usize,
    /// Number of calls whose fastest kernel is faster than the fastest one before.
    pub faster: usize,
    /// Number of calls with another fastest kernel.
    pub decisions_changed: usize,
}

impl Difference {
    /// Whether a call got slower.
    pub fn regressed(&self) -> bool {
        self.slower > 0
    }

    /// Whether anything changed: a decision, or the time of any kernel.
    pub fn changed(&self) -> bool {
        !self.calls.is_empty()
    }
}

/// Compares two environments.
///
/// # Errors
///
/// If a file cannot be read.
pub fn diff(before: &Side, after: &Side, options: DiffOptions) -> Result<Difference, MergeError> {
    Ok(compare(&before.rows()?, &after.rows()?, options))
}

/// Operation, dtypes, bucket and device.
type CallKey = (String, String, String, String);
type Calls<'a> = BTreeMap<CallKey, BTreeMap<&'a str, &'a Evidence>>;

/// Compares two sets of measurements.
pub fn compare(before: &[Evidence], after: &[Evidence], options: DiffOptions) -> Difference {
    let devices = |rows: &[Evidence]| -> BTreeSet<String> {
        rows.iter().map(|row| row.key.setting.device_uuid.clone()).collect()
    };
    let renamed = same_device(&devices(before), &devices(after));
    let (before_calls, after_calls) = (calls(before, None), calls(after, renamed.as_ref()));
    let mut found = Difference {
        calls: Vec::new(),
        versions: versions(before, after),
        compared: 0,
        only_before: before_calls.keys().filter(|call| !after_calls.contains_key(*call)).count(),
        only_after: after_calls.keys().filter(|call| !before_calls.contains_key(*call)).count(),
        slower: 0,
        faster: 0,
        decisions_changed: 0,
    };
    for (key, before) in &before_calls {
        let Some(after) = after_calls.get(key) else { continue };
        let Some(call) = call(key, before, after, options) else { continue };
        found.compared += 1;
        found.slower += usize::from(call.change == Change::Slower);
        found.faster += usize::from(call.change == Change::Faster);
        found.decisions_changed += usize::from(call.decision_changed);
        let changed = |kernel: &KernelDifference| kernel.change != Change::None;
        if call.decision_changed || call.change != Change::None || call.kernels.iter().any(changed) {
            found.calls.push(call);
        }
    }
    let order = |call: &CallDifference| match call.change {
        Change::Slower => 0,
        Change::None => 1,
        Change::Faster => 2,
    };
    found.calls.sort_by(|a, b| order(a).cmp(&order(b)).then(b.ratio.total_cmp(&a.ratio)));
    found
}

/// If the files have no device in common and each has one, these are compared: the name after, and the name before.
fn same_device(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Option<(String, String)> {
    match (before.len(), after.len(), before.first(), after.first()) {
        (1, 1, Some(before), Some(after)) if before != after => Some((after.clone(), before.clone())),
        _ => None,
    }
}

/// The latest measurement of each kernel of each call.
fn calls<'a>(rows: &'a [Evidence], renamed: Option<&(String, String)>) -> Calls<'a> {
    let mut calls = Calls::new();
    for row in rows {
        let device = &row.key.setting.device_uuid;
        let device = renamed.filter(|(from, _)| from == device).map_or(device, |(_, to)| to);
        let key =
            (row.key.operation.clone(), row.key.dtypes.clone(), row.key.bucket.to_string(), device.clone());
        let age = |row: &Evidence| (row.valid, row.timing.measured_at, row.timing.samples);
        let kernels = calls.entry(key).or_default();
        let known = kernels.entry(row.key.kernel.as_str()).or_insert(row);
        if age(known) < age(row) {
            *known = row;
        }
    }
    calls
}

fn fastest<'a>(kernels: &BTreeMap<&'a str, &'a Evidence>) -> Option<(&'a str, &'a Evidence)> {
    let median = |evidence: &Evidence| evidence.timing.median_ns;
    kernels.iter().map(|(kernel, row)| (*kernel, *row)).min_by(|a, b| median(a.1).total_cmp(&median(b.1)))
}

fn call(
    key: &CallKey,
    before: &BTreeMap<&str, &Evidence>,
    after: &BTreeMap<&str, &Evidence>,
    options: DiffOptions,
) -> Option<CallDifference> {
    let ((first, first_row), (last, last_row)) = (fastest(before)?, fastest(after)?);
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let kernels = names.into_iter().map(|kernel| {
        let (before, after) = (before.get(kernel).copied(), after.get(kernel).copied());
        let both = before.zip(after);
        KernelDifference {
            kernel: kernel.to_owned(),
            before: before.map(measured),
            after: after.map(measured),
            ratio: both.map(|(before, after)| after.timing.median_ns / before.timing.median_ns),
            change: both
                .map_or(Change::None, |(before, after)| change(&before.timing, &after.timing, options)),
        }
    });
    let (operation, dtypes, bucket, device) = key.clone();
    Some(CallDifference {
        operation,
        dtypes,
        bucket,
        shape: String::new(),
        device,
        before: first.to_owned(),
        after: last.to_owned(),
        decision_changed: first != last,
        ratio: last_row.timing.median_ns / first_row.timing.median_ns,
        change: change(&first_row.timing, &last_row.timing, options),
        kernels: kernels.collect(),
    })
}

fn measured(row: &Evidence) -> Measured {
    Measured {
        median_ns: row.timing.median_ns,
        p95_ns: row.timing.p95_ns,
        samples: row.timing.samples,
        version: row.key.kernel_version.clone(),
    }
}

fn change(before: &Timing, after: &Timing, options: DiffOptions) -> Change {
    let limit = 1.0 + options.threshold.max(0.0);
    let ratio = after.median_ns / before.median_ns;
    let error = |timing: &Timing| MEDIAN_VARIANCE * timing.variance_ns2 / timing.samples.max(1) as f64;
    let noise = options.deviations * (error(before) + error(after)).sqrt();
    if (after.median_ns - before.median_ns).abs() <= noise {
        Change::None
    } else if ratio > limit {
        Change::Slower
    } else if ratio < 1.0 / limit {
        Change::Faster
    } else {
        Change::None
    }
}

/// Versions of the software and of the kernels that were measured on both sides.
fn versions(before: &[Evidence], after: &[Evidence]) -> Vec<VersionDifference> {
    let of = |rows: &[Evidence]| {
        let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for row in rows {
            for (name, value) in FIELDS.iter().filter(|(name, _)| *name != "device") {
                versions.entry((*name).to_owned()).or_default().insert(value(&row.key.setting).to_owned());
            }
            let kernel = versions.entry(row.key.kernel.clone()).or_default();
            kernel.insert(row.key.kernel_version.clone());
        }
        versions
    };
    let (before, after) = (of(before), of(after));
    let differing = before.into_iter().filter_map(|(name, before)| {
        let after = after.get(&name).filter(|after| **after != before)?;
        Some(VersionDifference {
            name,
            before: before.into_iter().collect(),
            after: after.iter().cloned().collect(),
        })
    });
    differing.collect()
}
