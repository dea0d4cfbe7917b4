//! The context builder: a checked call packed into what selection sees. No allocation.

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
    // The words of the context in order: flags, axes, scalars. What shares a word is gathered into one expression, so that
    // the compiler stores each word once. The classes of outputs are handed in: they are not part of a call.
    let (mut flags, mut axes, mut scalars) = (Vec::new(), Vec::new(), Vec::new());
    let (mut classes, mut fresh, mut given) = (Vec::new(), Vec::new(), Vec::new());
    for field in &layout {
        let value = match &field.kind {
            FieldKind::OutputStrides(index) => {
                let output = &operation.outputs[*index];
                let (place, class) = (ident(&output.name), ident(&format!("class_of_{}", output.name)));
                fresh.push(quote! { ::lz_core::context::FRESH_OUTPUT });
                given.push(if output.when.is_some() {
                    quote! {
                        out.#place.as_ref()
                            .map_or(::lz_core::context::FRESH_OUTPUT, ::lz_core::TensorMut::stride_class)
                    }
                } else {
                    quote! { out.#place.stride_class() }
                });
                classes.push(class.clone());
                quote! { #class }
            }
            kind => raw_value(operation, kind),
        };
        let (words, index, value) = match field.store {
            Store::Flag { word, shift, .. } => (&mut flags, word as usize, quote! { (#value) << #shift }),
            Store::Axis(axis) if operation.axes[axis].dynamic => (&mut axes, axis, quote! { 0 }),
            Store::Axis(axis) => (&mut axes, axis, quote! { #value as u64 }),
            Store::Scalar(scalar) => (&mut scalars, scalar, value),
        };
        if words.len() <= index {
            words.resize_with(index + 1, Vec::new);
        }
        words[index].push(value);
    }
    let extent = {
        let (flags, axes, scalars) = (flags.len(), axes.len(), scalars.len());
        quote! { ::lz_core::context::Extent::new(#flags, #axes, #scalars) }
    };
    let words = flags.into_iter().chain(axes).chain(scalars).map(|parts| quote! { #(#parts)|* });
    let count = layout.len();
    quote! {
        const FIELDS: [::lz_core::context::Field; #count] = [#(#fields,)*];

        const EXTENT: ::lz_core::context::Extent = #extent;

        impl #call<'_> {
            /// What selection sees of this call if its outputs are allocated for it.
            #[inline]
            pub fn context(&self) -> ::lz_core::Context {
                self.packed(#(#fresh),*)
            }

            /// What selection sees of this call with these outputs.
            #[inline]
            #[allow(unused_variables, reason = "not every operation has outputs whose places are given")]
            pub fn context_with(&self, out: &#out<'_>) -> ::lz_core::Context {
                self.packed(#(#given),*)
            }

            #[inline(always)]
            fn packed(&self, #(#classes: u64),*) -> ::lz_core::Context {
                ::lz_core::Context::packed(EXTENT, [#(#words),*])
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
                (_, false) => return quote! { self.args.#field.stride_class() },
                (false, true) => quote! { ::lz_core::TensorView },
                (true, true) => quote! { ::lz_core::TensorMut },
            };
            quote! { self.args.#field.as_ref().map_or(0, #view::stride_class) }
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
