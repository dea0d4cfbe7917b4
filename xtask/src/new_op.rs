//! `cargo xtask new-op NAME`: creates the schema and the reference implementation of a new operation.
//!
//! The template is a complete operation, `output = x * scale`. It builds and runs unmodified, so that any later error comes
//! from the author's own change.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use lz_codegen::names::{camel, reference_path};
use lz_schema::{Reasons, SchemaSet};

use crate::codegen;

/// Creates both files and returns the text to print.
pub fn run(root: &Path, name: &str) -> Result<String> {
    ensure!(
        is_name(name),
        "`{name}` is not a valid operation name; expected words of lower-case letters, digits and underscores, joined by dots, such as `attention.linear.decode`"
    );
    let schema_path = schema_path(root, name);
    let reference_path = format!("lz-ops/src/reference/{}", reference_path(name));
    let files = codegen::read_schemas(root)?;
    for (path, _) in &files {
        if lz_schema::set::name_of_path(path).as_deref() == Some(name) {
            bail!("operation `{name}` already exists: {path}");
        }
    }
    for path in [&schema_path, &reference_path] {
        ensure!(!root.join(path).exists(), "{path} already exists; remove it or choose another name");
    }
    let schema = schema(name, &schema_path);
    check(files, &schema_path, &schema, &codegen::read_reasons(root)?)?;
    codegen::write(&root.join(&schema_path), &schema)?;
    codegen::write(&root.join(&reference_path), &reference(name))?;
    let width = schema_path.len().max(reference_path.len());
    Ok(format!(
        "created {schema_path:<width$}   fill in the sections marked ●\n\
         created {reference_path:<width$}   write the reference implementation\n\
         next: cargo xtask codegen && cargo xtask test --op {name}\n"
    ))
}

/// Validates the new schema together with all others: its name may collide with an alias or a function.
fn check(mut files: Vec<(String, String)>, path: &str, text: &str, reasons: &Reasons) -> Result<()> {
    files.push((path.to_owned(), text.to_owned()));
    match SchemaSet::load(files, reasons) {
        Ok(_) => Ok(()),
        Err(report) => bail!("nothing was created\n{report}"),
    }
}

fn is_name(name: &str) -> bool {
    name.split('.').all(|word| {
        word.starts_with(|first: char| first.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    })
}

/// The path of a schema, such as `schemas/ops/attention/linear/decode.yaml`. Where a prefix of the name is an operation with a
/// file, the rest of the name stays in the file name: `norm.rms.add` is in `norm/rms.add.yaml`, next to `norm/rms.yaml`.
fn schema_path(root: &Path, name: &str) -> String {
    let mut folder = "schemas/ops".to_owned();
    let mut rest = name;
    while let Some((word, after)) = rest.split_once('.') {
        if root.join(format!("{folder}/{word}.yaml")).exists() {
            break;
        }
        folder = format!("{folder}/{word}");
        rest = after;
    }
    format!("{folder}/{rest}.yaml")
}

fn schema(name: &str, path: &str) -> String {
    let up = "../".repeat(path.matches('/').count() - 1);
    lz_schema::template::schema(name, Some(&format!("{up}operation.schema.json")))
}

fn reference(name: &str) -> String {
    include_str!("new_op/reference.txt").replace("{name}", name).replace("{stem}", &camel(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_names_are_validated() {
        assert!(is_name("attention.linear.decode") && is_name("quantize") && is_name("a.b_2"));
        for bad in ["", "Attention", "a..b", ".a", "a.", "a.2b", "a/b", "../a", "a-b", "a b"] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn schema_path_and_name_are_inverse() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (name, path) in [
            ("attention.linear.decode", "schemas/ops/attention/linear/decode.yaml"),
            ("norm.rms.gated", "schemas/ops/norm/rms.gated.yaml"),
            ("norm.rms.gated.add", "schemas/ops/norm/rms.gated.add.yaml"),
            ("softmax", "schemas/ops/softmax.yaml"),
        ] {
            assert_eq!(schema_path(root, name), path);
            assert_eq!(lz_schema::set::name_of_path(path).as_deref(), Some(name));
        }
    }

    #[test]
    fn invalid_and_existing_names_are_rejected() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let error = |name| run(root, name).unwrap_err().to_string();
        assert!(error("Norm").contains("is not a valid operation name"));
        assert_eq!(error("norm.rms"), "operation `norm.rms` already exists: schemas/ops/norm/rms.yaml");
        // The names of an existing alias and of an existing function.
        assert!(error("attention.causal").contains("alias `attention.causal` has the name of an operation"));
        assert!(error("norm_rms").contains("would both be the function `norm_rms`"));
        assert!(!root.join("schemas/ops/norm_rms.yaml").exists());
    }
}
