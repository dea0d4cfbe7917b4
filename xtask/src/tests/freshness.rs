//! Generation is deterministic, writes only changed files, and detects a change of one character.

use std::fs;
use std::path::{Path, PathBuf};

use crate::codegen::{self, Mode};
use crate::{new_op, scaffold};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A copy of the checkout that is removed at the end of the test.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Copy {
        let folder = root().join(format!("target/tmp/{name}-{}", std::process::id()));
        scaffold::copy(root(), &folder).unwrap();
        Copy(folder)
    }

    fn edit(&self, path: &str, change: impl FnOnce(String) -> String) {
        let path = self.0.join(path);
        fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
    }

    fn check(&self) -> Result<(), String> {
        codegen::run(&self.0, Mode::Check).map_err(|error| error.to_string())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // A leftover folder is harmless: its name contains the process id.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn generation_is_deterministic_and_checked_in_files_are_up_to_date() {
    let (first, second) = (codegen::generate(root()).unwrap(), codegen::generate(root()).unwrap());
    assert!(first == second, "two runs of the generator differ");
    assert!(first.len() > 80);
    codegen::run(root(), Mode::Check).unwrap();
}

#[test]
fn change_of_one_character_is_reported_with_its_schema() {
    let copy = Copy::new("one-character");
    copy.check().unwrap();
    copy.edit("schemas/ops/norm/rms.yaml", |text| {
        text.replacen("rows to normalize.", "rows to normalize!", 1)
    });
    let error = copy.check().unwrap_err();
    assert!(error.contains("changed schemas: schemas/ops/norm/rms.yaml\n"), "{error}");
    assert!(error.contains("lz-ops/src/generated/norm_rms.rs"), "{error}");
    assert!(error.contains("run `cargo xtask codegen`"), "{error}");
    codegen::run(&copy.0, Mode::Write).unwrap();
    copy.check().unwrap();

    copy.edit("schemas/reasons.yaml", |text| text.replacen("sentence: ", "sentence: Now ", 1));
    let error = copy.check().unwrap_err();
    assert!(error.contains("changed schemas: schemas/reasons.yaml\n"), "{error}");
}

#[test]
fn invalid_schema_is_reported_and_nothing_is_written() {
    let copy = Copy::new("mistake");
    copy.edit("schemas/ops/norm/rms.yaml", |text| text.replacen("[hidden]", "[hiden]", 1));
    let before = fs::read_to_string(copy.0.join("lz-ops/src/generated/norm_rms.rs")).unwrap();
    let error = codegen::run(&copy.0, Mode::Write).unwrap_err().to_string();
    assert!(
        error.contains("schemas/ops/norm/rms.yaml:") && error.contains("did you mean `hidden`?"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(copy.0.join("lz-ops/src/generated/norm_rms.rs")).unwrap(), before);
}

#[test]
fn only_changed_files_are_written_and_files_of_removed_schemas_are_deleted() {
    let copy = Copy::new("touch");
    new_op::run(&copy.0, "demo.scale").unwrap();
    codegen::run(&copy.0, Mode::Write).unwrap();
    let generated = copy.0.join("lz-ops/src/generated/demo_scale.rs");
    let page = copy.0.join("docs/ops/demo.scale.md");
    assert!(generated.is_file() && page.is_file());

    let unchanged = copy.0.join("lz-ops/src/generated/norm_rms.rs");
    let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let before = modified(&unchanged);
    fs::remove_file(copy.0.join("schemas/ops/demo/scale.yaml")).unwrap();
    assert!(copy.check().unwrap_err().contains("lz-ops/src/generated/demo_scale.rs"));
    codegen::run(&copy.0, Mode::Write).unwrap();
    assert!(!generated.exists() && !page.exists());
    assert_eq!(modified(&unchanged), before);
    copy.check().unwrap();
}

#[test]
fn operation_without_a_reference_is_rejected() {
    let copy = Copy::new("reference");
    fs::remove_file(copy.0.join("lz-ops/src/reference/norm/rms.rs")).unwrap();
    let error = copy.check().unwrap_err();
    assert!(error.contains("lz-ops/src/reference/norm/rms.rs"), "{error}");
}
