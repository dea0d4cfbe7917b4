//! Call modes: deterministic, graph capture, batch-invariant, without conversions.

use lz_core::device::Platform;
use lz_engine::mode::{self, KvStrategy, ModeFlag as Asked, ModeOverride};
use lz_ops::ATTENTION_GQA_DECODE_PAGED;
use lz_scenarios::calls::{DecodePaged, Prefill, ScenarioCall};
use lz_scenarios::engines::{apply_policy, engine_on, register};
use lz_scenarios::kernels::{noop_kernel, spec};

/// A reproducible evaluation: with `deterministic: true` only the bitwise deterministic kernel is eligible.
#[test]
fn deterministic_mode_selects_the_deterministic_kernel() {
    let engine = engine_on("h100");
    apply_policy(&engine, "deterministic: true\n");
    let explanation = Prefill::llama3_8b().explain(&engine);
    assert_eq!((explanation.chosen(), explanation.mode.as_str()), (Some("torch.sdpa.math"), "deterministic"));
    assert_eq!(Prefill::llama3_8b().codes(&engine, "flash_attn.v3.prefill"), ["NON_DETERMINISTIC"]);
}

/// A decode step is captured into a CUDA graph: only capture-safe kernels are eligible.
#[test]
fn a_captured_step_selects_a_capture_safe_kernel() {
    let engine = engine_on("h100");
    let mut fast = spec("eager.decode", &ATTENTION_GQA_DECODE_PAGED, "1", Platform::Cuda).priority(99);
    fast.kv_strategies = vec!["paged".to_owned()];
    register(&engine, [noop_kernel(fast, &ATTENTION_GQA_DECODE_PAGED)]);
    let call = DecodePaged::llama3_8b();
    assert_eq!(call.selected(&engine).unwrap(), "eager.decode");
    let capture = mode::scope(ModeOverride::NONE.set(Asked::Capturing, true));
    assert_eq!(call.selected(&engine).unwrap(), "flashinfer.fa2.decode");
    assert_eq!(call.codes(&engine, "eager.decode"), ["CUDA_GRAPH_UNSAFE"]);
    drop(capture);
    assert_eq!(call.selected(&engine).unwrap(), "eager.decode");
}

/// Batch-invariant serving (vllm#40193): under a lock every batch size gets the same kernel, although rules
/// would select by batch size.
#[test]
fn every_batch_size_gets_the_same_kernel_under_a_lock() {
    let engine = engine_on("h100");
    let by_batch = "rules:\n  - { condition: batch_size >= 8, prefer: torch.sdpa.cudnn, deny: flash_attn }\n";
    apply_policy(&engine, by_batch);
    let kernels = || -> Vec<String> {
        [1, 2, 7, 8, 64, 256]
            .into_iter()
            .map(|batch| {
                Prefill { batch, seq_q: 128, seq_k: 128, ..Prefill::llama3_8b() }.selected(&engine).unwrap()
            })
            .collect()
    };
    assert_eq!(kernels().iter().filter(|kernel| *kernel == "torch.sdpa.cudnn").count(), 3);
    apply_policy(
        &engine,
        &format!("{by_batch}  - {{ match: {{ operation: attention.* }}, lock: torch.sdpa.flash }}\n"),
    );
    assert_eq!(kernels(), ["torch.sdpa.flash"; 6]);
}

/// Tensor-parallel ranks of different sizes must agree bitwise: only TP-invariant kernels are eligible.
#[test]
fn tp_invariance_selects_tp_invariant_kernels() {
    let engine = engine_on("h100");
    apply_policy(&engine, "tp_invariance: { require_tp_invariant: true }\n");
    for heads in [32, 16, 8] {
        let call = Prefill { heads, kv_heads: heads / 4, ..Prefill::llama3_8b() };
        assert_eq!(call.selected(&engine).unwrap(), "torch.sdpa.math");
        assert_eq!(call.codes(&engine, "flash_attn.v2.prefill"), ["TP_INVARIANCE_REQUIRED"]);
    }
}

/// Strict mode: kernels that would need a layout conversion are excluded, so that no hidden copy occurs.
#[test]
fn strict_mode_forbids_hidden_conversions() {
    let engine = engine_on("h100");
    apply_policy(&engine, "strict_mode: true\ndeny: [flash_attn]\n");
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "torch.sdpa.math");
    assert_eq!(Prefill::llama3_8b().codes(&engine, "torch.sdpa.flash"), ["STRICT_MODE_TRANSFORM"]);
    let other_layout = Prefill { bhsd: true, ..Prefill::llama3_8b() };
    assert_eq!(other_layout.selected(&engine).unwrap(), "torch.sdpa.flash");
}

/// KV layouts declared by backends (vllm#42740): the page layout determines which kernels are eligible, and
/// each reports the layout that it requires.
#[test]
fn backends_declare_supported_page_layouts() {
    let engine = engine_on("h100");
    let heads_first = DecodePaged { hnd: true, ..DecodePaged::llama3_8b() };
    assert_eq!(heads_first.selected(&engine).unwrap(), "invented_hnd.decode");
    assert_eq!(DecodePaged::llama3_8b().selected(&engine).unwrap(), "flashinfer.fa2.decode");
    let explanation = DecodePaged::llama3_8b().explain(&engine);
    let reason = &explanation.candidate("invented_hnd.decode").unwrap().reasons[0];
    assert_eq!(
        (reason.code, reason.sentence.as_str()),
        ("KV_CACHE_LAYOUT_MISMATCH", "requires HND, found NHD")
    );
    let large = DecodePaged { page_size: 256, ..DecodePaged::llama3_8b() };
    assert_eq!(large.selected(&engine).unwrap(), "flash_attn.v2.decode");
}

/// The KV cache uses virtual memory: kernels for paged caches are excluded, and the error names the required
/// strategy.
#[test]
fn kv_strategy_restricts_kernels() {
    let engine = engine_on("h100");
    let paged = mode::scope(ModeOverride::NONE.kv(KvStrategy::Paged));
    assert_eq!(DecodePaged::llama3_8b().selected(&engine).unwrap(), "flashinfer.fa2.decode");
    drop(paged);
    let _virtual = mode::scope(ModeOverride::NONE.kv(KvStrategy::Virtual));
    assert_eq!(DecodePaged::llama3_8b().codes(&engine, "flashinfer.fa2.decode"), ["KV_STRATEGY_UNSUPPORTED"]);
    let error = DecodePaged::llama3_8b().selected(&engine).unwrap_err();
    assert!(error.to_string().contains("requires paged, found virtual"), "{error}");
}
