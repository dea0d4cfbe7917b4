//! Arguments, axes, the checked call, output slots: the types of one operation.

use lz_schema::model::{Input, Kind, Operation, Output, Param, ParamType};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

use super::{doc, sentence, sentence_text};
use crate::names::{OperationNames, camel, dtype_field, ident, pack_field};

/// The types. Specializations have the same arguments, as another type.
pub fn tokens(operation: &Operation, specializations: &[&Operation]) -> TokenStream {
    let enums = operation.params.iter().filter_map(|param| enumeration(operation, param));
    let args = args(operation, !specializations.is_empty());
    let axes = axes(operation);
    let call = call(operation);
    let slots = output_slots(operation);
    quote! { #(#enums)* #args #axes #call #slots }
}

fn enumeration(operation: &Operation, param: &Param) -> Option<TokenStream> {
    let ParamType::Enum(cases) = &param.ty else { return None };
    let name = OperationNames::enumeration(&operation.name, &param.name);
    let docs = sentence_text(&param.doc, &param.name);
    let idents = cases.iter().map(|case| format_ident!("{}", camel(case)));
    Some(quote! { lz::enumeration!(#docs; #name { #(#idents = #cases),* }); })
}

/// The Rust type of an input that is given, and its kind in the tables of `lz_core::call`.
fn given_type(input: &Input) -> (TokenStream, Ident) {
    let (ty, kind) = match (input.kind, input.read_write) {
        (Kind::Tensor, false) => (quote! { lz::TensorView<'a> }, "tensor"),
        (Kind::Tensor, true) => (quote! { lz::TensorMut<'a> }, "tensor_mut"),
        (Kind::Text, _) => (quote! { &'a [&'a str] }, "texts"),
        (Kind::Tokenizer, _) => (quote! { &'a dyn lz::Handle }, "handle"),
    };
    (ty, ident(kind))
}

/// The Rust type of a param as callers give it.
fn param_type(operation: &Operation, param: &Param) -> Ident {
    match &param.ty {
        ParamType::Int => ident("i64"),
        ParamType::F32 => ident("f32"),
        ParamType::F64 => ident("f64"),
        ParamType::Bool => ident("bool"),
        ParamType::Enum(_) => OperationNames::enumeration(&operation.name, &param.name),
    }
}

fn args(operation: &Operation, shared: bool) -> TokenStream {
    let name = OperationNames::of(operation).args;
    let docs = doc(&format!("{}\n\n{}", operation.summary, text_fences(&operation.doc)));
    let (mut fields, mut order) = (Vec::new(), Vec::new());
    let (mut required, mut optional) = (Vec::new(), Vec::new());
    let mut field = |name: &str, docs: &TokenStream, ty: &TokenStream, kind: &Ident, may_be_absent: bool| {
        let field = ident(name);
        if may_be_absent {
            fields.push(quote! { #docs pub #field: Option<#ty> });
            optional.push(quote! { #field: #kind });
        } else {
            fields.push(quote! { #docs pub #field: #ty });
            required.push(quote! { #field: #kind });
        }
        order.push(field);
    };
    for input in &operation.inputs {
        let (ty, kind) = given_type(input);
        field(&input.name, &sentence(&input.doc, &input.name), &ty, &kind, input.optional.is_some());
    }
    for param in &operation.params {
        let ty = param_type(operation, param);
        let mut docs = sentence_text(&param.doc, &param.name);
        if let Some(default) = &param.default {
            docs.push_str(&format!(" Default: `{}`.", default.text));
        }
        field(&param.name, &doc(&docs), &quote! { #ty }, &ty, param.default.is_some());
    }
    let copy = if operation.inputs.iter().any(|input| input.read_write) {
        quote! {}
    } else {
        quote! { #[derive(Clone, Copy)] }
    };
    let tables = quote! { required(#(#required),*); optional(#(#optional),*); order(#(#order),*) };
    if !shared {
        return quote! {
            #docs
            #copy
            pub struct #name<'a> { #(#fields,)* }

            lz::arguments!(#name; #tables);
        };
    }
    let arguments = OperationNames::of(operation).arguments;
    let about = format!(
        " Arguments of `{}` (number 0) and of its specializations, which have the same fields: the number makes them different types.",
        operation.name
    );
    quote! {
        #[doc = #about]
        #copy
        #[repr(C)]
        pub struct #arguments<'a, const NUMBER: u8> { #(#fields,)* }

        #docs
        pub type #name<'a> = #arguments<'a, 0>;

        lz::arguments!(#arguments<NUMBER>; #tables);
    }
}

/// Indented blocks of a doc become text fences, so that rustdoc does not compile mathematics.
fn text_fences(text: &str) -> String {
    let mut result = String::new();
    let mut inside = false;
    for line in text.lines() {
        let indented = line.starts_with("    ");
        if indented && !inside {
            result.push_str("```text\n");
            inside = true;
        }
        if !indented && inside && !line.trim().is_empty() {
            result.push_str("```\n");
            inside = false;
        }
        result.push_str(line);
        result.push('\n');
    }
    if inside {
        result.push_str("```\n");
    }
    result
}

fn axes(operation: &Operation) -> TokenStream {
    let name = OperationNames::of(operation).axes;
    let axes = operation.axes.iter().filter(|axis| !axis.dynamic).map(|axis| {
        let field = ident(&axis.name);
        let dims = axis.pack.then(|| {
            let dims = pack_field(&axis.name);
            quote! { ..#dims }
        });
        let docs = axis.doc.trim();
        let docs = (!docs.is_empty()).then(|| quote! { = #docs });
        quote! { #field #dims #docs }
    });
    quote! { lz::axes!(#name: #(#axes),*); }
}

fn call(operation: &Operation) -> TokenStream {
    let OperationNames { info, args, axes, call, .. } = OperationNames::of(operation);
    let name = &operation.name;
    let inputs = operation.inputs.iter().map(|input| ident(&input.name));
    let params = operation.params.iter().map(|param| {
        let (field, ty) = (ident(&param.name), param_type(operation, param));
        quote! { #field: #ty }
    });
    let types = operation.types.iter().map(|variable| {
        let (field, name) = (dtype_field(&variable.name), &variable.name);
        quote! { #field = #name }
    });
    quote! {
        lz::checked_call!(
            #name, #info, #args, #axes, #call;
            inputs(#(#inputs),*);
            params(#(#params),*);
            dtypes(#(#types),*);
        );
    }
}

/// The schema's outputs, then the inputs that are changed in place.
fn output_slots(operation: &Operation) -> TokenStream {
    let OperationNames { info, call, out, output: owned, .. } = OperationNames::of(operation);
    let outputs = operation.outputs.iter().map(|output| {
        let (field, kind) = (ident(&output.name), output_kind(operation, output));
        let docs = sentence_text(&output.doc, &output.name);
        quote! { #field: #kind = #docs }
    });
    let written = written(operation);
    quote! {
        lz::output_slots!(
            #info, #call, #out, #owned;
            outputs(#(#outputs),*);
            #written;
        );
    }
}

/// The inputs that are changed in place, as a clause of a table.
pub fn written(operation: &Operation) -> TokenStream {
    let written = operation.inputs.iter().filter(|input| input.read_write).map(|input| {
        let field = ident(&input.name);
        let kind = ident(if input.optional.is_some() { "optional_tensor" } else { "tensor" });
        quote! { #field: #kind }
    });
    quote! { written(#(#written),*) }
}

/// The kind of an output in the tables of `lz_core::call`.
pub fn output_kind(operation: &Operation, output: &Output) -> Ident {
    let plain = match (output.kind, output.is_dynamic(operation)) {
        (Kind::Text, _) => "texts",
        (_, true) => "dynamic",
        _ => "tensor",
    };
    if output.when.is_some() { format_ident!("optional_{plain}") } else { ident(plain) }
}
