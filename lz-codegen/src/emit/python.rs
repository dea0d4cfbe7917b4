//! One PyO3 function an operation: views of the caller's tensors in, the caller's own kind of tensors out.

use lz_schema::model::{Kind, Operation, ParamType};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::names::{OperationNames, ident};

/// Inputs in the order of the Python signature: those that must be given, then those that may.
pub fn signature_order(operation: &Operation) -> impl Iterator<Item = &lz_schema::model::Input> {
    let of =
        |optional: bool| operation.inputs.iter().filter(move |input| input.optional.is_some() == optional);
    of(false).chain(of(true))
}

/// Whether every output's size is known before the run, so that `out=` makes sense.
pub fn takes_out(operation: &Operation) -> bool {
    !operation.outputs.is_empty() && operation.outputs.iter().all(|output| !output.is_dynamic(operation))
}

/// The function of one operation.
pub fn tokens(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let (function, args, info) = (&names.function, &names.args, &names.info);
    let operation_name = &operation.name;
    let mut signature = Vec::new();
    let mut parameters = Vec::new();
    for input in signature_order(operation) {
        let name = ident(&input.name);
        if input.optional.is_some() {
            signature.push(quote! { #name=None });
            parameters.push(quote! { #name: Option<&Bound<'py, PyAny>> });
        } else {
            signature.push(quote! { #name });
            parameters.push(quote! { #name: &Bound<'py, PyAny> });
        }
    }
    let out = takes_out(operation);
    if !operation.params.is_empty() || out {
        signature.push(quote! { * });
    }
    for param in &operation.params {
        let name = ident(&param.name);
        let ty = match &param.ty {
            ParamType::Int => quote! { i64 },
            ParamType::F32 | ParamType::F64 => quote! { f64 },
            ParamType::Bool => quote! { bool },
            ParamType::Enum(_) => quote! { &str },
        };
        if param.default.is_some() {
            signature.push(quote! { #name=None });
            parameters.push(quote! { #name: Option<#ty> });
        } else {
            signature.push(quote! { #name });
            parameters.push(quote! { #name: #ty });
        }
    }
    if out {
        signature.push(quote! { out=None });
        parameters.push(quote! { out: Option<&Bound<'py, PyAny>> });
    }
    let imports = operation.inputs.iter().map(|input| {
        let (local, object, name) = (format_ident!("import_{}", input.name), ident(&input.name), &input.name);
        match input.kind {
            Kind::Tensor => {
                let make = if input.read_write { quote! { Import::writable } } else { quote! { Import::new } };
                let mutable = if input.read_write { quote! { mut } } else { quote! {} };
                let kind = format_ident!("kind_{}", input.name);
                let note = if input.read_write && input.optional.is_none() {
                    quote! { #[allow(unused_variables, reason = "only needed where it is the first tensor")] let #kind = #local.kind; }
                } else {
                    quote! {}
                };
                if input.optional.is_some() {
                    quote! { let #mutable #local = #object.map(|object| #make(#operation_name, #name, object)).transpose()?; }
                } else {
                    quote! { let #mutable #local = #make(#operation_name, #name, #object)?; #note }
                }
            }
            Kind::Text => quote! {
                let #local = crate::text::Texts::new(#operation_name, #name, #object)?;
                let #local = #local.as_strs();
            },
            Kind::Tokenizer => quote! { let #local = crate::text::tokenizer(#operation_name, #name, #object)?; },
        }
    });
    let fields = operation.inputs.iter().map(|input| {
        let (field, local) = (ident(&input.name), format_ident!("import_{}", input.name));
        let value = match (input.kind, input.read_write, input.optional.is_some()) {
            (Kind::Tensor, false, false) => quote! { #local.view() },
            (Kind::Tensor, false, true) => quote! { #local.as_ref().map(Import::view) },
            (Kind::Tensor, true, false) => quote! { #local.view_mut() },
            (Kind::Tensor, true, true) => quote! { #local.as_mut().map(Import::view_mut) },
            (Kind::Text, ..) => quote! { &#local },
            (Kind::Tokenizer, ..) => quote! { &*#local },
        };
        quote! { #field: #value }
    });
    let params = operation.params.iter().map(|param| {
        let (field, name) = (ident(&param.name), &param.name);
        let given = param.default.is_some();
        let value = match &param.ty {
            ParamType::F32 if given => quote! { #field.map(|value| value as f32) },
            ParamType::F32 => quote! { #field as f32 },
            ParamType::Enum(_) => {
                let ty = OperationNames::enumeration(operation, name);
                let parse = quote! { #ty::from_number(crate::call::case(py, &#info, #name, #ty::NAMES, text)?) };
                if given {
                    quote! { match #field { Some(text) => #parse, None => None } }
                } else {
                    quote! { match { let text = #field; #parse } { Some(case) => case, None => return Ok(py.None().into_bound(py)) } }
                }
            }
            _ => quote! { #field },
        };
        quote! { #field: #value }
    });
    let body = outputs(operation, &names);
    let docs = docs(operation);
    quote! {
        #docs
        #[pyfunction]
        #[pyo3(signature = (#(#signature),*))]
        #[allow(clippy::too_many_arguments, reason = "as many as the schema has")]
        pub fn #function<'py>(py: Python<'py>, #(#parameters),*) -> PyResult<Bound<'py, PyAny>> {
            #(#imports)*
            let args = #args { #(#fields,)* #(#params,)* };
            let call = args.check().map_err(|error| crate::error::raise(py, &error))?;
            #body
        }
    }
}

/// From the checked call to the returned objects.
fn outputs(operation: &Operation, names: &OperationNames) -> TokenStream {
    let info = &names.info;
    // The first tensor that must be there says whose kind of tensor the results are.
    let like = operation.inputs.iter().find(|input| input.kind == Kind::Tensor && input.optional.is_none());
    let mut declare = Vec::new();
    let mut pass = Vec::new();
    let mut collect = Vec::new();
    let mut elements = Vec::new();
    for output in &operation.outputs {
        let (name, local) = (&output.name, format_ident!("place_{}", output.name));
        let spec = format_ident!("{}_spec", output.name);
        if output.is_dynamic(operation) {
            let wants = format_ident!("wants_{}", output.name);
            let made = match output.kind {
                Kind::Text => quote! { value.into_pyobject(py)?.into_any() },
                _ => quote! { crate::output::dynamic(py, &value)? },
            };
            declare.push(quote! { let mut #local = None; });
            if output.when.is_some() {
                declare.push(quote! { let #wants = call.#wants(); });
                pass.push(quote! { if #wants { Some(&mut #local) } else { None } });
            } else {
                pass.push(quote! { &mut #local });
            }
            collect.push(quote! { if let Some(value) = #local { results.push(#made); } });
            continue;
        }
        let like = match like {
            Some(input) => {
                let (object, import) = (ident(&input.name), format_ident!("import_{}", input.name));
                // A tensor that is changed in place is borrowed by the arguments; its kind was noted before.
                if input.read_write {
                    let kind = format_ident!("kind_{}", input.name);
                    quote! { (#object, #kind) }
                } else {
                    quote! { (#object, #import.kind) }
                }
            }
            None => {
                // Only operations over text have no tensor to follow; numpy then makes the results.
                let object = operation.inputs.first().map_or_else(|| ident("py"), |input| ident(&input.name));
                quote! { (#object, crate::import::Kind::Numpy) }
            }
        };
        let make = quote! { crate::output::place(&#info, #name, spec, &mut given, #like)? };
        elements.push(quote! { call.#spec().map_or(0, |(sizes, _)| sizes.product().unwrap_or(0)) });
        if output.when.is_some() {
            declare.push(
                quote! { let mut #local = match call.#spec() { Some(spec) => Some(#make), None => None }; },
            );
            pass.push(quote! { #local.as_mut().map(|place| place.import.view_mut()) });
            collect.push(quote! { if let Some(place) = #local { results.push(place.object); } });
        } else {
            declare.push(quote! {
                let Some(spec) = call.#spec() else { return Err(crate::error::raise(py, &lz_core::check::disagreement(&#info))); };
                let mut #local = #make;
            });
            pass.push(quote! { #local.import.view_mut() });
            collect.push(quote! { results.push(#local.object); });
        }
    }
    let given = if takes_out(operation) {
        quote! { let mut given = crate::output::Given::new(out)?; }
    } else if operation.outputs.iter().any(|output| !output.is_dynamic(operation)) {
        quote! { let mut given = None; }
    } else {
        quote! {}
    };
    let finish = if takes_out(operation) {
        quote! { if let Some(given) = &given { given.finish(py, &#info)?; } }
    } else {
        quote! {}
    };
    let work = if elements.is_empty() {
        quote! { i64::MAX }
    } else {
        quote! { 0 #(+ #elements)* }
    };
    quote! {
        #given
        #(#declare)*
        #finish
        let work = #work;
        {
            let out = call.outputs(#(#pass),*).map_err(|error| crate::error::raise(py, &error))?;
            crate::call::run(py, work, |engine| call.run(engine, out))?;
        }
        let mut results: Vec<Bound<'py, PyAny>> = Vec::new();
        #(#collect)*
        crate::output::returned(py, results)
    }
}

fn docs(operation: &Operation) -> TokenStream {
    super::doc(&format!("{}\n\n{}", operation.summary, operation.doc.trim_end()))
}

/// The module of all functions.
pub fn index(operations: &[Operation]) -> TokenStream {
    let modules: Vec<_> = operations.iter().map(|operation| ident(&operation.flat_name())).collect();
    quote! {
        use pyo3::prelude::*;

        #(mod #modules;)*

        /// Adds every operation's function.
        pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
            #(module.add_function(wrap_pyfunction!(#modules::#modules, module)?)?;)*
            Ok(())
        }
    }
}
