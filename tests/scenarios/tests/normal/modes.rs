//! How a call is to be made: deterministically, inside a capture, alike for every batch, without conversions.

use lz_core::device::Platform;
use lz_engine::mode::{self, Ask as Asked, KvStrategy, ModeChange};
use lz_ops::ATTENTION_GQA_DECODE_PAGED;
use lz_scenarios::calls::{Ask, DecodePaged, Prefill};
use lz_scenarios::house::{govern, house_on, register};
use lz_scenarios::kernels::{quiet, spec};

/// An evaluation must be repeatable: with `deterministic: true` only the kernel that gives the same bits twice is left.
#[test]
fn a_repeatable_evaluation_takes_the_deterministic_kernel() {
    let engine = house_on("h100");
    govern(&engine, "deterministic: true\n");
    let explanation = Prefill::llama3_8b().explain(&engine);
    assert_eq!((explanation.chosen(), explanation.mode.as_str()), (Some("torch.sdpa.math"), "deterministic"));
    assert_eq!(Prefill::llama3_8b().codes(&engine, "flash_attn.v3.prefill"), ["NON_DETERMINISTIC"]);
}

/// A decode step is captured into a CUDA graph: only kernels that are known to be safe in a capture are candidates.
#[test]
fn a_captured_step_takes_a_kernel_that_is_safe_in_graphs() {
    let engine = house_on("h100");
    let mut fast = spec("eager.decode", &ATTENTION_GQA_DECODE_PAGED, "1", Platform::Cuda).priority(99);
    fast.kv_strategies = vec!["paged".to_owned()];
    register(&engine, [quiet(fast, &ATTENTION_GQA_DECODE_PAGED)]);
    let call = DecodePaged::llama3_8b();
    assert_eq!(call.chosen(&engine).unwrap(), "eager.decode");
    let capture = mode::scope(ModeChange::NONE.set(Asked::Capturing, true));
    assert_eq!(call.chosen(&engine).unwrap(), "flashinfer.fa2.decode");
    assert_eq!(call.codes(&engine, "eager.decode"), ["CUDA_GRAPH_UNSAFE"]);
    drop(capture);
    assert_eq!(call.chosen(&engine).unwrap(), "eager.decode");
}

/// Batch-invariant serving (vllm#40193): under a lock every batch size gets the same kernel, although rules would tell them apart.
#[test]
fn every_batch_size_gets_the_same_kernel_under_a_lock() {
    let engine = house_on("h100");
    let by_batch = "rules:\n  - { condition: batch_size >= 8, prefer: torch.sdpa.cudnn, deny: flash_attn }\n";
    govern(&engine, by_batch);
    let kernels = || -> Vec<String> {
        [1, 2, 7, 8, 64, 256]
            .into_iter()
            .map(|batch| {
                Prefill { batch, seq_q: 128, seq_k: 128, ..Prefill::llama3_8b() }.chosen(&engine).unwrap()
            })
            .collect()
    };
    assert_eq!(kernels().iter().filter(|kernel| *kernel == "torch.sdpa.cudnn").count(), 3);
    govern(
        &engine,
        &format!("{by_batch}  - {{ match: {{ operation: attention.* }}, lock: torch.sdpa.flash }}\n"),
    );
    assert_eq!(kernels(), ["torch.sdpa.flash"; 6]);
}

/// Tensor-parallel ranks of different sizes must agree to the bit: only kernels that promise it are candidates.
#[test]
fn ranks_of_every_size_agree_under_tp_invariance() {
    let engine = house_on("h100");
    govern(&engine, "tp_invariance: { require_tp_invariant: true }\n");
    for heads in [32, 16, 8] {
        let call = Prefill { heads, kv_heads: heads / 4, ..Prefill::llama3_8b() };
        assert_eq!(call.chosen(&engine).unwrap(), "torch.sdpa.math");
        assert_eq!(call.codes(&engine, "flash_attn.v2.prefill"), ["TP_INVARIANCE_REQUIRED"]);
    }
}

/// A latency budget forbids hidden copies: in strict mode kernels that would convert the layout are passed over.
#[test]
fn strict_mode_forbids_hidden_conversions() {
    let engine = house_on("h100");
    govern(&engine, "strict_mode: true\ndeny: [flash_attn]\n");
    assert_eq!(Prefill::llama3_8b().chosen(&engine).unwrap(), "torch.sdpa.math");
    assert_eq!(Prefill::llama3_8b().codes(&engine, "torch.sdpa.flash"), ["STRICT_MODE_TRANSFORM"]);
    let other_layout = Prefill { bhsd: true, ..Prefill::llama3_8b() };
    assert_eq!(other_layout.chosen(&engine).unwrap(), "torch.sdpa.flash");
}

/// KV layouts declared by backends (vllm#42740): the order of a page decides who can read it, and each says what it takes.
#[test]
fn backends_declare_the_layouts_of_pages_that_they_read() {
    let engine = house_on("h100");
    let heads_first = DecodePaged { hnd: true, ..DecodePaged::llama3_8b() };
    assert_eq!(heads_first.chosen(&engine).unwrap(), "trtllm.gen.decode");
    assert_eq!(DecodePaged::llama3_8b().chosen(&engine).unwrap(), "flashinfer.fa2.decode");
    let explanation = DecodePaged::llama3_8b().explain(&engine);
    let reason = &explanation.candidate("trtllm.gen.decode").unwrap().reasons[0];
    assert_eq!(
        (reason.code, reason.sentence.as_str()),
        ("KV_CACHE_LAYOUT_MISMATCH", "requires HND, found NHD")
    );
    let large = DecodePaged { page_size: 256, ..DecodePaged::llama3_8b() };
    assert_eq!(large.chosen(&engine).unwrap(), "flash_attn.v2.decode");
}

/// The cache of keys and values is virtual memory: kernels for paged caches decline, and the error says which strategy they need.
#[test]
fn a_cache_strategy_is_a_limit() {
    let engine = house_on("h100");
    let paged = mode::scope(ModeChange::NONE.kv(KvStrategy::Paged));
    assert_eq!(DecodePaged::llama3_8b().chosen(&engine).unwrap(), "flashinfer.fa2.decode");
    drop(paged);
    let _virtual = mode::scope(ModeChange::NONE.kv(KvStrategy::Virtual));
    assert_eq!(DecodePaged::llama3_8b().codes(&engine, "flashinfer.fa2.decode"), ["KV_STRATEGY_UNSUPPORTED"]);
    let error = DecodePaged::llama3_8b().chosen(&engine).unwrap_err();
    assert!(error.to_string().contains("requires paged, found virtual"), "{error}");
}
