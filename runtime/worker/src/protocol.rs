//! What lies where in the memory that controls a worker: a header, a ring of submitted slots, and the slots. Tensors lie in
//! memory of their own.
//!
//! The host writes a request and the call's token into a slot and the slot's number into the ring; the worker takes numbers in
//! order and answers with the token's answered form. The worker may write anywhere here at any time, so the host keeps which
//! slots are in use, tokens and tickets in memory of its own (`slots`), reads each word once, and takes anything but the one
//! answer that it waits for as a broken worker. A word says whether a side sleeps, so that nobody wakes who is awake.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::memory::{self, SharedMemory};

/// Marks memory that is laid out like this.
pub const MAGIC: u64 = u64::from_le_bytes(*b"lzworkr2");
/// Calls that can be under way at once.
pub const SLOTS: usize = 32;
/// Bytes of a request or an answer.
pub const MESSAGE_BYTES: usize = 8192;
/// Bytes in which a worker says what it has, or why it does not start.
pub const GREETING_BYTES: usize = 1 << 18;

/// A worker that has not spoken yet.
pub const STARTING: u32 = 0;
/// A worker that takes calls; its greeting is a list of kernels.
pub const READY: u32 = 1;
/// A worker that cannot start; its greeting says why.
pub const REFUSED: u32 = 2;

/// The state of a slot whose call with this token was answered. Tokens are even and never 0.
pub const fn answered(token: u32) -> u32 {
    token | 1
}

/// The start of the memory.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// `STARTING`, `READY` or `REFUSED`.
    pub state: AtomicU32,
    /// Bytes of the greeting.
    pub greeting_size: AtomicU32,
    /// Moves with every submission; the worker sleeps on it.
    pub doorbell: AtomicU32,
    /// Whether the worker sleeps, or is about to.
    pub asleep: AtomicU32,
    /// By ticket: one more than the number of the slot, or 0.
    pub ring: [AtomicU32; SLOTS],
}

/// One call.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// The token of the call, or its answered form; the host sleeps on it.
    pub state: AtomicU32,
    /// Whether the host sleeps, or is about to.
    pub asleep: AtomicU32,
    /// Bytes of the message.
    pub size: AtomicU32,
}

/// Where the slots begin.
const SLOTS_AT: usize = (size_of::<Header>() + GREETING_BYTES).next_multiple_of(4096);
/// Bytes from slot to slot.
const SLOT_STRIDE: usize = size_of::<Slot>() + MESSAGE_BYTES;
/// Bytes of the whole.
pub const CONTROL_BYTES: usize = (SLOTS_AT + SLOTS * SLOT_STRIDE).next_multiple_of(4096);

/// The protocol over mapped memory.
#[derive(Debug)]
pub struct Channel {
    /// The memory itself.
    pub memory: SharedMemory,
}

impl Channel {
    /// Over memory that is large enough.
    pub fn new(memory: SharedMemory) -> Option<Channel> {
        (memory.size() >= CONTROL_BYTES).then_some(Channel { memory })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        // SAFETY: `new` saw that it fits; mappings are aligned to pages, and every field is atomic.
        unsafe { &*self.base().cast::<Header>() }
    }

    fn base(&self) -> *mut u8 {
        self.memory.at(0, CONTROL_BYTES).unwrap_or(std::ptr::null_mut())
    }

    /// A slot; the number wraps.
    pub fn slot(&self, number: usize) -> &Slot {
        let offset = SLOTS_AT + (number % SLOTS) * SLOT_STRIDE;
        // SAFETY: inside the memory (`new`), aligned since both the start and the stride are, and atomic throughout.
        unsafe { &*self.base().wrapping_add(offset).cast::<Slot>() }
    }

    fn message_at(&self, number: usize) -> *mut u8 {
        self.base().wrapping_add(SLOTS_AT + (number % SLOTS) * SLOT_STRIDE + size_of::<Slot>())
    }

    /// Writes a message into a slot; `false` if it is too long. Only the side that the state says may.
    pub fn write(&self, number: usize, message: &[u8]) -> bool {
        if message.len() > MESSAGE_BYTES {
            return false;
        }
        // SAFETY: inside the memory; the other side does not touch it in this state.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), self.message_at(number), message.len()) };
        self.slot(number).size.store(message.len() as u32, Ordering::Relaxed);
        true
    }

    /// Copies the message of a slot, so that what the other side changes afterwards changes nothing here; `None` if it states
    /// a size that no message has.
    pub fn read(&self, number: usize) -> Option<Vec<u8>> {
        let size = self.slot(number).size.load(Ordering::Relaxed) as usize;
        (size <= MESSAGE_BYTES).then(|| copied(self.message_at(number), size))
    }

    /// The worker's greeting; `None` if it states a size that none has.
    pub fn greeting(&self) -> Option<Vec<u8>> {
        let size = self.header().greeting_size.load(Ordering::Acquire) as usize;
        let from = self.base().wrapping_add(size_of::<Header>());
        (size <= GREETING_BYTES).then(|| copied(from, size))
    }

    /// Says what the worker has, or why it does not start.
    pub fn greet(&self, state: u32, greeting: &[u8]) {
        let size = greeting.len().min(GREETING_BYTES);
        // SAFETY: behind the header, inside the memory; the host reads it after the state has changed.
        unsafe {
            let to = self.base().wrapping_add(size_of::<Header>());
            std::ptr::copy_nonoverlapping(greeting.as_ptr(), to, size);
        }
        self.header().greeting_size.store(size as u32, Ordering::Release);
        self.header().state.store(state, Ordering::Release);
        memory::wake(&self.header().state);
    }

    /// Hands a filled slot to the worker. Tickets are given out by the host in the order of submission.
    pub(crate) fn submit(&self, number: usize, token: u32, ticket: u32) {
        let header = self.header();
        self.slot(number).state.store(token, Ordering::Release);
        // There are as many places as slots, so this one is free: its slot would still be under way otherwise.
        header.ring[ticket as usize % SLOTS].store(number as u32 + 1, Ordering::Release);
        header.doorbell.fetch_add(1, Ordering::SeqCst);
        if header.asleep.load(Ordering::SeqCst) != 0 {
            memory::wake(&header.doorbell);
        }
    }

    /// The slot of a ticket, once it is submitted; `None` when the time is over.
    pub fn take(&self, ticket: u32, time: Duration) -> Option<usize> {
        let header = self.header();
        let place = &header.ring[ticket as usize % SLOTS];
        let taken = || match place.swap(0, Ordering::Acquire) {
            0 => None,
            number => Some(number as usize - 1),
        };
        if memory::spin(place, 0, SPINS) {
            return taken();
        }
        header.asleep.store(1, Ordering::SeqCst);
        let seen = header.doorbell.load(Ordering::SeqCst);
        if place.load(Ordering::Acquire) == 0 {
            memory::sleep(&header.doorbell, seen, time);
        }
        header.asleep.store(0, Ordering::SeqCst);
        taken()
    }

    /// Waits until the state of a slot is no longer `token`, or the time is over, and gives the state.
    pub(crate) fn await_answer(&self, number: usize, token: u32, time: Duration) -> u32 {
        let slot = self.slot(number);
        if !memory::spin(&slot.state, token, SPINS) {
            slot.asleep.store(1, Ordering::SeqCst);
            memory::sleep(&slot.state, token, time);
            slot.asleep.store(0, Ordering::SeqCst);
        }
        slot.state.load(Ordering::Acquire)
    }

    /// Wakes everybody who waits for an answer, because none will come.
    pub fn wake_all(&self) {
        (0..SLOTS).for_each(|number| memory::wake(&self.slot(number).state));
        memory::wake(&self.header().state);
    }

    /// Says that the call of a slot was answered.
    pub fn answer(&self, number: usize, token: u32) {
        let slot = self.slot(number);
        slot.state.store(answered(token), Ordering::SeqCst);
        if slot.asleep.load(Ordering::SeqCst) != 0 {
            memory::wake(&slot.state);
        }
    }
}

/// Bytes of the shared memory, copied once.
fn copied(from: *const u8, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    // SAFETY: the callers pass ranges inside the memory; bytes are copied whatever they are.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size) };
    bytes
}

/// Turns of a spinning loop before a side sleeps: tens of microseconds, which is more than a small call takes.
const SPINS: u32 = 10_000;
