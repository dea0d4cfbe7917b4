//! Arguments, axes, the checked call, outputs: the types of one operation.

use lz_schema::model::{Input, Kind, Operation, Output, Param, ParamType};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use super::expressions::param_value;
use super::{doc, sentence};
use crate::names::{OperationNames, camel, dtype_field, ident, pack_field};

/// The types.
pub fn tokens(operation: &Operation) -> TokenStream {
    let enums = operation.params.iter().filter_map(|param| enumeration(operation, param));
    let args = args(operation);
    let axes = axes(operation);
    let call = call(operation);
    let out = out(operation);
    let output = output(operation);
    quote! { #(#enums)* #args #axes #call #out #output }
}

fn enumeration(operation: &Operation, param: &Param) -> Option<TokenStream> {
    let ParamType::Enum(cases) = &param.ty else { return None };
    let name = OperationNames::enumeration(operation, &param.name);
    let docs = sentence(&param.doc, &param.name);
    let idents: Vec<_> = cases.iter().map(|case| format_ident!("{}", camel(case))).collect();
    let numbers: Vec<u32> = (0..cases.len() as u32).collect();
    let case_docs = cases.iter().map(|case| format!(" `{case}`."));
    Some(quote! {
        #docs
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum #name { #(#[doc = #case_docs] #idents = #numbers,)* }

        impl #name {
            /// The schema's spelling of every case, in order.
            pub const NAMES: &'static [&'static str] = &[#(#cases),*];

            /// The case with this number.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { #(#numbers => Some(Self::#idents),)* _ => None }
            }
        }
    })
}

/// The Rust type of an input that is there.
fn given_type(input: &Input) -> TokenStream {
    match (input.kind, input.read_write) {
        (Kind::Tensor, false) => quote! { ::lz_core::TensorView<'a> },
        (Kind::Tensor, true) => quote! { ::lz_core::TensorMut<'a> },
        (Kind::Text, _) => quote! { &'a [&'a str] },
        (Kind::Tokenizer, _) => quote! { &'a dyn ::lz_core::Handle },
    }
}

/// The Rust type of a param as callers give it.
pub fn param_type(operation: &Operation, param: &Param) -> TokenStream {
    match &param.ty {
        ParamType::Int => quote! { i64 },
        ParamType::F32 => quote! { f32 },
        ParamType::F64 => quote! { f64 },
        ParamType::Bool => quote! { bool },
        ParamType::Enum(_) => {
            let name = OperationNames::enumeration(operation, &param.name);
            quote! { #name }
        }
    }
}

fn args(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let name = &names.args;
    let docs = doc(&format!("{}\n\n{}", operation.summary, text_fences(&operation.doc)));
    let mut fields = Vec::new();
    let mut required = Vec::new();
    let mut required_types = Vec::new();
    let mut absent = Vec::new();
    let mut builders = Vec::new();
    let mut optional = |field: &proc_macro2::Ident, ty: &TokenStream, docs: &TokenStream| {
        absent.push(field.clone());
        builders.push(quote! {
            #docs
            #[must_use]
            pub fn #field(mut self, #field: #ty) -> Self { self.#field = Some(#field); self }
        });
    };
    for input in &operation.inputs {
        let (field, ty, docs) = (ident(&input.name), given_type(input), sentence(&input.doc, &input.name));
        if input.optional.is_some() {
            fields.push(quote! { #docs pub #field: Option<#ty> });
            optional(&field, &ty, &docs);
        } else {
            fields.push(quote! { #docs pub #field: #ty });
            required.push(field);
            required_types.push(ty);
        }
    }
    for param in &operation.params {
        let (field, ty, docs) =
            (ident(&param.name), param_type(operation, param), sentence(&param.doc, &param.name));
        if let Some(default) = &param.default {
            let default_docs = doc(&format!("`None` is the default, `{}`.", default.text));
            fields.push(quote! { #docs #default_docs pub #field: Option<#ty> });
            optional(&field, &ty, &docs);
        } else {
            fields.push(quote! { #docs pub #field: #ty });
            required.push(field);
            required_types.push(ty);
        }
    }
    let copy = if operation.inputs.iter().any(|input| input.read_write) {
        quote! {}
    } else {
        quote! { #[derive(Clone, Copy)] }
    };
    let from_args = from_args(operation);
    quote! {
        #docs
        #copy
        pub struct #name<'a> { #(#fields,)* }

        impl<'a> #name<'a> {
            /// With everything that has no default.
            #[allow(clippy::too_many_arguments, reason = "as many as the schema requires")]
            pub fn new(#(#required: #required_types),*) -> Self {
                Self { #(#required,)* #(#absent: None,)* }
            }

            #(#builders)*
            #from_args
        }
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

/// From dynamic arguments; the engine validates them first, so a mismatch only means that they are another operation's.
fn from_args(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let name = &names.args;
    let mut fields = Vec::new();
    // What is left out may be absent; what is there must be of its kind, for a wrong kind is no default.
    let mut field = |name: &str, arms: Vec<(TokenStream, TokenStream)>, required: bool| {
        let field = ident(name);
        let (patterns, values): (Vec<_>, Vec<_>) = arms.into_iter().unzip();
        fields.push(if required {
            quote! { #field: match next.next()? { #(#patterns => #values,)* _ => return None } }
        } else {
            quote! {
                #field: match next.next()? {
                    ::lz_core::Arg::Absent => None,
                    #(#patterns => Some(#values),)*
                    _ => return None,
                }
            }
        });
    };
    for input in &operation.inputs {
        let arms = match (input.kind, input.read_write) {
            (Kind::Tensor, false) => vec![
                (quote! { ::lz_core::Arg::Tensor(view) }, quote! { *view }),
                (quote! { ::lz_core::Arg::TensorMut(tensor) }, quote! { tensor.as_view() }),
            ],
            (Kind::Tensor, true) => {
                vec![(quote! { ::lz_core::Arg::TensorMut(tensor) }, quote! { tensor.reborrow() })]
            }
            (Kind::Text, _) => vec![(quote! { ::lz_core::Arg::Text(texts) }, quote! { *texts })],
            (Kind::Tokenizer, _) => vec![(quote! { ::lz_core::Arg::Handle(handle) }, quote! { *handle })],
        };
        field(&input.name, arms, input.optional.is_none());
    }
    for param in &operation.params {
        let value =
            |case: TokenStream| quote! { ::lz_core::Arg::Value(::lz_core::expr::Value::#case(value)) };
        let arms = match &param.ty {
            ParamType::Int => vec![(value(quote! { Int }), quote! { *value })],
            ParamType::F32 => vec![
                (value(quote! { Float }), quote! { *value as f32 }),
                (value(quote! { Int }), quote! { *value as f32 }),
            ],
            ParamType::F64 => vec![
                (value(quote! { Float }), quote! { *value }),
                (value(quote! { Int }), quote! { *value as f64 }),
            ],
            ParamType::Bool => vec![(value(quote! { Bool }), quote! { *value })],
            ParamType::Enum(_) => {
                let ty = param_type(operation, param);
                vec![(value(quote! { Enum }), quote! { #ty::from_number(*value)? })]
            }
        };
        field(&param.name, arms, param.default.is_none());
    }
    quote! {
        /// From dynamic arguments (inputs, then params); `None` if one is of another kind, or missing and required.
        pub fn from_args(args: &'a mut [::lz_core::Arg<'_>]) -> Option<#name<'a>> {
            let mut next = args.iter_mut();
            Some(#name { #(#fields,)* })
        }
    }
}

fn axes(operation: &Operation) -> TokenStream {
    let name = OperationNames::of(operation).axes;
    let fields = operation.axes.iter().filter(|axis| !axis.dynamic).map(|axis| {
        let field = ident(&axis.name);
        let docs = sentence(&axis.doc, &axis.name);
        if axis.pack {
            let dims = pack_field(&axis.name);
            let dims_docs = doc(&format!("The sizes that `{}` multiplies.", axis.name));
            quote! { #docs pub #field: i64, #dims_docs pub #dims: ::lz_core::tensor::Dims }
        } else {
            quote! { #docs pub #field: i64 }
        }
    });
    quote! {
        /// Sizes of a checked call; an axis that only an absent input has is 0.
        #[derive(Debug, Clone, Copy)]
        #[non_exhaustive]
        pub struct #name { #(#fields,)* }
    }
}

fn call(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let (name, args, axes) = (&names.call, &names.args, &names.axes);
    let fields = operation.params.iter().map(|param| {
        let (field, ty, docs) =
            (ident(&param.name), param_type(operation, param), sentence(&param.doc, &param.name));
        quote! { #docs pub #field: #ty }
    });
    let types = operation.types.iter().map(|variable| {
        let field = dtype_field(&variable.name);
        let docs = doc(&format!("What `{}` is in this call, if anything has bound it.", variable.name));
        quote! { #docs pub #field: Option<::lz_core::DType> }
    });
    let inputs = dynamic_inputs(operation, &quote! { self.args });
    let params = operation.params.iter().map(|param| {
        let field = ident(&param.name);
        let value = param_value(&param.ty, quote! { self.#field });
        quote! { ::lz_core::Arg::Value(#value) }
    });
    let count = operation.inputs.len() + operation.params.len();
    quote! {
        /// A call that was checked: its axes are bound, its params have values. Only `check` makes one, so kernels may rely on it.
        pub struct #name<'a> {
            args: &'a #args<'a>,
            /// Sizes.
            pub axes: #axes,
            #(#fields,)*
            #(#types,)*
        }

        impl<'a> ::core::ops::Deref for #name<'a> {
            type Target = #args<'a>;
            #[inline(always)]
            fn deref(&self) -> &#args<'a> { self.args }
        }

        impl #name<'_> {
            /// As dynamic arguments, params filled in.
            pub fn to_args(&self) -> [::lz_core::Arg<'_>; #count] {
                [#(#inputs,)* #(#params,)*]
            }
        }
    }
}

/// The inputs that `holder` has, as dynamic arguments.
pub fn dynamic_inputs(operation: &Operation, holder: &TokenStream) -> Vec<TokenStream> {
    let inputs = operation.inputs.iter().map(|input| {
        let field = ident(&input.name);
        let wrap = match (input.kind, input.read_write) {
            (Kind::Tensor, false) => quote! { ::lz_core::Arg::Tensor },
            (Kind::Tensor, true) => quote! { ::lz_core::Arg::TensorMut },
            (Kind::Text, _) => quote! { ::lz_core::Arg::Text },
            (Kind::Tokenizer, _) => quote! { ::lz_core::Arg::Handle },
        };
        let value = if input.read_write {
            alias_written(input, quote! { #holder.#field })
        } else {
            quote! { #holder.#field }
        };
        if input.optional.is_some() {
            quote! { #value.map_or(::lz_core::Arg::Absent, #wrap) }
        } else {
            quote! { #wrap(#value) }
        }
    });
    inputs.collect()
}

/// A second view of a tensor that is changed in place, for the kernel alone.
pub fn alias_written(input: &Input, place: TokenStream) -> TokenStream {
    if input.optional.is_some() {
        quote! { #place.as_ref().map(|tensor| unsafe { tensor.lend() }) }
    } else {
        quote! { unsafe { #place.lend() } }
    }
}

/// Where a kernel writes: the schema's outputs, then the inputs that are changed in place.
fn out(operation: &Operation) -> TokenStream {
    let name = OperationNames::of(operation).out;
    let mut fields = Vec::new();
    let mut reborrows = Vec::new();
    let mut to_args = Vec::new();
    for output in &operation.outputs {
        let (field, ty) = (ident(&output.name), out_type(operation, output));
        let docs = sentence(&output.doc, &output.name);
        fields.push(quote! { #docs pub #field: #ty });
        let dynamic = output.is_dynamic(operation);
        let wrap = match (output.kind, dynamic) {
            (Kind::Text, _) => quote! { ::lz_core::OutArg::Text },
            (_, true) => quote! { ::lz_core::OutArg::Dynamic },
            _ => quote! { ::lz_core::OutArg::Tensor },
        };
        let reborrow = match (dynamic, output.when.is_some()) {
            (true, false) => quote! { &mut *self.#field },
            (true, true) => quote! { self.#field.as_deref_mut() },
            (false, false) => quote! { self.#field.reborrow() },
            (false, true) => quote! { self.#field.as_mut().map(::lz_core::TensorMut::reborrow) },
        };
        to_args.push(if output.when.is_some() {
            quote! { #reborrow.map_or(::lz_core::OutArg::Absent, #wrap) }
        } else {
            quote! { #wrap(#reborrow) }
        });
        reborrows.push(quote! { #field: #reborrow });
    }
    for input in operation.inputs.iter().filter(|input| input.read_write) {
        let field = ident(&input.name);
        let docs = sentence(&format!("{} Read and written through here.", input.doc), &input.name);
        if input.optional.is_some() {
            fields.push(quote! { #docs pub #field: Option<::lz_core::TensorMut<'a>> });
            reborrows.push(quote! { #field: self.#field.as_mut().map(::lz_core::TensorMut::reborrow) });
        } else {
            fields.push(quote! { #docs pub #field: ::lz_core::TensorMut<'a> });
            reborrows.push(quote! { #field: self.#field.reborrow() });
        }
    }
    let count = operation.outputs.len();
    quote! {
        /// Where a kernel writes, checked against the call. Only generated code makes one.
        pub struct #name<'a> { #(#fields,)* checked: ::core::marker::PhantomData<&'a mut ()> }

        impl #name<'_> {
            /// The same places for a shorter time.
            #[inline(always)]
            pub fn reborrow(&mut self) -> #name<'_> {
                #name { #(#reborrows,)* checked: ::core::marker::PhantomData }
            }

            /// As dynamic outputs.
            pub fn to_args(&mut self) -> [::lz_core::OutArg<'_>; #count] {
                [#(#to_args,)*]
            }
        }
    }
}

/// The type of an output's place.
pub fn out_type(operation: &Operation, output: &Output) -> TokenStream {
    let plain = match (output.kind, output.is_dynamic(operation)) {
        (Kind::Text, _) => quote! { &'a mut Option<Vec<String>> },
        (_, true) => quote! { &'a mut Option<::lz_core::Tensor> },
        _ => quote! { ::lz_core::TensorMut<'a> },
    };
    if output.when.is_some() {
        quote! { Option<#plain> }
    } else {
        plain
    }
}

fn output(operation: &Operation) -> TokenStream {
    let name = OperationNames::of(operation).output;
    let fields = operation.outputs.iter().map(|output| {
        let (field, docs) = (ident(&output.name), sentence(&output.doc, &output.name));
        let plain = if output.kind == Kind::Text {
            quote! { Vec<String> }
        } else {
            quote! { ::lz_core::Tensor }
        };
        let ty = if output.when.is_some() {
            quote! { Option<#plain> }
        } else {
            plain
        };
        quote! { #docs pub #field: #ty }
    });
    quote! {
        /// Results in host memory of their own.
        #[derive(Debug)]
        pub struct #name { #(#fields,)* }
    }
}
