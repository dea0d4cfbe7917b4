//! The outputs of a checked call, the trait that backends implement, and the functions that callers use.

use lz_schema::model::{DTypeRef, DeviceRule, Input, Kind, Operation, Output};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

use super::expressions::{Scope, by_case, sizes};
use super::op::output_kind;
use super::validate::dtype_name;
use crate::names::{OperationNames, dtype_field, ident};

/// Outputs, trait, dispatch.
pub fn tokens(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let outputs = outputs(operation, &names);
    let kernel = kernel_trait(operation, &names);
    let functions = functions(operation);
    quote! { #outputs #kernel #functions }
}

/// The method of the call that returns an output's shape and dtype, or only whether the call produces it.
pub fn output_method(operation: &Operation, output: &Output) -> Ident {
    if output.is_dynamic(operation) {
        format_ident!("wants_{}", output.name)
    } else {
        format_ident!("{}_spec", output.name)
    }
}

/// Shape and dtype of each output, and the check of the slots that the caller passes.
fn outputs(operation: &Operation, names: &OperationNames) -> TokenStream {
    let call = &names.call;
    let mut methods = Vec::new();
    let (mut params, mut tests) = (Vec::new(), Vec::new());
    for (index, output) in operation.outputs.iter().enumerate() {
        let field = ident(&output.name);
        let method = output_method(operation, output);
        let when = output.when.as_ref().map(|when| Scope::Call.condition(operation, when));
        if output.is_dynamic(operation) {
            let name = &field;
            params.push(quote! { #name: bool });
            if let Some(when) = when {
                let docs = format!(" Whether this call produces `{}`.", output.name);
                methods.push(quote! { #[doc = #docs] pub fn #method(&self) -> bool { #when } });
                tests.push(quote! { #field == self.#method() });
            }
            continue;
        }
        let fits = format_ident!("fits_{}", output.name);
        methods.push(declare_output(operation, output, &method, &fits, when.as_ref()));
        params.push(if output.when.is_some() {
            quote! { #field: Option<&lz::TensorMut<'_>> }
        } else {
            quote! { #field: &lz::TensorMut<'_> }
        });
        tests.push(quote! { self.#fits(#field) });
        let earlier = operation.outputs[..index].iter().filter(|earlier| !earlier.is_dynamic(operation));
        tests.extend(earlier.map(|earlier| {
            let name = ident(&earlier.name);
            quote! { lz::disjoint(&#field, &#name) }
        }));
    }
    if tests.is_empty() {
        tests.push(quote! { true });
    }
    quote! {
        impl #call<'_> {
            #(#methods)*

            #[inline(always)]
            #[allow(unused_variables, reason = "schemas differ in what they use")]
            fn accepts(&self, #(#params),*) -> bool { #(#tests)&&* }
        }
    }
}

/// The table of one output whose size is known before the run.
fn declare_output(
    operation: &Operation,
    output: &Output,
    method: &Ident,
    fits: &Ident,
    when: Option<&TokenStream>,
) -> TokenStream {
    let shape = by_case(operation, &output.shape, |dims| sizes(operation, Scope::Call, dims))
        .table(operation, Scope::Call);
    let dtype = by_case(operation, &output.dtype, |reference| match reference {
        DTypeRef::Fixed(dtype) => dtype_name(*dtype),
        DTypeRef::Variable(variable) => {
            let field = dtype_field(&operation.types[*variable].name);
            quote! { self.#field? }
        }
    })
    .matched(operation, Scope::Call);
    let inputs = |rule: bool| {
        let inputs = operation.inputs.iter();
        let inputs = inputs
            .filter(move |input| input.kind == Kind::Tensor && (input.device == DeviceRule::Same) == rule);
        inputs.map(|input| ident(&input.name))
    };
    let (same, any) = (inputs(true), inputs(false));
    let host = host_unless_followed(operation);
    let when = when.map_or_else(|| quote! { : }, |when| quote! { if #when; });
    quote! { lz::output!(self, #method, #fits #when #dtype, #shape, same(#(#same),*), any(#(#any),*) #host); }
}

/// Outputs are on the device of the inputs; where no input must be given, they are in host memory.
fn host_unless_followed(operation: &Operation) -> TokenStream {
    let follows = |input: &&Input| input.kind == Kind::Tensor && input.device == DeviceRule::Same;
    let inputs: Vec<&Input> = operation.inputs.iter().filter(follows).collect();
    if inputs.iter().any(|input| input.optional.is_none()) {
        return quote! {};
    }
    let given = inputs.iter().map(|input| ident(&input.name));
    quote! { , host(#(#given),*) }
}

fn kernel_trait(operation: &Operation, names: &OperationNames) -> TokenStream {
    let OperationNames { kernel, call, out, handle, entry, args, info, .. } = names;
    let name = &operation.name;
    let outputs = operation.outputs.iter().map(|output| {
        let (field, kind) = (ident(&output.name), output_kind(operation, output));
        quote! { #field: #kind }
    });
    quote! {
        lz::kernel_trait!(
            #name, #info, #args, #call, #out, #kernel, #handle, #entry;
            outputs(#(#outputs),*);
        );
    }
}

/// The functions that callers use.
pub fn functions(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let OperationNames { function, function_into, args, call, out, output: owned, info, .. } = names;
    let summary = operation.summary.trim();
    let outputs = operation.outputs.iter().map(|output| {
        let (field, kind) = (ident(&output.name), output_kind(operation, output));
        let method = output_method(operation, output);
        quote! { #field: #kind/#method }
    });
    let all_known = operation.outputs.iter().all(|output| !output.is_dynamic(operation));
    let into = all_known.then(|| {
        let mutable = operation.inputs.iter().any(|input| input.read_write).then(|| quote! { mut });
        quote! { #function_into(#mutable); }
    });
    quote! {
        lz::operation_functions!(
            #summary;
            #info, #args, #call, #out, #owned;
            #function(#(#outputs),*);
            #into
        );
    }
}
