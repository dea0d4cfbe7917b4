//! The context builder: a checked call packed into what selection sees. No allocation.

use std::collections::HashMap;

use lz_schema::layout::{FieldKind, Store, context_layout};
use lz_schema::model::{Kind, Operation, ParamType, Select};
use proc_macro2::TokenStream;
use quote::quote;

use crate::names::{OperationNames, dtype_field, ident};

/// The static description with its fields, and `context` of a checked call.
pub fn tokens(operation: &Operation) -> TokenStream {
    let layout = match context_layout(operation) {
        Ok(layout) => layout,
        Err(problem) => {
            let message = format!("{}: {problem}", operation.name);
            return quote! { compile_error!(#message); };
        }
    };
    let names = OperationNames::of(operation);
    let (call, out) = (&names.call, &names.out);
    let fields = layout.iter().map(|field| {
        let name = &field.name;
        let kind = field_kind(operation, &field.kind);
        let store = match field.store {
            Store::Flag { word, shift, bits } => {
                let (word, shift, bits) = (word as u8, shift as u8, bits as u8);
                quote! { ::lz_core::context::Store::Flag { word: #word, shift: #shift, bits: #bits } }
            }
            Store::Axis(axis) => {
                let axis = axis as u8;
                quote! { ::lz_core::context::Store::Axis(#axis) }
            }
            Store::Scalar(scalar) => {
                let scalar = scalar as u8;
                quote! { ::lz_core::context::Store::Scalar(#scalar) }
            }
        };
        quote! {
            ::lz_core::context::Field { name: ::std::borrow::Cow::Borrowed(#name), kind: #kind, store: #store }
        }
    });
    // Flags of one word are gathered into one expression, so that the compiler stores each word once.
    let mut words: HashMap<u32, Vec<TokenStream>> = HashMap::new();
    let mut stores = Vec::new();
    let mut fresh = Vec::new();
    let mut given = Vec::new();
    for field in &layout {
        if let (FieldKind::OutputStrides(index), Store::Flag { word, shift, .. }) = (&field.kind, field.store)
        {
            let output = &operation.outputs[*index];
            let (word, place) = (word as usize, ident(&output.name));
            fresh.push(quote! { context.put(#word, #shift, ::lz_core::context::FRESH_OUTPUT); });
            let class = if output.when.is_some() {
                quote! {
                    out.#place.as_ref().map_or(::lz_core::context::FRESH_OUTPUT, |tensor| {
                        ::lz_core::context::stride_class(&tensor.as_view())
                    })
                }
            } else {
                quote! { ::lz_core::context::stride_class(&out.#place.as_view()) }
            };
            given.push(quote! { context.put(#word, #shift, #class); });
            continue;
        }
        let value = raw_value(operation, &field.kind);
        match field.store {
            Store::Flag { word, shift, .. } => {
                words.entry(word).or_default().push(quote! { (#value) << #shift })
            }
            Store::Axis(axis) => {
                if !operation.axes[axis].dynamic {
                    stores.push(quote! { context.axes[#axis] = #value; });
                }
            }
            Store::Scalar(scalar) => stores.push(quote! { context.scalars[#scalar] = #value; }),
        }
    }
    let mut words: Vec<(u32, Vec<TokenStream>)> = words.into_iter().collect();
    words.sort_by_key(|(word, _)| *word);
    let words = words.into_iter().map(|(word, parts)| {
        let word = word as usize;
        quote! { context.flags[#word] = #(#parts)|*; }
    });
    let count = layout.len();
    quote! {
        const FIELDS: [::lz_core::context::Field; #count] = [#(#fields,)*];

        impl #call<'_> {
            /// What selection sees of this call if its outputs are allocated for it.
            #[allow(unused_mut, reason = "not every operation has outputs whose places are given")]
            pub fn context(&self) -> ::lz_core::Context {
                let mut context = self.inputs_context();
                #(#fresh)*
                context
            }

            /// What selection sees of this call with these outputs.
            #[inline]
            #[allow(unused_mut, unused_variables, reason = "not every operation has outputs whose places are given")]
            pub fn context_with(&self, out: &#out<'_>) -> ::lz_core::Context {
                let mut context = self.inputs_context();
                #(#given)*
                context
            }

            #[inline]
            fn inputs_context(&self) -> ::lz_core::Context {
                let mut context = ::lz_core::Context::EMPTY;
                #(#words)*
                #(#stores)*
                context
            }
        }
    }
}

fn field_kind(operation: &Operation, kind: &FieldKind) -> TokenStream {
    let path = quote! { ::lz_core::context::FieldKind };
    match kind {
        FieldKind::Axis(_, Select::Exact) => quote! { #path::Axis { buckets: None } },
        FieldKind::Axis(_, Select::Ignored) => {
            quote! { #path::Axis { buckets: Some(::std::borrow::Cow::Borrowed(&[])) } }
        }
        FieldKind::Axis(_, Select::Bucket(bounds)) => {
            quote! { #path::Axis { buckets: Some(::std::borrow::Cow::Borrowed(&[#(#bounds),*])) } }
        }
        FieldKind::Param(param) => match &operation.params[*param].ty {
            ParamType::Int => quote! { #path::Int },
            ParamType::F32 | ParamType::F64 => quote! { #path::Float },
            ParamType::Bool => quote! { #path::Bool },
            ParamType::Enum(cases) => quote! {
                #path::Enum(::std::borrow::Cow::Borrowed(&[#(::std::borrow::Cow::Borrowed(#cases)),*]))
            },
        },
        FieldKind::Given(_) => quote! { #path::Given },
        FieldKind::DType(_) => quote! { #path::DType },
        FieldKind::Strides(_) | FieldKind::OutputStrides(_) => quote! { #path::Strides },
        FieldKind::Digest(_) => quote! { #path::Digest },
        FieldKind::Place => quote! { #path::Place },
    }
}

/// The raw bits of a field, taken from the checked call.
fn raw_value(operation: &Operation, kind: &FieldKind) -> TokenStream {
    match kind {
        FieldKind::Axis(axis, _) => {
            let field = ident(&operation.axes[*axis].name);
            quote! { self.axes.#field }
        }
        FieldKind::Param(param) => {
            let definition = &operation.params[*param];
            let field = ident(&definition.name);
            match definition.ty {
                ParamType::F32 => quote! { f64::from(self.#field).to_bits() },
                ParamType::F64 => quote! { self.#field.to_bits() },
                ParamType::Enum(_) => quote! { self.#field as u32 as u64 },
                _ => quote! { self.#field as u64 },
            }
        }
        FieldKind::Given(input) => {
            let field = ident(&operation.inputs[*input].name);
            quote! { u64::from(self.args.#field.is_some()) }
        }
        FieldKind::DType(variable) => {
            let field = dtype_field(&operation.types[*variable].name);
            quote! { self.#field.map_or(0, |dtype| dtype as u64) }
        }
        FieldKind::Strides(input) => {
            let definition = &operation.inputs[*input];
            let field = ident(&definition.name);
            let view = match (definition.read_write, definition.optional.is_some()) {
                (false, false) => return quote! { ::lz_core::context::stride_class(&self.args.#field) },
                (true, false) => {
                    return quote! { ::lz_core::context::stride_class(&self.args.#field.as_view()) };
                }
                (false, true) => quote! { self.args.#field.as_ref() },
                (true, true) => {
                    quote! { self.args.#field.as_ref().map(::lz_core::TensorMut::as_view).as_ref() }
                }
            };
            quote! { #view.map_or(0, ::lz_core::context::stride_class) }
        }
        // The places of outputs are not part of a call; `tokens` handles them.
        FieldKind::OutputStrides(_) => quote! { ::lz_core::context::FRESH_OUTPUT },
        FieldKind::Digest(input) => {
            let field = ident(&operation.inputs[*input].name);
            quote! { ::lz_core::context::digest_bits(&self.args.#field.digest()) }
        }
        FieldKind::Place => {
            match operation.inputs.iter().find(|input| input.kind == Kind::Tensor && input.optional.is_none())
            {
                Some(input) => {
                    let field = ident(&input.name);
                    quote! { ::lz_core::context::place_bits(self.args.#field.place()) }
                }
                None => quote! { ::lz_core::context::place_bits(::lz_core::tensor::Place::HOST) },
            }
        }
    }
}
