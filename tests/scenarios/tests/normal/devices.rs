//! The same kernels on many devices: each device gets its best supported kernel.

use lz_core::{Error, ReasonCode};
use lz_ops::QuantizeFormat;
use lz_scenarios::calls::{DecodePaged, Norm, Prefill, Quantized, ScenarioCall};
use lz_scenarios::engines::{engine_on, full_engine};
use lz_scenarios::tensors::Placement;

/// A Llama 3 8B prefill on an H100: FlashAttention 3 runs it, because FlashInfer's JIT kernels are cold.
#[test]
fn an_h100_serves_a_prompt_with_flash_attention_3() {
    let engine = engine_on("h100");
    let plan = Prefill::llama3_8b().which(&engine).unwrap();
    assert_eq!((plan.kernel.as_str(), plan.score, plan.workspace_bytes), ("flash_attn.v3.prefill", 85.0, 0));
    assert_eq!(Prefill::llama3_8b().codes(&engine, "flashinfer.fa3.prefill"), ["JIT_COLD"]);
}

/// The same prefill on a B200, which has no wgmma: Hopper kernels report that as a reason, and FlashAttention
/// 2 runs it.
#[test]
fn a_b200_rejects_hopper_kernels() {
    let engine = engine_on("b200");
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "flash_attn.v2.prefill");
    assert_eq!(
        Prefill::llama3_8b().codes(&engine, "flash_attn.v3.prefill"),
        ["SM_TOO_NEW", "INSTRUCTION_SET_MISMATCH"]
    );
}

/// The same prefill on an MI300X: the ROCm kernel runs it, and CUDA kernels are rejected by platform only.
#[test]
fn an_mi300x_selects_the_rocm_kernel() {
    let engine = engine_on("mi300x");
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "invented_rocm.prefill");
    assert_eq!(Prefill::llama3_8b().codes(&engine, "flash_attn.v2.prefill"), ["PLATFORM_MISMATCH"]);
}

/// The same prefill on a Gaudi 3: its fused attention runs it.
#[test]
fn a_gaudi_3_selects_its_fused_attention() {
    let engine = engine_on("gaudi3");
    let plan = Prefill::llama3_8b().which(&engine).unwrap();
    assert_eq!((plan.kernel.as_str(), plan.fallbacks.len()), ("invented_hpu.prefill", 0));
}

/// A small model on a laptop without AVX-512: the AVX2 kernel runs it, with the reference as fallback.
#[test]
fn a_laptop_selects_the_widest_supported_isa() {
    let engine = engine_on("laptop-cpu");
    let call = Prefill::small();
    let plan = call.which(&engine).unwrap();
    assert_eq!(plan.kernel, "cpu.prefill.avx2");
    assert_eq!(plan.fallbacks, ["reference.attention.gqa.prefill"]);
    let explanation = call.explain(&engine);
    let wide = explanation.candidate("cpu.prefill.avx512").unwrap();
    assert_eq!(
        (wide.reasons[0].code, wide.reasons[0].found.as_deref()),
        ("ISA_UNSUPPORTED", Some("no avx512f"))
    );
}

/// Kernels for prefill, decode and norm are compared across simulated devices, for example before buying
/// hardware.
#[test]
fn kernels_are_compared_across_simulated_devices() {
    let chosen = |preset: &str| {
        let engine = engine_on(preset);
        let name = |outcome: Result<String, Error>| outcome.unwrap_or_else(|_| "nothing".to_owned());
        let (prefill, decode) = (Prefill::llama3_8b(), DecodePaged::llama3_8b());
        [
            name(prefill.selected(&engine)),
            name(decode.selected(&engine)),
            name(Norm::llama3_8b().selected(&engine)),
        ]
    };
    for preset in ["a100", "rtx3080", "b200"] {
        assert_eq!(
            chosen(preset),
            ["flash_attn.v2.prefill", "flashinfer.fa2.decode", "flashinfer.norm.rms"],
            "{preset}"
        );
    }
    for preset in ["h100", "h200"] {
        assert_eq!(
            chosen(preset),
            ["flash_attn.v3.prefill", "flashinfer.fa2.decode", "flashinfer.norm.rms"],
            "{preset}"
        );
    }
    assert_eq!(chosen("mi300x"), ["invented_rocm.prefill", "nothing", "nothing"]);
    assert_eq!(chosen("gaudi3"), ["invented_hpu.prefill", "nothing", "nothing"]);
}

/// Weights are quantized to NVFP4: a B200 has a kernel, on an H100 the error lists each kernel's reason.
#[test]
fn four_bit_formats_need_a_supporting_gpu_generation() {
    let call = Quantized { format: QuantizeFormat::Nvfp4, block_size: 16, inner: 4096 };
    assert_eq!(call.selected(&engine_on("b200")).unwrap(), "invented_nvfp4.quantize");
    let hopper = engine_on("h100");
    let error = call.selected(&hopper).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    assert_eq!(call.codes(&hopper, "invented_nvfp4.quantize"), ["GPU_GENERATION_UNSUPPORTED"]);
    assert_eq!(call.codes(&hopper, "torch.fp8.quantize"), ["QUANT_FORMAT_UNSUPPORTED"]);
    let eight = Quantized { format: QuantizeFormat::Fp8E4m3, block_size: 128, inner: 4096 };
    assert_eq!(eight.selected(&hopper).unwrap(), "torch.fp8.quantize");
}

/// An engine with a simulated device explains a call and marks the device as simulated; it refuses to run the
/// call.
#[test]
fn a_simulated_device_explains_calls_but_does_not_run_them() {
    let engine = engine_on("h100");
    let device = Prefill::llama3_8b().explain(&engine).device.unwrap();
    assert_eq!(
        (device.name.as_str(), device.place.as_str(), device.architecture.as_str(), device.imagined),
        ("NVIDIA H100 80GB HBM3", "cuda:0", "sm90", true)
    );
    let error = Prefill::llama3_8b().serve(&engine).unwrap_err();
    assert!(error.has(ReasonCode::DeviceAbsent), "{error}");
    // The engine it was created from still runs on this host.
    let host = Norm { placement: Placement::HOST, ..Norm::default() };
    assert!(host.decide(&full_engine()).starts_with("cpu.norm.rms."));
}

trait Decide: ScenarioCall {
    /// Id of the kernel that `dispatch` would run, without running it.
    fn decide(&self, engine: &lz_engine::Engine) -> String {
        engine.decide(self.operation(), &self.context().unwrap()).unwrap()
    }
}

impl Decide for Norm {}
