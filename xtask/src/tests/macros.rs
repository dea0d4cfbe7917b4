//! `operation!` expands to what is checked in: both come from one function, and this holds the files to it.

use std::fs;
use std::path::Path;

use quote::quote;

use crate::codegen;

#[test]
fn the_tokens_of_the_macro_are_those_of_the_checked_in_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let catalogue = codegen::load(root).unwrap();
    for operation in &catalogue.set.operations {
        let schema = &catalogue.paths[&operation.name];
        let path = format!("lz-ops/src/generated/{}.rs", operation.flat_name());
        let mut file = syn::parse_file(&fs::read_to_string(root.join(&path)).unwrap()).unwrap();
        // The file alone says which lints do not apply to it; inside a macro's expansion they do not look.
        file.attrs.clear();
        let include = format!("../../../{schema}");
        let tokens = lz_codegen::tokens(operation, schema, &quote! { include_str!(#include) });
        let expanded = syn::parse2::<syn::File>(tokens).unwrap();
        let same = prettyplease::unparse(&expanded) == prettyplease::unparse(&file);
        assert!(same, "{path} is not what `operation!(\"{schema}\")` expands to");
    }
}
