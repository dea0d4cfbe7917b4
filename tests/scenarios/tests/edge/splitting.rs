//! Calls that exceed the limits of every kernel: split into parts as a last resort, and reported.

use lz_core::device::Platform;
use lz_core::{ReasonCode, Tensor};
use lz_engine::Engine;
use lz_ops::ATTENTION_GQA_PREFILL;
use lz_ops::{NORM_RMS, NormRms, norm_rms, reference_engine};
use lz_scenarios::calls::{Norm, Prefill, ScenarioCall};
use lz_scenarios::engines::{apply_policy, engine_on, host_spec, register};
use lz_scenarios::kernels::{noop_kernel, spec};

/// An engine whose only kernel is the `norm.rms` reference with a workspace that grows with the rows.
fn engine_with_large_workspace() -> Engine {
    let registry = reference_engine().registry();
    let mut entry = registry.kernels_of(&NORM_RMS).next().unwrap().clone();
    let mut hungry = host_spec("hungry.x");
    hungry.workspace = Some("rows * 1048576".to_owned());
    entry.spec = std::sync::Arc::new(hungry);
    let engine = Engine::new();
    register(&engine, [entry]);
    engine
}

fn run_norm(engine: &Engine, x: &Tensor) -> Vec<f32> {
    let output = norm_rms(engine, NormRms::new(x.view())).unwrap_or_else(|error| panic!("{error}")).output;
    output.view().as_slice::<f32>().unwrap().to_vec()
}

/// A batch needs more workspace than the memory headroom: it is split, with the same values as the whole, and
/// counted.
#[test]
fn a_batch_over_the_headroom_is_split_with_the_same_values() {
    let data: Vec<f32> = (0..37 * 8).map(|at| (at as f32 * 0.9).sin()).collect();
    let x = Tensor::from_slice(&data, &[37, 8]).unwrap();
    let engine = engine_with_large_workspace();
    let whole = run_norm(&engine, &x);
    assert_eq!((engine.split_calls(), &whole), (0, &run_norm(&reference_engine(), &x)));
    apply_policy(&engine, "memory_headroom_mb: 10\n");
    assert_eq!(run_norm(&engine, &x), whole);
    assert_eq!(engine.split_calls(), 1);
    let plan = Norm { rows: 37, hidden: 8, weight: None, ..Norm::default() }.which(&engine).unwrap();
    let split = plan.split.expect("the whole call exceeds the headroom");
    assert_eq!((split.axis.as_str(), split.size, split.part, split.parts), ("rows", 37, 10, 4));
}

/// A slow kernel that can run the whole call is selected instead of splitting it.
#[test]
fn a_slow_kernel_is_preferred_to_a_split() {
    let engine = engine_with_large_workspace();
    apply_policy(&engine, "memory_headroom_mb: 10\n");
    assert!(Norm::rows(64).which(&engine).unwrap().split.is_some());
    register(&engine, [noop_kernel(host_spec("slow.x"), &NORM_RMS)]);
    let plan = Norm::rows(64).which(&engine).unwrap();
    assert_eq!((plan.kernel.as_str(), plan.split), ("slow.x", None));
}

/// A launch grid over the device limit: on an H100 a batch of 70 000 sequences is split, and the explanation
/// says why.
#[test]
fn a_grid_over_the_device_limit_is_split_and_explained() {
    let engine = Engine::new();
    let mut gridded = spec("gridded.prefill", &ATTENTION_GQA_PREFILL, "1", Platform::Cuda);
    gridded.grid = Some(["1".to_owned(), "batch".to_owned(), "1".to_owned()]);
    register(&engine, [noop_kernel(gridded, &ATTENTION_GQA_PREFILL)]);
    let engine = engine.with_device(lz_scenarios::engines::device("h100"));
    let call = Prefill { batch: 70_000, seq_q: 1, seq_k: 1, ..Prefill::llama3_8b() };
    assert_eq!(call.codes(&engine, "gridded.prefill"), ["CUDA_GRID_DIM_EXCEEDED", "BATCH_SPLIT_REQUIRED"]);
    assert_eq!(call.which(&engine).unwrap().split.map(|split| split.parts), Some(2));
    assert!(call.explain(&engine).to_string().contains("batch 70000 is split into 2 parts"));
    assert!(call.which(&engine_on("h100")).unwrap().split.is_none(), "the full engine has other kernels");
}

/// Strict mode allows nothing implicit: the call is rejected with its reason instead of being split.
#[test]
fn strict_mode_rejects_calls_that_need_a_split() {
    let engine = engine_with_large_workspace();
    apply_policy(&engine, "memory_headroom_mb: 10\nstrict_mode: true\n");
    let error = Norm::rows(64).which(&engine).unwrap_err();
    assert!(error.has(ReasonCode::MemoryHeadroomExceeded), "{error}");
}
