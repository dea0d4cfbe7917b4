//! A cache hit does not allocate: counted by the global allocator.

#[path = "suite/engine_support.rs"]
mod engine_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use engine_support::{Shape, attend, engine, spec};
use lz_core::{Context, ReasonCode};
use lz_engine::Engine;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // While a thread is ending, nothing is counted.
    let _ = ALLOCATIONS.try_with(|cell| cell.set(cell.get() + 1));
}

// SAFETY: every request is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are forwarded.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are forwarded.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn call(engine: &Engine, context: &Context) {
    let outcome = engine.dispatch(attend(), context, &mut |_, _| Ok(()));
    assert!(outcome.is_ok());
}

fn allocations_of(engine: &Engine, contexts: &[Context]) -> u64 {
    for _ in 0..2 {
        contexts.iter().for_each(|context| call(engine, context));
    }
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        contexts.iter().for_each(|context| call(engine, context));
    }
    ALLOCATIONS.get() - before
}

#[test]
fn cache_hit_does_not_allocate() {
    let mut hungry = spec("hungry.x").priority(20);
    hungry.workspace = Some("seq * batch".to_owned());
    let engine = engine([
        spec("a.x").priority(90).limit("seq % 8 == 0", ReasonCode::SeqTooLong),
        spec("b.x").priority(80).limit("batch * seq < 4", ReasonCode::SeqTooLong),
        hungry,
    ]);
    let contexts: Vec<Context> = (1..=64)
        .map(|number| Shape { head_dim: number % 8, seq: number, ..Shape::default() }.context())
        .collect();
    assert_eq!(allocations_of(&engine, &contexts[..1]), 0, "one call");
    assert_eq!(allocations_of(&engine, &contexts[7..8]), 0, "one call with a remainder");
    assert_eq!(allocations_of(&engine, &contexts), 0, "more calls than the thread cache holds");
    assert!(engine.cached_decisions() > 8);
}
