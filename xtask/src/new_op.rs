//! `cargo xtask new-op NAME`: a starting schema and its reference, in their places.
//!
//! What it writes is a whole operation, `output = x * scale`: it loads, generates, builds and runs before anything is
//! filled in, so that whoever starts from it always knows which of their own changes broke it.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use lz_codegen::names::{camel, reference_path};
use lz_schema::{Reasons, SchemaSet};

use crate::codegen;

/// Writes both files and says what to do next.
pub fn run(root: &Path, name: &str) -> Result<String> {
    ensure!(
        is_name(name),
        "`{name}` is not a name of an operation: words of lower-case letters, digits and underscores, joined by dots, such as `attention.linear.decode`"
    );
    let schema_path = schema_path(root, name);
    let reference_path = format!("lz-ops/src/reference/{}", reference_path(name));
    let files = codegen::read_schemas(root)?;
    for (path, _) in &files {
        if lz_schema::set::name_of_path(path).as_deref() == Some(name) {
            bail!("operation `{name}` exists already: {path}");
        }
    }
    for path in [&schema_path, &reference_path] {
        ensure!(!root.join(path).exists(), "{path} exists already; remove it or choose another name");
    }
    let schema = schema(name, &schema_path);
    check(files, &schema_path, &schema, &codegen::read_reasons(root)?)?;
    codegen::write(&root.join(&schema_path), &schema)?;
    codegen::write(&root.join(&reference_path), &reference(name))?;
    let width = schema_path.len().max(reference_path.len());
    Ok(format!(
        "created {schema_path:<width$}   fill in the sections marked ●\n\
         created {reference_path:<width$}   write the plain truth\n\
         next: cargo xtask codegen && cargo xtask test --op {name}\n"
    ))
}

/// Holds the new schema against all others: an alias or a function may have its name already.
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

/// `schemas/ops/attention/linear/decode.yaml`. Below an operation that has a file, the rest of the name stays in the file's
/// name: beside `norm/rms.yaml` stands `norm/rms.add.yaml`.
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
    include_str!("new_op/schema.yaml").replace("{up}", &up).replace("{name}", name)
}

fn reference(name: &str) -> String {
    include_str!("new_op/reference.txt").replace("{name}", name).replace("{stem}", &camel(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelled_as_the_language_says() {
        assert!(is_name("attention.linear.decode") && is_name("quantize") && is_name("a.b_2"));
        for bad in ["", "Attention", "a..b", ".a", "a.", "a.2b", "a/b", "../a", "a-b", "a b"] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn files_stand_where_the_catalogue_would_put_them() {
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
    fn names_that_are_wrong_or_taken_are_refused() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let refusal = |name| run(root, name).unwrap_err().to_string();
        assert!(refusal("Norm").contains("is not a name of an operation"));
        assert_eq!(refusal("norm.rms"), "operation `norm.rms` exists already: schemas/ops/norm/rms.yaml");
        // An alias of others, and the function of another.
        assert!(
            refusal("attention.causal").contains("alias `attention.causal` has the name of an operation")
        );
        assert!(refusal("norm_rms").contains("would both be the function `norm_rms`"));
        assert!(!root.join("schemas/ops/norm_rms.yaml").exists());
    }
}
