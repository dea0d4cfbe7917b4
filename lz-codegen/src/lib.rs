//! The generator: checked schemas in, source text out. Two pure functions, no input or output.
//!
//! [`tokens`] is one operation as Rust, for the proc-macro; [`render`] is the generated files of the repository, without those
//! that cxx and typify write.

pub mod attribute;
pub mod emit;
pub mod expr;
mod layout;
pub mod names;
pub mod python_expr;

use std::collections::BTreeMap;

use lz_schema::model::Operation;
use lz_schema::reasons::Reasons;
use proc_macro2::TokenStream;
use quote::quote;

use names::OperationNames;

/// One operation as Rust: types, validation, context, kernel trait and dispatch.
///
/// `yaml` is an expression of type `&'static str` that gives the schema's text (usually an `include_str!`); `path` names it in messages.
/// `catalog` contains all operations that are generated together: the module of an operation contains those of its
/// specializations, which are only what differs.
pub fn tokens(operation: &Operation, catalog: &[Operation], path: &str, yaml: &TokenStream) -> TokenStream {
    if let Some(relation) = &operation.specializes {
        return emit::specialization::tokens(operation, relation, catalog, path, yaml);
    }
    let specializations = &emit::specialization::of(operation, catalog);
    let info = info(operation, path, yaml, None);
    let op = emit::op::tokens(operation, specializations);
    let validate = emit::validate::tokens(operation, specializations);
    let context = emit::context::tokens(operation, specializations);
    let kernel = emit::kernel::tokens(operation);
    let inside = emit::specialization::modules(specializations);
    quote! {
        use ::lz_core::call as lz;

        #info
        #op
        #validate
        #context
        #kernel
        #inside
    }
}

/// The static description of an operation.
pub(crate) fn info(
    operation: &Operation,
    path: &str,
    yaml: &TokenStream,
    general: Option<&proc_macro2::Ident>,
) -> TokenStream {
    let info = OperationNames::of(operation).info;
    let (name, version, digest) = (&operation.name, operation.version, &operation.digest);
    let version = proc_macro2::Literal::u32_unsuffixed(version);
    let docs = format!(" The description of `{name}` that the engine uses.");
    let general = general.map(|general| quote! { .specializing(&#general) });
    quote! {
        #[doc = #docs]
        pub static #info: lz::OperationInfo =
            lz::OperationInfo::new(#name, #version, #digest, #path, #yaml, &FIELDS) #general;
    }
}

/// One schema and its path from the repository's root.
#[derive(Debug)]
pub struct Source<'a> {
    /// The checked operation.
    pub operation: &'a Operation,
    /// `schemas/ops/norm/rms.yaml`.
    pub path: &'a str,
}

/// Every generated file: path from the repository's root → text.
pub fn render(sources: &[Source<'_>], reasons: &Reasons) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let operations: Vec<Operation> = sources.iter().map(|source| source.operation.clone()).collect();
    for source in sources {
        // Packages contain the schemas that they include: `schemas` of each crate has links to those of the repository.
        let include = format!("../../{}", source.path);
        let rust = tokens(source.operation, &operations, source.path, &quote! { include_str!(#include) });
        files.insert(
            format!("lz-ops/src/generated/{}.rs", source.operation.flat_name()),
            rust_file(source.path, rust),
        );
        let python = emit::python::tokens(source.operation);
        files.insert(
            format!("bindings/python/src/generated/{}.rs", source.operation.flat_name()),
            rust_file(
                source.path,
                quote! {
                    use pyo3::ffi;
                    use pyo3::prelude::*;
                    use crate::operation::python_function;
                    #python
                },
            ),
        );
        files.insert(
            format!("runtime/plugin/src/generated/{}.rs", source.operation.flat_name()),
            rust_file(source.path, emit::plugin::tokens(source.operation)),
        );
        files.insert(
            format!("bindings/cpp/src/generated/{}.rs", source.operation.flat_name()),
            rust_file(source.path, emit::cpp::tokens(source.operation)),
        );
        files.insert(
            format!("bindings/cpp/include/layerzero/ops/{}.hpp", source.operation.flat_name()),
            emit::cpp_header::file(source.operation, source.path),
        );
        files.insert(
            format!("docs/ops/{}.md", source.operation.name),
            emit::docs::page(source.operation, source.path),
        );
        files.insert(
            format!("docs/cpp/{}.md", source.operation.name),
            emit::cpp_docs::page(source.operation, source.path),
        );
    }
    let every = "schemas/ops/**.yaml";
    files.insert(
        "tests/conformance/src/generated/mod.rs".to_owned(),
        rust_file(every, emit::strategy::index(&operations)),
    );
    files.insert(
        "lz-ops/src/generated/mod.rs".to_owned(),
        rust_file(every, emit::index::modules(&operations)),
    );
    files.insert(
        "lz-ops/src/generated/reference_kernels.rs".to_owned(),
        rust_file(every, emit::index::references(&operations)),
    );
    files.insert(
        "bindings/python/src/generated/mod.rs".to_owned(),
        rust_file(every, emit::python::index(&operations)),
    );
    files.insert(
        "runtime/plugin/src/generated/mod.rs".to_owned(),
        rust_file(every, emit::plugin::index(&operations)),
    );
    files.insert(
        "runtime/plugin/include/layerzero/lz_plugin.h".to_owned(),
        emit::plugin_header::file(&operations),
    );
    files.insert(
        "bindings/cpp/src/generated/mod.rs".to_owned(),
        rust_file(every, emit::cpp::index(&operations)),
    );
    files.insert(BRIDGE.to_owned(), emit::cpp_bridge::file(&operations));
    files.insert(BRIDGE_DATA.to_owned(), emit::cpp_bridge::data());
    files.insert("bindings/cpp/include/layerzero/ops.hpp".to_owned(), emit::cpp_header::index(&operations));
    files.insert("tests/cpp-ops/generated/checks.cpp".to_owned(), emit::cpp_checks::file(&operations));
    files.insert("bindings/cpp/include/layerzero/dtype.hpp".to_owned(), emit::cpp_header::dtypes());
    files.insert("bindings/python/python/layerzero/ops.pyi".to_owned(), emit::stub::file(&operations));
    files.insert(
        "bindings/python/python/layerzero/protocols.py".to_owned(),
        emit::protocol::file(&operations),
    );
    files.insert("bindings/python/python/layerzero/_torch_ops.py".to_owned(), emit::torch::file(&operations));
    files.insert("lz-macros/src/generated.rs".to_owned(), rust_file(every, emit::catalog::tokens(sources)));
    files.insert("docs/ops/README.md".to_owned(), emit::docs::index(&operations));
    files.insert("docs/cpp/README.md".to_owned(), emit::cpp_docs::index(&operations));
    files.insert(
        "lz-core/src/generated/reasons.rs".to_owned(),
        rust_file("schemas/reasons.yaml", emit::reasons::tokens(reasons)),
    );
    files.insert("schemas/hashes.json".to_owned(), hashes(&operations));
    for (path, schema) in [
        ("schemas/operation.schema.json", lz_schema::editor::operation_schema()),
        ("schemas/policy.schema.json", lz_schema::editor::policy_schema()),
        ("schemas/reasons.schema.json", lz_schema::editor::reasons_schema()),
    ] {
        files.insert(path.to_owned(), format!("{schema:#}\n"));
    }
    files
}

/// The bridge of the functions that C++ calls.
pub const BRIDGE: &str = "bindings/cpp/src/generated/bridge.rs";

/// The bridge of the plain data.
pub const BRIDGE_DATA: &str = "bindings/cpp/src/data/generated.rs";

/// Formats generated Rust and adds the header that names the generator and the source.
pub fn rust_file(source: &str, tokens: TokenStream) -> String {
    let body = match layout::unparse(tokens.clone()) {
        Ok(text) => text,
        // A generator bug: keep the text readable so that the compiler's message points into it.
        Err(error) => {
            format!("compile_error!(\"the generator wrote Rust that does not parse: {error}\");\n{tokens}\n")
        }
    };
    format!("// Generated by `cargo xtask codegen` from `{source}`. Do not edit.\n\n{body}")
}

/// The digest of every schema, so that a contract change is a visible diff.
fn hashes(operations: &[Operation]) -> String {
    let entries: BTreeMap<&str, &str> =
        operations.iter().map(|operation| (operation.name.as_str(), operation.digest.as_str())).collect();
    let mut text = String::from("{\n");
    let lines: Vec<String> =
        entries.iter().map(|(name, digest)| format!("  \"{name}\": \"{digest}\"")).collect();
    text.push_str(&lines.join(",\n"));
    text.push_str("\n}\n");
    text
}
