//! Confinement of workers: a kernel in a worker that is compromised cannot reach files, sockets and processes of its host.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use lz_core::device::Platform;
use lz_core::{KernelSpec, TensorView};
use lz_engine::Engine;
use lz_ops::{NORM_RMS, NormRms, norm_rms};
use lz_worker::{Sandbox, Worker, WorkerOptions, settings};

const DENIED: f32 = libc::EPERM as f32;

/// What the intruder may try to reach, and its worker.
struct Host {
    folder: PathBuf,
    tcp: TcpListener,
    _unix: UnixListener,
    memory: Box<u64>,
}

impl Host {
    fn new(name: &str) -> Host {
        let folder =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&folder).ok();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("secret"), "a secret of the host").unwrap();
        let unix = UnixListener::bind(folder.join("socket")).unwrap();
        Host { tcp: TcpListener::bind("127.0.0.1:0").unwrap(), _unix: unix, folder, memory: Box::new(7) }
    }

    fn options(&self, sandbox: Sandbox) -> WorkerOptions {
        let mut options = WorkerOptions::new(env!("CARGO_BIN_EXE_lz-test-worker"));
        options.arena_bytes = 1 << 20;
        options.sandbox = sandbox;
        let address = std::ptr::from_ref(&*self.memory) as usize;
        options.environment = vec![
            ("LZ_TEST_SECRET".into(), self.folder.join("secret").into()),
            ("LZ_TEST_TCP".into(), self.tcp.local_addr().unwrap().to_string().into()),
            ("LZ_TEST_UNIX".into(), self.folder.join("socket").into()),
            ("LZ_TEST_ADDRESS".into(), address.to_string().into()),
        ];
        options
    }

    /// What the intruder reached: the error number of each attempt.
    fn attempts(&self, sandbox: Sandbox) -> (String, Vec<f32>) {
        let worker = Worker::start(self.options(sandbox)).unwrap();
        (worker.sandbox().unwrap(), intrude(&worker))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn intrude(worker: &Worker) -> Vec<f32> {
    let engine = Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    let mut spec = KernelSpec::new("far.intruder", "norm.rms", "far", "1", Platform::Cpu);
    spec.priority = 100;
    engine.register([worker.kernel(spec, &NORM_RMS)]).unwrap();
    engine.lock("norm.rms", "far.intruder").unwrap();
    let x = [1.0f32; 16];
    let call = NormRms::new(TensorView::from_slice(&x, &[2, 8]).unwrap());
    norm_rms(&engine, call).unwrap().output.view().as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn a_confined_worker_reaches_nothing_of_its_host() {
    let host = Host::new("strict");
    let (level, attempts) = host.attempts(Sandbox::level("strict"));
    assert_eq!(level, "strict", "this system has seccomp");
    let [read, write, tcp, unix, memory, signal, process, uring, ..] = attempts[..] else { panic!() };
    for (what, result) in [
        ("read a file", read),
        ("write a file", write),
        ("connect to TCP", tcp),
        ("connect to a Unix socket", unix),
        ("read memory of the host", memory),
        ("signal the host", signal),
        ("start a program", process),
        ("use io_uring", uring),
    ] {
        assert_eq!(result, DENIED, "{what}: {attempts:?}");
    }
    assert!(!host.folder.join("secret.new").exists());
}

#[test]
fn by_default_a_worker_has_files_but_no_network_and_no_other_processes() {
    let host = Host::new("network");
    let (level, attempts) = host.attempts(Sandbox::level("network"));
    assert_eq!(level, "network");
    let [read, write, tcp, unix, memory, signal, process, uring, ..] = attempts[..] else { panic!() };
    assert_eq!([tcp, memory, signal, uring], [DENIED; 4], "{attempts:?}");
    assert_eq!([read, write, unix, process], [0.0; 4], "{attempts:?}");
}

/// The tests above could not fail if nothing were reachable anyway.
#[test]
fn without_a_sandbox_the_worker_reaches_its_host() {
    let host = Host::new("off");
    let (level, attempts) = host.attempts(Sandbox::level("off"));
    assert_eq!(level, "off");
    let [read, write, tcp, unix, _, signal, process, ..] = attempts[..] else { panic!() };
    assert_eq!([read, write, tcp, unix, signal, process], [0.0; 6], "{attempts:?}");
}

#[test]
fn limits_of_a_backend_apply_to_its_worker() {
    let host = Host::new("limits");
    let policy = host.folder.join("layerzero.yaml");
    let text = "perfdb: {enabled: false}\nworker:\n  sandbox: {default: network, other: strict}\n  open_files: {default: 40}\n  data_mb: {far: 256}\n  cpu_seconds: {far: 1000}\n";
    std::fs::write(&policy, text).unwrap();
    let engine = Engine::builder().config(&policy).open().unwrap();
    let configured = settings::options(&engine, Some(env!("CARGO_BIN_EXE_lz-test-worker").into())).unwrap();
    let worker = Worker::start(host.options(configured.sandbox)).unwrap();
    assert_eq!(worker.sandbox().unwrap(), "network", "the entry of another backend does not apply");
    let attempts = intrude(&worker);
    assert_eq!(attempts[8], libc::EMFILE as f32, "too many open files: {attempts:?}");
    assert_eq!(attempts[9], libc::ENOMEM as f32, "too much memory: {attempts:?}");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", worker.process_id().unwrap())).unwrap();
    let line = |name: &str| limits.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("Max cpu time").contains(" 1000 "), "{limits}");
    assert!(line("Max core file size").contains(" 0 "), "{limits}");
}
