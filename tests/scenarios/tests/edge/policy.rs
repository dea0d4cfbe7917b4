//! Policies that contradict each other, are empty, or name missing backends.

use lz_core::ReasonCode;
use lz_engine::policy::env;
use lz_engine::policy::file::Document;
use lz_engine::policy::layer::SettingInput;
use lz_scenarios::calls::{DecodePaged, Norm, Prefill, ScenarioCall};
use lz_scenarios::engines::{apply_policy, engine_on, stack, vocabulary};

fn chosen(yaml: &str) -> String {
    let engine = engine_on("h100");
    apply_policy(&engine, yaml);
    Prefill::llama3_8b().selected(&engine).unwrap()
}

/// A rule uses the page size, which a norm does not have: it does not apply to norms.
#[test]
fn a_rule_applies_to_operations_that_have_its_axes() {
    let engine = engine_on("h100");
    apply_policy(&engine, "rules:\n  - { condition: page_size >= 16, deny: '*' }\n");
    assert!(DecodePaged::llama3_8b().selected(&engine).unwrap_err().has(ReasonCode::PolicyDenied));
    assert_eq!(Norm::llama3_8b().selected(&engine).unwrap(), "flashinfer.norm.rms");
}

/// The file prefers a backend, the environment avoids it: the environment has precedence and removes the
/// preference.
#[test]
fn the_environment_overrides_the_file() {
    let engine = engine_on("h100");
    let stack = apply_policy(&engine, "prefer_sources: [flash_attn]\n");
    let variables = [("LAYERZERO_AVOID".to_owned(), "flash_attn".to_owned())];
    stack.set_environment(&env::read(variables, &vocabulary()).unwrap());
    let explanation = Prefill::llama3_8b().explain(&engine);
    let flash = explanation.candidate("flash_attn.v3.prefill").unwrap();
    assert_eq!((flash.score.policy, flash.total), (-50.0, 35.0));
    assert_eq!(explanation.chosen(), Some("torch.sdpa.flash"));
}

/// Two rules lock two kernels for one call: the later one applies, and the explanation names its line.
#[test]
fn the_later_of_two_locks_applies() {
    let engine = engine_on("h100");
    let yaml = "rules:
  - { condition: seq_len >= 1024, lock: torch.sdpa.flash }
  - { condition: seq_len >= 2048, lock: torch.sdpa.cudnn }
";
    apply_policy(&engine, yaml);
    let explanation = Prefill::llama3_8b().explain(&engine);
    assert_eq!(explanation.chosen(), Some("torch.sdpa.cudnn"));
    assert_eq!(explanation.policy[0].what, "lock: torch.sdpa.cudnn");
    assert_eq!(explanation.policy[0].source, "layerzero.yaml:3");
    let shorter = Prefill { seq_q: 1024, seq_k: 1024, ..Prefill::llama3_8b() };
    assert_eq!(shorter.selected(&engine).unwrap(), "torch.sdpa.flash");
}

/// A call removes a lock that the file sets: the lock is gone in this process, the file is unchanged.
#[test]
fn a_call_removes_the_lock_of_the_file() {
    let engine = engine_on("h100");
    let stack = apply_policy(&engine, "locks:\n  attention.gqa.prefill: torch.sdpa.math\n");
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "torch.sdpa.math");
    stack.unlock("attention.gqa.prefill");
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "flash_attn.v3.prefill");
}

/// An empty file, as left by an editor while saving, is rejected; CRLF line endings and a byte-order mark are
/// accepted.
#[test]
fn files_of_every_editor_are_read() {
    let engine = engine_on("h100");
    let error = engine.load_config_text("layerzero.yaml", "").unwrap_err();
    assert!(error.to_string().contains("the file is empty"), "{error}");
    assert_eq!(chosen("# nothing is asked for\nversion: 1\n"), "flash_attn.v3.prefill");
    assert_eq!(chosen("version: 1\r\ndeny:\r\n  - flash_attn.v3.prefill\r\n"), "flash_attn.v2.prefill");
    assert_eq!(chosen("\u{feff}deny: [flash_attn]\n"), "torch.sdpa.flash");
}

/// A preference for a backend that is not installed has no effect and is no error: one file serves several
/// machines.
#[test]
fn a_preference_for_a_missing_backend_has_no_effect() {
    assert_eq!(chosen("prefer_sources: [xformers]\navoid_sources: [deepspeed]\n"), "flash_attn.v3.prefill");
}

/// No kernel matches the allow list: the error reports this for each kernel.
#[test]
fn an_allow_list_without_a_matching_kernel_is_an_error() {
    let engine = engine_on("h100");
    apply_policy(&engine, "allow_sources: [xformers]\n");
    let error = Prefill::llama3_8b().selected(&engine).unwrap_err();
    let missing = error.reasons().iter().filter(|reason| reason.code == ReasonCode::PolicyNotAllowed).count();
    assert_eq!(missing, 13, "{error}");
}

/// An override names a kernel that cannot run the call: an override is a preference and is skipped, a lock is
/// binding.
#[test]
fn an_override_is_skipped_where_a_lock_is_binding() {
    let masked = Prefill { mask: Some(lz_core::DType::Bool), ..Prefill::multi_head() };
    let engine = engine_on("h100");
    apply_policy(
        &engine,
        "rules:\n  - { condition: seq_len > 0, action: { kernel_override: torch.sdpa.flash } }\n",
    );
    assert_eq!(Prefill::multi_head().selected(&engine).unwrap(), "torch.sdpa.flash");
    assert_eq!(masked.selected(&engine).unwrap(), "torch.sdpa.cudnn");
    apply_policy(&engine, "rules:\n  - { condition: seq_len > 0, lock: torch.sdpa.flash }\n");
    let error = masked.selected(&engine).unwrap_err();
    assert!(
        matches!(error, lz_core::Error::Locked { .. }) && error.has(ReasonCode::AttnMaskUnsupported),
        "{error}"
    );
}

/// A policy equal to the active one is loaded: nothing changes, and no cached decision is dropped.
#[test]
fn loading_an_equal_policy_changes_nothing() {
    let engine = engine_on("h100");
    let stack = apply_policy(&engine, "deny: [flash_attn.v3.prefill]\n");
    let (generation, digest) = (engine.generation(), stack.digest());
    let document =
        Document::read("layerzero.yaml", "deny: [flash_attn.v3.prefill]\n", &vocabulary()).unwrap();
    stack.load(document);
    assert_eq!((engine.generation(), stack.digest()), (generation, digest));
}

/// A call sets an unknown setting: it fails with a suggestion, and none of its values is applied.
#[test]
fn configure_is_atomic() {
    let engine = engine_on("h100");
    let stack = stack(&engine);
    let values = [
        ("deterministic".to_owned(), SettingInput::Bool(true)),
        ("cache.max_sise".to_owned(), SettingInput::Int(5)),
    ];
    let error = stack.configure(values, "lz.configure").unwrap_err();
    assert_eq!(error.to_string(), "unknown setting `cache.max_sise`; did you mean `cache.max_size`?");
    assert!(!engine.policy().deterministic.value);
}
