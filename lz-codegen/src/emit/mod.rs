//! One file per output. Each turns a checked operation into text or tokens; none reads or writes files.

pub mod catalog;
pub mod context;
pub mod cpp;
pub mod cpp_bridge;
pub mod cpp_checks;
pub mod cpp_docs;
pub mod cpp_header;
pub mod docs;
pub mod docstring;
pub mod expressions;
pub mod index;
pub mod kernel;
pub mod op;
pub mod plugin;
pub mod plugin_header;
pub mod protocol;
pub mod python;
pub mod reasons;
pub mod spec;
pub mod specialization;
pub mod strategy;
pub mod stub;
pub mod torch;
pub mod validate;

use proc_macro2::TokenStream;
use quote::quote;

/// Doc attributes for a text of one or more lines.
pub(crate) fn doc(text: &str) -> TokenStream {
    let lines = text.trim_end().lines().map(|line| format!(" {line}"));
    quote! { #(#[doc = #lines])* }
}

/// One sentence about a field; schemas may leave it out where the name is enough.
pub(crate) fn sentence(text: &str, name: &str) -> TokenStream {
    doc(&sentence_text(text, name))
}

/// [`sentence`] as text.
pub(crate) fn sentence_text(text: &str, name: &str) -> String {
    if text.trim().is_empty() { format!("`{name}`.") } else { text.trim_end().to_owned() }
}
