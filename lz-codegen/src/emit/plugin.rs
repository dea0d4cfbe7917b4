//! The Rust half of the C ABI: for each operation a structure of arguments and one of output slots, and how typed calls cross.
//!
//! The C half is in `plugin_header`; both take the order of fields from [`fields`].

use lz_schema::model::{Input, Kind, Operation, Param, ParamType};
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

use super::op::output_kind;
use crate::names::{OperationNames, ident};

/// Names of the structures of one operation.
pub fn structures(operation: &Operation) -> (Ident, Ident) {
    let names = OperationNames::of(operation);
    (format_ident!("{}Args", names.args), format_ident!("{}OutputSlots", names.args))
}

/// A field of the structure of arguments.
pub enum Field<'a> {
    /// An input, as a pointer.
    Input(&'a Input),
    /// A param, with its number.
    Param(&'a Param, usize),
}

/// The fields of the structure of arguments after its size and `given`.
pub fn fields(operation: &Operation) -> impl Iterator<Item = Field<'_>> {
    let params = operation.params.iter().enumerate().map(|(number, param)| Field::Param(param, number));
    operation.inputs.iter().map(Field::Input).chain(params)
}

/// The table of one operation, from which `plugin_kernel!` expands its structures and how calls cross.
pub fn tokens(operation: &Operation) -> TokenStream {
    let OperationNames { args: typed, call, out, kernel, .. } = OperationNames::of(operation);
    let (args, slots) = structures(operation);
    let (name, flat) = (&operation.name, operation.flat_name());
    let (args_name, out_name) = (format!("lz_{flat}_args"), format!("lz_{flat}_out"));
    let (mut inputs, mut params) = (Vec::new(), Vec::new());
    for field in fields(operation) {
        match field {
            Field::Input(input) => {
                let name = ident(&input.name);
                let kind = ident(match (input.kind, input.read_write, input.optional.is_some()) {
                    (Kind::Tensor, false, false) => "tensor",
                    (Kind::Tensor, false, true) => "optional_tensor",
                    (Kind::Tensor, true, false) => "tensor_mut",
                    (Kind::Tensor, true, true) => "optional_tensor_mut",
                    (Kind::Text, ..) => "texts",
                    (Kind::Tokenizer, ..) => "tokenizer",
                });
                inputs.push(quote! { #name: #kind });
            }
            Field::Param(param, number) => {
                let (name, bit) = (ident(&param.name), Literal::usize_unsuffixed(number));
                let presence = ident(if param.default.is_some() { "optional" } else { "required" });
                let kind = match &param.ty {
                    ParamType::Int => quote! { i64 },
                    ParamType::F32 => quote! { f32 },
                    ParamType::F64 => quote! { f64 },
                    ParamType::Bool => quote! { bool },
                    ParamType::Enum(_) => {
                        let ty = OperationNames::enumeration(&operation.name, &param.name);
                        quote! { case(#ty) }
                    }
                };
                params.push(quote! { #name: #presence #kind #bit });
            }
        }
    }
    let outputs = operation.outputs.iter().map(|output| {
        let (name, kind) = (ident(&output.name), output_kind(operation, output));
        quote! { #name: #kind }
    });
    quote! {
        crate::operation::plugin_kernel!(
            #name, #args_name, #out_name;
            #typed, #call, #out, #kernel => #args, #slots;
            inputs(#(#inputs),*);
            params(#(#params),*);
            outputs(#(#outputs),*);
        );
    }
}

/// `generated/mod.rs`: all operations, and the kernel behind a name and an untyped table.
pub fn index(operations: &[Operation]) -> TokenStream {
    let modules: Vec<_> = operations.iter().map(|operation| ident(&operation.flat_name())).collect();
    let docs = operations.iter().map(|operation| format!(" `{}`.", operation.name));
    let rows = operations.iter().zip(&modules).map(|(operation, module)| {
        let (args, slots) = structures(operation);
        let entry = OperationNames::of(operation).entry;
        let name = &operation.name;
        quote! { #name => #module(#args, #slots) #entry; }
    });
    quote! {
        #(#[doc = #docs] pub mod #modules;)*

        crate::operation::plugin_entries!(#(#rows)*);
    }
}
