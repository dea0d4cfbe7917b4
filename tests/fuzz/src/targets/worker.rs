//! The worker protocol: messages survive writing and reading, and a worker answers any request, whatever is in the shared memory.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use lz_core::KernelEntry;
use lz_worker::handshake::Handshake;
use lz_worker::memory::SharedMemory;
use lz_worker::message::{Answer, Request};
use lz_worker::protocol::{CONTROL_BYTES, Channel, HANDSHAKE_BYTES, MESSAGE_BYTES, SLOTS};
use lz_worker::serve::Server;
use lz_worker::wire::{pack_texts, unpack_texts};

/// Bytes of the arena that requests refer to.
const ARENA_BYTES: usize = 1 << 16;

/// Operations of the kernels that requests can call: normalization, indices that must be checked, an input that is changed.
const OPERATIONS: [&str; 4] = ["norm.rms", "embedding.lookup", "norm.rms.add", "sampling.mask"];

pub fn run(input: &[u8]) -> bool {
    let Some((kind, bytes)) = input.split_first() else { return false };
    match kind % 6 {
        0 => request(bytes),
        1 => answer(bytes),
        2 => {
            let Ok(texts) = unpack_texts(bytes) else { return false };
            assert_eq!(pack_texts(&texts).as_deref(), Some(bytes));
            true
        }
        3 => {
            let Some(handshake) = Handshake::read(bytes) else { return false };
            assert_eq!(Handshake::read(handshake.write().as_bytes()), Some(handshake));
            true
        }
        4 => control_memory(bytes),
        _ => serve(bytes),
    }
}

// Compared as bytes: a NaN is not equal to itself.
fn request(bytes: &[u8]) -> bool {
    let Some(request) = Request::read(bytes) else { return false };
    let written = request.write();
    let again = Request::read(&written).expect("a written request is valid");
    assert_eq!(again.write(), written);
    assert_eq!(written.len(), bytes.len(), "{request:?}");
    true
}

fn answer(bytes: &[u8]) -> bool {
    let Some(answer) = Answer::read(bytes) else { return false };
    let written = answer.write();
    let again = Answer::read(&written).expect("a written answer is valid");
    assert_eq!(again.write(), written);
    if let Answer::Failed(failure) = answer {
        assert!(!failure.into_error().to_string().is_empty());
    }
    true
}

/// A worker that writes anything into the control memory.
fn control_memory(bytes: &[u8]) -> bool {
    thread_local! {
        static CHANNEL: Channel =
            SharedMemory::create(CONTROL_BYTES).ok().and_then(Channel::new).expect("shared memory");
    }
    CHANNEL.with(|channel| {
        let (words, message) = bytes.split_at(bytes.len().min(16));
        let word = |at: usize| {
            let mut word = [0; 4];
            word.iter_mut().zip(words.get(at..).unwrap_or_default()).for_each(|(to, from)| *to = *from);
            u32::from_le_bytes(word)
        };
        channel.header().handshake_size.store(word(0), Ordering::Release);
        let handshake = channel.handshake();
        assert_eq!(handshake.is_some(), word(0) as usize <= HANDSHAKE_BYTES);
        if let Some(handshake) = handshake {
            Handshake::read(&handshake);
        }
        // Any number names a slot.
        let number = word(4) as usize;
        assert!(channel.write(number, message));
        assert_eq!(channel.read(number % SLOTS).as_deref(), Some(message));
        channel.slot(number).size.store(word(8), Ordering::Release);
        let read = channel.read(number);
        assert_eq!(read.is_some(), word(8) as usize <= MESSAGE_BYTES);
        read.is_some_and(|read| answer(&read))
    })
}

/// Any request to a worker with real kernels: tensors outside of the arena and invalid calls are answered with a failure.
fn serve(bytes: &[u8]) -> bool {
    thread_local! {
        static SERVER: RefCell<Server> = RefCell::new(server());
    }
    SERVER.with_borrow_mut(|server| {
        let answer = server.answer(0, Some(bytes));
        let written = answer.write();
        assert!(written.len() <= MESSAGE_BYTES, "{answer:?}");
        assert!(Answer::read(&written).is_some(), "{answer:?}");
        answer == Answer::Done
    })
}

fn server() -> Server {
    let kernel = |operation: &&str| {
        let kernels = lz_test_kernels::runnable().iter();
        kernels.filter(|entry| entry.spec.operation == *operation).cloned().collect::<Vec<KernelEntry>>()
    };
    let kernels = OPERATIONS.iter().flat_map(kernel).collect();
    Server::new(SharedMemory::create(ARENA_BYTES).expect("shared memory"), kernels)
}
