//! The context of a checked call: everything that selection depends on, packed into words without allocating.

use lz_schema::layout::{FieldKind, FieldLayout, Store, context_layout};
use lz_schema::model::{Kind, Operation, ParamType, Select, Specialization};
use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use crate::names::{OperationNames, dtype_field, ident};

/// The table of fields, and `packed` of a checked call. Specializations leave out words of the same context.
pub fn tokens(operation: &Operation, specializations: &[&Operation]) -> TokenStream {
    let layout = match layout(operation) {
        Ok(layout) => layout,
        Err(error) => return error,
    };
    let call = OperationNames::of(operation).call;
    let table = table(operation, &layout);
    // The words of the context in order: flags, axes, scalars. What shares a word is one expression, so that the compiler
    // stores each word once. The stride classes of outputs are parameters: they are not part of a call.
    let (mut flags, mut axes, mut scalars) = (Vec::new(), Vec::new(), Vec::new());
    for field in &layout {
        let value = raw_value(operation, &field.kind);
        let (words, index, value) = match field.store {
            Store::Flag { word, shift: 0, .. } => (&mut flags, word as usize, value),
            Store::Flag { word, shift, .. } => {
                let shift = Literal::u32_unsuffixed(shift);
                // A cast binds less tightly than a shift looks.
                let value = if crate::expr::is_atom(&value) {
                    value
                } else {
                    quote! { (#value) }
                };
                (&mut flags, word as usize, quote! { #value << #shift })
            }
            Store::Axis(axis) if operation.axes.get(axis).is_some_and(|axis| axis.dynamic) => {
                (&mut axes, axis, quote! { 0 })
            }
            Store::Axis(axis) => (&mut axes, axis, quote! { #value as u64 }),
            Store::Scalar(scalar) => (&mut scalars, scalar, value),
        };
        if words.len() <= index {
            words.resize_with(index + 1, Vec::new);
        }
        words[index].push(value);
    }
    let extent = extent(&layout);
    let count = Literal::usize_unsuffixed(flags.len() + axes.len() + scalars.len());
    let words = flags.into_iter().chain(axes).chain(scalars).map(|parts| quote! { #(#parts)|* });
    let classes: Vec<_> = operation.outputs.iter().map(|output| ident(&output.name)).collect();
    let words = quote! { [#(#words),*] };
    let (packed, method) = if specializations.is_empty() {
        (words, None)
    } else {
        let method = quote! {
            /// The words of the context.
            #[inline(always)]
            #[allow(unused_variables, reason = "outputs of unknown size have no stride class")]
            fn words(&self, #(#classes: u64),*) -> [u64; #count] { #words }
        };
        (quote! { self.words(#(#classes),*) }, Some(method))
    };
    quote! {
        #table

        impl #call<'_> {
            /// The context from the stride classes of the outputs.
            #[inline(always)]
            #[allow(unused_variables, reason = "outputs of unknown size have no stride class")]
            fn packed(&self, #(#classes: u64),*) -> lz::Context {
                lz::Context::packed(#extent, #packed)
            }

            #method
        }
    }
}

/// The table of fields of a specialization, and the clause of its table that describes its contexts: those of the general
/// operation without the words of the axes that only that one has.
pub fn specialized(
    operation: &Operation,
    general: &Operation,
    relation: &Specialization,
) -> (TokenStream, TokenStream) {
    let layout = match layout(operation) {
        Ok(layout) => layout,
        Err(error) => return (error, quote! {}),
    };
    let lengths = lengths(&layout);
    let is_replaced = |name: &str| relation.equal.iter().any(|(axis, _)| axis == name);
    let removed = general.axes.iter().enumerate().filter(|(_, axis)| is_replaced(&axis.name));
    let removed = removed.map(|(index, _)| Literal::usize_unsuffixed(lengths[0] + index));
    let lengths = lengths.map(Literal::usize_unsuffixed);
    (table(operation, &layout), quote! { context(#(#lengths),*) without(#(#removed),*) })
}

/// The layout, or the error as Rust.
fn layout(operation: &Operation) -> Result<Vec<FieldLayout>, TokenStream> {
    context_layout(operation).map_err(|problem| {
        let message = format!("{}: {problem}", operation.name);
        quote! { compile_error!(#message); }
    })
}

fn table(operation: &Operation, layout: &[FieldLayout]) -> TokenStream {
    let fields = layout.iter().map(|field| table_row(operation, field));
    let count = Literal::usize_unsuffixed(layout.len());
    quote! { static FIELDS: [lz::Field; #count] = [#(#fields,)*]; }
}

/// The number of words of flags, axes and scalars.
fn lengths(layout: &[FieldLayout]) -> [usize; 3] {
    let mut lengths = [0; 3];
    for field in layout {
        let (part, index) = match field.store {
            Store::Flag { word, .. } => (0, word as usize),
            Store::Axis(axis) => (1, axis),
            Store::Scalar(scalar) => (2, scalar),
        };
        lengths[part] = lengths[part].max(index + 1);
    }
    lengths
}

fn extent(layout: &[FieldLayout]) -> TokenStream {
    let lengths = lengths(layout).map(Literal::usize_unsuffixed);
    quote! { lz::Extent::new(#(#lengths),*) }
}

/// One field of the table.
fn table_row(operation: &Operation, field: &FieldLayout) -> TokenStream {
    let name = &field.name;
    match field.store {
        Store::Axis(index) => {
            let index = Literal::usize_unsuffixed(index);
            let of_statistic = match &field.kind {
                FieldKind::Statistic(param) => operation.params[*param].statistic.as_ref(),
                _ => None,
            };
            if let Some(statistic) = of_statistic {
                let bounds = statistic.bounds.iter().map(|bound| Literal::i64_unsuffixed(*bound));
                return quote! { lz::Field::statistic(#name, #index, &[#(#bounds),*]) };
            }
            let buckets = match &field.kind {
                FieldKind::Axis(_, Select::Ignored) => quote! { Some(&[]) },
                FieldKind::Axis(_, Select::Bucket(bounds)) => {
                    let bounds = bounds.iter().map(|bound| Literal::i64_unsuffixed(*bound));
                    quote! { Some(&[#(#bounds),*]) }
                }
                _ => quote! { None },
            };
            quote! { lz::Field::axis(#name, #index, #buckets) }
        }
        Store::Scalar(index) => {
            let (kind, index) = (field_kind(operation, &field.kind), Literal::usize_unsuffixed(index));
            quote! { lz::Field::scalar(#name, lz::FieldKind::#kind, #index) }
        }
        Store::Flag { word, shift, bits } => {
            let [word, shift, bits] = [word, shift, bits].map(Literal::u32_unsuffixed);
            if let FieldKind::Param(param) = &field.kind
                && let ParamType::Enum(_) = &operation.params[*param].ty
            {
                let ty = OperationNames::enumeration(&operation.name, &operation.params[*param].name);
                return quote! { lz::Field::cases(#name, #ty::CASES, #word, #shift, #bits) };
            }
            let kind = field_kind(operation, &field.kind);
            quote! { lz::Field::flag(#name, lz::FieldKind::#kind, #word, #shift, #bits) }
        }
    }
}

/// The case of `FieldKind` for a field without data.
fn field_kind(operation: &Operation, kind: &FieldKind) -> Ident {
    ident(match kind {
        FieldKind::Axis(..) => "Axis",
        FieldKind::Statistic(_) => "Statistic",
        FieldKind::Param(param) => match &operation.params[*param].ty {
            ParamType::Int => "Int",
            ParamType::F32 | ParamType::F64 => "Float",
            ParamType::Bool => "Bool",
            ParamType::Enum(_) => "Enum",
        },
        FieldKind::Given(_) => "Given",
        FieldKind::DType(_) => "DType",
        FieldKind::Strides(_) | FieldKind::OutputStrides(_) => "Strides",
        FieldKind::Digest(_) => "Digest",
        FieldKind::Device => "Device",
    })
}

/// The raw bits of a field, taken from the checked call.
fn raw_value(operation: &Operation, kind: &FieldKind) -> TokenStream {
    match kind {
        FieldKind::Axis(axis, _) => {
            let field = ident(&operation.axes[*axis].name);
            quote! { self.axes.#field }
        }
        FieldKind::Param(param) | FieldKind::Statistic(param) => {
            let definition = &operation.params[*param];
            let field = ident(&definition.name);
            match definition.ty {
                ParamType::F32 => quote! { f64::from(self.#field).to_bits() },
                ParamType::F64 => quote! { self.#field.to_bits() },
                ParamType::Enum(_) => quote! { self.#field as u32 as u64 },
                ParamType::Bool => quote! { u64::from(self.#field) },
                ParamType::Int => quote! { self.#field as u64 },
            }
        }
        FieldKind::Given(input) => {
            let field = ident(&operation.inputs[*input].name);
            quote! { u64::from(self.args.#field.is_some()) }
        }
        FieldKind::DType(variable) => {
            let field = dtype_field(&operation.types[*variable].name);
            quote! { lz::dtype_bits(self.#field) }
        }
        FieldKind::Strides(input) => {
            let field = ident(&operation.inputs[*input].name);
            quote! { lz::stride_class(&self.args.#field) }
        }
        FieldKind::OutputStrides(output) => {
            let class = ident(&operation.outputs[*output].name);
            quote! { #class }
        }
        FieldKind::Digest(input) => {
            let field = ident(&operation.inputs[*input].name);
            quote! { lz::digest_bits(&self.args.#field.digest()) }
        }
        FieldKind::Device => {
            let mut inputs = operation.inputs.iter();
            match inputs.find(|input| input.kind == Kind::Tensor && input.optional.is_none()) {
                Some(input) => {
                    let field = ident(&input.name);
                    quote! { lz::device_bits(self.args.#field.device()) }
                }
                None => quote! { lz::device_bits(lz::Device::HOST) },
            }
        }
    }
}
