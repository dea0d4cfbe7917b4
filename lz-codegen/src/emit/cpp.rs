//! The Rust half of the C++ binding: the entries of each operation, which pass the caller's arguments to the engine.
//!
//! Headers are in `cpp_header`, the bridge that names these entries in `cpp_bridge`.

use lz_schema::model::{DeviceRule, Kind, Operation};
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

use super::kernel::output_method;
use super::op::output_kind;
use super::plugin::structures;
use crate::names::{OperationNames, ident};

/// The table of one operation, from which `cpp_entries!` expands its entries.
pub fn tokens(operation: &Operation) -> TokenStream {
    let OperationNames { function, info, .. } = OperationNames::of(operation);
    let explain = format_ident!("{}_explain", function);
    let (args, _) = structures(operation);
    let module = ident(&operation.flat_name());
    let name = &operation.name;
    // Outputs are on the device of the first tensor that must be given; without one they are in host memory.
    let followed = operation.inputs.iter().find(|input| {
        input.kind == Kind::Tensor && input.optional.is_none() && input.device == DeviceRule::Same
    });
    let followed = followed.map(|input| ident(&input.name));
    let outputs = operation.outputs.iter().enumerate().map(|(number, output)| {
        let (name, number) = (ident(&output.name), Literal::usize_unsuffixed(number));
        let (kind, method) = (output_kind(operation, output), output_method(operation, output));
        let (slot, present) = (format_ident!("slot_{}", output.name), format_ident!("has_{}", output.name));
        quote! { #name: #kind(#number, #method, #slot, #present) }
    });
    quote! {
        use lz_plugin::generated::#module::#args;

        crate::operation::cpp_entries!(
            #name, #info, #function, #explain, #args;
            device(#followed);
            outputs(#(#outputs),*);
        );
    }
}

/// `generated/mod.rs`.
pub fn index(operations: &[Operation]) -> TokenStream {
    let modules: Vec<_> = operations.iter().map(|operation| ident(&operation.flat_name())).collect();
    let docs = operations.iter().map(|operation| format!(" `{}`.", operation.name));
    quote! {
        /// The bridge itself.
        pub mod bridge;
        #(#[doc = #docs] pub mod #modules;)*
    }
}
