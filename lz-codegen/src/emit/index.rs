//! The list of all operations, and the reference of each as a kernel.

use lz_schema::model::Operation;
use proc_macro2::TokenStream;
use quote::quote;

use crate::names::{OperationNames, ident, reference_path};

/// `generated/mod.rs`: one module per operation, and all their descriptions.
pub fn modules(operations: &[Operation]) -> TokenStream {
    let modules: Vec<_> = operations.iter().map(|operation| ident(&operation.flat_name())).collect();
    let docs = operations.iter().map(|operation| format!(" `{}`: {}", operation.name, operation.summary));
    let infos = operations.iter().map(|operation| OperationNames::of(operation).info);
    let count = operations.len();
    quote! {
        #![allow(clippy::all, reason = "generated from the schemas")]

        #(#[doc = #docs] pub mod #modules;)*
        /// The reference of every operation as a kernel.
        pub mod reference_kernels;

        #(pub use #modules::*;)*

        /// Every operation of the catalogue, by name.
        pub static OPERATIONS: [&::lz_core::OperationInfo; #count] = [#(&#modules::#infos),*];
    }
}

/// `generated/reference_kernels.rs`: the hand-written references, found by their path, as kernels.
pub fn references(operations: &[Operation]) -> TokenStream {
    let modules = operations.iter().map(|operation| {
        let module = ident(&operation.flat_name());
        let path = format!("../reference/{}", reference_path(&operation.name));
        let docs = format!(" Reference of `{}`.", operation.name);
        quote! { #[doc = #docs] #[path = #path] #[rustfmt::skip] pub mod #module; }
    });
    let rows = operations.iter().map(|operation| {
        let OperationNames { kernel, call, out, entry, .. } = OperationNames::of(operation);
        let (module, name) = (ident(&operation.flat_name()), &operation.name);
        quote! { #name => #module(#kernel, #call, #out) #entry; }
    });
    quote! {
        #(#modules)*

        crate::reference::kernels::references!(#(#rows)*);
    }
}
