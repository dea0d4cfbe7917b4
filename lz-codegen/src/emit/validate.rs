//! The fast check of the arguments: straight-line Rust that returns `None` for an invalid call. It writes no messages;
//! `lz_core::check` does, from the schema.

use lz_schema::expr::Typed;
use lz_schema::model::{
    Contiguous, DTypeRef, DeviceRule, Dim, Input, Kind, Operation, Param, ParamType, ValueRule,
};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use super::expressions::{Scope, by_case, constant, param_local, plain_dimension, sizes};
use crate::names::{OperationNames, camel, dtype_field, ident, pack_field};

/// `bind` of the arguments. Specializations share it: their axes are equal, and constraints on replaced axes do not apply.
pub fn tokens(operation: &Operation, specializations: &[&Operation]) -> TokenStream {
    let names = OperationNames::of(operation);
    let (args, call) = (&names.args, &names.call);
    let sets = operation.types.iter().map(|variable| {
        let (name, dtypes) =
            (dtype_set(&variable.name), variable.dtypes.iter().map(|dtype| dtype_name(*dtype)));
        quote! { const #name: u32 = lz::dtype_set(&[#(#dtypes),*]); }
    });
    let (body, value) = bind(operation, specializations);
    let allow = quote! { #[allow(unused_mut, unused_variables, reason = "schemas differ in what they use")] };
    let functions = if specializations.is_empty() {
        quote! {
            #[inline]
            #allow
            fn bind<'r, 'c>(&'c self, checked: &'r mut Option<#call<'c>>) -> Option<&'r #call<'c>> {
                #body
                Some(checked.insert(#value))
            }
        }
    } else {
        quote! {
            #[inline]
            fn bind<'r, 'c>(&'c self, checked: &'r mut Option<#call<'c>>) -> Option<&'r #call<'c>> {
                self.bind_as::<_, 0>(checked, |call| call)
            }

            /// Binds a call of the operation with this number, which `wrap` makes of a call of this one.
            #[inline]
            #allow
            fn bind_as<'r, 'c, C, const NUMBER: u8>(
                &'c self,
                checked: &'r mut Option<C>,
                wrap: impl FnOnce(#call<'c>) -> C,
            ) -> Option<&'r C> {
                #body
                Some(checked.insert(wrap(#value)))
            }
        }
    };
    quote! {
        #(#sets)*

        impl<'a> #args<'a> { #functions }
    }
}

/// The pairs of axes that are equal in a specialization.
fn equal(special: &Operation) -> &[(String, String)] {
    special.specializes.as_ref().map_or(&[], |relation| &relation.equal)
}

/// Makes the axes of each specialization equal.
fn equal_axes(specializations: &[&Operation]) -> TokenStream {
    let each = specializations.iter().zip(1u8..).map(|(special, number)| {
        let number = proc_macro2::Literal::u8_unsuffixed(number);
        let pairs = equal(special).iter().map(|(axis, by)| {
            let (axis, by) = (ident(axis), ident(by));
            quote! { lz::same_size(&mut axes.#axis, &mut axes.#by)?; }
        });
        quote! { if NUMBER == #number { #(#pairs)* } }
    });
    quote! { #(#each)* }
}

/// A constraint, which does not apply to specializations that replace one of its axes.
fn constraint(operation: &Operation, check: &Typed, specializations: &[&Operation]) -> TokenStream {
    let required = require(operation, check);
    let used = check.variables();
    let is_replaced = |special: &Operation| {
        equal(special).iter().any(|(axis, _)| used.iter().any(|variable| variable.name == *axis))
    };
    let exempt = specializations.iter().zip(1u8..).filter(|(special, _)| is_replaced(special));
    let numbers: Vec<_> = exempt.map(|(_, number)| proc_macro2::Literal::u8_unsuffixed(number)).collect();
    if numbers.is_empty() {
        required
    } else {
        quote! { if #(NUMBER != #numbers)&&* { #required } }
    }
}

/// The constant with the dtypes that a variable may have.
fn dtype_set(variable: &str) -> proc_macro2::Ident {
    format_ident!("DTYPES_{}", variable.to_uppercase())
}

/// A dtype as Rust.
pub fn dtype_name(dtype: lz_schema::DType) -> TokenStream {
    let name = format_ident!("{dtype:?}");
    quote! { lz::DType::#name }
}

/// The statements of `bind`, and the checked call.
fn bind(operation: &Operation, specializations: &[&Operation]) -> (TokenStream, TokenStream) {
    let names = OperationNames::of(operation);
    let (call, axes_type) = (&names.call, &names.axes);
    let known: Vec<_> = operation.axes.iter().filter(|axis| !axis.dynamic).collect();
    let axes = known.iter().map(|axis| {
        let name = ident(&axis.name);
        let dims = axis.pack.then(|| {
            let dims = pack_field(&axis.name);
            quote! { ..#dims }
        });
        let value = axis.value.map(|value| {
            let value = proc_macro2::Literal::i64_unsuffixed(value);
            quote! { = #value }
        });
        quote! { #name #dims #value }
    });
    let packs = known.iter().filter(|axis| axis.pack).map(|axis| {
        let bound = format_ident!("{}_bound", axis.name);
        quote! { let mut #bound = false; }
    });
    let types = operation.types.iter().map(|variable| {
        let field = dtype_field(&variable.name);
        quote! { let mut #field = 0u8; }
    });
    // Shapes and dtypes may depend on enum params, so those come first; their defaults are constants.
    let is_enum = |param: &&Param| matches!(param.ty, ParamType::Enum(_));
    let enums = operation.params.iter().filter(is_enum).map(|param| declare_param(operation, param));
    let order =
        |optional: bool| operation.inputs.iter().filter(move |input| input.optional.is_some() == optional);
    let bindings = order(false).chain(order(true)).map(|input| bind_input(operation, input));
    let finish = known.iter().filter_map(|axis| {
        let name = ident(&axis.name);
        if axis.pack {
            let (dims, bound) = (pack_field(&axis.name), format_ident!("{}_bound", axis.name));
            return Some(quote! { axes.#name = lz::pack_size(&axes.#dims, #bound)?; });
        }
        // An axis that only absent inputs have is 0.
        (!is_certain(operation, &axis.name)).then(|| quote! { axes.#name = axes.#name.max(0); })
    });
    let params =
        operation.params.iter().filter(|param| !is_enum(param)).map(|param| declare_param(operation, param));
    let ranges = operation.params.iter().filter_map(|param| param.range.as_ref());
    let ranges = ranges.map(|range| require(operation, range));
    let computed = operation.inputs.iter().filter_map(|input| computed_dimensions(operation, input));
    let equal_axes = equal_axes(specializations);
    let constraints = operation.constraints.iter();
    let constraints = constraints.map(|own| constraint(operation, &own.check, specializations));
    let memory = memory(operation);
    let values = operation.inputs.iter().filter_map(|input| values(operation, input));
    let param_fields = operation.params.iter().map(|param| {
        let (local, field) = (param_local(&param.name), ident(&param.name));
        if local == field {
            quote! { #field }
        } else {
            quote! { #field: #local }
        }
    });
    let type_fields = operation.types.iter().map(|variable| {
        let field = dtype_field(&variable.name);
        quote! { #field: lz::DType::from_number(#field) }
    });
    let body = quote! {
        let mut axes = lz::unbound!(#axes_type: #(#axes),*);
        #(#packs)*
        #(#types)*
        #(#enums)*
        #(#bindings)*
        #equal_axes
        #(#finish)*
        #(#params)*
        #(#ranges)*
        #(#computed)*
        #(#constraints)*
        #memory
        #(#values)*
    };
    (body, quote! { #call { args: self, axes, #(#param_fields,)* #(#type_fields,)* } })
}

/// Whether every valid call binds the axis: it is fixed, or a required input has it whatever the params are.
fn is_certain(operation: &Operation, name: &str) -> bool {
    let has_it = |dims: &Vec<Dim>| {
        dims.iter().any(|dim| match dim {
            Dim::Axis(axis) | Dim::Offset(axis, _) => operation.axes[*axis].name == name,
            _ => false,
        })
    };
    operation.axes.iter().any(|axis| axis.name == name && axis.value.is_some())
        || operation.inputs.iter().any(|input| {
            let dims = input.shape.all();
            input.optional.is_none()
                && input.kind != Kind::Tokenizer
                && !input.broadcast
                && !dims.is_empty()
                && dims.iter().all(has_it)
        })
}

/// Declares the local of a param: what the caller gave, or the default.
fn declare_param(operation: &Operation, param: &Param) -> TokenStream {
    let (local, field) = (param_local(&param.name), ident(&param.name));
    let Some(default) = &param.default else { return quote! { let #local = self.#field; } };
    let folded = default.fold_constant();
    if let (ParamType::Enum(cases), Some(lz_schema::expr::Value::Enum(case))) = (&param.ty, folded) {
        let name = OperationNames::enumeration(&operation.name, &param.name);
        let case = format_ident!("{}", camel(cases.get(case as usize).map_or("", String::as_str)));
        return quote! { let #local = self.#field.unwrap_or(#name::#case); };
    }
    if let Some(constant) = folded.and_then(|value| constant(&param.ty, value)) {
        return quote! { let #local = self.#field.unwrap_or(#constant); };
    }
    let value = Scope::Check.value(operation, default);
    let value = match &param.ty {
        ParamType::F32 if crate::expr::is_atom(&value) => quote! { #value as f32 },
        ParamType::F32 => quote! { (#value) as f32 },
        _ => value,
    };
    quote! { let #local = match self.#field { Some(value) => value, None => #value }; }
}

/// An expression that must be true.
fn require(operation: &Operation, check: &Typed) -> TokenStream {
    let value = Scope::Check.value(operation, check);
    quote! { lz::holds(#value)?; }
}

/// Runs `body` with `view: &TensorView`, only if the input is given.
fn with_view(input: &Input, check_sound: bool, body: TokenStream) -> TokenStream {
    let field = ident(&input.name);
    let view = match (input.read_write, input.optional.is_some()) {
        (false, false) => quote! { &self.#field },
        (false, true) => quote! { view },
        (true, false) => quote! { self.#field.view() },
        (true, true) => quote! { view.view() },
    };
    let declare = match (check_sound, input.read_write || input.optional.is_none()) {
        (true, _) => quote! { let view = lz::sound(#view)?; },
        (false, true) => quote! { let view = #view; },
        (false, false) => quote! {},
    };
    if input.optional.is_some() {
        quote! { if let Some(view) = &self.#field { #declare #body } }
    } else {
        quote! { #declare #body }
    }
}

fn bind_input(operation: &Operation, input: &Input) -> TokenStream {
    match input.kind {
        Kind::Tokenizer => quote! {},
        Kind::Text => {
            let field = ident(&input.name);
            by_case(operation, &input.shape, |dims| {
                let binds = dims.iter().filter_map(|dim| match dim {
                    Dim::Axis(axis) => {
                        let name = ident(&operation.axes[*axis].name);
                        Some(quote! { lz::holds(lz::bind(&mut axes.#name, self.#field.len() as i64))?; })
                    }
                    _ => None,
                });
                quote! { #(#binds)* }
            })
            .matched(operation, Scope::Check)
        }
        Kind::Tensor => {
            let dtype = by_case(operation, &input.dtype, |reference| match reference {
                DTypeRef::Fixed(dtype) => {
                    let dtype = dtype_name(*dtype);
                    quote! { lz::has_dtype(view, #dtype)? }
                }
                DTypeRef::Variable(variable) => {
                    let name = &operation.types[*variable].name;
                    let (field, allowed) = (dtype_field(name), dtype_set(name));
                    quote! { lz::bind_dtype(&mut #field, #allowed, view)? }
                }
            })
            .matched(operation, Scope::Check);
            let shape = by_case(operation, &input.shape, |dims| {
                if input.broadcast {
                    let most = proc_macro2::Literal::usize_unsuffixed(dims.len());
                    quote! { lz::rank_at_most(view, #most)? }
                } else {
                    bind_dimensions(operation, dims)
                }
            })
            .matched(operation, Scope::Check);
            with_view(input, true, quote! { #dtype; #shape; })
        }
    }
}

fn bind_dimensions(operation: &Operation, dims: &[Dim]) -> TokenStream {
    let plain = |dims: &[Dim]| {
        let dims = dims.iter().map(|dim| plain_dimension(operation, dim));
        quote! { [#(#dims),*] }
    };
    let packed = dims.iter().enumerate().find_map(|(position, dim)| match dim {
        Dim::Pack(axis) => Some((position, &operation.axes[*axis].name)),
        _ => None,
    });
    match packed {
        Some((position, name)) => {
            let (pack, bound) = (pack_field(name), format_ident!("{name}_bound"));
            let (first, last) = (plain(&dims[..position]), plain(&dims[position + 1..]));
            quote! { lz::shape!(view, axes, #first, #pack/#bound, #last) }
        }
        None => {
            let dims = plain(dims);
            quote! { lz::shape!(view, axes, #dims) }
        }
    }
}

/// Dimensions that need every axis: expressions, and broadcast inputs.
fn computed_dimensions(operation: &Operation, input: &Input) -> Option<TokenStream> {
    let needed = input.broadcast || input.shape.all().iter().flatten().any(|dim| matches!(dim, Dim::Expr(_)));
    if !needed || input.kind != Kind::Tensor {
        return None;
    }
    let body = by_case(operation, &input.shape, |dims| {
        if input.broadcast {
            let sizes = sizes(operation, Scope::Check, dims);
            return quote! { lz::broadcasts(view, &lz::sizes!((axes), #sizes))? };
        }
        let pack = dims.iter().position(|dim| matches!(dim, Dim::Pack(_)));
        let mut checks = Vec::new();
        for (position, dim) in dims.iter().enumerate() {
            let Dim::Expr(typed) = dim else { continue };
            let size = Scope::Check.value(operation, typed);
            let index = if pack.is_some_and(|pack| pack < position) {
                let from_end = proc_macro2::Literal::usize_unsuffixed(dims.len() - position);
                quote! { view.rank() - #from_end }
            } else {
                let position = proc_macro2::Literal::usize_unsuffixed(position);
                quote! { #position }
            };
            checks.push(quote! { lz::holds(view.shape()[#index] == #size)? });
        }
        match checks.as_slice() {
            [] => quote! { {} },
            [only] => only.clone(),
            _ => quote! { { #(#checks;)* } },
        }
    })
    .matched(operation, Scope::Check);
    Some(with_view(input, false, quote! { #body; }))
}

/// Strides, devices, and overlap of what is written in place.
fn memory(operation: &Operation) -> TokenStream {
    let tensors: Vec<&Input> = operation.inputs.iter().filter(|input| input.kind == Kind::Tensor).collect();
    let list = |wanted: &dyn Fn(&Input) -> bool| {
        let names: Vec<_> =
            tensors.iter().filter(|input| wanted(input)).map(|input| ident(&input.name)).collect();
        names
    };
    let every = |check: &str, names: Vec<proc_macro2::Ident>| {
        let check = ident(check);
        (!names.is_empty()).then(|| quote! { lz::every!(self, #check: #(#names),*); })
    };
    let last_dense = every("last_dense", list(&|input| matches!(input.contiguous, Contiguous::Last)));
    let contiguous = every("contiguous", list(&|input| matches!(input.contiguous, Contiguous::All)));
    let host = every("on_host", list(&|input| input.device == DeviceRule::Host));
    let same = list(&|input| input.device == DeviceRule::Same);
    // One tensor is always on its own device.
    let same = (same.len() > 1).then(|| quote! { lz::same_device!(self: #(#same),*); });
    let written = tensors.iter().enumerate().filter(|(_, input)| input.read_write).map(|(index, input)| {
        let name = ident(&input.name);
        let others = tensors
            .iter()
            .enumerate()
            .filter(|(other, definition)| *other != index && !(definition.read_write && *other < index))
            .map(|(_, definition)| ident(&definition.name));
        quote! { lz::written_disjoint!(self, #name: #(#others),*); }
    });
    quote! { #last_dense #contiguous #host #same #(#written)* }
}

fn values(operation: &Operation, input: &Input) -> Option<TokenStream> {
    let field = ident(&input.name);
    let value = |typed: &Typed| Scope::Check.value(operation, typed);
    let (rule, bounds) = match input.values.as_ref()? {
        ValueRule::IndexInto(end) => ("index_ok", vec![value(end)]),
        ValueRule::Between(low, high) => ("range_ok", vec![value(low), value(high)]),
        ValueRule::IndptrOf(total) => ("indptr_ok", vec![value(total)]),
        ValueRule::IndptrWithin(total) => ("indptr_within_ok", vec![value(total)]),
        ValueRule::PartitionOf(total) => ("partition_ok", vec![value(total)]),
        ValueRule::ScoreMod(parameters) => ("score_mod_ok", vec![value(parameters)]),
    };
    let rule = ident(rule);
    Some(quote! { lz::value_rule!(self, #field: #rule(#(#bounds),*)); })
}
