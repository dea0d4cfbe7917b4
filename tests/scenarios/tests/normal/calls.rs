//! Calls with real values, custom operations and kernels, precomputed decisions.

use lz_core::descriptor::{self, Catalog};
use lz_core::{Arg, OutArg, TensorView};
use lz_device::detect_cpu;
use lz_engine::Engine;
use lz_engine::dynamic::{self, Output};
use lz_engine::table::{DispatchTable, Lockfile, TableAnswer};
use lz_ops::{NORM_RMS, NormRms, OPERATIONS, norm_rms};
use lz_scenarios::calls::{Prefill, ScenarioCall};
use lz_scenarios::engines::{engine_on, full_engine, register};
use lz_scenarios::kernels::{kernel_fn_with, noop_kernel};
use lz_scenarios::process::{freeze_rank, rank, run_process};
use lz_test_support::Folder;

use super::OTHER_PROCESS;

/// A norm of three rows through the full engine: the native kernel runs it, and the values equal the
/// reference's.
#[test]
fn a_call_gives_the_values_of_the_reference() {
    let (rows, hidden) = (3usize, 40usize);
    let x: Vec<f32> = (0..rows * hidden).map(|at| (at as f32 * 0.37).sin() * 3.0).collect();
    let weight: Vec<f32> = (0..hidden).map(|at| 1.0 + at as f32 / 64.0).collect();
    let shape = [rows as i64, hidden as i64];
    let args = NormRms::new(TensorView::from_slice(&x, &shape).unwrap())
        .weight(TensorView::from_slice(&weight, &[hidden as i64]).unwrap());
    let context = args.check().unwrap().context();
    let engine = full_engine();
    assert!(engine.decide(&NORM_RMS, &context).unwrap().starts_with("cpu.norm.rms."));
    let ours = norm_rms(&engine, args).unwrap().output;
    let expected = norm_rms(&lz_scenarios::engines::reference_engine(), args).unwrap().output;
    let (ours, expected) = (ours.view(), expected.view());
    for (a, b) in ours.as_slice::<f32>().unwrap().iter().zip(expected.as_slice::<f32>().unwrap()) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
    }
}

const SCALE: &str = "operation: team.scale
version: 1
summary: Every element twice.
doc: \"output = 2 x\"
axes:
  n: { role: feature, select: exact, fuzz: 1..9 }
types:
  T: [f32]
inputs:
  x: { shape: [n], dtype: T, doc: \"Input.\" }
params:
  factor: { type: f32, default: 2, doc: \"Factor.\" }
outputs:
  output: { shape: [n], dtype: T, doc: \"Output.\" }
semantics: { nan: propagate }
equivalence:
  close: { f32: [1e-6, 1e-6] }
workloads:
  small: { n: 4, T: f32 }
";

/// A custom operation in one YAML file: loaded at run time, given a kernel, and called.
#[test]
fn a_custom_operation_is_callable_immediately() {
    let folder = Folder::new();
    let path = folder.write("scale.yaml", SCALE);
    let text = std::fs::read_to_string(&path).unwrap();
    let operation = dynamic::read_operation("team/scale.yaml", &text).unwrap();
    let engine = Engine::new();
    let spec = lz_core::KernelSpec::new(
        "team.scale.plain",
        "team.scale",
        "team",
        "1",
        lz_core::device::Platform::Cpu,
    );
    let kernel = kernel_fn_with(spec, operation, |out, _| {
        let [OutArg::Tensor(output)] = out else { panic!("one output") };
        output.as_slice_mut::<f32>().unwrap().fill(6.0);
        Ok(())
    });
    register(&engine, [kernel]);
    let x = [3.0f32; 4];
    let mut args = [Arg::Tensor(TensorView::from_slice(&x, &[4]).unwrap()), Arg::Absent];
    let results = dynamic::call(&engine, operation, &mut args).unwrap();
    let [Output::Tensor(output)] = results.as_slice() else { panic!("one tensor") };
    assert_eq!(output.view().as_slice::<f32>().unwrap(), [6.0; 4]);
}

/// A vendor ships a capability descriptor as JSON: it is read from disk and registered, and its kernel is
/// selected where it scores higher.
#[test]
fn a_descriptor_from_disk_registers_a_kernel() {
    let folder = Folder::new();
    let json = r#"{
      "schema_version": "1.0", "backend": "vendor", "backend_version": "3.1", "platform": "cuda",
      "ops": { "norm.rms": [ {
        "kernel_id": "vendor.rms", "min_sm": 80, "dtypes": ["float16", "bfloat16"], "requires_layouts": ["any"],
        "params": ["eps"], "optional_inputs": ["weight"], "writes_into_output": true, "priority": 95,
        "limits": [ { "check": "hidden <= 8192", "code": "AXIS_LIMIT" } ] } ] } }"#;
    let path = folder.write("vendor.json", json);
    let catalog = Catalog::new(OPERATIONS.iter().map(|info| info.schema()));
    let text = std::fs::read_to_string(&path).unwrap();
    let vendor = descriptor::read("vendor.json", &text, &catalog).unwrap();
    let engine = engine_on("h100");
    register(&engine, vendor.kernels.iter().map(|spec| noop_kernel(spec.clone(), &NORM_RMS)));
    let norm = lz_scenarios::calls::Norm::llama3_8b();
    assert_eq!(norm.selected(&engine).unwrap(), "vendor.rms");
    let wide = lz_scenarios::calls::Norm { hidden: 16384, ..norm.clone() };
    assert_eq!(wide.selected(&engine).unwrap(), "flashinfer.norm.rms");
    // What the descriptor does not list is not supported.
    let gemma = lz_scenarios::calls::Norm { weight_offset: 1.0, ..norm.clone() };
    assert!(!gemma.codes(&engine, "vendor.rms").is_empty());
    engine.unregister_backend("vendor");
    assert_eq!(norm.selected(&engine).unwrap(), "flashinfer.norm.rms");
}

/// A precomputed dispatch table is loaded: it decides inside its buckets and gives a reason outside.
#[test]
fn a_solved_table_decides_inside_its_buckets() {
    let signature = lz_scenarios::engines::device("h100").hardware_signature();
    let json = format!(
        r#"{{ "schema_version": "1.0", "model_id": "llama3-8b", "hardware_signature": "{signature}",
             "capabilities_hash": "abc",
             "shape_buckets": {{ "batch_size": [1, 8], "seq_len_q": [512, 2048] }},
             "plans": [ {{ "bucket": {{ "batch_size": 8, "seq_len_q": 2048 }},
                          "ops": [ {{ "op": "attention.causal", "kernel_id": "flash_attn.v3.prefill" }} ] }} ],
             "fallback": {{ "mode": "runtime_select" }} }}"#
    );
    let table =
        DispatchTable::read("llama3.json", &json, &OPERATIONS).unwrap_or_else(|error| panic!("{error}"));
    table.verify("llama3.json", &signature, "abc").unwrap();
    let lookup = |call: &Prefill| match table.lookup(call.operation(), &call.context().unwrap()) {
        TableAnswer::Decision(decision) => decision.kernel.clone(),
        TableAnswer::Outside(reason) => reason.code.to_string(),
        TableAnswer::Unknown => "unknown".to_owned(),
    };
    assert_eq!(lookup(&Prefill { batch: 2, ..Prefill::llama3_8b() }), "flash_attn.v3.prefill");
    assert_eq!(lookup(&Prefill { batch: 9, ..Prefill::llama3_8b() }), "PLAN_BUCKET_MISS");
}

/// Two ranks write lockfiles, each in its own process: the digests are equal, so their decisions are equal.
#[test]
fn equal_digests_prove_equal_decisions_of_two_ranks() {
    let here = freeze_rank(&rank());
    assert_eq!(run_process(OTHER_PROCESS, &["digest"]), [here.digest()]);
    let read = Lockfile::read("layerzero.lock", &here.text()).unwrap();
    assert_eq!((read.compare(&here), read.decisions().count()), (Vec::new(), 5));
    assert_eq!(read.hardware, detect_cpu().hardware_signature());
}
