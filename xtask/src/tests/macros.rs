//! `operation!` expands to the checked-in generated code.

use std::fs;
use std::path::Path;

use quote::quote;

use crate::codegen;

#[test]
fn macro_expansion_equals_checked_in_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let catalog = codegen::load(root).unwrap();
    for operation in &catalog.set.operations {
        let schema = &catalog.paths[&operation.name];
        let path = format!("lz-ops/src/generated/{}.rs", operation.flat_name());
        let mut file = syn::parse_file(&fs::read_to_string(root.join(&path)).unwrap()).unwrap();
        // The files allow some lints. A macro expansion needs no such attributes, because lints skip it.
        file.attrs.clear();
        let include = format!("../../{schema}");
        let tokens = lz_codegen::tokens(
            operation,
            &catalog.set.operations,
            schema,
            &quote! { include_str!(#include) },
        );
        let expanded = syn::parse2::<syn::File>(tokens).unwrap();
        let same = prettyplease::unparse(&expanded) == prettyplease::unparse(&file);
        assert!(same, "{path} is not what `operation!(\"{schema}\")` expands to");
    }
}
