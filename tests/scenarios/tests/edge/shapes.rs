//! Extreme shapes: empty, very large, misaligned, on two devices.

use lz_core::device::Platform;
use lz_core::spec::StrideNeeds;
use lz_core::tensor::{Dims, Layout};
use lz_core::{DType, Error, ReasonCode, TensorView};
use lz_engine::explain::CacheState;
use lz_ops::{ATTENTION_GQA_PREFILL, AttentionGqaPrefill, NORM_RMS, NormRms};
use lz_scenarios::calls::{Norm, Prefill, ScenarioCall};
use lz_scenarios::engines::{apply_policy, engine_on, host_engine, host_spec, register};
use lz_scenarios::kernels::{noop_kernel, spec};
use lz_scenarios::tensors::{Placement, tensor};

/// 32 768 tokens are within a kernel's limit; one token more selects another kernel.
#[test]
fn a_sequence_over_the_limit_selects_another_kernel() {
    let engine = engine_on("h100");
    let short = spec("short.prefill", &ATTENTION_GQA_PREFILL, "1", Platform::Cuda)
        .limit("seq_k <= 32768", ReasonCode::SeqTooLong)
        .priority(95);
    register(&engine, [noop_kernel(short, &ATTENTION_GQA_PREFILL)]);
    let of = |seq_k| Prefill { seq_q: 1, seq_k, ..Prefill::llama3_8b() };
    assert_eq!(of(32_768).selected(&engine).unwrap(), "short.prefill");
    assert_eq!(of(32_769).selected(&engine).unwrap(), "flash_attn.v3.prefill");
    assert_eq!(of(32_769).codes(&engine, "short.prefill"), ["SEQ_TOO_LONG"]);
}

/// A batch without requests: the call is valid, and a kernel that cannot launch an empty grid is excluded
/// with a reason.
#[test]
fn an_empty_batch_is_a_valid_call() {
    let engine = host_engine([
        host_spec("launching.x").limit("rows >= 1", ReasonCode::ZeroSizeUnsupported).priority(90),
        host_spec("plain.x"),
    ]);
    assert_eq!(Norm::rows(0).serve(&engine).unwrap(), "plain.x");
    assert_eq!(Norm::rows(0).codes(&engine, "launching.x"), ["ZERO_SIZE_UNSUPPORTED"]);
    assert_eq!(Norm::rows(1).serve(&engine).unwrap(), "launching.x");
}

/// Attention over zero keys is valid and selected like any other call.
#[test]
fn attention_over_no_keys_is_a_valid_call() {
    let engine = engine_on("h100");
    let call = Prefill { seq_q: 1, seq_k: 0, ..Prefill::llama3_8b() };
    assert_eq!(call.selected(&engine).unwrap(), "flash_attn.v3.prefill");
}

/// Queries on the host and keys on the GPU: rejected before selection, and the message names both devices.
#[test]
fn tensors_on_two_devices_are_rejected() {
    let q = tensor(&[1, 4, 2, 8], DType::F32, Placement::HOST);
    let k = tensor(&[1, 4, 2, 8], DType::F32, Placement::CUDA);
    let error = AttentionGqaPrefill::new(q, k, k).check().err().unwrap();
    assert!(error.has(ReasonCode::DeviceMismatch), "{error}");
    assert!(error.to_string().contains("cuda:0") && error.to_string().contains("cpu:0"), "{error}");
}

/// Keys with another dtype than queries: rejected, and the message names the argument and both dtypes.
#[test]
fn mixed_dtypes_are_rejected() {
    let q = tensor(&[1, 4, 2, 8], DType::BF16, Placement::CUDA);
    let k = tensor(&[1, 4, 2, 8], DType::F16, Placement::CUDA);
    let error = AttentionGqaPrefill::new(q, k, k).check().err().unwrap();
    let reasons: Vec<ReasonCode> = error.reasons().iter().map(|reason| reason.code).collect();
    assert_eq!(reasons, [ReasonCode::DtypeMismatch; 2], "{error}");
    assert!(error.to_string().contains("k is float16, but q bound T to bfloat16"), "{error}");
}

/// 12 query heads over 5 KV heads: rejected with the violated GQA constraint.
#[test]
fn heads_that_do_not_divide_are_rejected() {
    let error = Prefill { heads: 12, kv_heads: 5, ..Prefill::small() }.context().unwrap_err();
    assert!(matches!(error, Error::Validation { .. }), "{error}");
    assert!(error.has(ReasonCode::GqaHeadsMismatch), "{error}");
    assert!(error.to_string().contains("heads must be a multiple of kv_heads"), "{error}");
}

/// Scores of 2 GiB exceed the memory headroom: the kernel that materializes them is excluded with both
/// numbers; more headroom makes it eligible.
#[test]
fn workspace_above_the_headroom_excludes_a_kernel() {
    let engine = engine_on("h100");
    let call = Prefill { seq_q: 4096, seq_k: 4096, ..Prefill::llama3_8b() };
    let explanation = call.explain(&engine);
    let reason = &explanation.candidate("torch.sdpa.math").unwrap().reasons[0];
    assert_eq!(
        (reason.code, reason.sentence.as_str()),
        (
            "MEMORY_HEADROOM_EXCEEDED",
            "requires at most 1073741824 bytes of scratch memory, found 2147483648 bytes"
        )
    );
    apply_policy(&engine, "memory_headroom_mb: 2048\n");
    assert!(call.codes(&engine, "torch.sdpa.math").is_empty());
}

/// A size so large that the workspace formula overflows: the kernel is excluded, without wrap-around and
/// without a panic.
#[test]
fn a_workspace_formula_that_overflows_excludes_its_kernel() {
    let engine = engine_on("h100");
    let call = Prefill { batch: 1 << 10, heads: 64, seq_q: 1 << 24, seq_k: 1 << 24, ..Prefill::llama3_8b() };
    let explanation = call.explain(&engine);
    let math = explanation.candidate("torch.sdpa.math").unwrap();
    assert_eq!((math.workspace_bytes, math.reasons[0].code), (None, "MEMORY_HEADROOM_EXCEEDED"));
    assert_eq!(explanation.chosen(), Some("flash_attn.v3.prefill"));
}

/// A batch of 4096 needs 131 072 blocks in y, twice the CUDA limit: another kernel runs it.
#[test]
fn a_grid_over_the_cuda_limit_selects_another_kernel() {
    let engine = engine_on("h100");
    let mut tiled = spec("tiled.prefill", &ATTENTION_GQA_PREFILL, "1", Platform::Cuda).priority(95);
    tiled.grid = Some(["ceil_div(seq_q, 128)".to_owned(), "batch * heads".to_owned(), "1".to_owned()]);
    register(&engine, [noop_kernel(tiled, &ATTENTION_GQA_PREFILL)]);
    let of = |batch| Prefill { batch, seq_q: 16, seq_k: 16, ..Prefill::llama3_8b() };
    assert_eq!(of(2047).selected(&engine).unwrap(), "tiled.prefill");
    assert_eq!(of(4096).selected(&engine).unwrap(), "flash_attn.v3.prefill");
    let explanation = of(4096).explain(&engine);
    let reason = &explanation.candidate("tiled.prefill").unwrap().reasons[0];
    assert_eq!(
        (reason.code, reason.sentence.as_str()),
        ("CUDA_GRID_DIM_EXCEEDED", "requires batch * heads at most 65535 in y, found 131072")
    );
}

/// A kernel uses eight threads per head element: with 256 elements a block would have 2048 threads, more than
/// CUDA allows.
#[test]
fn a_block_with_too_many_threads_is_excluded() {
    let engine = engine_on("h100");
    let mut wide = spec("wide.prefill", &ATTENTION_GQA_PREFILL, "1", Platform::Cuda).priority(95);
    wide.block = Some("head_dim * 8".to_owned());
    register(&engine, [noop_kernel(wide, &ATTENTION_GQA_PREFILL)]);
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "wide.prefill");
    let large = Prefill { head_dim: 256, ..Prefill::llama3_8b() };
    assert_eq!(large.codes(&engine, "wide.prefill"), ["CUDA_BLOCK_LIMIT_EXCEEDED"]);
}

/// A tensor starts 8 bytes into a cache line: a kernel with 16-byte loads is excluded, and the reason gives
/// the actual alignment.
#[test]
fn a_misaligned_address_is_detected() {
    let mut vector = host_spec("vector.x").priority(90);
    vector.alignment = 16;
    let engine = host_engine([vector, host_spec("scalar.x")]);
    let shifted = Norm { placement: Placement { offset: 8, ..Placement::HOST }, ..Norm::default() };
    assert_eq!(Norm::default().serve(&engine).unwrap(), "vector.x");
    assert_eq!(shifted.serve(&engine).unwrap(), "scalar.x");
    let explanation = shifted.explain(&engine);
    assert_eq!(
        explanation.candidate("vector.x").unwrap().reasons[0].sentence,
        "x: requires an address that is a multiple of 16 bytes, found a multiple of 8"
    );
}

/// Every second row of a buffer: rows are contiguous, the tensor is not. A kernel that needs contiguous rows
/// runs it, one that needs a contiguous tensor does not.
#[test]
fn strided_rows_count_as_contiguous_rows() {
    let mut rows = host_spec("rows.x").priority(50);
    rows.strides = StrideNeeds::LastDense;
    let mut block = host_spec("block.x").priority(90);
    block.strides = StrideNeeds::Contiguous;
    let engine = host_engine([rows, block]);
    let buffer = vec![1.0f32; 8 * 16];
    let whole = Layout::contiguous(&[4, 16], DType::F32).unwrap();
    let gaps = Layout { strides: Dims::new(&[32, 1]).unwrap(), ..whole };
    let decide = |layout| {
        let x = TensorView::from_slice_with(&buffer, 0, layout).unwrap();
        let args = NormRms::new(x);
        let context = args.check().unwrap().context();
        engine.decide(&NORM_RMS, &context).unwrap()
    };
    assert_eq!((decide(whole).as_str(), decide(gaps).as_str()), ("block.x", "rows.x"));
}

/// A row of eight billion elements does not fit the cache key: it is decided on every call, each time
/// correctly.
#[test]
fn an_axis_beyond_32_bits_is_never_cached() {
    let engine = engine_on("h100");
    let huge = Norm { rows: 1, hidden: 1 << 33, ..Norm::llama3_8b() };
    assert_eq!(huge.explain(&engine).cache, CacheState::Uncacheable);
    let decide = |call: &Norm| engine.decide(&NORM_RMS, &call.context().unwrap()).unwrap();
    assert_eq!(decide(&huge), "flashinfer.norm.rms");
    let odd = Norm { hidden: (1 << 33) + 1, ..huge.clone() };
    assert_eq!(decide(&odd), "torch.norm.rms", "no multiple of 8");
    assert_eq!(engine.cached_decisions(), 0);
}
