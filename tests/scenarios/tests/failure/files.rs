//! Invalid files and environment variables: reported precisely, and the active configuration stays unchanged.

use std::sync::mpsc;
use std::time::Duration;

use lz_core::descriptor::{self, Catalog};
use lz_core::{ReasonCode, dynamic};
use lz_engine::policy::env;
use lz_engine::policy::file::Document;
use lz_engine::reload::{Outcome, watch};
use lz_ops::OPERATIONS;
use lz_scenarios::calls::{Prefill, ScenarioCall};
use lz_scenarios::engines::{engine_on, stack, vocabulary};
use lz_test_support::Folder;

fn descriptor_codes(json: &str) -> (Option<String>, Vec<ReasonCode>) {
    let catalog = Catalog::new(OPERATIONS.iter().map(|info| info.schema()));
    let error = descriptor::read("vendor.json", json, &catalog).unwrap_err();
    (error.backend.clone(), error.reasons.iter().map(|reason| reason.code).collect())
}

const KERNEL: &str =
    r#""kernel_id": "vendor.rms", "min_sm": 80, "requires_layouts": ["any"], "writes_into_output": true"#;

/// A vendor's descriptor has an unknown schema version: the backend is disabled.
#[test]
fn a_descriptor_of_an_unknown_version_disables_its_backend() {
    let json = format!(
        r#"{{ "schema_version": "2.0", "backend": "vendor", "backend_version": "3.1", "platform": "cuda",
              "ops": {{ "norm.rms": [ {{ {KERNEL}, "dtypes": ["float16"] }} ] }} }}"#
    );
    assert_eq!(
        descriptor_codes(&json),
        (Some("vendor".to_owned()), vec![ReasonCode::CapabilitiesSchemaMismatch])
    );
}

/// A descriptor without dtypes: they are not guessed, the backend is disabled.
#[test]
fn a_descriptor_without_dtypes_disables_its_backend() {
    let json = format!(
        r#"{{ "schema_version": "1.0", "backend": "vendor", "backend_version": "3.1", "platform": "cuda",
              "ops": {{ "norm.rms": [ {{ {KERNEL} }} ] }} }}"#
    );
    assert_eq!(descriptor_codes(&json), (Some("vendor".to_owned()), vec![ReasonCode::CapabilitiesMissing]));
}

/// A descriptor names an unknown operation: rejected with the nearest known name.
#[test]
fn a_descriptor_of_an_unknown_operation_is_rejected() {
    let json = format!(
        r#"{{ "schema_version": "1.0", "backend": "vendor", "backend_version": "3.1", "platform": "cuda",
              "ops": {{ "norm.rmss": [ {{ {KERNEL}, "dtypes": ["float16"] }} ] }} }}"#
    );
    let catalog = Catalog::new(OPERATIONS.iter().map(|info| info.schema()));
    let error = descriptor::read("vendor.json", &json, &catalog).unwrap_err();
    assert_eq!(error.reasons[0].code, ReasonCode::OperationUnknown);
    assert!(error.to_string().contains("did you mean `norm.rms`?"), "{error}");
}

/// A policy with a typo is saved while the server runs: rejected with line and suggestion, the old policy
/// stays active.
#[test]
fn an_invalid_policy_reload_changes_nothing() {
    let folder = Folder::new();
    let file = folder.write("layerzero.yaml", "deny: [flash_attn.v3.prefill]\n");
    let engine = engine_on("h100");
    let (sender, outcomes) = mpsc::channel();
    let on_outcome = move |outcome| drop(sender.send(outcome));
    let reload = watch(&file, Duration::from_millis(10), stack(&engine), vocabulary(), on_outcome).unwrap();
    let next = |fits: fn(&Outcome) -> bool| loop {
        let outcome = outcomes.recv_timeout(Duration::from_secs(60)).unwrap();
        if fits(&outcome) {
            return outcome;
        }
    };
    next(|outcome| matches!(outcome, Outcome::Applied));
    let generation = engine.generation();
    folder.write("layerzero.yaml", "dney: [flash_attn]\n");
    let Outcome::Refused(report) = next(|outcome| matches!(outcome, Outcome::Refused(_))) else {
        unreachable!()
    };
    assert!(report.contains("unknown key `dney`") && report.contains("did you mean `deny`?"), "{report}");
    assert_eq!(engine.generation(), generation);
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "flash_attn.v2.prefill");

    // The file disappears, as it does while some editors save: nothing changes either.
    std::fs::remove_file(&file).unwrap();
    next(|outcome| matches!(outcome, Outcome::Unreadable(_)));
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "flash_attn.v2.prefill");
    drop(reload);
}

/// A rule with several unknown names: the file is rejected as a whole, and every error is reported.
#[test]
fn a_policy_with_several_errors_reports_all_of_them() {
    let text = "rules:\n  - { condition: head_dims > 64, prefer: torch }\n  - { match: { operation: atention.* }, deny: x }\n  - { condition: seq_len > bf16, avoid: x }\n";
    let report = Document::read("layerzero.yaml", text, &vocabulary()).unwrap_err().to_string();
    for part in [
        "head_dims",
        "did you mean `head_dim`?",
        "atention",
        "layerzero.yaml:4:",
        "3 errors in layerzero.yaml",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
}

/// An environment variable with an invalid value is an error; an unknown variable name is a warning, because
/// other programs may use it.
#[test]
fn an_unknown_variable_warns_and_an_invalid_value_fails() {
    let read = |name: &str, value: &str| env::read([(name.to_owned(), value.to_owned())], &vocabulary());
    let report = read("LAYERZERO_DETERMINISTIC", "perhaps").unwrap_err().to_string();
    assert!(report.contains("`LAYERZERO_DETERMINISTIC` must be 1 or 0"), "{report}");
    let environment = read("LAYERZERO_PREFFER", "torch").unwrap();
    assert_eq!(environment.warnings.len(), 1);
    assert_eq!(
        environment.warnings[0].message,
        "unknown environment variable `LAYERZERO_PREFFER`; did you mean `LAYERZERO_PREFER`?"
    );
    assert!(environment.layer.is_empty());
}

/// A lock in the environment names an unknown operation: rejected with the nearest known name.
#[test]
fn a_lock_on_an_unknown_operation_is_rejected() {
    let variable = [("LAYERZERO_LOCK_NORM_RSM".to_owned(), "torch.norm.rms".to_owned())];
    let report = env::read(variable, &vocabulary()).unwrap_err().to_string();
    assert!(report.contains("did you mean `LAYERZERO_LOCK_NORM_RMS`?"), "{report}");
}

/// A custom operation has a shape with an undefined axis: rejected with the location and the nearest known
/// name.
#[test]
fn an_invalid_custom_schema_is_rejected() {
    let yaml = "operation: team.copy
version: 1
summary: A copy.
doc: \"output = x\"
axes:
  rows: { role: batch, select: exact, fuzz: 1..4 }
types:
  T: [f32]
inputs:
  x: { shape: [rws], dtype: T, doc: \"Input.\" }
outputs:
  output: { shape: [rows], dtype: T, doc: \"Output.\" }
semantics: { nan: propagate }
equivalence:
  exact: true
workloads:
  small: { rows: 2, T: f32 }
";
    let error = dynamic::read_operation("team/copy.yaml", yaml).unwrap_err();
    assert!(error.has(ReasonCode::SchemaInvalid));
    assert!(
        error.to_string().contains("team/copy.yaml:10:16")
            && error.to_string().contains("did you mean `rows`?"),
        "{error}"
    );
}
