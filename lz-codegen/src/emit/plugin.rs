//! The Rust half of the C ABI: one structure of arguments and one of outputs an operation, and how typed calls cross.
//!
//! The C half is in `plugin_header`; both take the order of fields from [`fields`].

use lz_schema::model::{Input, Kind, Operation, Output, Param, ParamType};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

use crate::names::{OperationNames, ident};

/// Names of the structures of one operation.
pub fn structures(operation: &Operation) -> (Ident, Ident) {
    let names = OperationNames::of(operation);
    (format_ident!("{}Args", names.args), format_ident!("{}Places", names.args))
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

/// One operation.
pub fn tokens(operation: &Operation) -> TokenStream {
    let structs = structs(operation);
    let lend = lend(operation);
    let kernel = kernel(operation);
    quote! {
        #![allow(clippy::all, unused_variables, unused_mut, reason = "schemas differ in what they use")]
        #![allow(clippy::undocumented_unsafe_blocks, reason = "each lends what a checked call holds to the plugin, for the call")]
        use crate::abi;
        use crate::native::Native;

        #structs
        #lend
        #kernel
    }
}

fn structs(operation: &Operation) -> TokenStream {
    let (args, places) = structures(operation);
    let flat = operation.flat_name();
    let mut arguments = Vec::new();
    for field in fields(operation) {
        let (name, ty, docs) = match field {
            Field::Input(input) => {
                let ty = match (input.kind, input.read_write) {
                    (Kind::Tensor, false) => quote! { *const abi::Tensor },
                    (Kind::Tensor, true) => quote! { *mut abi::Tensor },
                    (Kind::Text, _) => quote! { *const abi::Texts },
                    (Kind::Tokenizer, _) => quote! { *const abi::Tokenizer },
                };
                (&input.name, ty, &input.doc)
            }
            Field::Param(param, _) => {
                let ty = match &param.ty {
                    ParamType::Int => quote! { i64 },
                    ParamType::F32 => quote! { f32 },
                    ParamType::F64 => quote! { f64 },
                    ParamType::Bool => quote! { u8 },
                    ParamType::Enum(_) => quote! { u32 },
                };
                (&param.name, ty, &param.doc)
            }
        };
        let (name, docs) = (ident(name), super::sentence(docs, name));
        arguments.push(quote! { #docs pub #name: #ty });
    }
    let outputs = operation.outputs.iter().map(|output| {
        let (name, docs) = (ident(&output.name), super::sentence(&output.doc, &output.name));
        let ty = match (output.kind, output.is_dynamic(operation)) {
            (Kind::Text, _) => quote! { *mut abi::TextsOutput },
            (_, true) => quote! { *mut abi::Dynamic },
            _ => quote! { *mut abi::Tensor },
        };
        quote! { #docs pub #name: #ty }
    });
    let args_docs = format!(" `lz_{flat}_args`: the arguments of `{}`.", operation.name);
    let places_docs = format!(" `lz_{flat}_out`: where a kernel of `{}` writes.", operation.name);
    let args_name = format!("lz_{flat}_args");
    quote! {
        #[doc = #args_docs]
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct #args {
            /// Bytes of this structure.
            pub size: usize,
            /// Which params are given: bit n is the n-th param. Kernels get all of them.
            pub given: u64,
            #(#arguments,)*
        }

        // SAFETY: `repr(C)`, begins with its size, and holds pointers and numbers.
        unsafe impl abi::Versioned for #args {}

        // SAFETY: the C structure of that name is generated from the same schema.
        #[cfg(feature = "cxx")]
        unsafe impl cxx::ExternType for #args {
            type Id = cxx::type_id!(#args_name);
            type Kind = cxx::kind::Trivial;
        }

        #[doc = #places_docs]
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct #places {
            /// Bytes of this structure.
            pub size: usize,
            #(#outputs,)*
        }
    }
}

/// From C to the typed arguments.
fn lend(operation: &Operation) -> TokenStream {
    let (args, _) = structures(operation);
    let typed = OperationNames::of(operation).args;
    let mut locals = Vec::new();
    let mut values = Vec::new();
    let mut described = Vec::new();
    for field in fields(operation) {
        match field {
            Field::Input(input) => {
                let (name, text) = (ident(&input.name), &input.name);
                // Tensors are described where they stay.
                let (read, empty) = match (input.kind, input.read_write, input.optional.is_some()) {
                    (Kind::Tensor, false, false) => {
                        (quote! { tensor }, quote! { lz_core::TensorView::empty() })
                    }
                    (Kind::Tensor, true, false) => {
                        (quote! { tensor_mut }, quote! { lz_core::TensorMut::empty() })
                    }
                    (Kind::Tensor, false, true) => (quote! { optional_tensor }, quote! { None }),
                    (Kind::Tensor, true, true) => (quote! { optional_tensor_mut }, quote! { None }),
                    (Kind::Text, ..) => (quote! { texts }, quote! { &#name }),
                    (Kind::Tokenizer, ..) => (quote! { tokenizer }, quote! { #name }),
                };
                if input.kind == Kind::Tensor {
                    described.push(quote! {
                        // SAFETY: passed on.
                        unsafe { abi::#read(#text, self.#name, &mut args.#name) }?;
                    });
                } else {
                    locals.push(quote! {
                        // SAFETY: passed on.
                        let #name = unsafe { abi::#read(#text, self.#name) }?;
                    });
                }
                values.push(quote! { #name: #empty });
            }
            Field::Param(param, number) => {
                let (name, text, bit) = (ident(&param.name), &param.name, number as u32);
                let value = match &param.ty {
                    ParamType::Bool => quote! { self.#name != 0 },
                    ParamType::Enum(_) => {
                        let ty = OperationNames::enumeration(operation, &param.name);
                        quote! { abi::case(#text, lz_ops::#ty::from_number(self.#name), self.#name, lz_ops::#ty::NAMES)? }
                    }
                    _ => quote! { self.#name },
                };
                values.push(if param.default.is_some() {
                    quote! { #name: if abi::is_given(self.given, #bit) { Some(#value) } else { None } }
                } else {
                    quote! { #name: #value }
                });
            }
        }
    }
    quote! {
        impl #args {
            /// Lends the arguments as the engine takes them.
            ///
            /// # Safety
            /// Every pointer is null or names a structure of its kind; what those describe stays as it is until `lent` returns,
            /// and what the operation changes in place is nobody else's until then.
            #[inline]
            pub unsafe fn lend<R>(&self, lent: impl FnOnce(&lz_ops::#typed<'_>) -> R) -> Result<R, lz_core::Reason> {
                #(#locals)*
                let mut args = lz_ops::#typed { #(#values,)* };
                #(#described)*
                Ok(lent(&args))
            }
        }
    }
}

/// From the typed call to C.
fn kernel(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let (args, places) = structures(operation);
    let (call, out, kernel) = (&names.call, &names.out, &names.kernel);
    let mut locals = Vec::new();
    let mut values = Vec::new();
    for field in fields(operation) {
        match field {
            Field::Input(input) => {
                let (name, local) = (ident(&input.name), format_ident!("input_{}", input.name));
                let (made, pointer) = lent_input(input, &name, &local);
                locals.push(made);
                values.push(quote! { #name: #pointer });
            }
            Field::Param(param, _) => {
                let name = ident(&param.name);
                values.push(match &param.ty {
                    ParamType::Bool => quote! { #name: u8::from(call.#name) },
                    ParamType::Enum(_) => quote! { #name: call.#name as u32 },
                    _ => quote! { #name: call.#name },
                });
            }
        }
    }
    let mut destinations = Vec::new();
    for output in &operation.outputs {
        let (name, local) = (ident(&output.name), format_ident!("output_{}", output.name));
        let (made, pointer) = lent_output(operation, output, &name, &local);
        locals.push(made);
        destinations.push(quote! { #name: #pointer });
    }
    quote! {
        impl lz_ops::#kernel for Native<#args, #places> {
            fn run(
                &self,
                call: &lz_ops::#call<'_>,
                mut out: lz_ops::#out<'_>,
                run: &mut lz_core::Run<'_>,
            ) -> Result<(), lz_core::KernelError> {
                #(#locals)*
                let args = #args { size: size_of::<#args>(), given: u64::MAX, #(#values,)* };
                let places = #places { size: size_of::<#places>(), #(#destinations,)* };
                self.invoke(&args, &places, run)
            }
        }
    }
}

fn lent_input(input: &Input, name: &Ident, local: &Ident) -> (TokenStream, TokenStream) {
    match (input.kind, input.read_write, input.optional.is_some()) {
        (Kind::Tensor, false, false) => {
            (quote! { let #local = abi::Tensor::of(&call.#name); }, quote! { &raw const #local })
        }
        (Kind::Tensor, false, true) => (
            quote! { let #local = call.#name.as_ref().map(abi::Tensor::of); },
            quote! { abi::pointer(#local.as_ref()) },
        ),
        // What is changed in place is read and written through the outputs' own view of it.
        (Kind::Tensor, true, false) => {
            (quote! { let mut #local = abi::Tensor::of_mut(&mut out.#name); }, quote! { &raw mut #local })
        }
        (Kind::Tensor, true, true) => (
            quote! { let mut #local = out.#name.as_mut().map(abi::Tensor::of_mut); },
            quote! { abi::pointer_mut(#local.as_mut()) },
        ),
        (Kind::Text, ..) => {
            let items = format_ident!("{local}_items");
            (
                quote! {
                    let #items = abi::text_items(call.#name);
                    let #local = abi::Texts { items: #items.as_ptr(), count: #items.len() };
                },
                quote! { &raw const #local },
            )
        }
        (Kind::Tokenizer, ..) => {
            (quote! { let #local = abi::Tokenizer::of(call.#name)?; }, quote! { &raw const #local })
        }
    }
}

fn lent_output(
    operation: &Operation,
    output: &Output,
    name: &Ident,
    local: &Ident,
) -> (TokenStream, TokenStream) {
    let make = match (output.kind, output.is_dynamic(operation)) {
        (Kind::Text, _) => quote! { abi::TextsOutput::of },
        (_, true) => quote! { abi::Dynamic::of },
        _ => quote! { abi::Tensor::of_mut },
    };
    if output.when.is_some() {
        // A dynamic place is a reference already.
        let borrow = if output.is_dynamic(operation) {
            quote! { as_deref_mut }
        } else {
            quote! { as_mut }
        };
        (
            quote! { let mut #local = out.#name.#borrow().map(#make); },
            quote! { abi::pointer_mut(#local.as_mut()) },
        )
    } else if output.is_dynamic(operation) {
        (quote! { let mut #local = #make(&mut *out.#name); }, quote! { &raw mut #local })
    } else {
        (quote! { let mut #local = #make(&mut out.#name); }, quote! { &raw mut #local })
    }
}

/// `generated/mod.rs`: all operations, and the kernel behind a name and an untyped table.
pub fn index(operations: &[Operation]) -> TokenStream {
    let modules: Vec<_> = operations.iter().map(|operation| ident(&operation.flat_name())).collect();
    let docs = operations.iter().map(|operation| format!(" `{}`.", operation.name));
    let arms = operations.iter().zip(&modules).map(|(operation, module)| {
        let (args, places) = structures(operation);
        let entry = OperationNames::of(operation).entry;
        let name = &operation.name;
        quote! {
            #name => {
                // SAFETY: passed on.
                let kernel = unsafe { Native::<#module::#args, #module::#places>::new(vtable.cast(), owner) }?;
                lz_ops::#entry(spec, kernel)
            }
        }
    });
    quote! {
        #![allow(clippy::undocumented_unsafe_blocks, reason = "each passes on what its caller vouches for")]
        use std::any::Any;
        use std::ffi::c_void;
        use std::sync::Arc;

        use crate::native::Native;

        #(#[doc = #docs] pub mod #modules;)*

        /// The kernel behind a table of the spec's operation, as a registry takes it; `None` if there is no such operation here.
        ///
        /// # Safety
        /// As for [`Native::new`], with the table of the operation that the spec names.
        pub unsafe fn entry(
            spec: lz_core::KernelSpec,
            vtable: *const c_void,
            owner: Arc<dyn Any + Send + Sync>,
        ) -> Result<Option<lz_core::KernelEntry>, lz_core::Reason> {
            Ok(Some(match spec.operation.as_str() {
                #(#arms)*
                _ => return Ok(None),
            }))
        }
    }
}
