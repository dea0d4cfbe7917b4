//! The catalog for `lz-macros`: the text of every schema, compiled into the macro's binary.

use proc_macro2::TokenStream;
use quote::quote;

use crate::Source;

/// `REASONS`, and `SCHEMAS` in the order of names.
pub fn tokens(sources: &[Source<'_>]) -> TokenStream {
    let names = sources.iter().map(|source| &source.operation.name);
    let paths = sources.iter().map(|source| source.path);
    let includes = sources.iter().map(|source| format!("../{}", source.path));
    let count = sources.len();
    quote! {
        /// `schemas/reasons.yaml`.
        pub const REASONS: &str = include_str!("../schemas/reasons.yaml");

        /// Name, path and text of every operation's schema.
        pub const SCHEMAS: [(&str, &str, &str); #count] = [#((#names, #paths, include_str!(#includes))),*];
    }
}
