//! Generation is deterministic, touches only what changes, and notices a change of one character.

use std::fs;
use std::path::{Path, PathBuf};

use crate::codegen::{self, Mode};
use crate::{new_op, scaffold};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A copy of the tree that goes away with the test.
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
        // What is left behind is overwritten by nothing and found by nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_checked_in_is_what_the_generator_writes_twice() {
    let (first, second) = (codegen::generate(root()).unwrap(), codegen::generate(root()).unwrap());
    assert!(first == second, "two runs of the generator differ");
    assert!(first.len() > 80);
    codegen::run(root(), Mode::Check).unwrap();
}

#[test]
fn a_change_of_one_character_is_noticed_and_named() {
    let copy = Copy::new("one-character");
    copy.check().unwrap();
    copy.edit("schemas/ops/norm/rms.yaml", |text| text.replacen("row by row.", "row by row!", 1));
    let refusal = copy.check().unwrap_err();
    assert!(refusal.contains("changed schemas: schemas/ops/norm/rms.yaml\n"), "{refusal}");
    assert!(refusal.contains("lz-ops/src/generated/norm_rms.rs"), "{refusal}");
    assert!(refusal.contains("run `cargo xtask codegen`"), "{refusal}");
    codegen::run(&copy.0, Mode::Write).unwrap();
    copy.check().unwrap();

    copy.edit("schemas/reasons.yaml", |text| text.replacen("sentence: ", "sentence: Now ", 1));
    let refusal = copy.check().unwrap_err();
    assert!(refusal.contains("changed schemas: schemas/reasons.yaml\n"), "{refusal}");
}

#[test]
fn a_mistake_is_reported_and_nothing_is_written() {
    let copy = Copy::new("mistake");
    copy.edit("schemas/ops/norm/rms.yaml", |text| text.replacen("[hidden]", "[hiden]", 1));
    let before = fs::read_to_string(copy.0.join("lz-ops/src/generated/norm_rms.rs")).unwrap();
    let refusal = codegen::run(&copy.0, Mode::Write).unwrap_err().to_string();
    assert!(
        refusal.contains("schemas/ops/norm/rms.yaml:") && refusal.contains("did you mean `hidden`?"),
        "{refusal}"
    );
    assert_eq!(fs::read_to_string(copy.0.join("lz-ops/src/generated/norm_rms.rs")).unwrap(), before);
}

#[test]
fn only_what_changes_is_touched_and_deleted_schemas_take_their_files_with_them() {
    let copy = Copy::new("touch");
    new_op::run(&copy.0, "demo.scale").unwrap();
    codegen::run(&copy.0, Mode::Write).unwrap();
    let generated = copy.0.join("lz-ops/src/generated/demo_scale.rs");
    let page = copy.0.join("docs/ops/demo.scale.md");
    assert!(generated.is_file() && page.is_file());

    let neighbour = copy.0.join("lz-ops/src/generated/norm_rms.rs");
    let written = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let before = written(&neighbour);
    fs::remove_file(copy.0.join("schemas/ops/demo/scale.yaml")).unwrap();
    assert!(copy.check().unwrap_err().contains("lz-ops/src/generated/demo_scale.rs"));
    codegen::run(&copy.0, Mode::Write).unwrap();
    assert!(!generated.exists() && !page.exists());
    assert_eq!(written(&neighbour), before);
    copy.check().unwrap();
}

#[test]
fn an_operation_without_a_reference_is_refused_by_name() {
    let copy = Copy::new("reference");
    fs::remove_file(copy.0.join("lz-ops/src/reference/norm/rms.rs")).unwrap();
    let refusal = copy.check().unwrap_err();
    assert!(refusal.contains("lz-ops/src/reference/norm/rms.rs"), "{refusal}");
}
