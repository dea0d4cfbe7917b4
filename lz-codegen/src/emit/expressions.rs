//! Expressions of a schema as Rust inside functions that return an `Option`: a failed evaluation returns `None`.

use lz_schema::expr::{Typed, Value};
use lz_schema::model::{Cases, Dim, Operation, ParamType, Slot};
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

use crate::names::{OperationNames, camel, ident, pack_field};

/// Where an expression is evaluated, and so how it reaches axes and params.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// In the check of the arguments: axes are in the local `axes`, params are locals.
    Check,
    /// In a method of the checked call: both are fields of `self`.
    Call,
}

impl Scope {
    /// The value that holds the axes.
    pub fn axes(self) -> TokenStream {
        match self {
            Scope::Check => quote! { axes },
            Scope::Call => quote! { self.axes },
        }
    }

    /// The value of a param.
    pub fn param(self, name: &str) -> TokenStream {
        match self {
            Scope::Check => {
                let local = param_local(name);
                quote! { #local }
            }
            Scope::Call => {
                let field = ident(name);
                quote! { self.#field }
            }
        }
    }

    fn slot(self, operation: &Operation, slot: usize) -> TokenStream {
        match operation.slots().get(slot) {
            Some(Slot::Axis(axis)) => {
                let (axes, name) = (self.axes(), ident(&operation.axes[*axis].name));
                quote! { #axes.#name }
            }
            Some(Slot::Param(param)) => {
                let definition = &operation.params[*param];
                let value = self.param(&definition.name);
                match definition.ty {
                    ParamType::F32 => quote! { f64::from(#value) },
                    ParamType::Enum(_) => quote! { (#value as u32) },
                    _ => value,
                }
            }
            Some(Slot::Given(input)) => {
                let name = ident(&operation.inputs[*input].name);
                quote! { self.#name.is_some() }
            }
            None => {
                quote! { compile_error!("an expression refers to a slot that the operation does not have") }
            }
        }
    }

    /// An expression as Rust; it ends in `?` wherever evaluation can fail.
    pub fn value(self, operation: &Operation, typed: &Typed) -> TokenStream {
        let arith = quote! { lz::arith };
        crate::expr::rust_value_tokens(typed, &arith, &|_, slot| self.slot(operation, usize::from(slot)))
    }

    /// A condition as Rust of type `bool`; one that cannot be evaluated is false.
    pub fn condition(self, operation: &Operation, typed: &Typed) -> TokenStream {
        let value = self.value(operation, typed);
        if !typed.is_total() {
            quote! { ((|| Some(#value))() == Some(true)) }
        } else if crate::expr::is_atom(&value) {
            value
        } else {
            quote! { (#value) }
        }
    }
}

/// The local of a param in the check. Names that the check itself uses are avoided.
pub fn param_local(name: &str) -> Ident {
    let taken = ["axes", "checked", "device", "size", "sizes", "view"].contains(&name)
        || name.starts_with("dtype_")
        || name.ends_with("_bound");
    if taken { format_ident!("param_{name}") } else { ident(name) }
}

/// A constant as an expression of a param's type.
pub fn constant(ty: &ParamType, value: Value) -> Option<TokenStream> {
    let signed = |negative: bool, magnitude: TokenStream| {
        if negative {
            quote! { -#magnitude }
        } else {
            magnitude
        }
    };
    match (ty, value) {
        (ParamType::Int, Value::Int(value)) if value != i64::MIN => {
            let magnitude = Literal::i64_unsuffixed(value.abs());
            Some(signed(value < 0, quote! { #magnitude }))
        }
        (ParamType::Bool, Value::Bool(value)) => Some(quote! { #value }),
        (ParamType::F32 | ParamType::F64, Value::Float(value)) => {
            // The debug form is the shortest that reads back as the same float.
            let magnitude = match ty {
                ParamType::F32 => format!("{:?}", (value as f32).abs()),
                _ => format!("{:?}", value.abs()),
            };
            let magnitude: Literal = magnitude.parse().ok()?;
            value.is_finite().then(|| signed(value.is_sign_negative(), quote! { #magnitude }))
        }
        _ => None,
    }
}

/// A shape as the tables of `lz_core::call` have it. `Dim::Expr` is a block.
pub fn sizes(operation: &Operation, scope: Scope, dims: &[Dim]) -> TokenStream {
    let dims = dims.iter().map(|dim| match dim {
        Dim::Pack(axis) => {
            let name = pack_field(&operation.axes[*axis].name);
            quote! { (#name..) }
        }
        Dim::Expr(typed) => {
            let value = scope.value(operation, typed);
            if typed.is_total() {
                quote! { { Some(#value) } }
            } else {
                quote! { { (|| Some(#value))() } }
            }
        }
        _ => plain_dimension(operation, dim),
    });
    quote! { [#(#dims),*] }
}

/// A dimension that is a number or an axis plus a number; `_` for every other.
pub fn plain_dimension(operation: &Operation, dim: &Dim) -> TokenStream {
    match dim {
        Dim::Axis(axis) => {
            let name = ident(&operation.axes[*axis].name);
            quote! { #name }
        }
        Dim::Offset(axis, offset) => {
            let (name, distance) =
                (ident(&operation.axes[*axis].name), Literal::i64_unsuffixed(offset.abs()));
            if *offset < 0 {
                quote! { (#name - #distance) }
            } else {
                quote! { (#name + #distance) }
            }
        }
        Dim::Fixed(size) => {
            let size = Literal::i64_unsuffixed(*size);
            quote! { #size }
        }
        Dim::Pack(_) | Dim::Expr(_) => quote! { _ },
    }
}

/// Alternatives by the cases of an enum param: the arms of a `match`, those with the same text in one; or the only one.
pub enum ByCase {
    /// It does not depend on a param, or all alternatives are the same.
    One(TokenStream),
    /// The index of the param, and pattern and body of every arm.
    By(usize, Vec<(TokenStream, TokenStream)>),
}

/// What differs by case.
pub fn by_case<T>(operation: &Operation, cases: &Cases<T>, emit: impl Fn(&T) -> TokenStream) -> ByCase {
    match cases {
        Cases::One(only) => ByCase::One(emit(only)),
        Cases::By(param, alternatives) => {
            let definition = &operation.params[*param];
            let name = OperationNames::enumeration(&operation.name, &definition.name);
            let ParamType::Enum(cases) = &definition.ty else { return ByCase::One(quote! {}) };
            let mut arms: Vec<(TokenStream, TokenStream)> = Vec::new();
            for (case, alternative) in cases.iter().zip(alternatives) {
                let (case, body) = (format_ident!("{}", camel(case)), emit(alternative));
                let text = body.to_string();
                match arms.iter_mut().find(|(_, other)| other.to_string() == text) {
                    Some((pattern, _)) => *pattern = quote! { #pattern | #name::#case },
                    None => arms.push((quote! { #name::#case }, body)),
                }
            }
            match arms.as_slice() {
                [(_, only)] => ByCase::One(only.clone()),
                _ => ByCase::By(*param, arms),
            }
        }
    }
}

impl ByCase {
    /// As an expression or statement.
    pub fn matched(self, operation: &Operation, scope: Scope) -> TokenStream {
        match self {
            ByCase::One(only) => only,
            ByCase::By(param, arms) => {
                let on = scope.param(&operation.params[param].name);
                let arms = arms.into_iter().map(|(pattern, body)| quote! { #pattern => #body, });
                quote! { match #on { #(#arms)* } }
            }
        }
    }

    /// As a shape of a table.
    pub fn table(self, operation: &Operation, scope: Scope) -> TokenStream {
        match self {
            ByCase::One(only) => only,
            ByCase::By(param, arms) => {
                let on = scope.param(&operation.params[param].name);
                let arms = arms.into_iter().map(|(pattern, body)| quote! { #pattern => #body });
                quote! { { (#on) #(#arms),* } }
            }
        }
    }
}
