//! FlashInfer definitions: an accepted one survives writing, and import and export return it unchanged.

use lz_core::reason;
use lz_interchange::{ExportOptions, export, import, read, write};
use lz_schema::load_one;

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let definition = read(&text, "input");
    match &definition {
        Ok(definition) => {
            let again = read(&write(definition), "written").unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(&again, definition);
        }
        Err(error) => assert!(error.to_string().contains("input"), "{error}"),
    }
    let imported = match import(&text, "input") {
        Ok(imported) => imported,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let definition = definition.unwrap_or_else(|error| panic!("imported, but: {error}"));
    let operation = load_one("imported.yaml", &imported.yaml, reason::catalog())
        .unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml));
    assert_eq!(operation.name, imported.operation);
    let exported = export(&operation, &ExportOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read(&exported, "exported").unwrap_or_else(|error| panic!("{error}")), definition);
    true
}
