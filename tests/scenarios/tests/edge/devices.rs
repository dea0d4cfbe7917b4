//! Devices that are newer than the kernels, second devices, kernels that are never warm.

use lz_core::device::{
    CudaSpec, DeviceDetail, DeviceSpec, Generation, GenerationEntry, GenerationTable, Vendor,
};
use lz_engine::Engine;
use lz_ops::QuantizeFormat;
use lz_scenarios::calls::{Norm, Prefill, Quantized, ScenarioCall};
use lz_scenarios::engines::{apply_policy, device, engine_on, full_engine};

fn gpu(sm: u32, table: &GenerationTable) -> DeviceSpec {
    DeviceSpec {
        name: format!("a GPU of sm{sm}"),
        vendor: Vendor::Nvidia,
        uuid: format!("GPU-sm{sm}"),
        index: 0,
        detail: DeviceDetail::Cuda(CudaSpec::for_sm(sm, table)),
    }
}

/// No silent coverage gap on a new GPU (vllm#45317): an operation without a kernel is an error that lists
/// every kernel with its reasons.
#[test]
fn a_new_gpu_has_no_silent_coverage_gap() {
    let engine = full_engine().with_device(gpu(200, &GenerationTable::default()));
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "flash_attn.v2.prefill");
    let call = Quantized { format: QuantizeFormat::Nvfp4, block_size: 16, inner: 4096 };
    let error = call.selected(&engine).unwrap_err();
    insta::assert_snapshot!(error, @r"
    quantize: no kernel can run this call
      reference.quantize
        [PLATFORM_MISMATCH] requires cpu, found cuda
      invented_nvfp4.quantize
        [GPU_GENERATION_UNSUPPORTED] requires blackwell, found an unknown generation
      torch.fp8.quantize
        [QUANT_FORMAT_UNSUPPORTED] requires fp8_e4m3 or fp8_e5m2 or int8, found nvfp4
    ");
}

/// The vendor's descriptor defines a new GPU generation: kernels for it are selected without a new release.
#[test]
fn a_descriptor_defines_a_new_generation() {
    let mut table = GenerationTable::default();
    let row = [GenerationEntry {
        first_sm: 200,
        last_sm: 209,
        generation: Generation::named("blackwell"),
        tensor_core_generation: 5,
        instruction_sets: Vec::new(),
    }];
    table.extend(row).unwrap();
    let engine = full_engine().with_device(gpu(200, &table));
    let call = Quantized { format: QuantizeFormat::Nvfp4, block_size: 16, inner: 4096 };
    assert_eq!(call.selected(&engine).unwrap(), "invented_nvfp4.quantize");
}

/// A Turing GPU from 2018: kernels that need Ampere report the SM version they require, and a kernel without
/// that requirement runs.
#[test]
fn an_old_gpu_gets_the_required_sm_version() {
    let engine = full_engine().with_device(gpu(75, &GenerationTable::default()));
    let call = Prefill { seq_q: 512, seq_k: 512, ..Prefill::llama3_8b() };
    assert_eq!(call.selected(&engine).unwrap(), "torch.sdpa.math");
    let explanation = call.explain(&engine);
    let reason = &explanation.candidate("flash_attn.v2.prefill").unwrap().reasons[0];
    assert_eq!((reason.code, reason.sentence.as_str()), ("SM_TOO_OLD", "requires sm80 or later, found sm75"));
}

/// A rule applies to the second GPU of a machine by its index: the first is unaffected.
#[test]
fn a_rule_may_apply_to_one_device() {
    let of = |index: u32| -> Engine {
        let engine = full_engine().with_device(DeviceSpec { index, ..device("h100") });
        apply_policy(&engine, "rules:\n  - { condition: device_index == 1, deny: flash_attn }\n");
        engine
    };
    assert_eq!(Prefill::llama3_8b().selected(&of(0)).unwrap(), "flash_attn.v3.prefill");
    assert_eq!(Prefill::llama3_8b().selected(&of(1)).unwrap(), "torch.sdpa.flash");
}

/// Gemma's norm exists only in a JIT kernel: while it is cold no kernel can run, and the error says what to
/// do.
#[test]
fn a_single_cold_kernel_is_an_actionable_error() {
    let engine = engine_on("h100");
    let gemma = Norm { hidden: 3584, weight_offset: 1.0, ..Norm::llama3_8b() };
    let error = gemma.selected(&engine).unwrap_err();
    assert!(
        error.has(lz_core::ReasonCode::JitCold) && error.has(lz_core::ReasonCode::ParamUnsupported),
        "{error}"
    );
    let explanation = gemma.explain(&engine);
    assert!(explanation.candidate("liger.norm.rms").unwrap().reasons[0].help.is_some());
    apply_policy(&engine, "jit: { mode: inline }\n");
    let plan = gemma.which(&engine).unwrap();
    assert_eq!((plan.kernel.as_str(), plan.score), ("liger.norm.rms", 40.0), "at the price of a compilation");
}

/// JIT compilation is disabled: even a warm JIT kernel is not selected, with its own reason code.
#[test]
fn disabled_jit_excludes_even_warm_kernels() {
    let engine = engine_on("h100");
    let call = Prefill::llama3_8b();
    engine.mark_warm("flashinfer.fa3.prefill", call.operation(), &call.context().unwrap());
    apply_policy(&engine, "jit: { mode: never }\n");
    assert_eq!(call.selected(&engine).unwrap(), "flash_attn.v3.prefill");
    assert_eq!(call.codes(&engine, "flashinfer.fa3.prefill"), ["JIT_DISABLED"]);
}
