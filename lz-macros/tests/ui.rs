//! How the macros refuse, one file a case. `TRYBUILD=overwrite` blesses the messages.
//!
//! What they accept is the crate under `tests/out-of-tree`. Cases here need nothing but the macros, so that only these are
//! built a second time for them.

use std::fs;
use std::path::Path;

/// Macros read schemas from the folder of the crate's manifest, which trybuild makes up: what the cases name is put there.
fn bring_schemas() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let crate_folder = target.join("tests/trybuild/lz-macros");
    fs::create_dir_all(&crate_folder).unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in ["tests/ui/misspelled.yaml", "../tests/out-of-tree/ops/scale_add.yaml"] {
        let from = here.join(path);
        fs::copy(&from, crate_folder.join(from.file_name().unwrap())).unwrap();
    }
}

#[test]
fn refusals() {
    bring_schemas();
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}
