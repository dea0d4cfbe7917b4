//! The section `definition`: texts are verbatim, and the names that it refers to must exist.

use std::fs;
use std::path::Path;

use lz_schema::definition::{DefinitionShape, Stated};
use lz_schema::{Operation, Reasons, Report, load_one};

const SCHEMA: &str = r#"
operation: double
version: 1
summary: Twice the input.
doc: y = 2 x
axes: { m: { role: batch, fuzz: 0..3 } }
inputs: { a: { shape: [m], dtype: f32 } }
params: { factor: { type: f32 } }
outputs: { c: { shape: [m], dtype: f32 } }
equivalence: { close: { f32: [1e-5, 1e-5] } }
workloads: { one: { m: 4, factor: 2 } }
definition:
  name: double_m
  op_type: double
  tags: ["status:draft "]
  axes: { M: { as: m }, one: { type: const, value: 1 } }
  inputs: { A: { as: a }, layout: { scalar: true, dtype: string }, factor: { optional: true } }
  outputs: { C: { as: c, dtype: unknown, shape: [M, one] } }
  constraints: [{ check: "A[0].item() > 0", value_dependent: true }]
  reference: |2+
      def run(A):

        return 2 * A  

"#;

fn load(text: &str) -> Result<Operation, Report> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/reasons.yaml");
    let reasons = fs::read_to_string(path).expect("reasons.yaml exists");
    load_one("double.yaml", text, &Reasons::load("reasons.yaml", &reasons).expect("reasons.yaml is valid"))
}

#[test]
fn definition_texts_are_verbatim() {
    let operation = load(SCHEMA).unwrap_or_else(|report| panic!("\n{report}"));
    let definition = operation.definition.expect("the schema has a definition");
    assert_eq!(definition.tags, Some(vec!["status:draft ".to_owned()]));
    assert_eq!(definition.reference.as_deref(), Some("  def run(A):\n\n    return 2 * A  \n\n"));
    assert_eq!((definition.axes[0].axis, definition.axes[1].axis), (Some(0), None));
    let stated: Vec<Option<Stated>> = definition.inputs.iter().map(|input| input.stated).collect();
    assert_eq!(stated, [Some(Stated::Input(0)), None, Some(Stated::Param(0))]);
    assert_eq!(definition.outputs[0].shape, Some(DefinitionShape::Axes(vec!["M".into(), "one".into()])));
    assert!(definition.constraints.is_some_and(|list| list[0].value_dependent));
}

#[test]
fn unknown_names_in_a_definition_are_reported() {
    let wrong = SCHEMA
        .replace("M: { as: m }", "M: { as: mm }")
        .replace("type: const, value", "value")
        .replace("A: { as: a }", "A: { as: c }")
        .replace("scalar: true, dtype: string", "dtype: strng")
        .replace("C: { as: c,", "c: {}, C: { as: c, scalar: true,");
    let report = load(&wrong).expect_err("the definition is invalid");
    insta::assert_snapshot!(report.render());
}
