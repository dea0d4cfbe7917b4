//! Resources available to a container: CPU quotas and memory limits of cgroups v1 and v2.
//!
//! Only files below a given root are read, so that tests can create a machine in a directory.

use std::fs;
use std::path::{Path, PathBuf};

/// The smallest quota from this process's cgroup up to the root, in whole processors, at least one.
/// `None` without a quota or a cgroup.
pub(crate) fn processor_quota(root: &Path) -> Option<u32> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut tightest: Option<f64> = None;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let found = if hierarchy == "0" && controllers.is_empty() {
            unified_quota(root, group)
        } else if controllers.split(',').any(|name| name == "cpu") {
            legacy_quota(root, controllers, group)
        } else {
            None
        };
        if let Some(found) = found {
            tightest = Some(tightest.map_or(found, |known| known.min(found)));
        }
    }
    // Rounded down, so that one thread per processor is not throttled.
    tightest.map(|processors| (processors.floor() as u32).max(1))
}

/// The memory left by the smallest limit from this process's cgroup up to the root, in bytes. Reclaimable file pages count as
/// free. `None` without a limit or a cgroup.
pub(crate) fn memory_left(root: &Path) -> Option<u64> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut minimum: Option<f64> = None;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (mounts, [limit, usage], reclaimable): (&[&str], _, _) =
            if hierarchy == "0" && controllers.is_empty() {
                let mounts = &["sys/fs/cgroup", "sys/fs/cgroup/unified"];
                (mounts, ["memory.max", "memory.current"], "inactive_file")
            } else if controllers.split(',').any(|name| name == "memory") {
                let files = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
                (&["sys/fs/cgroup/memory"], files, "total_inactive_file")
            } else {
                continue;
            };
        let left = |folder: &Path| {
            let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<f64>().ok();
            let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let free =
                stat.lines().find_map(|line| line.strip_prefix(reclaimable)?.trim().parse::<f64>().ok());
            Some((number(limit)? - (number(usage)? - free.unwrap_or(0.0)).max(0.0)).max(0.0))
        };
        let found = mounts.iter().filter_map(|mount| tightest_along(&root.join(mount), group, left));
        minimum = found.chain(minimum).reduce(f64::min);
    }
    minimum.map(|bytes| bytes as u64)
}

fn unified_quota(root: &Path, group: &str) -> Option<f64> {
    ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        .iter()
        .filter_map(|mount| {
            tightest_along(&root.join(mount), group, |folder| {
                let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
                let mut words = text.split_whitespace();
                ratio(words.next()?, words.next()?)
            })
        })
        .reduce(f64::min)
}

fn legacy_quota(root: &Path, controllers: &str, group: &str) -> Option<f64> {
    ["cpu", controllers, "cpu,cpuacct"]
        .iter()
        .filter_map(|mount| {
            tightest_along(&root.join("sys/fs/cgroup").join(mount), group, |folder| {
                let quota = fs::read_to_string(folder.join("cpu.cfs_quota_us")).ok()?;
                let period = fs::read_to_string(folder.join("cpu.cfs_period_us")).ok()?;
                ratio(quota.trim(), period.trim())
            })
        })
        .reduce(f64::min)
}

/// Reads every directory from the mount down to the cgroup and returns the minimum. Inside a container the cgroup named in `/proc` is
/// often not visible; the mount itself is then the container's cgroup, and it is always read.
fn tightest_along(mount: &Path, group: &str, read: impl Fn(&Path) -> Option<f64>) -> Option<f64> {
    let mut folders: Vec<PathBuf> = vec![mount.to_path_buf()];
    let mut folder = mount.to_path_buf();
    for part in group.split('/').filter(|part| !part.is_empty() && *part != "..") {
        folder.push(part);
        folders.push(folder.clone());
    }
    folders.iter().filter_map(|folder| read(folder)).reduce(f64::min)
}

/// `max` and `-1` mean no quota.
fn ratio(quota: &str, period: &str) -> Option<f64> {
    let quota: f64 = quota.parse().ok()?;
    let period: f64 = period.parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}
