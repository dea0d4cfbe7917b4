//! `#[kernel(…)]` on an `impl`: the kernel's declaration, checked against the schema, as its spec and registry entry.

use std::sync::Arc;

use lz_schema::diagnostics::{Code, Diagnostic, Report, listed, nearest};
use lz_schema::expr::{self, ExprError, ExprErrorKind, Type, VariableTable};
use lz_schema::model::{Operation, ParamType};
use lz_schema::source::{Source, Span};
use lz_schema::{DType, Reasons};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Error, Ident, ItemImpl, LitInt, LitStr};

use crate::attribute::{Attribute, AttributeValue, Entry};
use crate::names::{OperationNames, camel};

const PLATFORMS: [&str; 6] = ["cpu", "cuda", "rocm", "hpu", "xpu", "metal"];
const STRIDES: [&str; 3] = ["any", "last_dense", "contiguous"];
const ORDERS: [&str; 3] = ["ring", "tree", "canonical"];
const ADAPTS: [&str; 3] = ["layout", "contiguous", "align"];
const ALGORITHMS: [&str; 3] = ["eagle", "eagle3", "medusa"];
const KV_STRATEGIES: [&str; 4] = ["contiguous", "paged", "virtual", "unified"];

/// `spec()` and `entry()` of a kernel, or everything that is wrong with its attribute. `special` is the operation that the
/// attribute names as `specialized`.
pub fn tokens(
    attribute: &Attribute,
    operation: &Operation,
    special: Option<&Operation>,
    reasons: &Reasons,
    item: &ItemImpl,
) -> Result<TokenStream, Error> {
    let names = OperationNames::of(operation);
    let (id, name) = (&attribute.id, &operation.name);
    let implemented = item.trait_.as_ref().map(|(path, _)| path);
    let Some(path) =
        implemented.filter(|path| path.segments.last().is_some_and(|last| last.ident == names.kernel))
    else {
        let message = format!("a kernel of `{name}` is an `impl {} for …`", names.kernel);
        return Err(Error::new_spanned(&item.self_ty, message));
    };
    let checker = Checker { operation, reasons, scope: scope(operation), id: id.value() };
    let mut errors: Vec<Error> = Vec::new();
    let specialized = attribute.specialized.as_ref().zip(special).and_then(|(name, special)| {
        specialized(attribute, name, operation, special, path).map_err(|error| errors.push(error)).ok()
    });
    let special =
        special.map(|operation| Checker { operation, reasons, scope: scope(operation), id: id.value() });
    let mut fields = Vec::new();
    let id_text = id.value();
    let mut backend = id_text.split('.').next().unwrap_or_default().to_owned();
    let mut version = quote! { env!("CARGO_PKG_VERSION") };
    let mut platform = format_ident!("Cpu");
    for entry in &attribute.entries {
        match (entry.key.to_string().as_str(), &entry.written) {
            ("backend", AttributeValue::Text(text)) => backend = text.value(),
            ("version", AttributeValue::Text(text)) => version = quote! { #text },
            ("platform", AttributeValue::Word(word)) => match one_of(word, &PLATFORMS) {
                Ok(word) => platform = format_ident!("{}", camel(&word)),
                Err(error) => errors.push(error),
            },
            // The spec also applies to the specialization, whose axes are some of those of the operation.
            _ => match checker.entry(entry).and_then(|tokens| match &special {
                Some(special) => special.entry(entry).map(|_| tokens),
                None => Ok(tokens),
            }) {
                Ok(tokens) => fields.push(tokens),
                Err(mut found) => errors.append(&mut found),
            },
        }
    }
    if id_text.split('.').any(str::is_empty) {
        errors.push(Error::new(id.span(), "an id is made of words joined by dots: `cpu.norm.rms`"));
    }
    if let Some(error) = errors.into_iter().reduce(|mut all, error| {
        all.combine(error);
        all
    }) {
        return Err(error);
    }
    let (generics, _, bounds) = item.generics.split_for_impl();
    let ty = &item.self_ty;
    let docs = format!(" The spec of this kernel of `{name}`; its limits were checked against the schema.");
    Ok(quote! {
        impl #generics #ty #bounds {
            #[doc = #docs]
            pub fn spec() -> ::lz_core::KernelSpec {
                #[allow(unused_mut, reason = "a kernel may have nothing to add")]
                let mut spec = ::lz_core::KernelSpec::new(#id, #name, #backend, #version, ::lz_core::device::Platform::#platform);
                #(#fields)*
                spec
            }

            /// This kernel and its spec as a registry entry.
            pub fn entry(self) -> ::lz_core::KernelEntry {
                <Self as #path>::into_entry(self, Self::spec())
            }

            #specialized
        }
    })
}

/// `specialized()`: the registry entry of the kernel for calls of the specialization. Its id is that of the kernel with the name
/// of the specialization.
fn specialized(
    attribute: &Attribute,
    name: &LitStr,
    operation: &Operation,
    special: &Operation,
    path: &syn::Path,
) -> Result<TokenStream, Error> {
    if special.specializes.as_ref().is_none_or(|relation| relation.operation != operation.name) {
        let message = format!("`{}` is not a specialization of `{}`", special.name, operation.name);
        return Err(Error::new(name.span(), message));
    }
    let id = attribute.id.value();
    if !id.contains(&operation.name) {
        let message = format!("with `specialized`, the id must contain `{}`", operation.name);
        return Err(Error::new(attribute.id.span(), message));
    }
    let id = id.replacen(&operation.name, &special.name, 1);
    // The trait is next to that of the general operation.
    let mut path = path.clone();
    if let Some(last) = path.segments.last_mut() {
        last.ident = Ident::new(&OperationNames::of(special).kernel.to_string(), last.ident.span());
    }
    let docs = format!(" This kernel as a registry entry for calls of `{}`.", special.name);
    Ok(quote! {
        #[doc = #docs]
        pub fn specialized(self) -> ::lz_core::KernelEntry {
            let mut spec = Self::spec();
            spec.id = #id.to_owned();
            spec.operation = #name.to_owned();
            <::lz_core::Specialized<Self> as #path>::into_entry(::lz_core::Specialized(self), spec)
        }
    })
}

/// The names that limits may use: axes, params but statistics, dtype variables and `given(input)`, as in the engine's registry.
fn scope(operation: &Operation) -> VariableTable {
    let mut table = VariableTable::new();
    for axis in operation.axes.iter().filter(|axis| !axis.dynamic) {
        table.add(axis.name.as_str(), Type::Int);
    }
    for param in operation.kernel_params() {
        let ty = match &param.ty {
            ParamType::Int => Type::Int,
            ParamType::F32 | ParamType::F64 => Type::Float,
            ParamType::Bool => Type::Bool,
            ParamType::Enum(cases) => Type::enumeration(cases.iter().cloned()),
        };
        table.add(param.name.as_str(), ty);
    }
    for variable in &operation.types {
        table.add(variable.name.as_str(), Type::enumeration(DType::ALL.map(|dtype| dtype.to_string())));
    }
    for input in operation.inputs.iter().filter(|input| input.optional.is_some()) {
        table.add_given(input.name.as_str());
    }
    table
}

struct Checker<'a> {
    operation: &'a Operation,
    reasons: &'a Reasons,
    scope: VariableTable,
    id: String,
}

impl Checker<'_> {
    fn entry(&self, entry: &Entry) -> Result<TokenStream, Vec<Error>> {
        let key = &entry.key;
        let name = key.to_string();
        match &entry.written {
            AttributeValue::Flag(value) => Ok(quote! { spec.#key = #value; }),
            AttributeValue::Number(number) => self.number(key, number).map_err(|error| vec![error]),
            AttributeValue::Limits(limits) => self.limits(limits),
            AttributeValue::Dtypes(variables) => self.dtypes(variables),
            AttributeValue::Word(word) if name == "reduction_order" => {
                let case = one_of(word, &ORDERS).map_err(|error| vec![error])?;
                let case = format_ident!("{}", camel(&case));
                Ok(quote! { spec.reduction_order = Some(::lz_core::mode::ReductionOrder::#case); })
            }
            AttributeValue::Word(word) => {
                let case = one_of(word, &STRIDES).map_err(|error| vec![error])?;
                let case = format_ident!("{}", camel(&case));
                Ok(quote! { spec.strides = ::lz_core::spec::StrideNeeds::#case; })
            }
            AttributeValue::Text(text) => match name.as_str() {
                "workspace" | "block" => {
                    self.expression(text, &name, &Type::Int)?;
                    Ok(quote! { spec.#key = Some(#text.to_owned()); })
                }
                "instruction_set" | "min_driver" => Ok(quote! { spec.device.#key = Some(#text.to_owned()); }),
                _ => {
                    self.layout(text)?;
                    Ok(quote! { spec.produces_layout = Some(#text.to_owned()); })
                }
            },
            AttributeValue::Texts(texts) => match name.as_str() {
                "grid" => self.grid(key, texts),
                "isa" | "generations" => Ok(quote! { spec.device.#key = vec![#(#texts.to_owned()),*]; }),
                "layouts" => {
                    collect(texts.iter().map(|text| self.layout(text)))?;
                    Ok(quote! { spec.layouts = vec![#(#texts.to_owned()),*]; })
                }
                "adapts" => {
                    words(texts, &ADAPTS)?;
                    let kinds = texts.iter().map(|text| format_ident!("{}", camel(&text.value())));
                    Ok(quote! { spec.adapts = vec![#(::lz_core::plan::TransformKind::#kinds),*]; })
                }
                "speculative_algorithms" | "kv_strategies" => {
                    let known: &[&str] = if name == "kv_strategies" { &KV_STRATEGIES } else { &ALGORITHMS };
                    words(texts, known)?;
                    Ok(quote! { spec.#key = vec![#(#texts.to_owned()),*]; })
                }
                _ => Ok(quote! { spec.#key = vec![#(#texts.to_owned()),*]; }),
            },
        }
    }

    fn number(&self, key: &Ident, number: &LitInt) -> Result<TokenStream, Error> {
        let value: u32 = number.base10_parse()?;
        match key.to_string().as_str() {
            "priority" if value > 100 => Err(Error::new(number.span(), "a priority is 0 to 100")),
            "alignment" if !value.is_power_of_two() => {
                Err(Error::new(number.span(), "an alignment is a power of two"))
            }
            "priority" => {
                let value = value as u8;
                Ok(quote! { spec.priority = #value; })
            }
            "max_tp_size" if value == 0 => Err(Error::new(number.span(), "`max_tp_size` must be at least 1")),
            "max_tp_size" => Ok(quote! { spec.max_tp_size = Some(#value); }),
            "min_sm" | "max_sm" | "min_tensor_core_generation" => {
                Ok(quote! { spec.device.#key = Some(#value); })
            }
            _ => Ok(quote! { spec.#key = #value; }),
        }
    }

    fn grid(&self, key: &Ident, texts: &[LitStr]) -> Result<TokenStream, Vec<Error>> {
        let [x, y, z] = texts else {
            return Err(vec![Error::new(key.span(), "a grid is three int expressions: x, y and z")]);
        };
        collect(texts.iter().map(|text| self.expression(text, "grid", &Type::Int)))?;
        Ok(quote! { spec.grid = Some([#x.to_owned(), #y.to_owned(), #z.to_owned()]); })
    }

    fn limits(&self, limits: &[(LitStr, Ident)]) -> Result<TokenStream, Vec<Error>> {
        collect(
            limits
                .iter()
                .flat_map(|(check, code)| [self.expression(check, "limit", &Type::Bool), self.reason(code)]),
        )?;
        let checks = limits.iter().map(|(check, _)| check);
        let codes = limits.iter().map(|(_, code)| format_ident!("{}", camel(&code.to_string())));
        Ok(quote! { #(spec = spec.limit(#checks, ::lz_core::ReasonCode::#codes);)* })
    }

    fn reason(&self, code: &Ident) -> Result<(), Vec<Error>> {
        let name = code.to_string();
        if self.reasons.get(&name).is_some() {
            return Ok(());
        }
        let message = format!(
            "error[{}]: reason code `{name}` does not exist{}",
            Code::UnknownReason.id(),
            hint(self.reasons.nearest(&name))
        );
        Err(vec![Error::new(code.span(), message)])
    }

    /// Checks an expression against the operation's names; a mistake is reported like one in a schema.
    fn expression(&self, written: &LitStr, what: &str, expected: &Type) -> Result<(), Vec<Error>> {
        let text = written.value();
        let Err(errors) = expr::check_expecting(&text, &self.scope, expected) else { return Ok(()) };
        let source = Arc::new(Source::new(format!("{what} of {}", self.id), &text));
        let diagnostics = errors.iter().map(|error| self.diagnostic(&source, error)).collect();
        let report = Report::of_one(diagnostics, &format!("a {what} of {}", self.id));
        Err(vec![Error::new(written.span(), report.render().trim_end())])
    }

    fn diagnostic(&self, source: &Arc<Source>, error: &ExprError) -> Diagnostic {
        let operation = &self.operation.name;
        let full = error.kind.to_string();
        // The suggestion is printed next to the underlined text.
        let sentence = full.split("; did you mean `").next().unwrap_or(&full).to_owned();
        let (code, message) = match &error.kind {
            ExprErrorKind::UnknownName { name, .. } => (
                Code::UndefinedName,
                format!("`{name}` is not an axis, parameter or dtype variable of `{operation}`"),
            ),
            ExprErrorKind::UnknownFunction { .. } => (Code::UndefinedName, sentence),
            ExprErrorKind::UnknownInput { .. } => (Code::UndefinedInput, sentence),
            ExprErrorKind::UnknownCase { .. } => (Code::UnknownCase, sentence),
            kind if kind.is_syntax() => (Code::BadExpression, sentence),
            _ => (Code::IllTyped, sentence),
        };
        let span = Span { start: error.span.start, end: error.span.end };
        let mut diagnostic = Diagnostic::new(code, source, span, message);
        diagnostic.suggest(error.kind.suggestion());
        diagnostic
    }

    fn dtypes(&self, written: &[(Ident, Vec<Ident>)]) -> Result<TokenStream, Vec<Error>> {
        let mut tokens = Vec::new();
        let mut errors = Vec::new();
        for (name, dtypes) in written {
            let text = name.to_string();
            let Some(variable) = self.operation.types.iter().find(|variable| variable.name == text) else {
                let near = nearest(&text, self.operation.types.iter().map(|variable| variable.name.as_str()));
                let message = format!(
                    "error[{}]: `{}` has no dtype variable `{text}`{}",
                    Code::UndefinedTypeVariable.id(),
                    self.operation.name,
                    hint(near)
                );
                errors.push(Error::new(name.span(), message));
                continue;
            };
            let allowed: Vec<String> = variable.dtypes.iter().map(ToString::to_string).collect();
            let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
            let mut found = Vec::new();
            for dtype in dtypes {
                match one_of(dtype, &allowed).map(|name| DType::parse(&name)) {
                    Ok(dtype) => found.extend(dtype.map(|dtype| format_ident!("{dtype:?}"))),
                    Err(error) => errors.push(error),
                }
            }
            tokens.push(quote! { spec = spec.dtype(#text, &[#(::lz_core::DType::#found),*]); });
        }
        if errors.is_empty() { Ok(quote! { #(#tokens)* }) } else { Err(errors) }
    }

    fn layout(&self, text: &LitStr) -> Result<(), Vec<Error>> {
        let layout = self.operation.params.iter().find(|param| param.name == "layout");
        let cases = match layout.map(|param| &param.ty) {
            Some(ParamType::Enum(cases)) => cases.iter().map(String::as_str).collect::<Vec<_>>(),
            _ => {
                let message = format!("`{}` has no parameter `layout`", self.operation.name);
                return Err(vec![Error::new(text.span(), message)]);
            }
        };
        let value = text.value();
        if cases.contains(&value.as_str()) {
            return Ok(());
        }
        let message = format!(
            "`{value}` is not one of {}{}",
            listed(cases.iter().copied()),
            hint(nearest(&value, cases))
        );
        Err(vec![Error::new(text.span(), message)])
    }
}

fn one_of(word: &Ident, known: &[&str]) -> Result<String, Error> {
    let text = word.to_string();
    if known.contains(&text.as_str()) { Ok(text) } else { Err(not_one_of(&text, known, word.span())) }
}

/// Texts that are each a word of a closed list.
fn words(texts: &[LitStr], known: &[&str]) -> Result<(), Vec<Error>> {
    let wrong = texts.iter().filter(|text| !known.contains(&text.value().as_str()));
    let errors: Vec<Error> = wrong.map(|text| not_one_of(&text.value(), known, text.span())).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn not_one_of(text: &str, known: &[&str], span: proc_macro2::Span) -> Error {
    let message = format!(
        "`{text}` is not one of {}{}",
        listed(known.iter().copied()),
        hint(nearest(text, known.iter().copied()))
    );
    Error::new(span, message)
}

fn hint(near: Option<&str>) -> String {
    near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}

/// All errors of several checks.
fn collect(checks: impl IntoIterator<Item = Result<(), Vec<Error>>>) -> Result<(), Vec<Error>> {
    let errors: Vec<Error> = checks.into_iter().filter_map(Result::err).flatten().collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
