//! Native CPU kernels. Each implements a generated kernel trait and declares its limits. No dependency on
//! Python or C++.
//!
//! `simd` and `isa`: one kernel source for every instruction set. `pool`: the thread pool. `rows`: tensors as
//! dense rows; `pointwise`: elementwise functions; `memory`: allocations that may fail. The other folders are kernels, one folder per operation
//! family, and `primitives` those of graphs. `README.md` explains how to write one.

mod activation;
mod attention;
mod conv;
mod embedding;
mod gemm;
mod isa;
mod kv;
mod memory;
mod mlp;
mod moe;
mod norm;
mod pointwise;
mod posenc;
mod primitives;
mod quant;
mod recurrent;
mod rows;
mod sampling;
pub mod simd;
mod state;

use lz_core::KernelEntry;
pub use lz_pool as pool;

/// Internal functions with tests of their own. All tests are in `tests/suite`: a test build of this crate would
/// compile and optimize all kernels a second time.
#[doc(hidden)]
pub mod internals {
    pub use crate::kv::compact::{SCRATCH_PAGE, order};
    pub use crate::moe::assign::{Assignment, words};
    pub use crate::quant::scales::E4M3_VALUES;
    pub use crate::sampling::flat::exp;
}

/// All kernels of catalog operations, one entry per instruction set. An explicit list, because registries filled by
/// the linker are dropped from static libraries.
pub fn kernels() -> Vec<KernelEntry> {
    let mut kernels = isa::variants![
        activation::GeluElements,
        activation::GeluMulElements,
        activation::ReluElements,
        activation::ReluSquaredElements,
        activation::SiluElements,
        activation::SiluMulElements,
        attention::CrossDecode,
        attention::CrossPrefill,
        attention::GqaDecode,
        attention::GqaDecodePaged,
        attention::GqaDecodePagedFp8,
        attention::GqaPrefill,
        attention::GqaPrefillPaged,
        attention::GqaPrefillPagedFp8,
        attention::GqaPrefillRagged,
        attention::MlaDecode,
        attention::MlaDecodePaged,
        attention::MlaPrefill,
        attention::ModifiedDecode,
        attention::ModifiedDecodePaged,
        attention::ModifiedPrefill,
        attention::ModifiedPrefillPaged,
        attention::ModifiedPrefillRagged,
        attention::SparseBlock,
        attention::SparseTopk,
        attention::SparseVariableBlock,
        attention::GqaDecode as specialized,
        attention::GqaDecodePaged as specialized,
        attention::GqaPrefill as specialized,
        attention::GqaPrefillPaged as specialized,
        attention::GqaPrefillRagged as specialized,
        attention::ModifiedDecode as specialized,
        attention::ModifiedDecodePaged as specialized,
        attention::ModifiedPrefill as specialized,
        attention::ModifiedPrefillPaged as specialized,
        attention::ModifiedPrefillRagged as specialized,
        conv::Causal1d,
        conv::Causal1dStep,
        embedding::LookupQuantizedRows,
        embedding::LookupRows,
        kv::AppendRows,
        kv::CompactPages,
        kv::RopeAppendRows,
        mlp::BatchInvariantLinear,
        mlp::Fused as packing,
        mlp::Linear as packing,
        mlp::LinearFp4,
        mlp::LinearFp8,
        mlp::LinearInt8,
        mlp::LinearPack,
        mlp::LinearWeightOnly,
        moe::Experts,
        moe::QuantizedExperts,
        moe::Route,
        norm::AdaRows,
        norm::GroupRows,
        norm::LayerAddRows,
        norm::LayerRows,
        norm::RmsAddQuantizeRows,
        norm::RmsAddRows as fusing_quantize,
        norm::RmsQuantizeRows,
        norm::RmsRows as fusing_quantize,
        posenc::AlibiRows,
        posenc::RopeRows,
        quant::DequantizeRows,
        quant::QuantizeRows,
        recurrent::LinearDecode,
        recurrent::LinearPrefill,
        recurrent::Scan,
        recurrent::Step,
        sampling::Logprobs,
        sampling::Mask,
        sampling::MinP,
        sampling::Penalties,
        sampling::Speculative,
        sampling::TopK,
        sampling::TopP,
        state::MergeRows,
    ];
    kernels.extend(isa::amx_variants![
        attention::CrossDecode,
        attention::CrossPrefill,
        attention::GqaDecode,
        attention::GqaDecodePaged,
        attention::GqaPrefill,
        attention::GqaPrefillPaged,
        attention::GqaPrefillRagged,
        attention::MlaDecode as with_tiles,
        attention::MlaDecodePaged,
        attention::MlaPrefill,
        attention::SparseBlock,
        attention::SparseVariableBlock,
        attention::GqaDecode as specialized,
        attention::GqaDecodePaged as specialized,
        attention::GqaPrefill as specialized,
        attention::GqaPrefillPaged as specialized,
        attention::GqaPrefillRagged as specialized,
        mlp::Fused,
        mlp::Linear,
        moe::Experts,
    ]);
    kernels.extend(isa::int8_variants![mlp::LinearInt8]);
    kernels
}

/// The kernels of the primitives of graphs, one entry per instruction set where it matters.
pub fn primitive_kernels() -> Vec<KernelEntry> {
    primitives::kernels()
}
