//! Typed calls of the scenarios: model shapes and options. Each is validated as a real call and passed to the
//! engine's `which`, `explain` or `dispatch`.

use lz_core::{Context, DType, Error, OperationInfo, Plan};
use lz_engine::{Engine, Explanation};
use lz_ops::{
    ATTENTION_GQA_DECODE_PAGED, ATTENTION_GQA_PREFILL, AttentionGqaDecodePaged,
    AttentionGqaDecodePagedLayout, AttentionGqaPrefill, AttentionGqaPrefillLayout, NORM_RMS, NormRms,
    QUANTIZE, Quantize, QuantizeFormat, QuantizeGranularity,
};

use crate::tensors::{Placement, tensor};

/// A call whose kernel can be selected, explained and run.
pub trait ScenarioCall {
    /// Operation of the call.
    fn operation(&self) -> &'static OperationInfo;

    /// Validates the call and returns its selection context.
    fn context(&self) -> Result<Context, Error>;

    /// The plan that the engine selects for it.
    fn which(&self, engine: &Engine) -> Result<Plan, Error> {
        engine.which(self.operation(), &self.context()?)
    }

    /// Id of the selected kernel.
    fn selected(&self, engine: &Engine) -> Result<String, Error> {
        self.which(engine).map(|plan| plan.kernel)
    }

    /// Explanation of the selection.
    ///
    /// # Panics
    /// If the call is invalid.
    fn explain(&self, engine: &Engine) -> Explanation {
        let context = self.context().unwrap_or_else(|error| panic!("{error}"));
        engine.explain(self.operation(), &context)
    }

    /// Runs the call, with fallback and health tracking, and returns the id of the kernel that succeeded.
    fn serve(&self, engine: &Engine) -> Result<String, Error> {
        let context = self.context()?;
        let mut kernel = String::new();
        engine.dispatch(self.operation(), &context, &mut |entry, run| {
            kernel.clone_from(&entry.spec.id);
            entry.kernel.run(&mut [], &mut [], run)
        })?;
        Ok(kernel)
    }

    /// Reason codes for which a kernel is rejected, in reported order.
    ///
    /// # Panics
    /// If no kernel has this id.
    fn codes(&self, engine: &Engine, kernel: &str) -> Vec<&'static str> {
        let explanation = self.explain(engine);
        let candidate = explanation.candidate(kernel).unwrap_or_else(|| panic!("there is no {kernel}"));
        candidate.reasons.iter().map(|reason| reason.code).collect()
    }
}

/// `attention.gqa.prefill`.
#[derive(Debug, Clone, PartialEq)]
pub struct Prefill {
    /// Number of sequences.
    pub batch: i64,
    /// Query tokens per sequence.
    pub seq_q: i64,
    /// Key tokens per sequence.
    pub seq_k: i64,
    /// Query heads.
    pub heads: i64,
    /// Key/value heads.
    pub kv_heads: i64,
    /// Elements per head.
    pub head_dim: i64,
    /// DType of q, k and v.
    pub dtype: DType,
    /// Causal mask.
    pub causal: bool,
    /// Layout BHSD instead of BSHD.
    pub bhsd: bool,
    /// Left size of the sliding window; -1 means unlimited.
    pub window_left: i64,
    /// Soft cap of the scores; 0 disables it.
    pub soft_cap: f32,
    /// DType of the attention mask, if any.
    pub mask: Option<DType>,
    /// Whether the log-sum-exp (`lse`) is returned.
    pub return_lse: bool,
    /// Placement and strides of q, k and v.
    pub placement: Placement,
}

impl Prefill {
    /// Prefill of 2048 tokens of Llama 3 8B on `cuda:0`.
    pub fn llama3_8b() -> Prefill {
        Prefill {
            batch: 1,
            seq_q: 2048,
            seq_k: 2048,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            dtype: DType::BF16,
            causal: true,
            bhsd: false,
            window_left: -1,
            soft_cap: 0.0,
            mask: None,
            return_lse: false,
            placement: Placement::CUDA,
        }
    }

    /// Multi-head attention (one KV head per query head), 512 tokens, f16, as measured in seed 001 §16.2.
    pub fn multi_head() -> Prefill {
        Prefill {
            seq_q: 512,
            seq_k: 512,
            heads: 16,
            kv_heads: 16,
            dtype: DType::F16,
            bhsd: true,
            ..Prefill::llama3_8b()
        }
    }

    /// Prefill of 16 tokens of a small f32 model on the host.
    pub fn small() -> Prefill {
        Prefill {
            seq_q: 16,
            seq_k: 16,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            dtype: DType::F32,
            placement: Placement::HOST,
            ..Prefill::llama3_8b()
        }
    }
}

impl ScenarioCall for Prefill {
    fn operation(&self) -> &'static OperationInfo {
        &ATTENTION_GQA_PREFILL
    }

    fn context(&self) -> Result<Context, Error> {
        let shape = |length: i64, heads: i64| {
            if self.bhsd {
                [self.batch, heads, length, self.head_dim]
            } else {
                [self.batch, length, heads, self.head_dim]
            }
        };
        let q = tensor(&shape(self.seq_q, self.heads), self.dtype, self.placement);
        let k = tensor(&shape(self.seq_k, self.kv_heads), self.dtype, self.placement);
        let layout =
            if self.bhsd { AttentionGqaPrefillLayout::Bhsd } else { AttentionGqaPrefillLayout::Bshd };
        let mut call = AttentionGqaPrefill::new(q, k, k)
            .causal(self.causal)
            .window_left(self.window_left)
            .soft_cap(self.soft_cap)
            .return_lse(self.return_lse)
            .layout(layout);
        if let Some(dtype) = self.mask {
            let dense = Placement { last_stride: 1, ..self.placement };
            call = call.mask(tensor(&[1, 1, self.seq_q, self.seq_k], dtype, dense));
        }
        Ok(call.check()?.context())
    }
}

/// `attention.gqa.decode.paged`.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodePaged {
    /// Number of requests.
    pub batch: i64,
    /// Query heads.
    pub heads: i64,
    /// Key/value heads.
    pub kv_heads: i64,
    /// Elements per head.
    pub head_dim: i64,
    /// Tokens per page.
    pub page_size: i64,
    /// DType of the queries and of the KV cache.
    pub dtype: DType,
    /// Page layout HND instead of NHD.
    pub hnd: bool,
    /// Left size of the sliding window; -1 means unlimited.
    pub window_left: i64,
    /// Placement and strides of all tensors.
    pub placement: Placement,
}

impl DecodePaged {
    /// 64 requests of Llama 3 8B with pages of 16 tokens on `cuda:0`.
    pub fn llama3_8b() -> DecodePaged {
        DecodePaged {
            batch: 64,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            page_size: 16,
            dtype: DType::BF16,
            hnd: false,
            window_left: -1,
            placement: Placement::CUDA,
        }
    }
}

impl ScenarioCall for DecodePaged {
    fn operation(&self) -> &'static OperationInfo {
        &ATTENTION_GQA_DECODE_PAGED
    }

    fn context(&self) -> Result<Context, Error> {
        let pages = 8192;
        let cache = if self.hnd {
            [pages, self.kv_heads, self.page_size, self.head_dim]
        } else {
            [pages, self.page_size, self.kv_heads, self.head_dim]
        };
        let (q, cache) = (
            tensor(&[self.batch, self.heads, self.head_dim], self.dtype, self.placement),
            tensor(&cache, self.dtype, self.placement),
        );
        let int = |length: i64| tensor(&[length], DType::I32, self.placement);
        let layout =
            if self.hnd { AttentionGqaDecodePagedLayout::Hnd } else { AttentionGqaDecodePagedLayout::Nhd };
        let call =
            AttentionGqaDecodePaged::new(q, cache, cache, int(self.batch + 1), int(4096), int(self.batch))
                .window_left(self.window_left)
                .layout(layout);
        Ok(call.check()?.context())
    }
}

/// `norm.rms`.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Number of rows.
    pub rows: i64,
    /// Elements per row.
    pub hidden: i64,
    /// DType of the rows.
    pub dtype: DType,
    /// DType of the weight, if there is one.
    pub weight: Option<DType>,
    /// Added to the weight; 1 for Gemma.
    pub weight_offset: f32,
    /// Placement and strides of the rows.
    pub placement: Placement,
}

impl Default for Norm {
    /// Four rows of 64 f32 elements on the host.
    fn default() -> Self {
        Norm {
            rows: 4,
            hidden: 64,
            dtype: DType::F32,
            weight: Some(DType::F32),
            weight_offset: 0.0,
            placement: Placement::HOST,
        }
    }
}

impl Norm {
    /// A host norm with the given number of rows.
    pub fn rows(rows: i64) -> Norm {
        Norm { rows, ..Norm::default() }
    }

    /// A host norm with the given row length; each length has its own cache key.
    pub fn hidden(hidden: i64) -> Norm {
        Norm { hidden, ..Norm::default() }
    }

    /// 64 rows of Llama 3 8B in bf16 on `cuda:0`.
    pub fn llama3_8b() -> Norm {
        Norm {
            rows: 64,
            hidden: 4096,
            dtype: DType::BF16,
            weight: Some(DType::BF16),
            placement: Placement::CUDA,
            ..Norm::default()
        }
    }
}

impl ScenarioCall for Norm {
    fn operation(&self) -> &'static OperationInfo {
        &NORM_RMS
    }

    fn context(&self) -> Result<Context, Error> {
        let x = tensor(&[self.rows, self.hidden], self.dtype, self.placement);
        let mut call = NormRms::new(x).eps(1e-5).weight_offset(self.weight_offset);
        if let Some(dtype) = self.weight {
            call = call.weight(tensor(&[self.hidden], dtype, Placement { last_stride: 1, ..self.placement }));
        }
        Ok(call.check()?.context())
    }
}

/// `quantize` with one scale per block.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// Output format.
    pub format: QuantizeFormat,
    /// Elements per block.
    pub block_size: i64,
    /// Elements per row.
    pub inner: i64,
}

impl ScenarioCall for Quantized {
    fn operation(&self) -> &'static OperationInfo {
        &QUANTIZE
    }

    fn context(&self) -> Result<Context, Error> {
        let x = tensor(&[1, 4096, self.inner], DType::BF16, Placement::CUDA);
        let call = Quantize::new(x, self.format, QuantizeGranularity::Block).block_size(self.block_size);
        Ok(call.check()?.context())
    }
}
