//! Contracts (JSON Schema) as Rust types, by typify.
//!
//! The types only carry the content of a file. The reader of a file checks lengths, ranges and uniqueness, with locations and
//! suggestions, so those keywords are removed here instead of becoming a newtype each.

use std::collections::BTreeMap;
use std::fmt;

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use schemars_for_typify::schema::RootSchema;
use serde_json::Value;
use typify_impl::{TypeSpace, TypeSpaceSettings};

/// A contract: its path from the repository's root and its text.
#[derive(Debug, Clone, Copy)]
pub struct Contract<'a> {
    /// `schemas/contracts/capabilities.v1.schema.json`.
    pub path: &'a str,
    /// The JSON.
    pub text: &'a str,
}

/// A contract that no types can be made of.
#[derive(Debug, Clone)]
pub struct ContractError {
    /// The contract's path.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for ContractError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl std::error::Error for ContractError {}

/// Renders the files generated from contracts: path from the repository's root → text.
pub fn render(contracts: &[Contract<'_>]) -> Result<BTreeMap<String, String>, ContractError> {
    let text = lz_codegen::rust_file("schemas/contracts/*.schema.json", tokens(contracts)?);
    Ok(BTreeMap::from([("lz-core/src/generated/contracts.rs".to_owned(), text)]))
}

/// One module a contract: `capabilities.v1.schema.json` becomes `capabilities_v1`.
fn tokens(contracts: &[Contract<'_>]) -> Result<TokenStream, ContractError> {
    let mut modules = TokenStream::new();
    for contract in contracts {
        let file = contract.path.rsplit('/').next().unwrap_or(contract.path);
        let stem = file.trim_end_matches(".schema.json").replace(['.', '-'], "_");
        let name = format_ident!("{stem}");
        let docs = format!(" The types of `{}`.", contract.path);
        let types = types(contract)?;
        modules.extend(quote! {
            #[doc = #docs]
            pub mod #name { #types }
        });
    }
    Ok(quote! {
        #![allow(missing_docs, clippy::all, reason = "written by typify; the contract is the documentation")]
        #modules
    })
}

fn types(contract: &Contract<'_>) -> Result<TokenStream, ContractError> {
    let refuse = |message: String| ContractError { path: contract.path.to_owned(), message };
    let mut schema: Value = serde_json::from_str(contract.text).map_err(|error| refuse(error.to_string()))?;
    without_checks(&mut schema);
    let root: RootSchema = serde_json::from_value(schema).map_err(|error| refuse(error.to_string()))?;
    let mut settings = TypeSpaceSettings::default();
    settings.with_derive("PartialEq".to_owned());
    // Sorted, so that what is made of a file does not depend on a hash.
    settings.with_map_type("::std::collections::BTreeMap");
    let mut space = TypeSpace::new(&settings);
    space.add_root_schema(root).map_err(|error| refuse(error.to_string()))?;
    Ok(space.to_stream())
}

/// Takes out what the reader of a file checks by itself. Names of properties are left alone.
fn without_checks(schema: &mut Value) {
    const CHECKS: [&str; 8] = [
        "minLength",
        "maxLength",
        "pattern",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "minimum",
    ];
    let Some(object) = schema.as_object_mut() else { return };
    object.retain(|key, _| !CHECKS.contains(&key.as_str()) && key != "maximum");
    for (key, value) in object.iter_mut() {
        match (key.as_str(), value) {
            ("properties" | "definitions", Value::Object(inner)) => {
                inner.values_mut().for_each(without_checks)
            }
            ("items" | "additionalProperties", inner) => without_checks(inner),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contract_that_is_no_schema_is_refused_by_name() {
        let broken = Contract { path: "schemas/contracts/x.v1.schema.json", text: "{ \"type\": 3 }" };
        let error = tokens(&[broken]).unwrap_err();
        assert_eq!(error.path, broken.path);
    }

    #[test]
    fn properties_named_like_checks_stay() {
        let mut schema = serde_json::json!({
            "minLength": 1,
            "properties": { "pattern": { "type": "string", "pattern": "a" } },
        });
        without_checks(&mut schema);
        assert_eq!(schema, serde_json::json!({ "properties": { "pattern": { "type": "string" } } }));
    }
}
