//! Error messages of the macros, one file per case. `TRYBUILD=overwrite` updates them.
//!
//! What the macros accept is tested by the crate `tests/out-of-tree`.

use std::fs;
use std::path::Path;

/// Copies the schemas that the cases name into the crate that trybuild generates, because macros read them from there.
fn copy_schemas() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let crate_folder = target.join("tests/trybuild/lz-macro-errors");
    fs::create_dir_all(&crate_folder).unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in ["tests/ui/misspelled.yaml", "../out-of-tree/ops/scale_add.yaml"] {
        let from = here.join(path);
        fs::copy(&from, crate_folder.join(from.file_name().unwrap())).unwrap();
    }
}

#[test]
fn each_error_has_its_message() {
    copy_schemas();
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}
