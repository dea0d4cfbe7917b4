//! Helpers of the performance-database tests.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use lz_core::device::Environment;
use lz_core::perfdb::{
    Bucket, EvidenceKey, HealthRow, HealthScope, HealthState, Measurement, Setting, Timing,
};

pub const NOW: u64 = 2_000_000_000;

/// A temporary directory.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("lz-perfdb-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn database(&self) -> PathBuf {
        self.0.join("perfdb.sqlite")
    }

    /// The names of its files that contain a text.
    pub fn names_with(&self, part: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.contains(part))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

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
