//! The watchdog: a kernel that hangs in this process is reported while it hangs, and other threads use another kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::engine_support::{Shape, attend, entry, failing, run, spec};
use lz_engine::Engine;
use lz_engine::policy::layer::SettingInput;

fn engine(seconds: f64) -> Engine {
    let builder = Engine::builder().operations([attend()]).set("perfdb.enabled", SettingInput::Bool(false));
    builder.set("watchdog_seconds", SettingInput::Float(seconds)).open().unwrap()
}

fn wait_until(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Ends the hanging call, also when an assertion fails: the scope waits for its thread.
struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_kernel_that_hangs_is_reported_and_avoided() {
    let engine = engine(0.05);
    let (hangs, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (inside, end) = (Arc::clone(&hangs), Arc::clone(&ends));
    let hanging = failing(spec("bad.x").priority(90), move || {
        // Only the first call hangs, so that a second one that ran this kernel would fail the test instead of holding it up.
        if !inside.swap(true, Ordering::SeqCst) {
            while !end.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    });
    engine.register([hanging, entry(spec("reference.x"))]).unwrap();
    std::thread::scope(|scope| {
        let end = End(Arc::clone(&ends));
        let first = scope.spawn(|| run(&engine, &Shape::default()));
        assert!(wait_until(|| hangs.load(Ordering::SeqCst)), "the first call hangs");
        assert!(wait_until(|| !engine.circuits().is_empty()), "the hang is found while it lasts");
        let [circuit] = &engine.circuits()[..] else { panic!("one circuit has a record") };
        assert!(circuit.name == "bad.x" && circuit.refuses(), "{circuit:?}");
        assert!(
            circuit.last_error.contains("still running after") && circuit.last_error.contains("heads="),
            "{}",
            circuit.last_error
        );
        // The snapshot that avoids the kernel is published after its record, which explanations read.
        let avoided = || run(&engine, &Shape::default()).unwrap() == "reference.x";
        assert!(wait_until(avoided), "calls use another kernel");
        let [hang] = &engine.metrics().kernel_hangs[..] else { panic!("one kernel hangs") };
        assert_eq!((hang.kernel.as_str(), hang.count), ("bad.x", 1), "it is reported once");
        drop(end);
        assert_eq!(first.join().unwrap().unwrap(), "bad.x", "the call itself ends well");
    });
}

#[test]
fn short_runs_are_not_reported() {
    let engine = engine(30.0);
    engine.register([entry(spec("reference.x"))]).unwrap();
    for _ in 0..100 {
        run(&engine, &Shape::default()).unwrap();
    }
    assert!(engine.metrics().kernel_hangs.is_empty() && engine.circuits().is_empty());
}
