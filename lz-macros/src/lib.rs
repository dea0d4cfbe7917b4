#![doc = include_str!("../README.md")]
//!
//! All logic is in `lz-codegen`; this crate reads files and passes tokens on.

use std::fs;
use std::path::{Path, PathBuf};

use lz_codegen::attribute::Attribute;
use lz_schema::{Operation, Reasons, diagnostics::nearest};
use proc_macro::TokenStream;
use quote::{ToTokens, quote};
use syn::{Error, ItemImpl, LitStr, parse_macro_input};

#[rustfmt::skip]
mod generated;

use generated::{REASONS, SCHEMAS};

/// One operation from its schema: `operation!("ops/scale_add.yaml")`, from the folder of the crate's `Cargo.toml`.
///
/// Expands to what `cargo xtask codegen` writes for an operation of the catalog. Give each operation a module of its own, as the
/// example of the [crate] does.
#[proc_macro]
pub fn operation(input: TokenStream) -> TokenStream {
    let written = parse_macro_input!(input as LitStr);
    let expanded = read(&written).map(|(operation, absolute)| {
        // The text is included, so that a change of the file builds the crate again.
        let text = absolute.to_string_lossy();
        lz_codegen::tokens(&operation, &[], &written.value(), &quote! { include_str!(#text) })
    });
    expanded.unwrap_or_else(Error::into_compile_error).into()
}

/// On `impl SomeKernel for X`: adds a `spec()` that was checked against the operation's schema, and an `entry()` for registries.
///
/// `#[kernel(id = "mine.norm.rms", operation = "norm.rms", limits("hidden % 8 == 0" => HEAD_DIM_ALIGNMENT), dtypes(T = [f32]))]`;
/// an operation that is not in the catalog is named by `schema = "ops/scale_add.yaml"`. `specialized = "…"` names a
/// specialization of the operation and adds a `specialized()`: the entry of the same kernel for its calls. The trait of the
/// specialization's kernels must be in scope.
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as ItemImpl);
    let attribute = syn::parse::<Attribute>(attribute);
    let checked = attribute.and_then(|attribute| {
        let operation = find(&attribute)?;
        let special = attribute.specialized.as_ref().map(in_catalog).transpose()?;
        lz_codegen::emit::spec::tokens(&attribute, &operation, special.as_ref(), &reasons()?, &item)
    });
    // The `impl` is kept even if the attribute is wrong, so that its own mistakes are reported as well.
    let added = checked.unwrap_or_else(Error::into_compile_error);
    quote! { #item #added }.into()
}

/// The operation that an attribute names, in the catalog or in a file.
fn find(attribute: &Attribute) -> Result<Operation, Error> {
    let wanted = attribute.operation.as_ref();
    if let Some(path) = &attribute.schema {
        let (operation, _) = read(path)?;
        return match wanted.filter(|name| name.value() != operation.name) {
            None => Ok(operation),
            Some(name) => Err(error(name, format!("{} defines `{}`", path.value(), operation.name))),
        };
    }
    let Some(name) = wanted else {
        return Err(error(&attribute.id, "a kernel needs `operation = \"…\"` or `schema = \"….yaml\"`"));
    };
    in_catalog(name)
}

/// The operation of the catalog with this name.
fn in_catalog(name: &LitStr) -> Result<Operation, Error> {
    let value = name.value();
    let schema =
        |name: &str| SCHEMAS.iter().find(|(known, ..)| *known == name).map(|(_, path, text)| (*path, *text));
    let Some((path, text)) = schema(&value) else {
        let near = nearest(&value, SCHEMAS.iter().map(|(known, ..)| *known));
        let hint = near.map_or_else(
            || "; other operations need `schema = \"….yaml\"`".to_owned(),
            |near| format!("; did you mean `{near}`?"),
        );
        return Err(error(name, format!("the catalog has no operation `{value}`{hint}")));
    };
    lz_schema::load_one_of(path, text, &reasons()?, schema).map_err(|report| error(name, report))
}

fn read(written: &LitStr) -> Result<(Operation, PathBuf), Error> {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let absolute = Path::new(&folder).join(written.value());
    let text = fs::read_to_string(&absolute)
        .map_err(|problem| error(written, format!("could not read {}: {problem}", written.value())))?;
    let operation = lz_schema::load_one(&written.value(), &text, &reasons()?);
    operation.map(|operation| (operation, absolute)).map_err(|report| error(written, report))
}

fn reasons() -> Result<Reasons, Error> {
    Reasons::load("schemas/reasons.yaml", REASONS)
        .map_err(|report| Error::new(proc_macro2::Span::call_site(), report))
}

fn error(place: &impl ToTokens, message: impl std::fmt::Display) -> Error {
    Error::new_spanned(place, message.to_string().trim_end())
}
