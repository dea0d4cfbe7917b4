//! The memory of cached decisions, counted by the allocator; and that free memory is checked on each call, also on cache
//! hits.

#[path = "suite/engine_support.rs"]
mod engine_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine_support::{Shape, attend, engine, run, spec};
use lz_core::device::DeviceSpec;
use lz_core::{Context, ReasonCode};
use lz_engine::Engine;
use lz_engine::evidence::MemoryProbe;
use proptest::prelude::*;

struct Counting;

thread_local! {
    /// Per thread, so that concurrent tests are not counted.
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

fn live() -> i64 {
    LIVE.with(Cell::get)
}

// SAFETY: every request is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's guarantees are forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's guarantees are forwarded.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes of an engine with this many cached decisions.
fn bytes_with(decisions: i64) -> i64 {
    let before = live();
    let engine = engine([
        spec("a.x").priority(90).limit("seq % 8 == 0", ReasonCode::SeqTooLong),
        spec("b.x").priority(80).limit("batch * seq < 4", ReasonCode::SeqTooLong),
        spec("c.x").priority(70),
    ]);
    let context = |head_dim| Shape { head_dim, ..Shape::default() }.context();
    let contexts: Vec<Context> = (1..=decisions).map(context).collect();
    let of_contexts = (contexts.capacity() * size_of::<Context>()) as i64;
    // A full cache is replaced by an empty one with a larger capacity.
    while engine.cached_decisions() < contexts.len() {
        contexts.iter().for_each(|context| drop(engine.decide(attend(), context)));
    }
    live() - before - of_contexts
}

#[test]
fn cached_decision_is_small() {
    // One-time initialization of the process first, then what an engine takes besides its decisions.
    bytes_with(1);
    let engine = bytes_with(1);
    // Just after the cache has grown, and when it is full.
    for decisions in [3200, 6200, 10_000] {
        let each = (bytes_with(decisions) - engine) / (decisions - 1);
        assert!(each <= 192, "{decisions} decisions take {each} bytes each");
    }
}

struct Free(AtomicU64);

impl MemoryProbe for Free {
    fn free_bytes(&self, _: &DeviceSpec) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed))
    }
}

fn with_memory(free: &Arc<Free>) -> Engine {
    let mut hungry = spec("hungry.x").priority(90);
    hungry.workspace = Some("seq * head_dim".to_owned());
    let engine = engine([hungry, spec("modest.x").priority(10)]);
    engine.set_memory_probe(Some(free.clone()));
    engine
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn free_memory_is_checked_on_every_call(
        calls in prop::collection::vec((0u64..4, 1i64..4, 1usize..4), 1..40),
    ) {
        let free = Arc::new(Free(AtomicU64::new(0)));
        let engine = with_memory(&free);
        for (blocks, seq, times) in calls {
            free.0.store(blocks * 64, Ordering::Relaxed);
            let expected = if seq as u64 * 64 <= blocks * 64 { "hungry.x" } else { "modest.x" };
            for _ in 0..times {
                let shape = Shape { seq, head_dim: 64, ..Shape::default() };
                prop_assert_eq!(run(&engine, &shape).ok(), Some(expected.to_owned()), "{} free", blocks * 64);
            }
        }
    }
}
