//! The typed layer of the conformance suite: one row per operation, from which `subjects!` expands its subject and tests.
//!
//! Calls are not generated: `lz-conformance` draws them from the schema at run time.

use lz_schema::model::Operation;
use proc_macro2::TokenStream;
use quote::quote;

use super::op::output_kind;
use crate::names::{OperationNames, ident};

/// `generated/mod.rs`: every operation.
pub fn index(operations: &[Operation]) -> TokenStream {
    let rows = operations.iter().map(|operation| {
        let OperationNames { args, info, .. } = OperationNames::of(operation);
        let (module, name) = (ident(&operation.flat_name()), &operation.name);
        let outputs = operation.outputs.iter().map(|output| {
            let (name, kind) = (ident(&output.name), output_kind(operation, output));
            quote! { #name: #kind }
        });
        quote! { #name => #module(#args, #info) [#(#outputs),*]; }
    });
    quote! { crate::subject::subjects!(#(#rows)*); }
}
