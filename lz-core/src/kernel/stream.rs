//! The stream that a thread's calls run on, as the driver's handle.
//!
//! It belongs to its thread and ends with its guard, in whatever order guards end.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

/// What a kernel reads; nothing in here needs to be dropped, so that reading it is not guarded.
struct Streams {
    /// The stream that the thread's calls run on; 0 is the device's own.
    of_thread: Cell<usize>,
    /// The stream of the call that is being made, which goes before the above.
    of_call: Cell<Option<usize>>,
}

/// The streams that a thread has set, later over earlier.
struct Frames {
    next: u64,
    frames: Vec<(u64, usize)>,
}

impl Frames {
    fn settle(&self) {
        let stream = self.frames.last().map_or(0, |(_, stream)| *stream);
        STREAMS.with(|streams| streams.of_thread.set(stream));
    }
}

thread_local! {
    static STREAMS: Streams = const { Streams { of_thread: Cell::new(0), of_call: Cell::new(None) } };
    static FRAMES: RefCell<Frames> = const { RefCell::new(Frames { next: 0, frames: Vec::new() }) };
}

/// The stream that this thread's calls run on; 0 is the device's own.
#[inline]
pub fn stream_of_thread() -> usize {
    STREAMS.with(|streams| streams.of_call.get().unwrap_or_else(|| streams.of_thread.get()))
}

/// Ends the use of a stream when dropped; it belongs to its thread.
#[derive(Debug)]
#[must_use = "the stream goes back as soon as this is dropped"]
pub struct StreamScope {
    id: u64,
    this_thread: PhantomData<*const ()>,
}

/// Says on which stream this thread's calls run, as the driver's handle, until the guard is dropped.
pub fn on_stream(stream: usize) -> StreamScope {
    FRAMES.with(|frames| {
        let mut frames = frames.borrow_mut();
        frames.next += 1;
        let id = frames.next;
        frames.frames.push((id, stream));
        frames.settle();
        StreamScope { id, this_thread: PhantomData }
    })
}

impl Drop for StreamScope {
    fn drop(&mut self) {
        // A thread that is ending has nothing left to put back.
        let _ = FRAMES.try_with(|frames| {
            let mut frames = frames.borrow_mut();
            frames.frames.retain(|(id, _)| *id != self.id);
            frames.settle();
        });
    }
}

/// Ends a call's use of a stream when dropped; it belongs to its thread.
#[derive(Debug)]
#[must_use = "the stream goes back as soon as this is dropped"]
pub struct CallStream {
    before: Option<usize>,
    this_thread: PhantomData<*const ()>,
}

/// Says on which stream the call runs that this thread is about to make. Cheaper than [`on_stream`], for those who find the
/// stream anew for each call: calls end in the reverse of the order in which they began, and so must these guards.
#[inline]
pub fn for_call(stream: usize) -> CallStream {
    let before = STREAMS.with(|streams| streams.of_call.replace(Some(stream)));
    CallStream { before, this_thread: PhantomData }
}

impl Drop for CallStream {
    #[inline]
    fn drop(&mut self) {
        STREAMS.with(|streams| streams.of_call.set(self.before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_call_goes_before_that_of_its_thread() {
        let _thread = on_stream(5);
        let call = for_call(6);
        assert_eq!(stream_of_thread(), 6);
        {
            let _inside = for_call(0);
            assert_eq!(stream_of_thread(), 0);
        }
        assert_eq!(stream_of_thread(), 6);
        drop(call);
        assert_eq!(stream_of_thread(), 5);
    }
}
