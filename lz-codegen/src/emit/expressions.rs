//! Expressions of a schema as Rust inside a check: axes and params are local variables there.

use lz_schema::expr::Typed;
use lz_schema::model::{Dim, Operation, ParamType, Slot};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::names::{ident, pack_field};

/// The local variable that holds a slot's value while a call is checked: `i64`, `f64`, `bool` or the enum's number.
pub fn local(operation: &Operation, slot: usize) -> TokenStream {
    match operation.slots().get(slot) {
        Some(Slot::Axis(axis)) => {
            let name = format_ident!("axis_{}", operation.axes[*axis].name);
            quote! { #name }
        }
        Some(Slot::Param(param)) => {
            let definition = &operation.params[*param];
            let name = format_ident!("param_{}", definition.name);
            match definition.ty {
                ParamType::F32 => quote! { f64::from(#name) },
                ParamType::Enum(_) => quote! { (#name as u32) },
                _ => quote! { #name },
            }
        }
        Some(Slot::Given(input)) => {
            let name = ident(&operation.inputs[*input].name);
            quote! { self.#name.is_some() }
        }
        None => quote! { compile_error!("an expression refers to a slot that the operation does not have") },
    }
}

/// An expression as Rust of type `Result<_, EvalError>`.
pub fn result(operation: &Operation, typed: &Typed) -> TokenStream {
    let arith = quote! { ::lz_core::expr::arith };
    crate::expr::rust_tokens(typed, &arith, &|_, slot| local(operation, usize::from(slot)))
}

/// One dimension's size as Rust of type `Option<i64>`; packs are not one size.
pub fn size(operation: &Operation, dim: &Dim) -> TokenStream {
    match dim {
        Dim::Axis(axis) => {
            let name = format_ident!("axis_{}", operation.axes[*axis].name);
            quote! { Some(#name) }
        }
        Dim::Offset(axis, offset) => {
            let name = format_ident!("axis_{}", operation.axes[*axis].name);
            quote! { #name.checked_add(#offset) }
        }
        Dim::Fixed(size) => quote! { Some(#size) },
        Dim::Expr(typed) => {
            let result = result(operation, typed);
            quote! { (#result).ok() }
        }
        Dim::Pack(_) => quote! { compile_error!("a pack is not one size") },
    }
}

/// A whole shape as Rust statements that push onto `sizes: Dims`, each `?` on failure.
pub fn push_sizes(operation: &Operation, dims: &[Dim]) -> TokenStream {
    let pushes = dims.iter().map(|dim| match dim {
        Dim::Pack(axis) => {
            let name = pack_field(&operation.axes[*axis].name);
            quote! { for &size in #name.iter() { if !sizes.push(size) { return None; } } }
        }
        _ => {
            let size = size(operation, dim);
            quote! { if !sizes.push(#size?) { return None; } }
        }
    });
    quote! { #(#pushes)* }
}

/// Whether `rest: &[i64]` holds exactly this shape, as a Rust expression; `rest` is used up.
pub fn holds_sizes(operation: &Operation, dims: &[Dim]) -> TokenStream {
    let tests = dims.iter().map(|dim| match dim {
        Dim::Pack(axis) => {
            let name = pack_field(&operation.axes[*axis].name);
            quote! { ::lz_core::check::fast::next_are(&mut rest, &#name) }
        }
        _ => {
            let size = size(operation, dim);
            quote! { ::lz_core::check::fast::next_is(&mut rest, #size) }
        }
    });
    quote! { #(#tests &&)* rest.is_empty() }
}

/// Wraps a param's Rust value in the expression language's value.
pub fn param_value(ty: &ParamType, value: TokenStream) -> TokenStream {
    match ty {
        ParamType::Int => quote! { ::lz_core::expr::Value::Int(#value) },
        ParamType::F32 => quote! { ::lz_core::expr::Value::Float(f64::from(#value)) },
        ParamType::F64 => quote! { ::lz_core::expr::Value::Float(#value) },
        ParamType::Bool => quote! { ::lz_core::expr::Value::Bool(#value) },
        ParamType::Enum(_) => quote! { ::lz_core::expr::Value::Enum(#value as u32) },
    }
}

/// Brings a checked call's axes and params into scope under the names that [`local`] uses.
pub fn bring_into_scope(operation: &Operation) -> TokenStream {
    let axes = operation.axes.iter().filter(|axis| !axis.dynamic).map(|axis| {
        let (variable, field) = (format_ident!("axis_{}", axis.name), ident(&axis.name));
        if axis.pack {
            let dims = pack_field(&axis.name);
            quote! { let #variable = self.axes.#field; let #dims = &self.axes.#dims; }
        } else {
            quote! { let #variable = self.axes.#field; }
        }
    });
    let params = operation.params.iter().map(|param| {
        let (variable, field) = (format_ident!("param_{}", param.name), ident(&param.name));
        quote! { let #variable = self.#field; }
    });
    quote! { #(#axes)* #(#params)* }
}
