//! Crash detection while measuring: a mark records which process runs which kernel for the first time. A mark whose process has ended
//! without removing it means that the kernel crashed the process.

use std::fs;
use std::time::Duration;

use crate::{Bucket, HealthRow, HealthScope, HealthState, PerfDb, ProcessIdentity, TrialMark};

/// Marks whose process cannot be checked are dropped after this time.
const MAX_MARK_AGE_SECONDS: u64 = 24 * 3600;

/// The marks of tuning one call.
pub struct Marks<'a> {
    db: Option<&'a PerfDb>,
    process: Option<ProcessIdentity>,
    device: &'a str,
    bucket: Bucket,
}

impl<'a> Marks<'a> {
    /// The marks of one tuning: on which device and for which bucket.
    pub fn new(db: Option<&'a PerfDb>, device: &'a str, bucket: &[u64]) -> Marks<'a> {
        Marks { db, process: current_process(), device, bucket: Bucket::from(bucket) }
    }

    /// Inserts a mark for a kernel.
    pub fn begin(&self, kernel: &str, version: &str, now: u64) -> Option<TrialMark> {
        let mark = TrialMark {
            kernel: kernel.to_owned(),
            version: version.to_owned(),
            device_uuid: self.device.to_owned(),
            bucket: self.bucket.clone(),
            process: self.process.clone()?,
            began_at: now,
        };
        // The database counts and logs dropped writes.
        self.db?.begin_trial(&mark).ok().map(|()| mark)
    }

    /// Removes the mark: the kernel returned, with a result or an error.
    pub fn end(&self, mark: Option<TrialMark>) {
        if let (Some(db), Some(mark)) = (self.db, mark) {
            let _ = db.end_trial(&mark);
        }
    }
}

/// Converts marks of ended processes to open circuits, and drops marks that are too old.
pub fn collect_crashes(db: &PerfDb, now: u64, backoff: Duration) {
    let marks = db.load_trials();
    if marks.is_empty() {
        return;
    }
    let Some(this_process) = current_process() else { return };
    for mark in marks {
        let crashed = has_ended(&mark.process, &this_process) == Some(true);
        let is_old = now.saturating_sub(mark.began_at) > MAX_MARK_AGE_SECONDS;
        if !(crashed || is_old) {
            continue;
        }
        // Other processes may see the same mark: the one that removes it counts it.
        let removed = db.end_trial(&mark) == Ok(true);
        if removed && crashed {
            let _ = db.save_health(&[crash_row(db, &mark, now, backoff)]);
        }
    }
}

fn crash_row(db: &PerfDb, mark: &TrialMark, now: u64, backoff: Duration) -> HealthRow {
    let stored = db.load_health(Some(&mark.device_uuid)).into_iter().find(|row| {
        row.scope == HealthScope::Kernel
            && (&row.name, &row.version, &row.bucket) == (&mark.kernel, &mark.version, &mark.bucket)
    });
    let (failures, openings) = stored.map_or((0, 0), |row| (row.failures, row.reopenings));
    HealthRow {
        scope: HealthScope::Kernel,
        name: mark.kernel.clone(),
        version: mark.version.clone(),
        device_uuid: mark.device_uuid.clone(),
        bucket: mark.bucket.clone(),
        state: HealthState::Open,
        failures: failures.saturating_add(1),
        reopenings: openings.saturating_add(1),
        last_error: format!("process {} ended while it measured this kernel", mark.process.pid),
        next_probe_at: Some(now.saturating_add(backoff.as_secs())),
        updated_at: now,
    }
}

/// This process; `None` if the system does not provide it.
fn current_process() -> Option<ProcessIdentity> {
    let pid = std::process::id();
    Some(ProcessIdentity {
        boot: fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned(),
        pid_namespace: fs::read_link("/proc/self/ns/pid").ok()?.to_string_lossy().into_owned(),
        pid,
        started: process_state(pid)?.1,
    })
}

/// Whether a process has ended; `None` if it cannot be checked: it ran before the last boot, on another machine or in another
/// container.
fn has_ended(process: &ProcessIdentity, this_process: &ProcessIdentity) -> Option<bool> {
    if process.boot != this_process.boot || process.pid_namespace != this_process.pid_namespace {
        return None;
    }
    Some(match process_state(process.pid) {
        None => true,
        Some((state, started)) => started != process.started || matches!(state, 'Z' | 'X'),
    })
}

/// The state and start time of a process, from `/proc`.
fn process_state(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may itself contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3, the start is field 22.
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_another_start_time_has_ended() {
        let this_process = current_process().unwrap();
        assert_eq!(has_ended(&this_process, &this_process), Some(false));
        let reused = ProcessIdentity { started: this_process.started + 1, ..this_process.clone() };
        assert_eq!(has_ended(&reused, &this_process), Some(true));
        let elsewhere = ProcessIdentity { pid_namespace: "pid:[1]".to_owned(), ..this_process.clone() };
        assert_eq!(has_ended(&elsewhere, &this_process), None);
        let earlier = ProcessIdentity { boot: "another".to_owned(), ..this_process.clone() };
        assert_eq!(has_ended(&earlier, &this_process), None);
    }

    #[test]
    fn zombie_has_ended() {
        let this_process = current_process().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (_, started) = process_state(child.id()).unwrap();
        let process = ProcessIdentity { pid: child.id(), started, ..this_process.clone() };
        assert_eq!(has_ended(&process, &this_process), Some(false));
        child.kill().unwrap();
        while has_ended(&process, &this_process) == Some(false) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(has_ended(&process, &this_process), Some(true));
    }
}
