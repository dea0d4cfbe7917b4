//! Marks of kernels that are being measured for the first time: what a process leaves behind that ends in the middle of it.
//! Which processes have ended is the business of `lz_engine::tune`; here they are rows.

use rusqlite::{Row, params};

use super::filter::seconds;
use super::{Bucket, DropReason, PerfDb};

/// One process of one machine, so that a number that is used again is not taken for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The boot of the machine.
    pub boot: String,
    /// The namespace in which the number counts: containers of one machine have their own.
    pub pid_namespace: String,
    /// Its number.
    pub pid: u32,
    /// When it started, in ticks since the boot.
    pub started: u64,
}

/// A kernel that a process runs for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialMark {
    /// The kernel.
    pub kernel: String,
    /// Its version.
    pub version: String,
    /// Under whose name health is kept.
    pub device_uuid: String,
    /// The context bucket.
    pub bucket: Bucket,
    /// The process that measures.
    pub process: ProcessIdentity,
    /// When it began, in seconds since 1970.
    pub began_at: u64,
}

impl PerfDb {
    /// Notes that a process begins to measure a kernel.
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

    /// Removes a mark. Says whether it was there: of several processes that remove it, one is told so.
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
