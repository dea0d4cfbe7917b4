//! Forked children of a process whose threads make decisions: they never wait for a thread that does not exist in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence};
use lz_test_support::in_child;

use crate::engine_support::{Shape, engine, run, spec};

/// A source of measurements that one decision waits for.
#[derive(Default)]
struct Slow {
    asked: AtomicBool,
    released: AtomicBool,
}

impl Evidence for Slow {
    fn findings(&self, _: &EvidenceQuery<'_>, _: &mut dyn FnMut(&KernelEvidence<'_>)) {
        if !self.asked.swap(true, Ordering::SeqCst) {
            while !self.released.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The decision takes longer than a fork waits, so the lock of its cell is locked in the child, and stays so.
#[test]
fn child_decides_what_a_thread_of_its_parent_was_deciding() {
    let engine = engine([spec("a.x").priority(90), spec("b.x")]);
    let slow = Arc::new(Slow::default());
    engine.set_evidence(Some(Arc::clone(&slow) as Arc<dyn Evidence>));
    let shape = Shape::default();
    std::thread::scope(|scope| {
        let deciding = scope.spawn(|| run(&engine, &shape).unwrap());
        while !slow.asked.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let decided = in_child(|| {
            let same_call = run(&engine, &shape).is_ok_and(|kernel| kernel == "a.x");
            engine.set_evidence(None);
            same_call && run(&engine, &shape).is_ok_and(|kernel| kernel == "a.x")
        });
        slow.released.store(true, Ordering::SeqCst);
        assert!(decided);
        assert_eq!(deciding.join().unwrap(), "a.x", "the parent is not affected");
    });
    assert!(in_child(|| run(&engine, &Shape { heads: 3, ..shape }).is_ok()), "a later fork");
}
