//! Helpers shared by the references. The references themselves are found by their paths and listed in
//! `generated/reference_kernels.rs`.

pub mod activation;
pub mod attention_core;
pub mod delta_rule;
pub mod draw;
pub mod gated_experts;
pub mod groups;
pub mod index;
pub(crate) mod kernels;
pub mod panels;
pub mod philox;
pub mod quantized_rows;
pub mod time_step;
