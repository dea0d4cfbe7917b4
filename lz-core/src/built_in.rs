//! Built-in backends. Their names are reserved: policies refer to backends by name, so a plugin with one of these names would
//! receive their settings.

use crate::reason::{Reason, ReasonCode};

/// Names of the built-in backends: kernels in Rust and adapters in Python.
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

/// Why an external backend may not have this name; `None` if it may. The comparison ignores case.
pub fn reserved_name(name: &str) -> Option<Reason> {
    let reserved = BUILT_IN_BACKENDS.iter().find(|own| own.eq_ignore_ascii_case(name.trim()))?;
    Some(Reason::new(ReasonCode::BackendNameReserved).message(format!(
        "`{name}` is the name of a built-in backend (`{reserved}`), which a plugin or package cannot use; choose \
         another name"
    )))
}
