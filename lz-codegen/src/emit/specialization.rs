//! An operation that is a special case of another one: its own name, description, context, kernel trait and functions. The
//! rest is that of the general operation, whose module contains this one.

use lz_schema::model::{Operation, ParamType, Specialization};
use proc_macro2::{Literal, TokenStream};
use quote::quote;

use super::op::{output_kind, written};
use super::{context, doc, kernel};
use crate::names::{OperationNames, ident};

/// The special cases of an operation in the order of the catalog. In generated code they are numbered from 1.
pub fn of<'a>(general: &Operation, catalog: &'a [Operation]) -> Vec<&'a Operation> {
    let is_special = |operation: &&Operation| {
        operation.specializes.as_ref().is_some_and(|relation| relation.operation == general.name)
    };
    catalog.iter().filter(is_special).collect()
}

/// The modules of the special cases, inside that of the general operation.
pub fn modules(specializations: &[&Operation]) -> TokenStream {
    let modules = specializations.iter().map(|special| {
        let (name, file) = (ident(&special.flat_name()), format!("{}.rs", special.flat_name()));
        let docs = format!(" `{}`: {}", special.name, special.summary.trim());
        quote! { #[doc = #docs] #[path = #file] pub mod #name; }
    });
    quote! { #(#modules)* }
}

/// The contents of the module of a special case.
pub fn tokens(
    operation: &Operation,
    relation: &Specialization,
    catalog: &[Operation],
    path: &str,
    yaml: &TokenStream,
) -> TokenStream {
    let Some(general) = catalog.iter().find(|other| other.name == relation.operation) else {
        let message = format!("`{}` is generated without `{}`", operation.name, relation.operation);
        return quote! { compile_error!(#message); };
    };
    let number = of(general, catalog).iter().position(|special| special.name == operation.name);
    let number = Literal::usize_unsuffixed(number.map_or(0, |position| position + 1));
    let names = OperationNames::of(general);
    let info = crate::info(operation, path, yaml, Some(&names.info));
    let types = types(operation, relation, &names, &number);
    let (fields, context) = context::specialized(operation, general, relation);
    let call = call(operation, &names, &number, &context);
    let functions = kernel::functions(operation);
    quote! {
        use super::*;

        #info
        #types
        #call
        #fields
        #functions
    }
}

/// The types of the general operation under names of the special one. Only the arguments are a type of their own.
fn types(
    operation: &Operation,
    relation: &Specialization,
    general: &OperationNames,
    number: &Literal,
) -> TokenStream {
    let OperationNames { args, axes, out, output, .. } = OperationNames::of(operation);
    let equal: Vec<String> = relation.equal.iter().map(|(axis, by)| format!("`{axis} = {by}`")).collect();
    let docs =
        doc(&format!("{}\n\n[`{}`] with {}.", operation.summary.trim(), general.args, equal.join(" and ")));
    let (arguments, general_axes) = (&general.arguments, &general.axes);
    let (general_out, general_output) = (&general.out, &general.output);
    let enums = operation.params.iter().filter(|param| matches!(param.ty, ParamType::Enum(_)));
    let enums = enums.map(|param| {
        let own = OperationNames::enumeration(&operation.name, &param.name);
        let shared = OperationNames::enumeration(&relation.operation, &param.name);
        let docs = format!(" [`{shared}`] of this operation.");
        quote! { #[doc = #docs] pub type #own = #shared; }
    });
    quote! {
        #docs
        pub type #args<'a> = #arguments<'a, #number>;
        #(#enums)*
        /// Axis sizes of a checked call.
        pub type #axes = #general_axes;
        /// Output slots that were checked against the call.
        pub type #out<'a> = #general_out<'a>;
        /// Results in host memory of their own.
        pub type #output = #general_output;
    }
}

/// The checked call, and kernels of the general operation as kernels of the special one.
fn call(
    operation: &Operation,
    general: &OperationNames,
    number: &Literal,
    context: &TokenStream,
) -> TokenStream {
    let OperationNames { info, args, call, out, kernel, handle, entry, .. } = OperationNames::of(operation);
    let (general_args, general_call, general_kernel) = (&general.args, &general.call, &general.kernel);
    let name = &operation.name;
    let outputs = operation.outputs.iter().map(|output| {
        let (field, kind) = (ident(&output.name), output_kind(operation, output));
        quote! { #field: #kind }
    });
    let written = written(operation);
    quote! {
        lz::specialization!(
            #name, #info, #args, #call, #out, #kernel, #handle, #entry;
            number #number of #general_args, #general_call, #general_kernel;
            #context;
            outputs(#(#outputs),*);
            #written;
        );
    }
}
