//! Helpers of the performance-database tests.

use std::path::Path;

use lz_core::device::Environment;
use lz_perfdb::{Bucket, EvidenceKey, HealthRow, HealthScope, HealthState, Measurement, Setting, Timing};

pub const NOW: u64 = 2_000_000_000;

pub fn setting() -> Setting {
    Setting {
        device_uuid: "GPU-1".to_owned(),
        driver: "580.1".to_owned(),
        toolkit: "13.0".to_owned(),
        torch: "2.11".to_owned(),
        layerzero: "0.1.0".to_owned(),
    }
}

pub fn measurement(kernel: &str, bucket: u64, median_ns: f64) -> Measurement {
    Measurement {
        key: EvidenceKey {
            kernel: kernel.to_owned(),
            kernel_version: "1.0".to_owned(),
            operation: "norm.rms".to_owned(),
            setting: setting(),
            dtypes: "bf16".to_owned(),
            bucket: Bucket::from([bucket, u64::MAX].as_slice()),
            capabilities_hash: "abc".to_owned(),
            environment: Environment::default(),
        },
        timing: Timing {
            median_ns,
            p95_ns: median_ns * 1.2,
            variance_ns2: 4.0,
            samples: 10,
            warmup_ns: 7.0,
            measured_at: NOW,
        },
        expires_at: None,
    }
}

pub fn health_row(name: &str, bucket: u64) -> HealthRow {
    HealthRow {
        scope: HealthScope::Kernel,
        name: name.to_owned(),
        version: "1.0".to_owned(),
        device_uuid: "GPU-1".to_owned(),
        bucket: Bucket::from([bucket].as_slice()),
        state: HealthState::Open,
        failures: 5,
        reopenings: 1,
        last_error: "illegal memory access".to_owned(),
        next_probe_at: Some(NOW + 30),
        updated_at: NOW,
    }
}

/// The result of an integrity check on a separate connection.
pub fn integrity(path: &Path) -> String {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap()
}
