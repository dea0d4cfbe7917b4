//! Limits of the SDPA backends on an RTX 3080 as observed in seed 001 §15.4 and §16.2, expressed as kernel
//! limits with reasons.

use lz_core::DType;
use lz_scenarios::calls::{Prefill, ScenarioCall};
use lz_scenarios::engines::engine_on;
use lz_scenarios::tensors::Placement;

const SDPA_BACKENDS: [&str; 4] =
    ["torch.sdpa.flash", "torch.sdpa.efficient", "torch.sdpa.cudnn", "torch.sdpa.math"];

/// Reason codes of the four SDPA backends, and the selected kernel.
fn select_sdpa(call: &Prefill) -> ([Vec<&'static str>; 4], String) {
    let engine = engine_on("rtx3080");
    (SDPA_BACKENDS.map(|kernel| call.codes(&engine, kernel)), call.selected(&engine).unwrap())
}

fn none() -> Vec<&'static str> {
    Vec::new()
}

/// Plain heads of 128: every SDPA backend is eligible, and the one with the highest priority is selected.
#[test]
fn plain_attention_runs_on_every_backend() {
    let (codes, chosen) = select_sdpa(&Prefill::multi_head());
    assert_eq!((codes, chosen.as_str()), ([none(), none(), none(), none()], "torch.sdpa.flash"));
}

/// Heads of 320: flash and cuDNN are excluded by their limits, the memory-efficient kernel runs.
#[test]
fn heads_of_320_select_the_efficient_kernel() {
    let (codes, chosen) = select_sdpa(&Prefill { head_dim: 320, ..Prefill::multi_head() });
    assert_eq!(codes, [vec!["HEAD_DIM_TOO_LARGE"], none(), vec!["HEAD_DIM_TOO_LARGE"], none()]);
    assert_eq!(chosen, "torch.sdpa.efficient");
}

/// Heads of 84, not a multiple of 8: the memory-efficient kernel and cuDNN are excluded, flash runs.
#[test]
fn heads_of_84_select_flash() {
    let (codes, chosen) = select_sdpa(&Prefill { head_dim: 84, ..Prefill::multi_head() });
    assert_eq!(codes, [none(), vec!["HEAD_DIM_ALIGNMENT"], vec!["HEAD_DIM_ALIGNMENT"], none()]);
    assert_eq!(chosen, "torch.sdpa.flash");
}

/// A last dimension of stride 2: no fused kernel supports it, and the explanation names the tensor.
#[test]
fn a_strided_last_dimension_selects_the_math_kernel() {
    let call =
        Prefill { placement: Placement { last_stride: 2, ..Placement::CUDA }, ..Prefill::multi_head() };
    let (codes, chosen) = select_sdpa(&call);
    let strided = || vec!["STRIDE_LAST_DIM"];
    assert_eq!(codes, [strided(), strided(), strided(), none()]);
    assert_eq!(chosen, "torch.sdpa.math");
    let explanation = call.explain(&engine_on("rtx3080"));
    let reason = &explanation.candidate("torch.sdpa.flash").unwrap().reasons[0];
    assert_eq!(reason.sentence, "q: requires a last dimension of stride 1, found other strides");
}

/// A bool mask: flash is excluded, and cuDNN is the best remaining kernel.
#[test]
fn a_bool_mask_selects_cudnn() {
    let (codes, chosen) =
        select_sdpa(&Prefill { mask: Some(DType::Bool), causal: false, ..Prefill::multi_head() });
    assert_eq!(codes, [vec!["ATTN_MASK_UNSUPPORTED"], none(), none(), none()]);
    assert_eq!(chosen, "torch.sdpa.cudnn");
}

/// A float mask together with a causal mask, which torch's math backend rejects: here the call is valid.
#[test]
fn a_mask_and_a_causal_mask_combine() {
    let (codes, chosen) =
        select_sdpa(&Prefill { mask: Some(DType::F16), causal: true, ..Prefill::multi_head() });
    assert_eq!(codes[0], ["ATTN_MASK_UNSUPPORTED"]);
    assert_eq!(chosen, "torch.sdpa.cudnn");
}

/// GQA: the memory-efficient kernel is excluded, which prevents silently wrong results.
#[test]
fn gqa_excludes_the_efficient_kernel() {
    let (codes, chosen) = select_sdpa(&Prefill { kv_heads: 4, ..Prefill::multi_head() });
    assert_eq!(codes, [none(), vec!["GQA_UNSUPPORTED"], none(), none()]);
    assert_eq!(chosen, "torch.sdpa.flash");
}

/// Heads of 72, a strided last dimension and a mask at once: a kernel reports every reason, not only the
/// first.
#[test]
fn a_kernel_reports_all_its_reasons() {
    let call = Prefill {
        head_dim: 260,
        mask: Some(DType::Bool),
        dtype: DType::F32,
        placement: Placement { last_stride: 2, ..Placement::CUDA },
        ..Prefill::multi_head()
    };
    let engine = engine_on("rtx3080");
    assert_eq!(
        call.codes(&engine, "torch.sdpa.flash"),
        ["DTYPE_UNSUPPORTED", "STRIDE_LAST_DIM", "ATTN_MASK_UNSUPPORTED", "HEAD_DIM_TOO_LARGE"]
    );
    assert_eq!(call.selected(&engine).unwrap(), "torch.sdpa.math");
}

/// The head size equals a limit, and exceeds it by one: 256 runs, 257 does not.
#[test]
fn a_limit_is_inclusive() {
    let engine = engine_on("h100");
    let codes = |head_dim| Prefill { head_dim, ..Prefill::multi_head() }.codes(&engine, "torch.sdpa.flash");
    assert_eq!((codes(256), codes(257)), (none(), vec!["HEAD_DIM_TOO_LARGE"]));
}

/// `[2, 8, 8, 64]` is valid in both layouts: the stated layout decides, and the two readings are different
/// calls.
#[test]
fn a_layout_is_never_guessed() {
    let shape = Prefill {
        batch: 2,
        seq_q: 8,
        seq_k: 8,
        heads: 32,
        kv_heads: 32,
        head_dim: 64,
        ..Prefill::llama3_8b()
    };
    let bhsd = Prefill { seq_q: 32, seq_k: 32, heads: 8, kv_heads: 8, bhsd: true, ..shape.clone() };
    let engine = engine_on("h100");
    let seen = |call: &Prefill, name: &str| {
        let explanation = call.explain(&engine);
        explanation.call.iter().find(|one| one.name == name).unwrap().value.clone()
    };
    // BSHD or BHSD: the tensors have the same shape, `[2, 8, 32, 64]`.
    assert_eq!((seen(&shape, "seq_q"), seen(&shape, "heads")), ("8".to_owned(), "32".to_owned()));
    assert_eq!((seen(&bhsd, "seq_q"), seen(&bhsd, "heads")), ("32".to_owned(), "8".to_owned()));
    assert_eq!(shape.selected(&engine).unwrap(), "flash_attn.v3.prefill");
    assert_eq!(bhsd.selected(&engine).unwrap(), "torch.sdpa.flash");
    assert_eq!(bhsd.codes(&engine, "flash_attn.v3.prefill"), ["LAYOUT_UNSUPPORTED"]);
}
