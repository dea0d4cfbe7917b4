//! Engines of the scenarios, with the kernel specs of a serving machine as documented by the kernels'
//! libraries.

use lz_core::device::{DeviceSpec, Platform};
use lz_core::mode::KvStrategy;
use lz_core::plan::TransformKind;
use lz_core::spec::StrideNeeds;
use lz_core::{DType, KernelEntry, KernelSpec, OperationInfo, ReasonCode};
use lz_engine::Engine;
use lz_engine::policy::file::Vocabulary;
use lz_engine::policy::stack::PolicyStack;
use lz_ops::{ATTENTION_GQA_DECODE_PAGED, ATTENTION_GQA_PREFILL, NORM_RMS, OPERATIONS, QUANTIZE};

use crate::kernels::{noop_kernel, spec};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// Prefill kernels: FlashAttention 2 and 3, FlashInfer, the SDPA backends and those of other platforms.
pub fn prefill_specs() -> Vec<KernelSpec> {
    let of = |id: &str, version: &str, platform| spec(id, &ATTENTION_GQA_PREFILL, version, platform);
    let cuda = |id: &str, version: &str| of(id, version, Platform::Cuda);
    let mut all = Vec::new();

    let mut flash = cuda("flash_attn.v2.prefill", "2.8.3")
        .dtype("T", &HALVES)
        .limit("head_dim <= 256", ReasonCode::HeadDimTooLarge)
        .limit("head_dim % 8 == 0", ReasonCode::HeadDimAlignment)
        .limit("not given(mask)", ReasonCode::AttnMaskUnsupported)
        .priority(75);
    flash.device.min_sm = Some(80);
    flash.layouts = vec!["BSHD".to_owned()];
    flash.strides = StrideNeeds::LastDense;
    flash.cuda_graph_safe = true;
    let mut flash3 = KernelSpec { id: "flash_attn.v3.prefill".to_owned(), priority: 85, ..flash.clone() };
    flash3.device.instruction_set = Some("wgmma".to_owned());
    flash3.device.max_sm = Some(90);
    all.extend([flash, flash3]);

    let mut flashinfer = cuda("flashinfer.fa2.prefill", "0.6.4")
        .dtype("T", &HALVES)
        .limit("head_dim in [64, 128, 256]", ReasonCode::HeadDimInvalid)
        .priority(80);
    flashinfer.device.min_sm = Some(75);
    flashinfer.layouts = vec!["BSHD".to_owned()];
    flashinfer.jit = true;
    flashinfer.cuda_graph_safe = true;
    let mut fa3 = KernelSpec { id: "flashinfer.fa3.prefill".to_owned(), priority: 90, ..flashinfer.clone() };
    fa3.device.instruction_set = Some("wgmma".to_owned());
    all.extend([flashinfer, fa3]);

    let mut sdpa_flash = cuda("torch.sdpa.flash", "2.11.0")
        .dtype("T", &HALVES)
        .limit("not given(mask)", ReasonCode::AttnMaskUnsupported)
        .limit("head_dim <= 256", ReasonCode::HeadDimTooLarge)
        .priority(60);
    sdpa_flash.device.min_sm = Some(80);
    sdpa_flash.layouts = vec!["BHSD".to_owned()];
    sdpa_flash.adapts = vec![TransformKind::Layout];
    sdpa_flash.transform_cost = 2;
    sdpa_flash.strides = StrideNeeds::LastDense;
    sdpa_flash.cuda_graph_safe = true;
    let mut efficient = KernelSpec {
        id: "torch.sdpa.efficient".to_owned(),
        priority: 50,
        limits: Vec::new(),
        ..sdpa_flash.clone()
    }
    .limit("heads == kv_heads", ReasonCode::GqaUnsupported)
    .limit("head_dim % 8 == 0", ReasonCode::HeadDimAlignment);
    efficient.device.min_sm = Some(50);
    let cudnn = KernelSpec {
        id: "torch.sdpa.cudnn".to_owned(),
        priority: 55,
        limits: Vec::new(),
        ..sdpa_flash.clone()
    }
    .limit("head_dim <= 128", ReasonCode::HeadDimTooLarge)
    .limit("head_dim % 8 == 0", ReasonCode::HeadDimAlignment);
    let mut math = cuda("torch.sdpa.math", "2.11.0").priority(10);
    math.deterministic = true;
    math.tp_invariant = true;
    math.cuda_graph_safe = true;
    math.workspace = Some("batch * heads * seq_q * seq_k * 4".to_owned());
    all.extend([sdpa_flash, efficient, cudnn, math]);

    // No backend ships a kernel for these platforms.
    let mut composable =
        of("invented_rocm.prefill", "0.1.5", Platform::Rocm).dtype("T", &HALVES).priority(80);
    composable.layouts = vec!["BSHD".to_owned()];
    let gaudi = of("invented_hpu.prefill", "1.22.0", Platform::Hpu).dtype("T", &[DType::BF16]).priority(80);
    all.extend([composable, gaudi]);

    let mut avx512 = of("cpu.prefill.avx512", "0.1.0", Platform::Cpu).priority(70);
    avx512.device.isa = vec!["avx512f".to_owned()];
    let mut avx2 = of("cpu.prefill.avx2", "0.1.0", Platform::Cpu).priority(60);
    avx2.device.isa = vec!["avx2".to_owned(), "fma".to_owned()];
    all.extend([avx512, avx2]);
    all
}

/// Paged decode kernels of FlashInfer and FlashAttention, with the page layouts and sizes that they support, and an invented one that
/// requires heads before positions.
pub fn decode_specs() -> Vec<KernelSpec> {
    let cuda = |id: &str, version: &str| {
        let mut spec = spec(id, &ATTENTION_GQA_DECODE_PAGED, version, Platform::Cuda).dtype("T", &HALVES);
        spec.device.min_sm = Some(80);
        spec.cuda_graph_safe = true;
        spec.kv_strategies = vec![KvStrategy::Paged.name().to_owned()];
        spec
    };
    let flashinfer = cuda("flashinfer.fa2.decode", "0.6.4").priority(80);
    let mut heads_first = cuda("invented_hnd.decode", "1.2.0")
        .limit("page_size in [16, 32, 64]", ReasonCode::PageSizeUnsupported)
        .priority(90);
    heads_first.layouts = vec!["HND".to_owned()];
    heads_first.device.min_sm = Some(90);
    let mut flash = cuda("flash_attn.v2.decode", "2.8.3")
        .limit("page_size % 256 == 0", ReasonCode::PageSizeUnsupported)
        .priority(85);
    flash.layouts = vec!["NHD".to_owned()];
    vec![flashinfer, heads_first, flash]
}

/// CUDA RMSNorm kernels of FlashInfer, torch and Liger.
pub fn norm_specs() -> Vec<KernelSpec> {
    let cuda = |id: &str, version: &str| {
        let mut spec = spec(id, &NORM_RMS, version, Platform::Cuda);
        spec.cuda_graph_safe = true;
        spec
    };
    let mut flashinfer = cuda("flashinfer.norm.rms", "0.6.4")
        .dtype("T", &HALVES)
        .limit("hidden % 8 == 0", ReasonCode::AlignmentRequired)
        .limit("weight_offset == 0", ReasonCode::ParamUnsupported)
        .priority(80);
    flashinfer.device.min_sm = Some(80);
    flashinfer.strides = StrideNeeds::LastDense;
    let torch = cuda("torch.norm.rms", "2.11.0")
        .limit("weight_offset == 0", ReasonCode::ParamUnsupported)
        .priority(50);
    let mut liger = cuda("liger.norm.rms", "0.8.5").dtype("T", &HALVES).priority(60);
    liger.jit = true;
    vec![flashinfer, torch, liger]
}

/// Quantization kernels, one spec per format; that of NVFP4 is invented.
pub fn quantize_specs() -> Vec<KernelSpec> {
    let cuda = |id: &str, version: &str, formats: &[&str]| {
        let mut spec = spec(id, &QUANTIZE, version, Platform::Cuda).priority(70);
        spec.quant_formats = formats.iter().map(|format| (*format).to_owned()).collect();
        spec
    };
    let mut blackwell = cuda("invented_nvfp4.quantize", "0.6.4", &["nvfp4", "mxfp4"]);
    blackwell.device.generations = vec!["blackwell".to_owned()];
    vec![blackwell, cuda("torch.fp8.quantize", "2.11.0", &["fp8_e4m3", "fp8_e5m2", "int8"])]
}

/// Registers kernels with an engine.
///
/// # Panics
/// If a spec is invalid.
pub fn register(engine: &Engine, entries: impl IntoIterator<Item = KernelEntry>) {
    engine.register(entries).unwrap_or_else(|error| panic!("{error}"));
}

/// An engine with the reference kernels of all operations.
///
/// # Panics
/// If a reference kernel does not match its operation.
pub fn reference_engine() -> Engine {
    Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap_or_else(|error| panic!("{error}"))
}

/// An engine with all kernel specs above, the native `norm.rms` kernels of this host and all reference
/// kernels.
pub fn full_engine() -> Engine {
    let engine = reference_engine();
    let noop_kernels = |specs: Vec<KernelSpec>, operation: &'static OperationInfo| {
        specs.into_iter().map(move |spec| noop_kernel(spec, operation))
    };
    register(&engine, noop_kernels(prefill_specs(), &ATTENTION_GQA_PREFILL));
    register(&engine, noop_kernels(decode_specs(), &ATTENTION_GQA_DECODE_PAGED));
    register(&engine, noop_kernels(norm_specs(), &NORM_RMS));
    register(&engine, noop_kernels(quantize_specs(), &QUANTIZE));
    // Native kernels of one operation only: adding a native kernel elsewhere must not change the scenarios.
    register(&engine, lz_cpu::kernels().into_iter().filter(|entry| entry.spec.operation == NORM_RMS.name));
    engine
}

/// [`full_engine`] with a simulated device.
///
/// # Panics
/// If the preset does not exist.
pub fn engine_on(preset: &str) -> Engine {
    full_engine().with_device(device(preset))
}

/// Device description of a preset.
///
/// # Panics
/// If the preset does not exist.
pub fn device(preset: &str) -> DeviceSpec {
    lz_device::preset(preset).unwrap_or_else(|error| panic!("{error}"))
}

/// A host engine with these `norm.rms` specs as no-op kernels.
pub fn host_engine(specs: impl IntoIterator<Item = KernelSpec>) -> Engine {
    let engine = Engine::new();
    register(&engine, specs.into_iter().map(|spec| noop_kernel(spec, &NORM_RMS)));
    engine
}

/// A `norm.rms` spec for the host, version 1.
pub fn host_spec(id: &str) -> KernelSpec {
    spec(id, &NORM_RMS, "1", Platform::Cpu)
}

/// Names that a policy file may use: those of the whole operation catalog.
pub fn vocabulary() -> Vocabulary {
    Vocabulary::new(OPERATIONS.iter().copied())
}

/// The policy stack of an engine.
pub fn stack(engine: &Engine) -> PolicyStack {
    engine.settings().clone()
}

/// Loads YAML as the policy file `layerzero.yaml`.
///
/// # Panics
/// If the YAML is invalid.
pub fn apply_policy(engine: &Engine, yaml: &str) -> PolicyStack {
    engine.load_config_text("layerzero.yaml", yaml).unwrap_or_else(|error| panic!("{error}"));
    stack(engine)
}
