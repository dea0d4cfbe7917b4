//! A test worker. It serves the reference kernel of every operation as `far.<operation>`, `far.addresses`, which reports the distance of
//! its tensors, `far.slow`, which sleeps before it runs, and `far.intruder`, which tries to reach its host.

use std::sync::Arc;
use std::time::Duration;

use lz_core::device::Platform;
use lz_core::{Arg, Kernel, KernelEntry, KernelError, KernelSpec, OutArg, Run};
use lz_worker::serve::{WorkerKernels, serve};

/// Writes the distance from the input to the output, in elements, into the output.
struct Addresses;

impl Kernel for Addresses {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(&self, args: &mut [Arg<'_>], out: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        let x = args.first().and_then(Arg::tensor).map_or(0, |view| view.address());
        let Some(OutArg::Tensor(tensor)) = out.first_mut() else {
            return Err(KernelError::failed("the call has no output tensor"));
        };
        let distance = tensor.address().wrapping_sub(x) as isize / size_of::<f32>() as isize;
        if let Some(first) = tensor.as_slice_mut::<f32>().and_then(|all| all.first_mut()) {
            *first = distance as f32;
        }
        Ok(())
    }
}

/// Runs another kernel after a delay.
struct Slow(Arc<dyn Kernel>);

impl Kernel for Slow {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        out: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        std::thread::sleep(Duration::from_millis(20));
        self.0.run(args, out, run)
    }
}

/// Tries to reach files, sockets and processes of the host. Writes the error number of each attempt into the output; 0 for success.
struct Intruder;

impl Kernel for Intruder {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(&self, _: &mut [Arg<'_>], out: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        let Some(OutArg::Tensor(tensor)) = out.first_mut() else {
            return Err(KernelError::failed("the call has no output tensor"));
        };
        for (slot, result) in tensor.as_slice_mut::<f32>().unwrap_or_default().iter_mut().zip(attempts()) {
            *slot = result as f32;
        }
        Ok(())
    }
}

/// The error numbers: reading a file, writing one, a TCP and a Unix socket of the host, memory of the host, a signal to the host, a new
/// process, an asynchronous system call interface, more open files than allowed, a large allocation.
fn attempts() -> [i32; 10] {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let number = |outcome: std::io::Result<()>| match outcome {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(-1),
    };
    let result = |value: libc::c_long| {
        if value < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) } else { 0 }
    };
    let secret = variable("LZ_TEST_SECRET");
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let address = variable("LZ_TEST_ADDRESS").parse::<usize>().unwrap_or(0);
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 1 };
    // SAFETY: one byte is read into a local variable; the other calls take numbers and pointers that the kernel checks.
    let (memory, signal, uring) = unsafe {
        let host = libc::getppid();
        let memory = libc::process_vm_readv(host, &raw const local, 1, &raw const remote, 1, 0);
        let memory = result(memory as libc::c_long);
        let signal = result(libc::c_long::from(libc::kill(host, 0)));
        (memory, signal, result(libc::syscall(libc::SYS_io_uring_setup, 1, std::ptr::null_mut::<u8>())))
    };
    let files: std::io::Result<Vec<std::fs::File>> =
        (0..64).map(|_| std::fs::File::open("/dev/null")).collect();
    let mut large: Vec<u8> = Vec::new();
    let allocated =
        large.try_reserve_exact(512 << 20).map_err(|_| std::io::Error::from_raw_os_error(libc::ENOMEM));
    [
        number(std::fs::read(&secret).map(drop)),
        number(std::fs::write(format!("{secret}.new"), b"x")),
        number(std::net::TcpStream::connect(variable("LZ_TEST_TCP")).map(drop)),
        number(std::os::unix::net::UnixStream::connect(variable("LZ_TEST_UNIX")).map(drop)),
        memory,
        signal,
        number(std::process::Command::new("/bin/true").status().map(drop)),
        uring,
        number(files.map(drop)),
        number(allocated),
    ]
}

fn offer() -> Result<WorkerKernels, String> {
    let engine = lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    let registry = engine.registry();
    let mut kernels: Vec<KernelEntry> = Vec::new();
    for entry in registry.kernels() {
        let operation = &entry.spec.operation;
        let spec = KernelSpec::new(&format!("far.{operation}"), operation, "far", "1", Platform::Cpu);
        if operation == "norm.rms" {
            let spec = KernelSpec::new("far.slow", operation, "far", "1", Platform::Cpu);
            kernels.push(KernelEntry::new(spec, Slow(Arc::clone(&entry.kernel))).of(&lz_ops::NORM_RMS));
        }
        kernels.push(KernelEntry { spec: Arc::new(spec), ..entry.clone() });
    }
    let spec = KernelSpec::new("far.addresses", "norm.rms", "far", "1", Platform::Cpu);
    kernels.push(KernelEntry::new(spec, Addresses).of(&lz_ops::NORM_RMS));
    let spec = KernelSpec::new("far.intruder", "norm.rms", "far", "1", Platform::Cpu);
    kernels.push(KernelEntry::new(spec, Intruder).of(&lz_ops::NORM_RMS));
    Ok(WorkerKernels { descriptor: String::new(), kernels })
}

fn main() -> std::io::Result<()> {
    serve(offer)
}
