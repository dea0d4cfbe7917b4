//! The stream that a thread's calls run on, as the driver's handle.
//!
//! It is thread-local and ends with its guard; guards may be dropped in any order.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use crate::scope_stack::ScopeStack;

/// The current streams. Nothing here needs a destructor, so that reading the thread-local needs no check.
struct Streams {
    /// The stream that the thread's calls run on; 0 is the device's own.
    of_thread: Cell<usize>,
    /// The stream of the current call, which takes precedence.
    of_call: Cell<Option<usize>>,
}

/// Makes the stream of the newest scope the thread's stream.
fn publish(scopes: &ScopeStack<usize>) {
    let stream = scopes.last().copied().unwrap_or(0);
    STREAMS.with(|streams| streams.of_thread.set(stream));
}

thread_local! {
    static STREAMS: Streams = const { Streams { of_thread: Cell::new(0), of_call: Cell::new(None) } };
    static SCOPES: RefCell<ScopeStack<usize>> = const { RefCell::new(ScopeStack::new()) };
}

/// The stream that this thread's calls run on; 0 is the device's own.
#[inline]
pub fn stream_of_thread() -> usize {
    STREAMS.with(|streams| streams.of_call.get().unwrap_or_else(|| streams.of_thread.get()))
}

/// Ends the use of a stream when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the stream is used until this is dropped"]
pub struct StreamScope {
    id: u64,
    this_thread: PhantomData<*const ()>,
}

/// Sets the stream of this thread's calls, as the driver's handle, until the guard is dropped.
pub fn on_stream(stream: usize) -> StreamScope {
    SCOPES.with(|scopes| {
        let mut scopes = scopes.borrow_mut();
        let id = scopes.push(stream);
        publish(&scopes);
        StreamScope { id, this_thread: PhantomData }
    })
}

impl Drop for StreamScope {
    fn drop(&mut self) {
        // A thread that is ending has no scopes.
        let _ = SCOPES.try_with(|scopes| {
            let mut scopes = scopes.borrow_mut();
            scopes.remove(self.id);
            publish(&scopes);
        });
    }
}

/// Ends a call's use of a stream when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the stream is used until this is dropped"]
pub struct CallStream {
    before: Option<usize>,
    this_thread: PhantomData<*const ()>,
}

/// Sets the stream of the next call of this thread. Cheaper than [`on_stream`], for callers that look up the stream for each call;
/// these guards must be dropped in reverse order.
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
    fn the_stream_of_a_call_takes_precedence() {
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
