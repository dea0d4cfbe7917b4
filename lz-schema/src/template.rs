//! The schema with which a new operation starts. It is complete, so that any later error comes from the author's own change.

const TEMPLATE: &str = include_str!("template.yaml");

/// The schema of an operation. `editor_schema` is the path of `operation.schema.json` for an operation of the repository; without
/// it the comments refer to what the Python package contains.
pub fn schema(name: &str, editor_schema: Option<&str>) -> String {
    let (head, reasons) = match editor_schema {
        Some(path) => (
            format!(
                "# yaml-language-server: $schema={path}\n#\n# ● marks the sections to fill in. docs/schema-language.md explains every \
                 key; editors that support the line above complete\n# them."
            ),
            "schemas/reasons.yaml",
        ),
        None => (
            "# ● marks the sections to fill in. `lz docs schema-language` explains every key.".to_owned(),
            "`lz docs operating` lists them",
        ),
    };
    TEMPLATE.replace("{head}", &head).replace("{reasons}", reasons).replace("{name}", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_replaced() {
        for text in [schema("a.b", None), schema("a.b", Some("../operation.schema.json"))] {
            assert!(text.contains("operation: a.b\n"), "{text}");
            for placeholder in ["{name}", "{head}", "{reasons}"] {
                assert!(!text.contains(placeholder), "{placeholder} in {text}");
            }
        }
        assert!(!schema("a.b", None).contains("operation.schema.json"));
    }
}
