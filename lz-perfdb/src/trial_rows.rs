//! Marks of trials in progress: a mark that a crashed process leaves behind identifies the kernel that was being measured.
//! `lz_engine::tune` determines which processes have ended.

use rusqlite::{Row, params};

use super::filter::seconds;
use super::{Bucket, DropReason, PerfDb};

/// Identifies a process, also after its pid is reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Boot id of the machine.
    pub boot: String,
    /// PID namespace: containers have their own.
    pub pid_namespace: String,
    /// PID.
    pub pid: u32,
    /// Start time, in ticks since boot.
    pub started: u64,
}

/// A trial of a kernel in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialMark {
    /// The kernel.
    pub kernel: String,
    /// Its version.
    pub version: String,
    /// The machine id that health is stored under.
    pub device_uuid: String,
    /// The context bucket.
    pub bucket: Bucket,
    /// The measuring process.
    pub process: ProcessIdentity,
    /// Start of the trial, in seconds since 1970.
    pub began_at: u64,
}

impl PerfDb {
    /// Inserts a mark.
    pub fn begin_trial(&self, mark: &TrialMark) -> Result<(), DropReason> {
        self.write(|transaction| {
            let mut insert = transaction.prepare_cached(
                "INSERT OR REPLACE INTO trial (device_uuid, kernel, version, bucket, boot, pid_namespace, pid, started, began_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?;
            insert.execute(params![
                mark.device_uuid,
                mark.kernel,
                mark.version,
                mark.bucket.to_bytes(),
                mark.process.boot,
                mark.process.pid_namespace,
                mark.process.pid,
                seconds(mark.process.started),
                seconds(mark.began_at),
            ])?;
            Ok(())
        })
    }

    /// Removes a mark and returns whether it existed: if several processes remove it, one gets true.
    pub fn end_trial(&self, mark: &TrialMark) -> Result<bool, DropReason> {
        self.write(|transaction| {
            let mut delete = transaction.prepare_cached(
                "DELETE FROM trial WHERE device_uuid = ?1 AND kernel = ?2 AND version = ?3 AND bucket = ?4 AND boot = ?5
                   AND pid_namespace = ?6 AND pid = ?7 AND started = ?8",
            )?;
            let removed = delete.execute(params![
                mark.device_uuid,
                mark.kernel,
                mark.version,
                mark.bucket.to_bytes(),
                mark.process.boot,
                mark.process.pid_namespace,
                mark.process.pid,
                seconds(mark.process.started),
            ])?;
            Ok(removed > 0)
        })
    }

    /// Removes the marks of one kernel, or of all.
    pub fn clear_trials(&self, kernel: Option<&str>) -> Result<(), DropReason> {
        self.write(|transaction| {
            transaction.execute("DELETE FROM trial WHERE ?1 IS NULL OR kernel = ?1", [kernel])?;
            Ok(())
        })
    }

    /// All marks, in key order.
    pub fn load_trials(&self) -> Vec<TrialMark> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT device_uuid, kernel, version, bucket, boot, pid_namespace, pid, started, began_at FROM trial
                 ORDER BY device_uuid, kernel, version, bucket, boot, pid_namespace, pid, started",
            )?;
            let rows = statement.query_map([], trial_mark)?;
            rows.filter_map(Result::transpose).collect()
        })
    }
}

fn trial_mark(row: &Row<'_>) -> rusqlite::Result<Option<TrialMark>> {
    let Some(bucket) = Bucket::from_bytes(&row.get::<_, Vec<u8>>(3)?) else { return Ok(None) };
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    Ok(Some(TrialMark {
        device_uuid: row.get(0)?,
        kernel: row.get(1)?,
        version: row.get(2)?,
        bucket,
        process: ProcessIdentity {
            boot: row.get(4)?,
            pid_namespace: row.get(5)?,
            pid: row.get(6)?,
            started: unsigned(row.get(7)?),
        },
        began_at: unsigned(row.get(8)?),
    }))
}
