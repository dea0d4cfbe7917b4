//! The reference of a call is that of the platform of its tensors. It runs if optimization is disabled or the engine is
//! degraded.

use crate::engine_support::{Shape, attend, engine, entry, run, spec};
use lz_core::device::Platform;
use lz_engine::Engine;
use lz_engine::health::DegradationLevel;
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_engine::policy::{Policy, WithSource};

/// Kernels of a host and of a GPU, each with a reference.
fn both_platforms() -> Engine {
    let on_gpu = |id: &str, reference: bool, priority: u8| {
        let mut spec = spec(id).priority(priority);
        spec.platform = Platform::Cuda;
        spec.reference = reference;
        spec.deterministic = reference;
        spec
    };
    engine([
        spec("reference.attend"),
        spec("fast.attend").priority(90),
        on_gpu("gpu.fast", false, 95),
        on_gpu("gpu.composed", true, 5),
    ])
}

fn chosen(engine: &Engine) -> Option<String> {
    engine.explain(attend(), &Shape::default().context()).chosen().map(str::to_owned)
}

#[test]
fn disabled_selects_the_reference_of_the_device() {
    let host = both_platforms();
    let gpu = host.with_device(lz_device::preset("h200").unwrap());
    assert_eq!(chosen(&gpu).as_deref(), Some("gpu.fast"));
    let _disabled = mode::scope(ModeOverride::NONE.set(ModeFlag::Disabled, true));
    assert_eq!(chosen(&gpu).as_deref(), Some("gpu.composed"));
    assert_eq!(run(&host, &Shape::default()).unwrap(), "reference.attend");
}

#[test]
fn deterministic_calls_fall_back_to_the_reference_of_the_device() {
    let gpu = both_platforms().with_device(lz_device::preset("h200").unwrap());
    gpu.set_policy(Policy { deterministic: WithSource::new(true, "test"), ..Policy::default() });
    assert_eq!(chosen(&gpu).as_deref(), Some("gpu.composed"));
}

#[test]
fn degraded_engine_selects_the_reference_of_the_device() {
    let gpu = both_platforms().with_device(lz_device::preset("h200").unwrap());
    while gpu.health().level() < DegradationLevel::ReferencesOnly {
        gpu.health().record_engine_fault("a test");
    }
    assert_eq!(chosen(&gpu).as_deref(), Some("gpu.composed"));
}

/// The name of a backend does not make a reference.
#[test]
fn backend_named_reference_is_not_a_reference() {
    let mut pretender = spec("reference.pretender");
    pretender.reference = false;
    let engine = Engine::new();
    engine.register([entry(pretender)]).unwrap();
    let _disabled = mode::scope(ModeOverride::NONE.set(ModeFlag::Disabled, true));
    assert!(run(&engine, &Shape::default()).is_err());
}
