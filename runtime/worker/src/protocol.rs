//! The layout of the control memory: a header with the ring buffer of submitted slots, the handshake, and the slots. Tensors are in the
//! arena.
//!
//! The host writes a request and the call's token into a slot and the slot number into the ring. The worker takes slot numbers in order
//! and answers by setting the state of the slot to the answered form of the token. The worker may write anywhere in this memory at any
//! time. Therefore the host keeps slot allocation, tokens and tickets in private memory (`slots`), reads each word once, and treats
//! anything but the expected answer as a protocol violation. A flag indicates whether a side sleeps, so that the futex is woken only when
//! needed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::handoff;
pub use crate::handoff::answered;
use crate::memory::{self, SharedMemory};

/// Magic number of the control memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"lzworker");
/// Version of this layout and of the messages. A host and a worker of different versions refuse each other.
pub const VERSION: u32 = 3;
/// Maximum number of calls in flight.
pub const SLOTS: usize = 32;
/// Maximum bytes of a request or an answer.
pub const MESSAGE_BYTES: usize = 8192;
/// Maximum bytes of the handshake.
pub const HANDSHAKE_BYTES: usize = 1 << 18;

/// The worker has not sent its handshake.
pub const STARTING: u32 = 0;
/// The worker accepts calls; the handshake lists its kernels.
pub const READY: u32 = 1;
/// The worker cannot start; the handshake is the error message.
pub const REFUSED: u32 = 2;

/// The header of the control memory.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`]. It and the magic number have the same location in every version.
    pub version: AtomicU32,
    /// `STARTING`, `READY` or `REFUSED`.
    pub state: AtomicU32,
    /// Bytes of the handshake.
    pub handshake_size: AtomicU32,
    /// Doorbell: incremented with every submission; the worker waits on it.
    pub doorbell: AtomicU32,
    /// Whether the worker sleeps or is about to.
    pub asleep: AtomicU32,
    /// The ring buffer, indexed by ticket: slot number + 1, or 0.
    pub ring: [AtomicU32; SLOTS],
}

/// A slot: one call.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// The token of the call, or its answered form; the host waits on it.
    pub state: AtomicU32,
    /// Whether the host sleeps or is about to.
    pub asleep: AtomicU32,
    /// Bytes of the message.
    pub size: AtomicU32,
}

/// Offset of the slots.
const SLOTS_AT: usize = (size_of::<Header>() + HANDSHAKE_BYTES).next_multiple_of(4096);
/// Bytes between slots.
const SLOT_STRIDE: usize = size_of::<Slot>() + MESSAGE_BYTES;
/// Total bytes of the control memory.
pub const CONTROL_BYTES: usize = (SLOTS_AT + SLOTS * SLOT_STRIDE).next_multiple_of(4096);

/// The protocol on mapped control memory.
#[derive(Debug)]
pub struct Channel {
    /// The control memory.
    pub memory: SharedMemory,
}

impl Channel {
    /// `None` if the memory is too small.
    pub fn new(memory: SharedMemory) -> Option<Channel> {
        (memory.size() >= CONTROL_BYTES).then_some(Channel { memory })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        // SAFETY: `new` checked the size; mappings are page-aligned, and every field is atomic.
        unsafe { &*self.base().cast::<Header>() }
    }

    fn base(&self) -> *mut u8 {
        self.memory.at(0, CONTROL_BYTES).unwrap_or(std::ptr::null_mut())
    }

    /// A slot; the number wraps.
    pub fn slot(&self, number: usize) -> &Slot {
        let offset = SLOTS_AT + (number % SLOTS) * SLOT_STRIDE;
        // SAFETY: inside the memory (`new`), aligned because the start and the stride are, and every field is atomic.
        unsafe { &*self.base().wrapping_add(offset).cast::<Slot>() }
    }

    fn message_at(&self, number: usize) -> *mut u8 {
        self.base().wrapping_add(SLOTS_AT + (number % SLOTS) * SLOT_STRIDE + size_of::<Slot>())
    }

    /// Writes a message into a slot; `false` if it is too long. Only the side that owns the slot in its current state may call this.
    pub fn write(&self, number: usize, message: &[u8]) -> bool {
        if message.len() > MESSAGE_BYTES {
            return false;
        }
        // SAFETY: inside the memory; the other side does not access it in this state.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), self.message_at(number), message.len()) };
        self.slot(number).size.store(message.len() as u32, Ordering::Relaxed);
        true
    }

    /// Copies the message of a slot, so that later writes of the other side have no effect; `None` if its size is invalid.
    pub fn read(&self, number: usize) -> Option<Vec<u8>> {
        let size = self.slot(number).size.load(Ordering::Relaxed) as usize;
        (size <= MESSAGE_BYTES).then(|| copied(self.message_at(number), size))
    }

    /// Copies the worker's handshake; `None` if its size is invalid.
    pub fn handshake(&self) -> Option<Vec<u8>> {
        let size = self.header().handshake_size.load(Ordering::Acquire) as usize;
        let from = self.base().wrapping_add(size_of::<Header>());
        (size <= HANDSHAKE_BYTES).then(|| copied(from, size))
    }

    /// Sends the worker's handshake: its kernels, or the error message.
    pub fn send_handshake(&self, state: u32, handshake: &[u8]) {
        let size = handshake.len().min(HANDSHAKE_BYTES);
        // SAFETY: after the header, inside the memory; the host reads it after the state has changed.
        unsafe {
            let to = self.base().wrapping_add(size_of::<Header>());
            std::ptr::copy_nonoverlapping(handshake.as_ptr(), to, size);
        }
        self.header().handshake_size.store(size as u32, Ordering::Release);
        self.header().state.store(state, Ordering::Release);
        memory::futex_wake(&self.header().state);
    }

    /// Submits a filled slot to the worker. The host assigns tickets in submission order.
    pub(crate) fn submit(&self, number: usize, token: u32, ticket: u32) {
        let header = self.header();
        // The ring has as many entries as there are slots, so this entry is free.
        let entry = &header.ring[ticket as usize % SLOTS];
        let worker = (&header.doorbell, &header.asleep);
        handoff::submit((&self.slot(number).state, token), (entry, number), worker);
    }

    /// Takes the slot with a ticket, waiting for its submission; `None` after the timeout.
    pub fn take(&self, ticket: u32, timeout: Duration) -> Option<usize> {
        let header = self.header();
        handoff::take(&header.ring[ticket as usize % SLOTS], (&header.doorbell, &header.asleep), timeout)
    }

    /// Waits until the state of a slot is no longer `token` or the timeout expires, and returns the state.
    pub(crate) fn await_answer(&self, number: usize, token: u32, timeout: Duration) -> u32 {
        let slot = self.slot(number);
        handoff::await_answer(&slot.state, &slot.asleep, token, timeout)
    }

    /// Wakes all threads that wait for an answer, because the worker has terminated.
    pub fn wake_all(&self) {
        (0..SLOTS).for_each(|number| memory::futex_wake(&self.slot(number).state));
        memory::futex_wake(&self.header().state);
    }

    /// Marks the call of a slot as answered.
    pub fn answer(&self, number: usize, token: u32) {
        let slot = self.slot(number);
        handoff::answer(&slot.state, &slot.asleep, token);
    }
}

/// A copy of bytes of the shared memory.
fn copied(from: *const u8, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    // SAFETY: the callers pass ranges inside the memory; any bytes are valid.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size) };
    bytes
}
