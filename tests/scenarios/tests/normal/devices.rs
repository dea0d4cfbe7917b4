//! One house of kernels, many devices: each gets what it can run best.

use lz_core::{Error, ReasonCode};
use lz_ops::QuantizeFormat;
use lz_scenarios::calls::{Ask, DecodePaged, Norm, Prefill, Quantized};
use lz_scenarios::house::{house, house_on};
use lz_scenarios::tensors::Lie;

/// A prompt of Llama 3 8B arrives on an H100: FlashAttention 3 runs it, because FlashInfer's kernels are not compiled yet.
#[test]
fn an_h100_serves_a_prompt_with_flash_attention_3() {
    let engine = house_on("h100");
    let plan = Prefill::llama3_8b().which(&engine).unwrap();
    assert_eq!((plan.kernel.as_str(), plan.score, plan.workspace_bytes), ("flash_attn.v3.prefill", 85.0, 0));
    assert_eq!(Prefill::llama3_8b().codes(&engine, "flashinfer.fa3.prefill"), ["JIT_COLD"]);
}

/// The same prompt on a B200, whose tensor cores have no wgmma: the Hopper kernels say so, and FlashAttention 2 runs it.
#[test]
fn a_b200_passes_over_kernels_of_hopper() {
    let engine = house_on("b200");
    assert_eq!(Prefill::llama3_8b().chosen(&engine).unwrap(), "flash_attn.v2.prefill");
    assert_eq!(
        Prefill::llama3_8b().codes(&engine, "flash_attn.v3.prefill"),
        ["SM_TOO_NEW", "INSTRUCTION_SET_MISMATCH"]
    );
}

/// The same prompt on an MI300X: the ROCm kernel runs it, and everything for CUDA gives its platform as the only reason.
#[test]
fn an_mi300x_takes_the_rocm_kernel() {
    let engine = house_on("mi300x");
    assert_eq!(Prefill::llama3_8b().chosen(&engine).unwrap(), "aiter.ck.prefill");
    assert_eq!(Prefill::llama3_8b().codes(&engine, "flash_attn.v2.prefill"), ["PLATFORM_MISMATCH"]);
}

/// The same prompt on a Gaudi 3: its fused attention runs it.
#[test]
fn a_gaudi_3_takes_its_fused_attention() {
    let engine = house_on("gaudi3");
    let plan = Prefill::llama3_8b().which(&engine).unwrap();
    assert_eq!((plan.kernel.as_str(), plan.fallbacks.len()), ("habana.fused_sdpa", 0));
}

/// A small model on a laptop without AVX-512: the AVX2 kernel runs it, with the reference behind it.
#[test]
fn a_laptop_takes_the_widest_kernel_that_it_has() {
    let engine = house_on("laptop-cpu");
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

/// Before a fleet is bought, one asks on every device at hand on paper what prefill, decode and norm would run.
#[test]
fn a_fleet_is_compared_before_it_is_bought() {
    let chosen = |preset: &str| {
        let engine = house_on(preset);
        let name = |outcome: Result<String, Error>| outcome.unwrap_or_else(|_| "nothing".to_owned());
        let (prefill, decode) = (Prefill::llama3_8b(), DecodePaged::llama3_8b());
        [name(prefill.chosen(&engine)), name(decode.chosen(&engine)), name(Norm::llama3_8b().chosen(&engine))]
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
    assert_eq!(chosen("mi300x"), ["aiter.ck.prefill", "nothing", "nothing"]);
    assert_eq!(chosen("gaudi3"), ["habana.fused_sdpa", "nothing", "nothing"]);
}

/// Weights are quantised to NVFP4: on a B200 there is a kernel, on an H100 the error names each kernel's reason.
#[test]
fn four_bit_formats_need_the_generation_that_has_them() {
    let call = Quantized { format: QuantizeFormat::Nvfp4, block_size: 16, inner: 4096 };
    assert_eq!(call.chosen(&house_on("b200")).unwrap(), "flashinfer.nvfp4.quantize");
    let hopper = house_on("h100");
    let error = call.chosen(&hopper).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    assert_eq!(call.codes(&hopper, "flashinfer.nvfp4.quantize"), ["GPU_GENERATION_UNSUPPORTED"]);
    assert_eq!(call.codes(&hopper, "torch.fp8.quantize"), ["QUANT_FORMAT_UNSUPPORTED"]);
    let eight = Quantized { format: QuantizeFormat::Fp8E4m3, block_size: 128, inner: 4096 };
    assert_eq!(eight.chosen(&hopper).unwrap(), "torch.fp8.quantize");
}

/// An engine that imagines its device explains a call and says that it is imagined; it refuses to run one.
#[test]
fn an_imagined_device_can_be_asked_and_not_used() {
    let engine = house_on("h100");
    let device = Prefill::llama3_8b().explain(&engine).device.unwrap();
    assert_eq!(
        (device.name.as_str(), device.place.as_str(), device.architecture.as_str(), device.imagined),
        ("NVIDIA H100 80GB HBM3", "cuda:0", "sm90", true)
    );
    let error = Prefill::llama3_8b().serve(&engine).unwrap_err();
    assert!(error.has(ReasonCode::DeviceAbsent), "{error}");
    // The house that it was made from still runs on this host.
    let host = Norm { lie: Lie::HOST, ..Norm::default() };
    assert!(host.serve_by_choice(&house()).starts_with("cpu.norm.rms."));
}

trait ByChoice: Ask {
    /// The decision of a dispatch, without running the kernel.
    fn serve_by_choice(&self, engine: &lz_engine::Engine) -> String {
        engine.decide(self.operation(), &self.context().unwrap()).unwrap()
    }
}

impl ByChoice for Norm {}
