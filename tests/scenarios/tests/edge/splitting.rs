//! Calls that are too large for every kernel: the last resort is to run them in parts, and it is said.

use lz_core::device::Platform;
use lz_core::{ReasonCode, Tensor};
use lz_engine::Engine;
use lz_ops::ATTENTION_GQA_PREFILL;
use lz_ops::{NORM_RMS, NormRms, norm_rms, reference_engine};
use lz_scenarios::calls::{Ask, Norm, Prefill};
use lz_scenarios::house::{govern, host_spec, house_on, register};
use lz_scenarios::kernels::{quiet, spec};

/// The reference of norms, with scratch memory that grows with the rows, as the only kernel.
fn hungry() -> Engine {
    let registry = reference_engine().registry();
    let mut entry = registry.kernels_of(&NORM_RMS).next().unwrap().clone();
    let mut hungry = host_spec("hungry.x");
    hungry.workspace = Some("rows * 1048576".to_owned());
    entry.spec = std::sync::Arc::new(hungry);
    let engine = Engine::new();
    register(&engine, [entry]);
    engine
}

fn normed(engine: &Engine, x: &Tensor) -> Vec<f32> {
    let output = norm_rms(engine, NormRms::new(x.view())).unwrap_or_else(|error| panic!("{error}")).output;
    output.view().as_slice::<f32>().unwrap().to_vec()
}

/// A batch needs more scratch memory than there is headroom: it runs in parts, with the values of the whole, and is counted.
#[test]
fn a_batch_without_headroom_runs_in_parts_with_the_same_values() {
    let data: Vec<f32> = (0..37 * 8).map(|at| (at as f32 * 0.9).sin()).collect();
    let x = Tensor::from_slice(&data, &[37, 8]).unwrap();
    let engine = hungry();
    let whole = normed(&engine, &x);
    assert_eq!((engine.split_calls(), &whole), (0, &normed(&reference_engine(), &x)));
    govern(&engine, "memory_headroom_mb: 10\n");
    assert_eq!(normed(&engine, &x), whole);
    assert_eq!(engine.split_calls(), 1);
    let plan = Norm { rows: 37, hidden: 8, weight: None, ..Norm::default() }.which(&engine).unwrap();
    let split = plan.split.expect("as a whole it does not fit");
    assert_eq!((split.axis.as_str(), split.size, split.part, split.parts), ("rows", 37, 10, 4));
}

/// Another kernel is preferred, however slow: nothing is split while the reference can run the whole.
#[test]
fn a_slow_kernel_goes_before_a_split() {
    let engine = hungry();
    govern(&engine, "memory_headroom_mb: 10\n");
    assert!(Norm::rows(64).which(&engine).unwrap().split.is_some());
    register(&engine, [quiet(host_spec("slow.x"), &NORM_RMS)]);
    let plan = Norm::rows(64).which(&engine).unwrap();
    assert_eq!((plan.kernel.as_str(), plan.split), ("slow.x", None));
}

/// A launch grid that the device does not take: on an H100 a batch of 70 000 sequences is cut, and the explanation says why.
#[test]
fn a_grid_that_no_device_takes_is_cut_and_explained() {
    let engine = Engine::new();
    let mut gridded = spec("gridded.prefill", &ATTENTION_GQA_PREFILL, "1", Platform::Cuda);
    gridded.grid = Some(["1".to_owned(), "batch".to_owned(), "1".to_owned()]);
    register(&engine, [quiet(gridded, &ATTENTION_GQA_PREFILL)]);
    let engine = engine.with_device(lz_scenarios::house::device("h100"));
    let call = Prefill { batch: 70_000, seq_q: 1, seq_k: 1, ..Prefill::llama3_8b() };
    assert_eq!(call.codes(&engine, "gridded.prefill"), ["CUDA_GRID_DIM_EXCEEDED", "BATCH_SPLIT_REQUIRED"]);
    assert_eq!(call.which(&engine).unwrap().split.map(|split| split.parts), Some(2));
    assert!(call.explain(&engine).to_string().contains("batch 70000 is split into 2 parts"));
    assert!(call.which(&house_on("h100")).unwrap().split.is_none(), "the whole house has others");
}

/// Strict mode wants nothing implicit: the call is refused with its reason instead of being cut.
#[test]
fn strict_mode_refuses_what_would_have_to_be_cut() {
    let engine = hungry();
    govern(&engine, "memory_headroom_mb: 10\nstrict_mode: true\n");
    let error = Norm::rows(64).which(&engine).unwrap_err();
    assert!(error.has(ReasonCode::MemoryHeadroomExceeded), "{error}");
}
