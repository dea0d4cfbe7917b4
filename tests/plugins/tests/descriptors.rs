//! File descriptors and threads of terminated workers. Only one test, because others in the process would be counted too.

use lz_worker::{Worker, WorkerOptions};

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn restarted_workers_leak_no_descriptors_and_threads() {
    let options = || {
        let mut options = WorkerOptions::new(env!("CARGO_BIN_EXE_lz-test-worker"));
        options.arena_bytes = 1 << 20;
        options
    };
    let worker = Worker::start(options()).unwrap();
    let (descriptors, threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    for start in 2..6 {
        let id = worker.process_id().unwrap();
        assert!(std::process::Command::new("kill").args(["-9", &id.to_string()]).status().unwrap().success());
        while worker.process_id().is_some() {
            std::thread::yield_now();
        }
        worker.descriptor().unwrap();
        assert_eq!(worker.starts(), start);
    }
    for program in ["/bin/false", "/no/such/program"] {
        Worker::start(WorkerOptions::new(program)).unwrap_err();
    }
    drop(Worker::start(options()).unwrap());
    // Watch threads may take a moment to exit.
    let settled = || count("/proc/self/task") == threads && count("/proc/self/fd") == descriptors;
    for _ in 0..500 {
        if settled() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!((count("/proc/self/fd"), count("/proc/self/task")), (descriptors, threads));
}
