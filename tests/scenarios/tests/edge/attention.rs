//! What seed 001 §15.4 and §16.2 observed of the inner backends of SDPA on an RTX 3080, as limits that are told.

use lz_core::DType;
use lz_scenarios::calls::{Ask, Prefill};
use lz_scenarios::house::house_on;
use lz_scenarios::tensors::Lie;

const INNER: [&str; 4] = ["torch.sdpa.flash", "torch.sdpa.efficient", "torch.sdpa.cudnn", "torch.sdpa.math"];

/// The codes of the four inner backends, and who is chosen.
fn observe(call: &Prefill) -> ([Vec<&'static str>; 4], String) {
    let engine = house_on("rtx3080");
    (INNER.map(|kernel| call.codes(&engine, kernel)), call.chosen(&engine).unwrap())
}

fn none() -> Vec<&'static str> {
    Vec::new()
}

/// Plain heads of 128: every inner backend can, and the best of them does.
#[test]
fn plain_attention_is_possible_everywhere() {
    let (codes, chosen) = observe(&Prefill::multi_head());
    assert_eq!((codes, chosen.as_str()), ([none(), none(), none(), none()], "torch.sdpa.flash"));
}

/// Heads of 320: flash and cuDNN decline by their own limits, the memory-efficient kernel runs.
#[test]
fn heads_of_320_leave_the_efficient_kernel() {
    let (codes, chosen) = observe(&Prefill { head_dim: 320, ..Prefill::multi_head() });
    assert_eq!(codes, [vec!["HEAD_DIM_TOO_LARGE"], none(), vec!["HEAD_DIM_TOO_LARGE"], none()]);
    assert_eq!(chosen, "torch.sdpa.efficient");
}

/// Heads of 84, no multiple of 8: the efficient kernel and cuDNN decline, flash runs.
#[test]
fn heads_of_84_leave_flash() {
    let (codes, chosen) = observe(&Prefill { head_dim: 84, ..Prefill::multi_head() });
    assert_eq!(codes, [none(), vec!["HEAD_DIM_ALIGNMENT"], vec!["HEAD_DIM_ALIGNMENT"], none()]);
    assert_eq!(chosen, "torch.sdpa.flash");
}

/// A last dimension of stride 2: no fused kernel takes it, and the explanation names the tensor.
#[test]
fn a_strided_last_dimension_leaves_plain_mathematics() {
    let call = Prefill { lie: Lie { last_stride: 2, ..Lie::CUDA }, ..Prefill::multi_head() };
    let (codes, chosen) = observe(&call);
    let strided = || vec!["STRIDE_LAST_DIM"];
    assert_eq!(codes, [strided(), strided(), strided(), none()]);
    assert_eq!(chosen, "torch.sdpa.math");
    let explanation = call.explain(&house_on("rtx3080"));
    let reason = &explanation.candidate("torch.sdpa.flash").unwrap().reasons[0];
    assert_eq!(reason.sentence, "q: requires a last dimension of stride 1, found other strides");
}

/// A bool mask: flash declines, cuDNN is the best of those that take it.
#[test]
fn a_bool_mask_leaves_cudnn() {
    let (codes, chosen) =
        observe(&Prefill { mask: Some(DType::Bool), causal: false, ..Prefill::multi_head() });
    assert_eq!(codes, [vec!["ATTN_MASK_UNSUPPORTED"], none(), none(), none()]);
    assert_eq!(chosen, "torch.sdpa.cudnn");
}

/// A float mask and causality together, which torch's mathematics refuses: here they combine, and the call is valid.
#[test]
fn a_mask_and_causality_combine() {
    let (codes, chosen) = observe(&Prefill { mask: Some(DType::F16), causal: true, ..Prefill::multi_head() });
    assert_eq!(codes[0], ["ATTN_MASK_UNSUPPORTED"]);
    assert_eq!(chosen, "torch.sdpa.cudnn");
}

/// Grouped heads: the memory-efficient kernel declines, which is what keeps it from a silent error.
#[test]
fn grouped_heads_exclude_the_efficient_kernel() {
    let (codes, chosen) = observe(&Prefill { kv_heads: 4, ..Prefill::multi_head() });
    assert_eq!(codes, [none(), vec!["GQA_UNSUPPORTED"], none(), none()]);
    assert_eq!(chosen, "torch.sdpa.flash");
}

/// Heads of 72 and a strided last dimension and a mask at once: a kernel tells every reason, not the first.
#[test]
fn a_kernel_tells_all_its_reasons_at_once() {
    let call = Prefill {
        head_dim: 260,
        mask: Some(DType::Bool),
        dtype: DType::F32,
        lie: Lie { last_stride: 2, ..Lie::CUDA },
        ..Prefill::multi_head()
    };
    let engine = house_on("rtx3080");
    assert_eq!(
        call.codes(&engine, "torch.sdpa.flash"),
        ["DTYPE_UNSUPPORTED", "STRIDE_LAST_DIM", "ATTN_MASK_UNSUPPORTED", "HEAD_DIM_TOO_LARGE"]
    );
    assert_eq!(call.chosen(&engine).unwrap(), "torch.sdpa.math");
}

/// The head size stands exactly on a limit, and one above it: 256 runs, 257 does not.
#[test]
fn a_limit_holds_up_to_its_own_value() {
    let engine = house_on("h100");
    let codes = |head_dim| Prefill { head_dim, ..Prefill::multi_head() }.codes(&engine, "torch.sdpa.flash");
    assert_eq!((codes(256), codes(257)), (none(), vec!["HEAD_DIM_TOO_LARGE"]));
}

/// `[2, 8, 8, 64]` is valid both ways: what is stated decides, and the two readings are different calls.
#[test]
fn a_layout_is_stated_and_never_guessed() {
    let shape = Prefill {
        batch: 2,
        seq_q: 8,
        seq_k: 8,
        heads: 32,
        kv_heads: 32,
        head_dim: 64,
        ..Prefill::llama3_8b()
    };
    let turned = Prefill { seq_q: 32, seq_k: 32, heads: 8, kv_heads: 8, bhsd: true, ..shape.clone() };
    let engine = house_on("h100");
    let seen = |call: &Prefill, name: &str| {
        let explanation = call.explain(&engine);
        explanation.call.iter().find(|one| one.name == name).unwrap().value.clone()
    };
    // Tokens before heads, or heads before tokens: the tensors have the same sizes, `[2, 8, 32, 64]`.
    assert_eq!((seen(&shape, "seq_q"), seen(&shape, "heads")), ("8".to_owned(), "32".to_owned()));
    assert_eq!((seen(&turned, "seq_q"), seen(&turned, "heads")), ("32".to_owned(), "8".to_owned()));
    assert_eq!(shape.chosen(&engine).unwrap(), "flash_attn.v3.prefill");
    assert_eq!(turned.chosen(&engine).unwrap(), "torch.sdpa.flash");
    assert_eq!(turned.codes(&engine, "flash_attn.v3.prefill"), ["LAYOUT_UNSUPPORTED"]);
}
