//! The list of all operations, and the reference of each as a kernel.

use lz_schema::model::Operation;
use proc_macro2::TokenStream;
use quote::quote;

use crate::names::{OperationNames, ident, reference_path};

/// `generated/mod.rs`: one module per operation, and all their descriptions.
pub fn modules(operations: &[Operation]) -> TokenStream {
    let modules: Vec<_> = operations.iter().map(module).collect();
    // The module of a specialization is inside that of its general operation.
    let declared = operations.iter().filter(|operation| operation.specializes.is_none()).map(|operation| {
        let (docs, name) =
            (format!(" `{}`: {}", operation.name, operation.summary), ident(&operation.flat_name()));
        quote! { #[doc = #docs] pub mod #name; }
    });
    let infos = operations.iter().map(|operation| OperationNames::of(operation).info);
    let count = operations.len();
    quote! {
        #![allow(clippy::all, reason = "generated from the schemas")]

        #(#declared)*
        /// The reference of every operation as a kernel.
        pub mod reference_kernels;

        #(pub use #modules::*;)*

        /// Every operation of the catalog, by name.
        pub static OPERATIONS: [&::lz_core::OperationInfo; #count] = [#(&#modules::#infos),*];
    }
}

/// The path of an operation's module.
fn module(operation: &Operation) -> TokenStream {
    let own = ident(&operation.flat_name());
    match &operation.specializes {
        Some(relation) => {
            let general = ident(&relation.operation.replace('.', "_"));
            quote! { #general::#own }
        }
        None => quote! { #own },
    }
}

/// `generated/reference_kernels.rs`: the hand-written references, found by their path, as kernels.
/// A specialization has the reference of its general operation.
pub fn references(operations: &[Operation]) -> TokenStream {
    let modules = operations.iter().filter(|operation| operation.specializes.is_none()).map(|operation| {
        let module = ident(&operation.flat_name());
        let path = format!("../reference/{}", reference_path(&operation.name));
        let docs = format!(" Reference of `{}`.", operation.name);
        quote! { #[doc = #docs] #[path = #path] #[rustfmt::skip] pub mod #module; }
    });
    let rows = operations.iter().map(|operation| {
        let OperationNames { kernel, call, out, entry, .. } = OperationNames::of(operation);
        let name = &operation.name;
        let general = operation.specializes.as_ref().map_or(name, |relation| &relation.operation);
        let module = ident(&general.replace('.', "_"));
        quote! { #name => #module(#kernel, #call, #out) #entry; }
    });
    quote! {
        #(#modules)*

        crate::reference::kernels::references!(#(#rows)*);
    }
}
