//! Devices that nobody knew when the kernels were written, second devices, kernels that are never warm.

use lz_core::device::{
    CudaSpec, DeviceDetail, DeviceSpec, Generation, GenerationEntry, GenerationTable, Vendor,
};
use lz_engine::Engine;
use lz_ops::QuantizeFormat;
use lz_scenarios::calls::{Ask, Norm, Prefill, Quantized};
use lz_scenarios::house::{device, govern, house, house_on};

fn gpu(sm: u32, table: &GenerationTable) -> DeviceSpec {
    DeviceSpec {
        name: format!("a GPU of sm{sm}"),
        vendor: Vendor::Nvidia,
        uuid: format!("GPU-sm{sm}"),
        index: 0,
        detail: DeviceDetail::Cuda(CudaSpec::for_sm(sm, table)),
    }
}

/// No silent hole in coverage for a new GPU (vllm#45317): what has no kernel is an error that lists every kernel and why.
#[test]
fn a_new_gpu_has_no_silent_hole() {
    let engine = house().with_device(gpu(200, &GenerationTable::default()));
    assert_eq!(Prefill::llama3_8b().chosen(&engine).unwrap(), "flash_attn.v2.prefill");
    let call = Quantized { format: QuantizeFormat::Nvfp4, block_size: 16, inner: 4096 };
    let error = call.chosen(&engine).unwrap_err();
    insta::assert_snapshot!(error, @r"
    quantize: no kernel can run this call
      reference.quantize
        [PLATFORM_MISMATCH] requires cpu, found cuda
      flashinfer.nvfp4.quantize
        [GPU_GENERATION_UNSUPPORTED] requires blackwell, found an unknown generation
      torch.fp8.quantize
        [QUANT_FORMAT_UNSUPPORTED] requires fp8_e4m3 or fp8_e5m2 or int8, found nvfp4
    ");
}

/// The vendor's descriptor names the new generation: the table learns it, and kernels for it are chosen without a new release.
#[test]
fn a_descriptor_teaches_a_new_generation() {
    let mut table = GenerationTable::default();
    let row = [GenerationEntry {
        first_sm: 200,
        last_sm: 209,
        generation: Generation::named("blackwell"),
        tensor_core_generation: 5,
        instruction_sets: Vec::new(),
    }];
    table.extend(row).unwrap();
    let engine = house().with_device(gpu(200, &table));
    let call = Quantized { format: QuantizeFormat::Nvfp4, block_size: 16, inner: 4096 };
    assert_eq!(call.chosen(&engine).unwrap(), "flashinfer.nvfp4.quantize");
}

/// A Turing card from 2018: what needs Ampere says which SM it needs, and what runs is the kernel without such needs.
#[test]
fn an_old_gpu_is_told_what_it_lacks() {
    let engine = house().with_device(gpu(75, &GenerationTable::default()));
    let call = Prefill { seq_q: 512, seq_k: 512, ..Prefill::llama3_8b() };
    assert_eq!(call.chosen(&engine).unwrap(), "torch.sdpa.math");
    let explanation = call.explain(&engine);
    let reason = &explanation.candidate("flash_attn.v2.prefill").unwrap().reasons[0];
    assert_eq!((reason.code, reason.sentence.as_str()), ("SM_TOO_OLD", "requires sm80 or later, found sm75"));
}

/// The second GPU of a machine has a rule of its own, by its index: the first is not touched by it.
#[test]
fn a_rule_may_be_about_one_device() {
    let of = |index: u32| -> Engine {
        let engine = house().with_device(DeviceSpec { index, ..device("h100") });
        govern(&engine, "rules:\n  - { condition: device_index == 1, deny: flash_attn }\n");
        engine
    };
    assert_eq!(Prefill::llama3_8b().chosen(&of(0)).unwrap(), "flash_attn.v3.prefill");
    assert_eq!(Prefill::llama3_8b().chosen(&of(1)).unwrap(), "torch.sdpa.flash");
}

/// Gemma's norm is only in a kernel that compiles on first use: while it is cold nothing can run, and the error says what to do.
#[test]
fn a_cold_kernel_without_company_is_an_error_that_helps() {
    let engine = house_on("h100");
    let gemma = Norm { hidden: 3584, weight_offset: 1.0, ..Norm::llama3_8b() };
    let error = gemma.chosen(&engine).unwrap_err();
    assert!(
        error.has(lz_core::ReasonCode::JitCold) && error.has(lz_core::ReasonCode::ParamUnsupported),
        "{error}"
    );
    let explanation = gemma.explain(&engine);
    assert!(explanation.candidate("liger.norm.rms").unwrap().reasons[0].help.is_some());
    govern(&engine, "jit: { mode: inline }\n");
    let plan = gemma.which(&engine).unwrap();
    assert_eq!((plan.kernel.as_str(), plan.score), ("liger.norm.rms", 40.0), "at the price of a compilation");
}

/// Compilation is forbidden altogether: a kernel that was warm is not chosen any more, with a reason of its own.
#[test]
fn forbidden_compilation_excludes_even_warm_kernels() {
    let engine = house_on("h100");
    let call = Prefill::llama3_8b();
    engine.mark_warm("flashinfer.fa3.prefill", call.operation(), &call.context().unwrap());
    govern(&engine, "jit: { mode: never }\n");
    assert_eq!(call.chosen(&engine).unwrap(), "flash_attn.v3.prefill");
    assert_eq!(call.codes(&engine, "flashinfer.fa3.prefill"), ["JIT_DISABLED"]);
}
