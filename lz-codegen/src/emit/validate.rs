//! `check`: the fast yes-or-no of validation, and the way to the messages when the answer is no.

use lz_schema::model::{
    Cases, Contiguous, DTypeRef, DeviceRule, Dim, Input, Kind, Operation, ParamType, ValueRule,
};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use super::expressions::{push_sizes, result, size};
use crate::names::{OperationNames, camel, dtype_field, ident, pack_field};

/// `check` of the arguments.
pub fn tokens(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let (args, call, info) = (&names.args, &names.call, &names.info);
    let body = bind(operation);
    let given = given_args(operation);
    let count = operation.inputs.len() + operation.params.len();
    quote! {
        impl<'a> #args<'a> {
            /// Checks the call against the schema; the error lists everything that is wrong.
            #[inline]
            pub fn check(&self) -> Result<#call<'_>, ::lz_core::Error> {
                let mut room = None;
                self.check_in(&mut room)?;
                room.ok_or_else(|| ::lz_core::check::disagreement(&#info))
            }

            /// The same, made where it stays: a checked call is too large to be handed from function to function in every call.
            #[inline]
            pub fn check_in<'r, 'c>(&'c self, room: &'r mut Option<#call<'c>>) -> Result<&'r #call<'c>, ::lz_core::Error> {
                match self.bind(room) {
                    Some(call) => Ok(call),
                    None => Err(self.problems(None)),
                }
            }

            /// As dynamic arguments, just as the caller gave them.
            pub fn to_args(&self) -> [::lz_core::Arg<'_>; #count] {
                #given
            }

            #[cold]
            #[inline(never)]
            fn problems(&self, outputs: Option<&[::lz_core::OutArg<'_>]>) -> ::lz_core::Error {
                match ::lz_core::check::check_call(#info.schema(), &self.to_args(), outputs) {
                    Err(error) => error,
                    Ok(_) => ::lz_core::check::disagreement(&#info),
                }
            }

            #[inline]
            #[allow(unused_mut, unused_assignments, unused_variables, clippy::nonminimal_bool, reason = "schemas differ in what they use")]
            fn bind<'r, 'c>(&'c self, room: &'r mut Option<#call<'c>>) -> Option<&'r #call<'c>> {
                #body
            }
        }
    }
}

fn given_args(operation: &Operation) -> TokenStream {
    let inputs = super::op::dynamic_inputs(operation, &quote! { self });
    let params = operation.params.iter().map(|param| {
        let field = ident(&param.name);
        if param.default.is_some() {
            let value = super::expressions::param_value(&param.ty, quote! { value });
            quote! { self.#field.map_or(::lz_core::Arg::Absent, |value| ::lz_core::Arg::Value(#value)) }
        } else {
            let value = super::expressions::param_value(&param.ty, quote! { self.#field });
            quote! { ::lz_core::Arg::Value(#value) }
        }
    });
    quote! { [#(#inputs,)* #(#params,)*] }
}

fn bind(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let (call, axes) = (&names.call, &names.axes);
    let declare_axes = operation.axes.iter().filter(|axis| !axis.dynamic).map(|axis| {
        let variable = format_ident!("axis_{}", axis.name);
        let start = axis.value.unwrap_or(-1);
        if axis.pack {
            let (dims, bound) = (pack_field(&axis.name), format_ident!("{}_bound", axis.name));
            quote! { let mut #variable = #start; let mut #dims = ::lz_core::tensor::Dims::empty(); let mut #bound = false; }
        } else {
            quote! { let mut #variable: i64 = #start; }
        }
    });
    let declare_types = operation.types.iter().map(|variable| {
        let field = dtype_field(&variable.name);
        quote! { let mut #field = 0u8; }
    });
    // Shapes and dtypes may depend on enum params, so those come first; their defaults are constants.
    let enums = operation
        .params
        .iter()
        .filter(|param| matches!(param.ty, ParamType::Enum(_)))
        .map(param_local(operation));
    let views = operation.inputs.iter().filter(|input| input.read_write).map(|input| {
        let (local, field) = (format_ident!("view_{}", input.name), ident(&input.name));
        if input.optional.is_some() {
            quote! { let #local = self.#field.as_ref().map(::lz_core::TensorMut::view); }
        } else {
            quote! { let #local = self.#field.view(); }
        }
    });
    let order =
        |optional: bool| operation.inputs.iter().filter(move |input| input.optional.is_some() == optional);
    let bindings = order(false).chain(order(true)).map(|input| bind_input(operation, input));
    let settle = operation.axes.iter().filter(|axis| !axis.dynamic).map(|axis| {
        let variable = format_ident!("axis_{}", axis.name);
        if axis.pack {
            let (dims, bound) = (pack_field(&axis.name), format_ident!("{}_bound", axis.name));
            quote! { #variable = if #bound { #dims.product()? } else { 0 }; }
        } else {
            quote! { if #variable < 0 { #variable = 0; } }
        }
    });
    let params = operation
        .params
        .iter()
        .filter(|param| !matches!(param.ty, ParamType::Enum(_)))
        .map(param_local(operation));
    let ranges = operation
        .params
        .iter()
        .filter_map(|param| param.range.as_ref())
        .map(|range| require(operation, range));
    let computed = operation.inputs.iter().filter_map(|input| computed_dimensions(operation, input));
    let constraints = operation.constraints.iter().map(|constraint| require(operation, &constraint.check));
    let memory = memory(operation);
    let values = operation.inputs.iter().filter_map(|input| values(operation, input));
    let axis_fields = operation.axes.iter().filter(|axis| !axis.dynamic).map(|axis| {
        let (variable, field) = (format_ident!("axis_{}", axis.name), ident(&axis.name));
        if axis.pack {
            let dims = pack_field(&axis.name);
            quote! { #field: #variable, #dims }
        } else {
            quote! { #field: #variable }
        }
    });
    let param_fields = operation.params.iter().map(|param| {
        let (variable, field) = (format_ident!("param_{}", param.name), ident(&param.name));
        quote! { #field: #variable }
    });
    let type_fields = operation.types.iter().map(|variable| {
        let field = dtype_field(&variable.name);
        quote! { #field: ::lz_core::DType::from_number(#field) }
    });
    quote! {
        #(#declare_axes)*
        #(#declare_types)*
        #(#enums)*
        #(#views)*
        #(#bindings)*
        #(#settle)*
        #(#params)*
        #(#ranges)*
        #(#computed)*
        #(#constraints)*
        #memory
        #(#values)*
        Some(room.insert(#call {
            args: self,
            axes: #axes { #(#axis_fields,)* },
            #(#param_fields,)*
            #(#type_fields,)*
        }))
    }
}

/// Declares the local of a param: what the caller gave, or the default.
fn param_local(operation: &Operation) -> impl Fn(&lz_schema::model::Param) -> TokenStream + '_ {
    move |param| {
        let (variable, field) = (format_ident!("param_{}", param.name), ident(&param.name));
        let Some(default) = &param.default else { return quote! { let #variable = self.#field; } };
        let computed = result(operation, default);
        let default = match &param.ty {
            ParamType::F32 => quote! { (#computed).ok()? as f32 },
            ParamType::Enum(cases) => {
                let name = OperationNames::enumeration(operation, &param.name);
                let case = match default.fold_constant() {
                    Some(lz_schema::expr::Value::Enum(case)) => {
                        cases.get(case as usize).map_or("", String::as_str)
                    }
                    _ => "",
                };
                let case = format_ident!("{}", camel(case));
                quote! { #name::#case }
            }
            _ => quote! { (#computed).ok()? },
        };
        quote! { let #variable = match self.#field { Some(value) => value, None => #default }; }
    }
}

/// An expression that must be true.
fn require(operation: &Operation, check: &lz_schema::expr::Typed) -> TokenStream {
    let result = result(operation, check);
    quote! { if !matches!(#result, Ok(true)) { return None; } }
}

/// The view of a tensor input inside the check: a local for written ones, the field otherwise.
fn view(input: &Input) -> TokenStream {
    if input.read_write {
        let local = format_ident!("view_{}", input.name);
        quote! { #local }
    } else {
        let field = ident(&input.name);
        quote! { self.#field }
    }
}

/// Runs `body` with `view: &TensorView`, only if the input is there.
fn with_view(input: &Input, body: TokenStream) -> TokenStream {
    let view = view(input);
    if input.optional.is_some() {
        quote! { if let Some(view) = &#view { #body } }
    } else {
        quote! { { let view = &#view; #body } }
    }
}

/// Code that depends on an enum param: a `match` over its cases, or the one alternative.
pub fn by_case<T>(operation: &Operation, cases: &Cases<T>, emit: impl Fn(&T) -> TokenStream) -> TokenStream {
    match cases {
        Cases::One(only) => emit(only),
        Cases::By(param, alternatives) => {
            let definition = &operation.params[*param];
            let name = OperationNames::enumeration(operation, &definition.name);
            let variable = format_ident!("param_{}", definition.name);
            let ParamType::Enum(cases) = &definition.ty else { return quote! {} };
            let arms = cases.iter().zip(alternatives).map(|(case, alternative)| {
                let case = format_ident!("{}", camel(case));
                let body = emit(alternative);
                quote! { #name::#case => { #body } }
            });
            quote! { match #variable { #(#arms)* } }
        }
    }
}

fn bind_input(operation: &Operation, input: &Input) -> TokenStream {
    match input.kind {
        Kind::Tokenizer => quote! {},
        Kind::Text => {
            let field = ident(&input.name);
            let bindings = by_case(operation, &input.shape, |dims| {
                let binds = dims.iter().filter_map(|dim| match dim {
                    Dim::Axis(axis) => {
                        let variable = format_ident!("axis_{}", operation.axes[*axis].name);
                        Some(quote! { if !::lz_core::check::fast::bind(&mut #variable, self.#field.len() as i64) { return None; } })
                    }
                    _ => None,
                });
                quote! { #(#binds)* }
            });
            quote! { #bindings }
        }
        Kind::Tensor => {
            let dtype = by_case(operation, &input.dtype, |reference| match reference {
                DTypeRef::Fixed(dtype) => {
                    let number = *dtype as u8;
                    quote! { if view.dtype() as u8 != #number { return None; } }
                }
                DTypeRef::Variable(variable) => {
                    let definition = &operation.types[*variable];
                    let field = dtype_field(&definition.name);
                    let allowed = definition.dtypes.iter().fold(0u32, |set, dtype| set | 1 << *dtype as u32);
                    quote! {
                        if !::lz_core::check::fast::bind_dtype(&mut #field, #allowed, view.dtype()) { return None; }
                    }
                }
            });
            let shape = by_case(operation, &input.shape, |dims| {
                if input.broadcast {
                    let most = dims.len();
                    quote! { if view.rank() > #most { return None; } }
                } else {
                    bind_dimensions(operation, dims)
                }
            });
            with_view(input, quote! { if !view.is_sound() { return None; } #dtype #shape })
        }
    }
}

fn bind_dimensions(operation: &Operation, dims: &[Dim]) -> TokenStream {
    let pack = dims.iter().position(|dim| matches!(dim, Dim::Pack(_)));
    let plain = dims.len() - usize::from(pack.is_some());
    let rank = match pack {
        Some(_) if plain == 0 => quote! {},
        Some(_) => quote! { if view.rank() < #plain { return None; } },
        None => quote! { if view.rank() != #plain { return None; } },
    };
    let mut lines = Vec::new();
    for (position, dim) in dims.iter().enumerate() {
        let after_pack = pack.is_some_and(|pack| pack < position);
        let index = if after_pack {
            let from_end = dims.len() - position;
            quote! { shape.len() - #from_end }
        } else {
            quote! { #position }
        };
        match dim {
            Dim::Axis(axis) => {
                let variable = format_ident!("axis_{}", operation.axes[*axis].name);
                lines.push(quote! { if !::lz_core::check::fast::bind(&mut #variable, shape[#index]) { return None; } });
            }
            Dim::Offset(axis, offset) => {
                let variable = format_ident!("axis_{}", operation.axes[*axis].name);
                lines.push(quote! {
                    let size = shape[#index].checked_sub(#offset)?;
                    if size < 0 || !::lz_core::check::fast::bind(&mut #variable, size) { return None; }
                });
            }
            Dim::Fixed(size) => lines.push(quote! { if shape[#index] != #size { return None; } }),
            Dim::Pack(axis) => {
                let name = &operation.axes[*axis].name;
                let (pack, bound) = (pack_field(name), format_ident!("{name}_bound"));
                let after = dims.len() - position - 1;
                lines.push(quote! {
                    if !::lz_core::check::fast::bind_pack(&mut #pack, &mut #bound, &shape[#position..shape.len() - #after]) {
                        return None;
                    }
                });
            }
            Dim::Expr(_) => {}
        }
    }
    quote! { #rank let shape = view.shape(); #(#lines)* }
}

/// Dimensions that need every axis: expressions, and broadcast inputs.
fn computed_dimensions(operation: &Operation, input: &Input) -> Option<TokenStream> {
    let needed = input.broadcast || input.shape.all().iter().flatten().any(|dim| matches!(dim, Dim::Expr(_)));
    if !needed || input.kind != Kind::Tensor {
        return None;
    }
    let body = by_case(operation, &input.shape, |dims| {
        if input.broadcast {
            let pushes = push_sizes(operation, dims);
            return quote! {
                let mut sizes = ::lz_core::tensor::Dims::empty();
                #pushes
                if !::lz_core::check::fast::broadcasts(view.shape(), &sizes) { return None; }
            };
        }
        let pack = dims.iter().position(|dim| matches!(dim, Dim::Pack(_)));
        let checks =
            dims.iter().enumerate().filter(|(_, dim)| matches!(dim, Dim::Expr(_))).map(|(position, dim)| {
                let size = size(operation, dim);
                let index = if pack.is_some_and(|pack| pack < position) {
                    let from_end = dims.len() - position;
                    quote! { view.rank() - #from_end }
                } else {
                    quote! { #position }
                };
                quote! { if view.shape()[#index] != #size? { return None; } }
            });
        quote! { #(#checks)* }
    });
    Some(with_view(input, body))
}

/// Strides, devices, and overlap of what is written in place.
fn memory(operation: &Operation) -> TokenStream {
    let mut lines = vec![quote! { let mut place: Option<::lz_core::tensor::Place> = None; }];
    for input in operation.inputs.iter().filter(|input| input.kind == Kind::Tensor) {
        let strides = match input.contiguous {
            Contiguous::None => quote! {},
            Contiguous::Last => quote! { if !view.last_is_dense() { return None; } },
            Contiguous::All => quote! { if !view.is_contiguous() { return None; } },
        };
        let device = match input.device {
            DeviceRule::Any => quote! {},
            DeviceRule::Host => quote! { if !view.place().is_host() { return None; } },
            DeviceRule::Same => {
                quote! { if !::lz_core::check::fast::same_place(&mut place, view) { return None; } }
            }
        };
        lines.push(with_view(input, quote! { #strides #device }));
    }
    let tensors: Vec<&Input> = operation.inputs.iter().filter(|input| input.kind == Kind::Tensor).collect();
    for (index, input) in tensors.iter().enumerate().filter(|(_, input)| input.read_write) {
        lines.push(with_view(input, quote! { if view.layout().overlaps_itself() { return None; } }));
        for (other, definition) in tensors.iter().enumerate() {
            if other == index || (definition.read_write && other < index) {
                continue;
            }
            let inner = with_view(
                definition,
                quote! { if !::lz_core::check::fast::apart(written, view) { return None; } },
            );
            lines.push(with_view(input, quote! { let written = view; #inner }));
        }
    }
    quote! { #(#lines)* }
}

fn values(operation: &Operation, input: &Input) -> Option<TokenStream> {
    let int = |typed| {
        let result = result(operation, typed);
        quote! { (#result).ok()? }
    };
    let check = match input.values.as_ref()? {
        ValueRule::IndexInto(end) => {
            let end = int(end);
            quote! { ::lz_core::check::values::index_ok(view, #end) }
        }
        ValueRule::Between(low, high) => {
            let (low, high) = (int(low), int(high));
            quote! { ::lz_core::check::values::range_ok(view, #low, #high) }
        }
        ValueRule::IndptrOf(total) => {
            let total = int(total);
            quote! { ::lz_core::check::values::indptr_ok(view, #total) }
        }
        ValueRule::PartitionOf(total) => {
            let total = int(total);
            quote! { ::lz_core::check::values::partition_ok(view, #total) }
        }
    };
    // A device's data cannot be read here, so even the bounds of its rule are not computed.
    Some(with_view(input, quote! { if view.place().is_host() && !#check { return None; } }))
}
