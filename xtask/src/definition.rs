//! `cargo xtask import-definition` and `export-definition`: convert FlashInfer-Bench definitions to schemas and back.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use lz_interchange::{ExportOptions, export, import};
use lz_schema::{DType, Operation, Reasons, load_one};

use crate::codegen;

/// `import-definition FILE [--output SCHEMA.yaml]`: writes the schema to the file, or prints it.
pub fn run_import(root: &Path, arguments: &[&str]) -> Result<()> {
    let (file, output) = match arguments {
        [file] => (*file, None),
        [file, "--output", output] | ["--output", output, file] => (*file, Some(*output)),
        _ => bail!("usage: cargo xtask import-definition FILE [--output SCHEMA.yaml]"),
    };
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let imported = import(&text, file)?;
    let schema_file = format!("{}.yaml", imported.operation);
    // The importer must produce valid schemas, so an error here is a bug of the importer.
    load_one(&schema_file, &imported.yaml, &reasons(root)?).map_err(|report| {
        anyhow!("bug in the importer: the schema generated from {file} is invalid:\n{report}")
    })?;
    imported.notes.iter().for_each(|note| eprintln!("note: {note}"));
    match output {
        Some(output) => {
            fs::write(output, &imported.yaml).with_context(|| format!("cannot write {output}"))?
        }
        None => print!("{}", imported.yaml),
    }
    Ok(())
}

/// `export-definition OP --axes head_dim=128,... [--dtypes T=bf16] [--params layout=NHD]`: prints the definition.
///
/// `OP` is the name of an operation or the path of a schema.
pub fn run_export(root: &Path, arguments: &[&str]) -> Result<()> {
    let usage = "usage: cargo xtask export-definition OP|SCHEMA.yaml [--axes head_dim=128,...] [--dtypes T=bf16,...] [--params layout=NHD,...]";
    let [name, flags @ ..] = arguments else { bail!(usage) };
    let mut options = ExportOptions::default();
    for flag in flags.chunks(2) {
        match flag {
            ["--axes", list] => {
                for (axis, size) in pairs(list)? {
                    let parsed = size.parse().with_context(|| {
                        format!("`{size}` is not a size of axis `{axis}`; expected an integer")
                    })?;
                    options.axes.insert(axis, parsed);
                }
            }
            ["--dtypes", list] => {
                for (variable, dtype) in pairs(list)? {
                    let parsed = DType::parse(&dtype)
                        .with_context(|| format!("`{dtype}` is not a dtype; expected for instance bf16"))?;
                    options.dtypes.insert(variable, parsed);
                }
            }
            ["--params", list] => options.cases.extend(pairs(list)?),
            _ => bail!(usage),
        }
    }
    print!("{}", export(&operation(root, name)?, &options).with_context(|| format!("cannot export {name}"))?);
    Ok(())
}

fn reasons(root: &Path) -> Result<Reasons> {
    let path = "schemas/reasons.yaml";
    let text = fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
    Reasons::load(path, &text).map_err(|report| anyhow!("{report}"))
}

fn operation(root: &Path, name: &str) -> Result<Operation> {
    if name.ends_with(".yaml") {
        let text = fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
        return load_one(name, &text, &reasons(root)?).map_err(|report| anyhow!("{report}"));
    }
    let set = codegen::load(root)?.set;
    let known = set.operations.iter().map(|operation| operation.name.as_str());
    let near = lz_schema::diagnostics::nearest(name, known).map(|near| format!("; did you mean `{near}`?"));
    let unknown = || format!("unknown operation `{name}`{}", near.unwrap_or_default());
    set.get(name).cloned().with_context(unknown)
}

fn pairs(list: &str) -> Result<Vec<(String, String)>> {
    let parts = list.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) =
                part.split_once('=').with_context(|| format!("expected `name=value`, got `{part}`"))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}
