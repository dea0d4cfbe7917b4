//! Crates that others may depend on are described.

use std::path::Path;

use crate::metadata;

#[test]
fn libraries_have_complete_metadata() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let libraries = metadata::libraries(&metadata::read(root).unwrap());
    assert!(libraries.len() > 15, "the workspace has only {} libraries", libraries.len());
    for library in libraries {
        assert!(
            library.missing.is_empty(),
            "the manifest of {}: {}",
            library.name,
            library.missing.join("; ")
        );
    }
}
