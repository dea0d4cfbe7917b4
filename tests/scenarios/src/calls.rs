//! Calls as an operator would describe them: a model's shape and what is special about it. Each becomes a real typed call,
//! is checked as one, and is asked about or served through the engine.

use lz_core::{Context, DType, Error, OperationInfo, Plan};
use lz_engine::{Engine, Explanation};
use lz_ops::{
    ATTENTION_GQA_DECODE_PAGED, ATTENTION_GQA_PREFILL, AttentionGqaDecodePaged,
    AttentionGqaDecodePagedLayout, AttentionGqaPrefill, AttentionGqaPrefillLayout, NORM_RMS, NormRms,
    QUANTIZE, Quantize, QuantizeFormat, QuantizeGranularity,
};

use crate::tensors::{Lie, tensor};

/// A call that can be asked about.
pub trait Ask {
    /// Its operation.
    fn operation(&self) -> &'static OperationInfo;

    /// What selection sees of it, after its checks.
    fn context(&self) -> Result<Context, Error>;

    /// What would be run for it.
    fn which(&self, engine: &Engine) -> Result<Plan, Error> {
        engine.which(self.operation(), &self.context()?)
    }

    /// The id of the kernel that would be run for it.
    fn chosen(&self, engine: &Engine) -> Result<String, Error> {
        self.which(engine).map(|plan| plan.kernel)
    }

    /// Why that would be run.
    ///
    /// # Panics
    /// When the call itself is wrong.
    fn explain(&self, engine: &Engine) -> Explanation {
        let context = self.context().unwrap_or_else(|error| panic!("{error}"));
        engine.explain(self.operation(), &context)
    }

    /// Runs it, with fallback and health as every call has them, and says who did it in the end.
    fn serve(&self, engine: &Engine) -> Result<String, Error> {
        let context = self.context()?;
        let mut who = String::new();
        engine.dispatch(self.operation(), &context, &mut |entry, run| {
            who.clone_from(&entry.spec.id);
            entry.kernel.run(&mut [], &mut [], run)
        })?;
        Ok(who)
    }

    /// The codes of all reasons why one kernel cannot run it, in the order in which they are told.
    ///
    /// # Panics
    /// When there is no such kernel.
    fn codes(&self, engine: &Engine, kernel: &str) -> Vec<&'static str> {
        let explanation = self.explain(engine);
        let candidate = explanation.candidate(kernel).unwrap_or_else(|| panic!("there is no {kernel}"));
        candidate.reasons.iter().map(|reason| reason.code).collect()
    }
}

/// `attention.gqa.prefill`.
#[derive(Debug, Clone, PartialEq)]
pub struct Prefill {
    /// Sequences.
    pub batch: i64,
    /// Queries a sequence.
    pub seq_q: i64,
    /// Keys a sequence.
    pub seq_k: i64,
    /// Query heads.
    pub heads: i64,
    /// Key heads.
    pub kv_heads: i64,
    /// Features a head.
    pub head_dim: i64,
    /// Of queries, keys and values.
    pub dtype: DType,
    /// Whether later keys are hidden.
    pub causal: bool,
    /// Heads before tokens.
    pub bhsd: bool,
    /// Keys before its own that a query sees; -1 is all.
    pub window_left: i64,
    /// Bound of the scores; 0 is none.
    pub soft_cap: f32,
    /// A mask of this dtype.
    pub mask: Option<DType>,
    /// Whether `lse` is wanted.
    pub return_lse: bool,
    /// How queries, keys and values lie.
    pub lie: Lie,
}

impl Prefill {
    /// A prompt of 2048 tokens of Llama 3 8B, on the first CUDA device.
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
            lie: Lie::CUDA,
        }
    }

    /// The measurements of seed 001 §16.2: one key head a query head, 512 tokens, f16.
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

    /// A few tokens of a small model in f32, on the host.
    pub fn small() -> Prefill {
        Prefill {
            seq_q: 16,
            seq_k: 16,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            dtype: DType::F32,
            lie: Lie::HOST,
            ..Prefill::llama3_8b()
        }
    }
}

impl Ask for Prefill {
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
        let q = tensor(&shape(self.seq_q, self.heads), self.dtype, self.lie);
        let k = tensor(&shape(self.seq_k, self.kv_heads), self.dtype, self.lie);
        let layout =
            if self.bhsd { AttentionGqaPrefillLayout::Bhsd } else { AttentionGqaPrefillLayout::Bshd };
        let mut call = AttentionGqaPrefill::new(q, k, k)
            .causal(self.causal)
            .window_left(self.window_left)
            .soft_cap(self.soft_cap)
            .return_lse(self.return_lse)
            .layout(layout);
        if let Some(dtype) = self.mask {
            let dense = Lie { last_stride: 1, ..self.lie };
            call = call.mask(tensor(&[1, 1, self.seq_q, self.seq_k], dtype, dense));
        }
        Ok(call.check()?.context())
    }
}

/// `attention.gqa.decode.paged`.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodePaged {
    /// Requests.
    pub batch: i64,
    /// Query heads.
    pub heads: i64,
    /// Key heads.
    pub kv_heads: i64,
    /// Features a head.
    pub head_dim: i64,
    /// Tokens a page.
    pub page_size: i64,
    /// Of everything.
    pub dtype: DType,
    /// Heads before places in a page.
    pub hnd: bool,
    /// Keys before its own that a query sees; -1 is all.
    pub window_left: i64,
    /// How everything lies.
    pub lie: Lie,
}

impl DecodePaged {
    /// 64 requests to Llama 3 8B with pages of 16 tokens, on the first CUDA device.
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
            lie: Lie::CUDA,
        }
    }
}

impl Ask for DecodePaged {
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
            tensor(&[self.batch, self.heads, self.head_dim], self.dtype, self.lie),
            tensor(&cache, self.dtype, self.lie),
        );
        let int = |length: i64| tensor(&[length], DType::I32, self.lie);
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
    /// Rows.
    pub rows: i64,
    /// Features a row.
    pub hidden: i64,
    /// Of the rows.
    pub dtype: DType,
    /// Of the weight, if there is one.
    pub weight: Option<DType>,
    /// 1 for Gemma.
    pub weight_offset: f32,
    /// How the rows lie.
    pub lie: Lie,
}

impl Default for Norm {
    /// Four rows of f32 on the host.
    fn default() -> Self {
        Norm {
            rows: 4,
            hidden: 64,
            dtype: DType::F32,
            weight: Some(DType::F32),
            weight_offset: 0.0,
            lie: Lie::HOST,
        }
    }
}

impl Norm {
    /// So many rows on the host.
    pub fn rows(rows: i64) -> Norm {
        Norm { rows, ..Norm::default() }
    }

    /// Rows of so many features on the host; each size is a cell of its own.
    pub fn hidden(hidden: i64) -> Norm {
        Norm { hidden, ..Norm::default() }
    }

    /// 64 rows of Llama 3 8B in bf16, on the first CUDA device.
    pub fn llama3_8b() -> Norm {
        Norm {
            rows: 64,
            hidden: 4096,
            dtype: DType::BF16,
            weight: Some(DType::BF16),
            lie: Lie::CUDA,
            ..Norm::default()
        }
    }
}

impl Ask for Norm {
    fn operation(&self) -> &'static OperationInfo {
        &NORM_RMS
    }

    fn context(&self) -> Result<Context, Error> {
        let x = tensor(&[self.rows, self.hidden], self.dtype, self.lie);
        let mut call = NormRms::new(x).eps(1e-5).weight_offset(self.weight_offset);
        if let Some(dtype) = self.weight {
            call = call.weight(tensor(&[self.hidden], dtype, Lie { last_stride: 1, ..self.lie }));
        }
        Ok(call.check()?.context())
    }
}

/// `quantize`, a block of 16 or 32 elements a scale.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// The format of the result.
    pub format: QuantizeFormat,
    /// Elements a block.
    pub block_size: i64,
    /// Features a row.
    pub inner: i64,
}

impl Ask for Quantized {
    fn operation(&self) -> &'static OperationInfo {
        &QUANTIZE
    }

    fn context(&self) -> Result<Context, Error> {
        let x = tensor(&[1, 4096, self.inner], DType::BF16, Lie::CUDA);
        let call = Quantize::new(x, self.format, QuantizeGranularity::Block).block_size(self.block_size);
        Ok(call.check()?.context())
    }
}
