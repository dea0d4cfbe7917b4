//! One Python function per operation: the table from which `python_function!` in `bindings/python/src/operation.rs`
//! expands it.

use std::ffi::CString;

use lz_schema::dtype::DType;
use lz_schema::model::{Cases, DTypeRef, Kind, Operation, Param, ParamType};
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

use super::docstring;
use super::kernel::output_method;
use super::op::output_kind;
use super::stub::text_signature;
use crate::names::{OperationNames, ident};

/// Inputs in the order of the Python signature: those that must be given, then those that may.
pub fn signature_order(operation: &Operation) -> impl Iterator<Item = &lz_schema::model::Input> {
    let of =
        |optional: bool| operation.inputs.iter().filter(move |input| input.optional.is_some() == optional);
    of(false).chain(of(true))
}

/// Whether every output's size is known before the run, so that the function takes `out=`.
pub fn takes_out(operation: &Operation) -> bool {
    !operation.outputs.is_empty() && operation.outputs.iter().all(|output| !output.is_dynamic(operation))
}

/// The function of one operation.
pub fn tokens(operation: &Operation) -> TokenStream {
    let OperationNames { args, info, .. } = OperationNames::of(operation);
    let signature = signature(operation);
    let mut parameters: Vec<_> = signature_order(operation).map(|input| ident(&input.name)).collect();
    parameters.extend(operation.params.iter().map(|param| ident(&param.name)));
    let sizes = if takes_out(operation) {
        parameters.push(ident("out"));
        quote! { known(out) }
    } else {
        quote! { unknown() }
    };
    let inputs = operation.inputs.iter().map(|input| {
        let (name, kind) = (ident(&input.name), input_kind(input));
        let borrowed = match input.kind {
            Kind::Tensor => name.clone(),
            Kind::Text | Kind::Tokenizer => format_ident!("borrowed_{}", input.name),
        };
        quote! { #name: #kind(#borrowed) }
    });
    let params = operation.params.iter().map(|param| {
        let name = ident(&param.name);
        let presence = ident(if param.default.is_some() { "optional" } else { "required" });
        let kind = match &param.ty {
            ParamType::Int => quote! { int },
            ParamType::F32 => quote! { float32 },
            ParamType::F64 => quote! { float },
            ParamType::Bool => quote! { bool },
            ParamType::Enum(_) => {
                let ty = OperationNames::enumeration(&operation.name, &param.name);
                quote! { case(#ty) }
            }
        };
        quote! { #name: #presence #kind }
    });
    let hosted = signature_order(operation).map(|input| ident(&input.name));
    let outputs = operation.outputs.iter().map(|output| {
        let (name, kind) = (ident(&output.name), output_kind(operation, output));
        let method = output_method(operation, output);
        let (storage, view) = (format_ident!("slot_{}", output.name), format_ident!("view_{}", output.name));
        quote! { #name: #kind(#method, #storage, #view) }
    });
    let tensors = operation.inputs.iter().filter(|input| input.kind == Kind::Tensor);
    let bytes: Vec<_> = tensors
        .filter_map(|input| {
            let (param, cases) = nibbles(operation, &input.dtype)?;
            let (name, kind, param) = (ident(&input.name), input_kind(input), ident(&param.name));
            Some(quote! { #name: #kind if #param in [#(#cases),*] })
        })
        .collect();
    let bytes = (!bytes.is_empty()).then(|| quote! { bytes(#(#bytes),*); });
    let known = operation.outputs.iter().filter(|output| !output.is_dynamic(operation));
    let bytes_outputs = known.filter(|output| nibbles(operation, &output.dtype).is_some()).map(|output| {
        let (view, method) = (format_ident!("view_{}", output.name), output_method(operation, output));
        quote! { #view #method }
    });
    quote! {
        python_function!(
            #info, #args;
            #signature
            parameters(#(#parameters),*);
            inputs(#(#inputs),*);
            params(#(#params),*);
            hosted(#(#hosted),*);
            outputs #sizes [#(#outputs),*];
            #bytes
            bytes_outputs [#(#bytes_outputs),*];
        );
    }
}

/// The kind of an input in the table.
fn input_kind(input: &lz_schema::model::Input) -> proc_macro2::Ident {
    ident(match (input.kind, input.read_write, input.optional.is_some()) {
        (Kind::Tensor, false, false) => "tensor",
        (Kind::Tensor, false, true) => "optional",
        (Kind::Tensor, true, false) => "writable",
        (Kind::Tensor, true, true) => "optional_writable",
        (Kind::Text, ..) => "texts",
        (Kind::Tokenizer, ..) => "tokenizer",
    })
}

/// The clause with name, docstring and parameters.
fn signature(operation: &Operation) -> TokenStream {
    let function = Literal::c_string(&c_string(&operation.flat_name()));
    let text = format!("{}\n--\n\n{}", text_signature(operation), docstring::text(operation).trim_end());
    let doc = Literal::c_string(&c_string(&text));
    let positional = operation.inputs.len();
    let mut required: u64 = signature_order(operation)
        .enumerate()
        .filter(|(_, input)| input.optional.is_none())
        .map(|(at, _)| 1 << at)
        .sum();
    for (number, param) in operation.params.iter().enumerate() {
        if param.default.is_none() {
            required |= 1 << (positional + number);
        }
    }
    let (positional, required) = (Literal::usize_unsuffixed(positional), Literal::u64_unsuffixed(required));
    quote! { signature(#function, #positional, #required, #doc); }
}

/// Schemas hold no zero characters; should one, it ends the text.
fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// The param and its cases for which a dtype is two floats in a byte: libraries without such a dtype have bytes there.
fn nibbles<'a>(operation: &'a Operation, dtype: &Cases<DTypeRef>) -> Option<(&'a Param, Vec<&'a str>)> {
    let Cases::By(param, all) = dtype else { return None };
    let param = operation.params.get(*param)?;
    let ParamType::Enum(cases) = &param.ty else { return None };
    let packed = cases.iter().zip(all).filter(|(_, dtype)| **dtype == DTypeRef::Fixed(DType::F4E2M1x2));
    let packed: Vec<&str> = packed.map(|(case, _)| case.as_str()).collect();
    (!packed.is_empty()).then_some((param, packed))
}

/// The module of all functions.
pub fn index(operations: &[Operation]) -> TokenStream {
    let modules: Vec<_> = operations.iter().map(|operation| ident(&operation.flat_name())).collect();
    quote! {
        use crate::fastcall::Entry;

        #(mod #modules;)*

        /// Every operation.
        pub static ENTRIES: &[&Entry] = &[#(&#modules::ENTRY),*];
    }
}
