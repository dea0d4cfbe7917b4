//! A worker for tests that attacks its host through everything that both can reach: `lz-hostile-worker ATTACK MARK`. It attacks
//! if the file MARK does not exist yet, and creates it; once started again it does its work.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lz_core::device::Platform;
use lz_core::tensor::Dims;
use lz_core::{DType, KernelEntry, KernelSpec, ReasonCode};
use lz_worker::memory::SharedMemory;
use lz_worker::message::{Answer, Failed, HeldOut, Request};
use lz_worker::protocol::{self, Channel, MESSAGE_BYTES};
use lz_worker::serve::{Offer, open, serve};

/// The kernels that it offers, whether it attacks or not.
const OPERATIONS: [&str; 2] = ["norm.rms", "tokenize.encode"];

fn offer() -> Result<Offer, String> {
    let engine = lz_ops::reference_engine();
    let registry = engine.registry();
    let mut kernels = Vec::new();
    for entry in registry.kernels().filter(|entry| OPERATIONS.contains(&entry.spec.operation.as_str())) {
        let operation = &entry.spec.operation;
        let spec = KernelSpec::new(&format!("far.{operation}"), operation, "far", "1", Platform::Cpu);
        kernels.push(KernelEntry { spec: Arc::new(spec), ..entry.clone() });
    }
    Ok(Offer { descriptor: String::new(), kernels })
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
    Answer::Failed(Failed { untouched: false, code, message: message.to_owned() })
}

/// Pseudo-random bytes over all of a memory.
fn scribble(memory: &SharedMemory, seed: &mut u64) {
    let Some(start) = memory.at(0, memory.size()) else { return };
    for at in 0..memory.size() {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        // SAFETY: inside the memory. That the other side uses it at the same time is what is tried out.
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

/// An answer with as many results as the call has, the first of which is of this type and shape.
fn held(channel: &Channel, number: usize, dtype: DType, sizes: &[i64]) -> Answer {
    let request = channel.read(number).and_then(|bytes| Request::read(&bytes));
    let count = match request {
        Some(Request::Call(call)) => call.held_outputs().len(),
        _ => 0,
    };
    let total = sizes.first().copied().unwrap_or(0);
    let mut all = vec![HeldOut::Tensor(dtype, dims(sizes)), HeldOut::Tensor(DType::I64, dims(&[total, 2]))];
    all.truncate(count);
    Answer::Held(all)
}

fn attack(what: &str) -> std::io::Result<()> {
    let (channel, arena) = open()?;
    let kernels = OPERATIONS.map(|operation| format!(r#"["far.{operation}", "{operation}"]"#)).join(", ");
    let greeting = format!(r#"{{"descriptor": "", "kernels": [{kernels}]}}"#);
    if what == "greeting_size" {
        channel.header().greeting_size.store(u32::MAX, Ordering::Release);
        channel.header().state.store(protocol::READY, Ordering::Release);
    } else {
        let state = if what == "greeting_state" { 77 } else { protocol::READY };
        channel.greet(state, greeting.as_bytes());
    }
    let request = next(&channel, 0);
    let (number, token) = request;
    match what.split_once(':').unwrap_or((what, "")) {
        ("nonsense", _) => {
            channel.write(number, &[9, 9, 9]);
            channel.answer(number, token);
        }
        ("truncate", _) => {
            let refused = [channel.memory.descriptor(), arena.descriptor()].map(|one| truncate(one).is_err());
            let text = format!("truncation refused: {refused:?}");
            reply(&channel, request, &failure(ReasonCode::KernelFailed, &text));
        }
        ("scribble", seed) => {
            let mut seed = seed.parse().unwrap_or(1);
            // Several times, so that the host meets it in different states.
            for _ in 0..3 {
                scribble(&channel.memory, &mut seed);
                scribble(&arena, &mut seed);
            }
            channel.wake_all();
        }
        ("twice", _) => {
            reply(&channel, request, &failure(ReasonCode::KernelFailed, "the first answer"));
            let (again, _) = next(&channel, 1);
            // The answer of the call before, once more.
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
        ("held", _) => reply(&channel, request, &Answer::Held(vec![HeldOut::Texts(u64::MAX)])),
        ("code", _) => reply(&channel, request, &failure(ReasonCode::CallInterrupted, "it was the caller")),
        ("dtype", _) => reply(&channel, request, &held(&channel, number, DType::F32, &[3])),
        ("shape", _) => reply(&channel, request, &held(&channel, number, DType::I32, &[3, 1])),
        ("size", _) => reply(&channel, request, &held(&channel, number, DType::I32, &[i64::MAX])),
        ("negative", _) => reply(&channel, request, &held(&channel, number, DType::I32, &[-1])),
        ("tokenizer", _) => loop {
            reply(&channel, request, &Answer::Unknown([7; 32]));
        },
        ("close", _) => {
            for descriptor in [channel.memory.descriptor(), arena.descriptor()] {
                // SAFETY: nothing here uses it again: this process is stopped.
                drop(unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(descriptor) });
            }
        }
        _ => {}
    }
    // From here it is silent.
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
