//! The Rust half of the C++ binding: one entry an operation, which lends the caller's arguments to the engine.
//!
//! Headers are in `cpp_header`, the bridge that names these entries in `cpp_bridge`.

use lz_schema::model::{DeviceRule, Kind, Operation};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use super::plugin::structures;
use crate::names::{OperationNames, ident};

/// The entries of one operation.
pub fn tokens(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let (function, info) = (&names.function, &names.info);
    let ask = format_ident!("{}_ask", names.function);
    let (args, _) = structures(operation);
    let module = ident(&operation.flat_name());
    let count = operation.outputs.len();
    // Results follow the first tensor that must be there to its device; without one they belong on the host.
    let followed = operation.inputs.iter().find(|input| {
        input.kind == Kind::Tensor && input.optional.is_none() && input.device == DeviceRule::Same
    });
    let place = followed.map_or_else(
        || quote! { lz_core::tensor::Place::HOST },
        |input| {
            let name = ident(&input.name);
            quote! { call.#name.place() }
        },
    );
    let mut make = Vec::new();
    let mut pass = Vec::new();
    let mut hand_over = Vec::new();
    for (number, output) in operation.outputs.iter().enumerate() {
        let (name, local) = (&output.name, format_ident!("output_{}", output.name));
        let slot = format_ident!("slot_{}", output.name);
        let (spec, wants) = (format_ident!("{}_spec", output.name), format_ident!("wants_{}", output.name));
        make.push(quote! { let #slot = outputs.at(#number)?; });
        match (output.is_dynamic(operation), output.when.is_some()) {
            (true, conditional) => {
                make.push(quote! { let mut #local = None; });
                let hand = if output.kind == Kind::Text {
                    quote! { crate::output::hand_over_texts }
                } else {
                    quote! { crate::output::hand_over_tensor }
                };
                if conditional {
                    make.push(quote! { let #wants = call.#wants(); });
                    pass.push(quote! { if #wants { Some(&mut #local) } else { None } });
                    hand_over.push(quote! {
                        if #wants { #hand(#slot, lz_core::check::produced(&lz_ops::#info, #name, #local)?); } else { crate::output::absent(#slot); }
                    });
                } else {
                    pass.push(quote! { &mut #local });
                    hand_over.push(
                        quote! { #hand(#slot, lz_core::check::produced(&lz_ops::#info, #name, #local)?); },
                    );
                }
            }
            (false, conditional) => {
                let find = if conditional {
                    quote! { optional_place }
                } else {
                    quote! { place }
                };
                let there = format_ident!("has_{}", output.name);
                make.push(quote! {
                    let mut #local = lz_core::TensorMut::empty();
                    let #there = crate::output::#find(
                        &lz_ops::#info, #name, || call.#spec(), #slot, &options, #place, &mut #local,
                    )?;
                });
                pass.push(if conditional {
                    quote! { #there.then_some(&#local) }
                } else {
                    quote! { &#local }
                });
            }
        }
    }
    let docs = format!(
        " Calls `{}`, or measures its kernels where there is a place for what they take.",
        operation.name
    );
    let ask_docs = format!(" Says what would be run for a call of `{}`, and why.", operation.name);
    quote! {
        #![allow(clippy::all, unused_variables, unused_mut, unused_imports, reason = "schemas differ in what they use")]
        #![allow(clippy::undocumented_unsafe_blocks, reason = "each lends what the bridge's caller vouches for")]
        use lz_plugin::abi::{CallOptions, Output};
        use lz_plugin::generated::#module::#args;

        use crate::call::{Call, Failure, Outcome, Room};
        use crate::engine::Engine;

        #[doc = #docs]
        ///
        /// # Safety
        /// The pointers name structures as `lz_plugin.h` describes them, and what those describe is there for the time of the call.
        pub unsafe fn #function(
            engine: &Engine,
            args: *const #args,
            outputs: *mut Output,
            options: *const CallOptions,
            tuned: *mut crate::generated::bridge::ffi::Tuned,
        ) -> *mut Failure {
            crate::call::guarded_call(|| {
                let mut room = Room::default();
                // SAFETY: the caller vouches for all of it.
                let (args, mut outputs, options) =
                    unsafe { Call::<#count>::read(&lz_ops::#info, args, outputs, options, &mut room) }?;
                let outputs = &mut outputs;
                // SAFETY: as above.
                let outcome = unsafe {
                    args.lend(|args| -> Outcome {
                        let mut checked = None;
                        let call = args.check_in(&mut checked)?;
                        #(#make)*
                        {
                            let mut places = None;
                            let out = call.outputs_at(&mut places, #(#pass),*)?;
                            options.run(|| match tuned.as_mut() {
                                None => call.run_in(&engine.inner, out),
                                Some(tuned) => crate::perfdb::measure(
                                    &engine.inner,
                                    &lz_ops::#info,
                                    &call.context_with(out),
                                    &mut |entry, run| call.run_kernel(entry, out.reborrow(), run),
                                    tuned,
                                ),
                            })?;
                        }
                        #(#hand_over)*
                        Ok(())
                    })
                };
                crate::call::settle(&lz_ops::#info, outcome)
            })
        }

        #[doc = #ask_docs]
        ///
        /// # Safety
        /// As above.
        pub unsafe fn #ask(
            engine: &Engine,
            args: *const #args,
            answer: &mut crate::generated::bridge::ffi::Answer,
        ) -> *mut Failure {
            crate::call::guarded_call(|| {
                let mut room = None;
                // SAFETY: the caller vouches for all of it.
                let args = unsafe { crate::call::arguments(&lz_ops::#info, args, &mut room) }?;
                // SAFETY: as above.
                let outcome = unsafe {
                    args.lend(|args| -> Outcome {
                        let context = args.check()?.context();
                        Ok(crate::inspect::answer(&engine.inner, &lz_ops::#info, &context, answer)?)
                    })
                };
                crate::call::settle(&lz_ops::#info, outcome)
            })
        }
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
