//! The trait that backends implement, how such a kernel enters the registry, and the functions that callers use.

use lz_schema::model::{DeviceRule, Input, Kind, Operation, Output};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use super::expressions::{bring_into_scope, holds_sizes, push_sizes, result};
use super::op::{alias_written, out_type};
use super::validate::by_case;
use crate::names::{OperationNames, dtype_field, ident};

/// Trait, handle, entry, dispatch.
pub fn tokens(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let kernel = kernel_trait(operation, &names);
    let outputs = outputs(operation, &names);
    let dispatch = dispatch(operation, &names);
    quote! { #kernel #outputs #dispatch }
}

fn kernel_trait(operation: &Operation, names: &OperationNames) -> TokenStream {
    let OperationNames { kernel, call, out, handle, entry, args, info, .. } = names;
    let title = format!(" A kernel of `{}`.", operation.name);
    let entry_doc = format!(" A registry entry for a kernel of `{}`.", operation.name);
    let rebuild = rebuild_out(operation);
    quote! {
        #[doc = #title]
        pub trait #kernel: Send + Sync + 'static {
            /// Runs a checked call into places that fit it. Inputs that are changed in place are read and written through `out`.
            fn run(&self, call: &#call<'_>, out: #out<'_>, run: &mut ::lz_core::Run<'_>) -> Result<(), ::lz_core::KernelError>;

            /// This kernel and its spec, as a registry holds them.
            fn into_entry(self, spec: ::lz_core::KernelSpec) -> ::lz_core::KernelEntry where Self: Sized { #entry(spec, self) }
        }

        /// A typed kernel as the registry holds it.
        pub struct #handle(Box<dyn #kernel>);

        impl ::lz_core::Kernel for #handle {
            fn as_any(&self) -> &dyn ::core::any::Any { self }

            fn run(
                &self,
                args: &mut [::lz_core::Arg<'_>],
                outputs: &mut [::lz_core::OutArg<'_>],
                run: &mut ::lz_core::Run<'_>,
            ) -> Result<(), ::lz_core::KernelError> {
                let Some(args) = #args::from_args(args) else {
                    return Err(::lz_core::KernelError::failed("the arguments are not those of this operation"));
                };
                let mut room = None;
                let call = args.check_in(&mut room).map_err(::lz_core::KernelError::invalid)?;
                #rebuild
                self.0.run(call, out, run)
            }
        }

        #[doc = #entry_doc]
        pub fn #entry(spec: ::lz_core::KernelSpec, kernel: impl #kernel) -> ::lz_core::KernelEntry {
            ::lz_core::KernelEntry::new(spec, #handle(Box::new(kernel))).of(&#info)
        }
    }
}

/// `out` from dynamic outputs, checked.
fn rebuild_out(operation: &Operation) -> TokenStream {
    let locals: Vec<_> =
        operation.outputs.iter().map(|output| format_ident!("output_{}", output.name)).collect();
    let takes = operation.outputs.iter().zip(&locals).map(|(output, local)| {
        let arm = match (output.kind, output.is_dynamic(operation)) {
            (Kind::Text, _) => quote! { Some(::lz_core::OutArg::Text(place)) => Some(place) },
            (_, true) => quote! { Some(::lz_core::OutArg::Dynamic(place)) => Some(place) },
            _ => quote! { Some(::lz_core::OutArg::Tensor(place)) => Some(place) },
        };
        let message = format!("output {} has no place to go", output.name);
        let value = quote! { match next.next().map(::lz_core::OutArg::reborrow) { #arm, _ => None } };
        if output.when.is_some() {
            quote! { let #local = #value; }
        } else {
            quote! { let Some(#local) = (#value) else { return Err(::lz_core::KernelError::failed(#message)); }; }
        }
    });
    quote! {
        #[allow(unused_mut, unused_variables, reason = "operations without outputs take nothing")]
        let mut next = outputs.iter_mut();
        #(#takes)*
        let out = call.outputs(#(#locals),*).map_err(::lz_core::KernelError::invalid)?;
    }
}

fn condition(operation: &Operation, output: &Output) -> Option<TokenStream> {
    output.when.as_ref().map(|when| {
        let result = result(operation, when);
        quote! { matches!(#result, Ok(true)) }
    })
}

/// What the outputs will be, and the check of the places that a caller gives for them.
fn outputs(operation: &Operation, names: &OperationNames) -> TokenStream {
    let OperationNames { call, out, info, .. } = names;
    let scope = bring_into_scope(operation);
    let mut infer = Vec::new();
    let mut params = Vec::new();
    let mut lent = Vec::new();
    let mut lend = Vec::new();
    let mut fits = Vec::new();
    let mut fields = Vec::new();
    let mut problem_args = Vec::new();
    for output in &operation.outputs {
        let field = ident(&output.name);
        let ty = out_type(operation, output);
        params.push(quote! { #field: #ty });
        fields.push(quote! { #field });
        let dynamic = output.is_dynamic(operation);
        let wrap = match output.kind {
            _ if !dynamic => quote! { |place| ::lz_core::OutArg::Tensor(unsafe { place.lend() }) },
            Kind::Text => quote! { ::lz_core::OutArg::Text },
            _ => quote! { ::lz_core::OutArg::Dynamic },
        };
        problem_args.push(match (dynamic, output.when.is_some()) {
            (_, true) => quote! { #field.map_or(::lz_core::OutArg::Absent, #wrap) },
            (true, false) => quote! { #wrap(#field) },
            (false, false) => quote! { ::lz_core::OutArg::Tensor(unsafe { #field.lend() }) },
        });
        let (by_reference, passed) = match (dynamic, output.when.is_some()) {
            (true, _) => (ty, quote! { #field }),
            (false, true) => (quote! { Option<&::lz_core::TensorMut<'a>> }, quote! { #field.as_ref() }),
            (false, false) => (quote! { &::lz_core::TensorMut<'a> }, quote! { &#field }),
        };
        lent.push(quote! { #field: #by_reference });
        lend.push(passed);
        let present = condition(operation, output);
        if dynamic {
            if let Some(present) = present {
                let wants = format_ident!("wants_{}", output.name);
                let docs = format!(" Whether this call produces `{}`.", output.name);
                infer.push(quote! {
                    #[doc = #docs]
                    #[allow(unused_variables, reason = "schemas differ in what they use")]
                    pub fn #wants(&self) -> bool { #scope #present }
                });
                fits.push(quote! { #field.is_some() == (#present) });
            }
            continue;
        }
        let spec = format_ident!("{}_spec", output.name);
        let shape = by_case(operation, &output.shape, |dims| push_sizes(operation, dims));
        let dtype = by_case(operation, &output.dtype, |reference| match reference {
            lz_schema::model::DTypeRef::Fixed(dtype) => {
                let number = *dtype as u8;
                quote! { ::lz_core::DType::from_number(#number)? }
            }
            lz_schema::model::DTypeRef::Variable(variable) => {
                let field = dtype_field(&operation.types[*variable].name);
                quote! { self.#field? }
            }
        });
        let absent = present.as_ref().map(|present| quote! { if !(#present) { return None; } });
        let docs = format!(" Sizes and dtype of `{}`; `None` if this call does not produce it.", output.name);
        infer.push(quote! {
            #[doc = #docs]
            #[inline]
            #[allow(unused_variables, unused_mut, reason = "schemas differ in what they use")]
            pub fn #spec(&self) -> Option<(::lz_core::tensor::Dims, ::lz_core::DType)> {
                #scope
                #absent
                let mut sizes = ::lz_core::tensor::Dims::empty();
                #shape
                let dtype = #dtype;
                Some((sizes, dtype))
            }
        });
        let others = operation.inputs.iter().filter(|input| input.kind == Kind::Tensor).map(|input| {
            let name = ident(&input.name);
            let same = input.device == DeviceRule::Same;
            let test = quote! { ::lz_core::check::fast::output_apart(place, view, #same) };
            match (input.read_write, input.optional.is_some()) {
                (false, false) => quote! { { let view = &self.args.#name; #test } },
                (false, true) => quote! { self.args.#name.as_ref().is_none_or(|view| #test) },
                (true, false) => quote! { { let view = self.args.#name.view(); #test } },
                (true, true) => quote! { self.args.#name.as_ref().is_none_or(|written| { let view = written.view(); #test }) },
            }
        });
        let earlier = operation.outputs.iter().take_while(|earlier| earlier.name != output.name).filter(|earlier| !earlier.is_dynamic(operation)).map(|earlier| {
            let name = ident(&earlier.name);
            if earlier.when.is_some() {
                quote! { #name.is_none_or(|other| ::lz_core::check::fast::apart(place.view(), other.view())) }
            } else {
                quote! { ::lz_core::check::fast::apart(place.view(), #name.view()) }
            }
        });
        let hosted = hosted_unless_followed(operation);
        let fit = format_ident!("fits_{}", output.name);
        let holds = by_case(operation, &output.shape, |dims| holds_sizes(operation, dims));
        infer.push(quote! {
            #[inline(always)]
            #[allow(unused_variables, unused_mut, reason = "schemas differ in what they use")]
            fn #fit(&self, place: &::lz_core::TensorMut<'_>) -> Option<bool> {
                #scope
                #absent
                let mut rest = place.shape();
                let holds = { #holds };
                Some(holds && ::lz_core::check::fast::output_fits(place, #dtype))
            }
        });
        let test = quote! { self.#fit(place) == Some(true) #(&& #others)* #(&& #earlier)* #hosted };
        fits.push(if let Some(present) = &present {
            quote! { match #field { Some(place) => #test, None => !(#present) } }
        } else {
            quote! { { let place = #field; #test } }
        });
    }
    // Copied word by word, because they were just written so.
    let moved = operation.outputs.iter().map(|output| {
        let field = ident(&output.name);
        match (output.is_dynamic(operation), output.when.is_some()) {
            (true, _) => quote! { #field },
            (false, false) => quote! { #field: unsafe { #field.lend() } },
            (false, true) => quote! { #field: #field.map(|place| unsafe { place.lend() }) },
        }
    });
    let written = operation.inputs.iter().filter(|input| input.read_write).map(|input| {
        let field = ident(&input.name);
        let lent = alias_written(input, quote! { self.args.#field });
        quote! { #field: #lent }
    });
    quote! {
        impl<'c> #call<'c> {
            #(#infer)*

            /// Checks the places for the results and readies them for a kernel.
            #[inline]
            #[allow(clippy::too_many_arguments, reason = "as many as the schema has")]
            pub fn outputs<'a>(&self, #(#params),*) -> Result<#out<'a>, ::lz_core::Error> where 'c: 'a {
                let mut room = None;
                self.outputs_in(&mut room, #(#fields),*)?;
                room.ok_or_else(|| ::lz_core::check::disagreement(&#info))
            }

            /// The same, made where they stay: places are too large to be handed from function to function in every call.
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "as many as the schema has")]
            pub fn outputs_in<'r, 'a>(
                &self,
                room: &'r mut Option<#out<'a>>,
                #(#params),*
            ) -> Result<&'r mut #out<'a>, ::lz_core::Error> where 'c: 'a {
                // SAFETY: what is lent ends here.
                unsafe { self.outputs_at(room, #(#lend),*) }
            }

            /// The same of places that stay where they are: nothing large is copied.
            ///
            /// # Safety
            /// Nobody looks through the places as long as there is something in the room.
            #[inline(always)]
            #[allow(unused_variables, clippy::too_many_arguments, reason = "schemas differ in what they use")]
            pub unsafe fn outputs_at<'r, 'a>(
                &self,
                room: &'r mut Option<#out<'a>>,
                #(#lent),*
            ) -> Result<&'r mut #out<'a>, ::lz_core::Error> where 'c: 'a {
                #scope
                if true #(&& (#fits))* {
                    Ok(room.insert(#out { #(#moved,)* #(#written,)* checked: ::core::marker::PhantomData }))
                } else {
                    Err(self.args.problems(Some(&[#(#problem_args),*])))
                }
            }
        }
    }
}

/// Results follow the inputs to their device; where no input can be on one, they belong on the host.
fn hosted_unless_followed(operation: &Operation) -> TokenStream {
    let follows = |input: &&Input| input.kind == Kind::Tensor && input.device == DeviceRule::Same;
    let inputs: Vec<&Input> = operation.inputs.iter().filter(follows).collect();
    if inputs.iter().any(|input| input.optional.is_none()) {
        return quote! {};
    }
    let given = inputs.iter().map(|input| ident(&input.name));
    quote! { && (place.place().is_host() #(|| self.args.#given.is_some())*) }
}

fn dispatch(operation: &Operation, names: &OperationNames) -> TokenStream {
    let OperationNames { function, function_into, args, call, out, output, handle, info, kernel, .. } = names;
    let summary = format!(" {}", operation.summary);
    let writes = operation.inputs.iter().any(|input| input.read_write);
    let into = if operation.outputs.iter().any(|output| output.is_dynamic(operation)) {
        quote! {}
    } else {
        let params = operation.outputs.iter().map(|output| {
            let (field, ty) = (ident(&output.name), out_type(operation, output));
            quote! { #field: #ty }
        });
        let fields = operation.outputs.iter().map(|output| ident(&output.name));
        let borrow = if writes {
            quote! { &'a mut }
        } else {
            quote! { &'a }
        };
        quote! {
            #[doc = #summary]
            ///
            /// Writes into tensors that the caller gives.
            #[inline]
            #[allow(clippy::too_many_arguments, reason = "as many as the schema has")]
            pub fn #function_into<'a>(
                engine: &::lz_engine::Engine,
                args: #borrow #args<'a>,
                #(#params),*
            ) -> Result<(), ::lz_core::Error> {
                let (mut checked, mut places) = (None, None);
                let call = args.check_in(&mut checked)?;
                call.run_in(engine, call.outputs_in(&mut places, #(#fields),*)?)
            }
        }
    };
    let mut declare = Vec::new();
    let mut pass = Vec::new();
    let mut collect = Vec::new();
    for output in &operation.outputs {
        let (local, field, spec) = (
            format_ident!("owned_{}", output.name),
            ident(&output.name),
            format_ident!("{}_spec", output.name),
        );
        let name = &output.name;
        let when = condition(operation, output);
        match (output.is_dynamic(operation), when) {
            (true, None) => {
                declare.push(quote! { let mut #local = None; });
                pass.push(quote! { &mut #local });
                collect.push(quote! { #field: ::lz_core::check::produced(&#info, #name, #local)? });
            }
            (true, Some(_)) => {
                let flag = format_ident!("wants_{}", output.name);
                declare.push(quote! { let mut #local = None; let #flag = call.#flag(); });
                pass.push(quote! { if #flag { Some(&mut #local) } else { None } });
                collect.push(quote! { #field: if #flag { Some(::lz_core::check::produced(&#info, #name, #local)?) } else { None } });
            }
            (false, None) => {
                declare.push(quote! { let mut #local = ::lz_core::check::allocate(&#info, call.#spec())?; });
                pass.push(quote! { #local.view_mut() });
                collect.push(quote! { #field: #local });
            }
            (false, Some(_)) => {
                declare.push(quote! {
                    let mut #local = match call.#spec() {
                        Some(spec) => Some(::lz_core::check::allocate(&#info, Some(spec))?),
                        None => None,
                    };
                });
                pass.push(quote! { #local.as_mut().map(::lz_core::Tensor::view_mut) });
                collect.push(quote! { #field: #local });
            }
        }
    }
    quote! {
        #into

        #[doc = #summary]
        ///
        /// Results come in host memory of their own.
        pub fn #function(engine: &::lz_engine::Engine, args: #args<'_>) -> Result<#output, ::lz_core::Error> {
            let (mut checked, mut places) = (None, None);
            let call = args.check_in(&mut checked)?;
            #(#declare)*
            call.run_in(engine, call.outputs_in(&mut places, #(#pass),*)?)?;
            Ok(#output { #(#collect,)* })
        }

        impl #call<'_> {
            /// Runs it with the kernel that the engine chooses.
            #[inline]
            pub fn run(&self, engine: &::lz_engine::Engine, mut out: #out<'_>) -> Result<(), ::lz_core::Error> {
                self.run_in(engine, &mut out)
            }

            /// The same with places that stay where they are.
            #[inline]
            pub fn run_in(&self, engine: &::lz_engine::Engine, out: &mut #out<'_>) -> Result<(), ::lz_core::Error> {
                let outcome = engine.dispatch(&#info, &self.context_with(out), &mut |entry, run| {
                    self.run_kernel(entry, out.reborrow(), run)
                });
                match outcome {
                    Ok(()) => Ok(()),
                    Err(error) => ::lz_engine::split::or_split(engine, &#info, error, &mut self.to_args(), &mut out.to_args()),
                }
            }

            /// Runs it with this kernel: ours by its type, any other by dynamic arguments.
            #[inline]
            pub fn run_kernel(
                &self,
                entry: &::lz_core::KernelEntry,
                mut out: #out<'_>,
                run: &mut ::lz_core::Run<'_>,
            ) -> Result<(), ::lz_core::KernelError> {
                match entry.typed::<#handle>() {
                    Some(handle) => handle.0.run(self, out, run),
                    None => entry.kernel.run(&mut self.to_args(), &mut out.to_args(), run),
                }
            }

            /// Runs it with a kernel that the caller has chosen: no engine, no selection, the same instructions as calling the
            /// kernel. The call was checked when it was made, and so were the places; a panic of the kernel is the caller's.
            #[inline(always)]
            pub fn run_static<K: #kernel + ?Sized>(
                &self,
                kernel: &K,
                out: #out<'_>,
                scratch: &mut ::lz_core::run::Scratch,
            ) -> Result<(), ::lz_core::KernelError> {
                kernel.run(self, out, &mut ::lz_core::Run::unbounded(scratch))
            }
        }
    }
}
