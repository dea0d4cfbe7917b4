//! What a process holds: descriptors, shared memory, threads, children, memory.

use std::fs;

/// What a process holds at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Open descriptors.
    pub descriptors: usize,
    /// Segments of shared memory of workers.
    pub segments: usize,
    /// Threads.
    pub threads: usize,
    /// Children, zombies included.
    pub children: usize,
    /// The peak of resident memory, in MiB.
    pub peak_mb: usize,
}

impl Held {
    /// Of this process.
    pub fn now() -> Held {
        let links: Vec<String> = entries("/proc/self/fd")
            .filter_map(|path| fs::read_link(path).ok())
            .map(|link| link.to_string_lossy().into_owned())
            .collect();
        let children: usize = entries("/proc/self/task")
            .map(|task| {
                fs::read_to_string(task.join("children")).unwrap_or_default().split_whitespace().count()
            })
            .sum();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|text| text.trim().trim_end_matches("kB").trim().parse::<usize>().ok());
        Held {
            descriptors: links.len(),
            segments: links.iter().filter(|link| link.contains("layerzero-worker")).count(),
            threads: entries("/proc/self/task").count(),
            children,
            peak_mb: peak.unwrap_or(0) >> 10,
        }
    }
}

fn entries(folder: &str) -> impl Iterator<Item = std::path::PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
