//! Schemas: both ways to load one agree, and an accepted one becomes valid Rust.

use std::slice;

use lz_core::reason;
use lz_schema::{Reasons, SchemaSet, load_one};
use quote::quote;

use crate::diagnostics;

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let reasons = reason::catalog();
    let alone = load_one("input.yaml", &text, reasons);
    let in_set = SchemaSet::load([("input.yaml", &*text)], reasons);
    match (&alone, &in_set) {
        (Ok(alone), Ok(set)) => {
            let [other] = &set.operations[..] else {
                panic!("{} operations of one file", set.operations.len())
            };
            assert_eq!(format!("{alone:?}"), format!("{other:?}"));
        }
        (Err(alone), Err(set)) => {
            diagnostics::check(alone);
            diagnostics::check(set);
        }
        (alone, set) => panic!("alone: {:?}, in a set: {:?}", alone.is_ok(), set.is_ok()),
    }
    if let Ok(operation) = &alone {
        let tokens = lz_codegen::tokens(operation, slice::from_ref(operation), "input.yaml", &quote! { "" });
        syn::parse2::<syn::File>(tokens).unwrap_or_else(|error| panic!("generated code: {error}"));
        lz_core::dynamic::fields(operation).map_or_else(|why| assert!(!why.is_empty()), drop);
    }
    if let Err(report) = Reasons::load("reasons.yaml", &text) {
        diagnostics::check(&report);
    }
    alone.is_ok()
}
