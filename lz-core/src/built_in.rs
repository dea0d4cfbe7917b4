//! Backends that come with LayerZero. Their names are reserved: policy speaks of them by name, so a plugin that took one would
//! get what was meant for them.

use crate::reason::{Reason, ReasonCode};

/// Names of all of them: of the kernels in Rust, and of the adapters in Python.
pub const BUILT_IN_BACKENDS: [&str; 16] = [
    "reference",
    "cpu",
    "tokenize",
    "torch",
    "torch_reference",
    "tokenizers",
    "tiktoken",
    "sentencepiece",
    "flashinfer",
    "liger",
    "triton",
    "flash_attn",
    "flash_attn_3",
    "xformers",
    "apex",
    "hf_kernels",
];

/// Why a backend from elsewhere may not have this name; `None` if it may. Spellings that differ in case only are reserved too.
pub fn reserved_name(name: &str) -> Option<Reason> {
    let reserved = BUILT_IN_BACKENDS.iter().find(|own| own.eq_ignore_ascii_case(name.trim()))?;
    Some(Reason::new(ReasonCode::BackendNameReserved).message(format!(
        "`{name}` is the name of a backend of LayerZero (`{reserved}`), which a plugin or a package cannot take; give the \
         backend another name"
    )))
}
