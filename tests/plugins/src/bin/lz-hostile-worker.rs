//! A test worker that attacks its host through the shared memory: `lz-hostile-worker ATTACK MARK`. It attacks and creates the file MARK
//! if MARK does not exist. After a restart it works normally.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lz_core::device::Platform;
use lz_core::tensor::Dims;
use lz_core::{DType, KernelEntry, KernelSpec, ReasonCode};
use lz_worker::memory::SharedMemory;
use lz_worker::message::{Answer, KernelFailure, PendingOutput, Request};
use lz_worker::protocol::{self, Channel, MESSAGE_BYTES};
use lz_worker::serve::{WorkerKernels, open, serve};

/// The operations of its kernels.
const OPERATIONS: [&str; 2] = ["norm.rms", "tokenize.encode"];

fn offer() -> Result<WorkerKernels, String> {
    let engine = lz_ops::reference_engine();
    let registry = engine.registry();
    let mut kernels = Vec::new();
    for entry in registry.kernels().filter(|entry| OPERATIONS.contains(&entry.spec.operation.as_str())) {
        let operation = &entry.spec.operation;
        let spec = KernelSpec::new(&format!("far.{operation}"), operation, "far", "1", Platform::Cpu);
        kernels.push(KernelEntry { spec: Arc::new(spec), ..entry.clone() });
    }
    Ok(WorkerKernels { descriptor: String::new(), kernels })
}

/// The next request: its slot and its token.
fn next(channel: &Channel, ticket: u32) -> (usize, u32) {
    loop {
        if let Some(number) = channel.take(ticket, Duration::from_secs(1)) {
            return (number, channel.slot(number).state.load(Ordering::Acquire));
        }
    }
}

fn reply(channel: &Channel, (number, token): (usize, u32), answer: &Answer) {
    channel.write(number, &answer.write());
    channel.answer(number, token);
}

fn failure(code: ReasonCode, message: &str) -> Answer {
    Answer::Failed(KernelFailure { untouched: false, code, message: message.to_owned() })
}

/// Pseudo-random bytes over all of a memory.
fn scribble(memory: &SharedMemory, seed: &mut u64) {
    let Some(start) = memory.at(0, memory.size()) else { return };
    for at in 0..memory.size() {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        // SAFETY: inside the memory. The race with the host is the purpose of the test.
        unsafe { start.wrapping_add(at).write_volatile(*seed as u8) };
    }
}

fn truncate(descriptor: RawFd) -> std::io::Result<()> {
    // SAFETY: the descriptor is open and stays so.
    let file = std::mem::ManuallyDrop::new(unsafe {
        <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(descriptor)
    });
    file.set_len(0)
}

fn dims(sizes: &[i64]) -> Dims {
    Dims::new(sizes).unwrap_or(Dims::empty())
}

/// An answer with as many pending outputs as the call has, the first with this dtype and shape.
fn pending(channel: &Channel, number: usize, dtype: DType, sizes: &[i64]) -> Answer {
    let request = channel.read(number).and_then(|bytes| Request::read(&bytes));
    let count = match request {
        Some(Request::Call(call)) => call.dynamic_outputs().len(),
        _ => 0,
    };
    let total = sizes.first().copied().unwrap_or(0);
    let mut all =
        vec![PendingOutput::Tensor(dtype, dims(sizes)), PendingOutput::Tensor(DType::I64, dims(&[total, 2]))];
    all.truncate(count);
    Answer::Pending(all)
}

fn attack(what: &str) -> std::io::Result<()> {
    let (channel, arena) = open()?;
    let kernels = OPERATIONS.map(|operation| format!(r#"["far.{operation}", "{operation}"]"#)).join(", ");
    let handshake = format!(r#"{{"descriptor": "", "kernels": [{kernels}]}}"#);
    if what == "handshake_size" {
        channel.header().handshake_size.store(u32::MAX, Ordering::Release);
        channel.header().state.store(protocol::READY, Ordering::Release);
    } else {
        let state = if what == "handshake_state" { 77 } else { protocol::READY };
        channel.send_handshake(state, handshake.as_bytes());
    }
    let request = next(&channel, 0);
    let (number, token) = request;
    match what.split_once(':').unwrap_or((what, "")) {
        ("invalid_answer", _) => {
            channel.write(number, &[9, 9, 9]);
            channel.answer(number, token);
        }
        ("truncate", _) => {
            let failed = [channel.memory.descriptor(), arena.descriptor()].map(|one| truncate(one).is_err());
            let text = format!("truncation failed: {failed:?}");
            reply(&channel, request, &failure(ReasonCode::KernelFailed, &text));
        }
        ("scribble", seed) => {
            let mut seed = seed.parse().unwrap_or(1);
            // Several times, so that the host observes different states.
            for _ in 0..3 {
                scribble(&channel.memory, &mut seed);
                scribble(&arena, &mut seed);
            }
            channel.wake_all();
        }
        ("twice", _) => {
            reply(&channel, request, &failure(ReasonCode::KernelFailed, "the first answer"));
            let (again, _) = next(&channel, 1);
            // Repeats the answer to the previous call.
            channel.answer(again, token);
        }
        ("other_slot", _) => (0..protocol::SLOTS).filter(|other| *other != number).for_each(|other| {
            channel.write(other, &Answer::Done.write());
            channel.answer(other, token);
        }),
        ("other_state", _) => channel.slot(number).state.store(token ^ 0x10, Ordering::SeqCst),
        ("length", _) => {
            channel.slot(number).size.store(MESSAGE_BYTES as u32 + 1, Ordering::SeqCst);
            channel.answer(number, token);
        }
        ("pending", _) => reply(&channel, request, &Answer::Pending(vec![PendingOutput::Texts(u64::MAX)])),
        ("code", _) => reply(&channel, request, &failure(ReasonCode::CallInterrupted, "it was the caller")),
        ("dtype", _) => reply(&channel, request, &pending(&channel, number, DType::F32, &[3])),
        ("shape", _) => reply(&channel, request, &pending(&channel, number, DType::I32, &[3, 1])),
        ("size", _) => reply(&channel, request, &pending(&channel, number, DType::I32, &[i64::MAX])),
        ("negative", _) => reply(&channel, request, &pending(&channel, number, DType::I32, &[-1])),
        ("tokenizer", _) => loop {
            reply(&channel, request, &Answer::UnknownTokenizer([7; 32]));
        },
        ("close", _) => {
            for descriptor in [channel.memory.descriptor(), arena.descriptor()] {
                // SAFETY: not used again; the host stops this process.
                drop(unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(descriptor) });
            }
        }
        _ => {}
    }
    // No further answers.
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (what, mark) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    if std::path::Path::new(&mark).exists() {
        return serve(offer);
    }
    std::fs::write(&mark, "")?;
    attack(&what)
}
