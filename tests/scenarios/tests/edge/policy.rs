//! Policies that contradict, overshoot, say nothing, or speak of what is not there.

use lz_core::ReasonCode;
use lz_engine::policy::env;
use lz_engine::policy::file::Document;
use lz_engine::policy::layer::Given;
use lz_scenarios::calls::{Ask, DecodePaged, Norm, Prefill};
use lz_scenarios::house::{govern, house_on, stack, vocabulary};

fn chosen(yaml: &str) -> String {
    let engine = house_on("h100");
    govern(&engine, yaml);
    Prefill::llama3_8b().chosen(&engine).unwrap()
}

/// A rule speaks of pages, which a norm does not have: it is not about norms, and does not deny them.
#[test]
fn a_rule_is_about_operations_that_have_what_it_names() {
    let engine = house_on("h100");
    govern(&engine, "rules:\n  - { condition: page_size >= 16, deny: '*' }\n");
    assert!(DecodePaged::llama3_8b().chosen(&engine).unwrap_err().has(ReasonCode::PolicyDenied));
    assert_eq!(Norm::llama3_8b().chosen(&engine).unwrap(), "flashinfer.norm.rms");
}

/// The file prefers a backend, the environment avoids it: the environment is later, and the preference is gone.
#[test]
fn the_environment_beats_the_file() {
    let engine = house_on("h100");
    let stack = govern(&engine, "prefer_sources: [flash_attn]\n");
    let variables = [("LAYERZERO_AVOID".to_owned(), "flash_attn".to_owned())];
    stack.set_environment(&env::read(variables, &vocabulary()).unwrap());
    let explanation = Prefill::llama3_8b().explain(&engine);
    let flash = explanation.candidate("flash_attn.v3.prefill").unwrap();
    assert_eq!((flash.score.policy, flash.total), (-50.0, 35.0));
    assert_eq!(explanation.chosen(), Some("torch.sdpa.flash"));
}

/// Two rules lock two kernels for one call: the later one binds, and the explanation names its line.
#[test]
fn of_two_locks_the_later_binds() {
    let engine = house_on("h100");
    let yaml = "rules:
  - { condition: seq_len >= 1024, lock: torch.sdpa.flash }
  - { condition: seq_len >= 2048, lock: torch.sdpa.cudnn }
";
    govern(&engine, yaml);
    let explanation = Prefill::llama3_8b().explain(&engine);
    assert_eq!(explanation.chosen(), Some("torch.sdpa.cudnn"));
    assert_eq!(explanation.policy[0].what, "lock: torch.sdpa.cudnn");
    assert_eq!(explanation.policy[0].source, "layerzero.yaml:3");
    let shorter = Prefill { seq_q: 1024, seq_k: 1024, ..Prefill::llama3_8b() };
    assert_eq!(shorter.chosen(&engine).unwrap(), "torch.sdpa.flash");
}

/// A call unlocks what the file locks: for this process the lock is gone, the file is as it was.
#[test]
fn a_call_ends_the_lock_of_the_file() {
    let engine = house_on("h100");
    let stack = govern(&engine, "locks:\n  attention.gqa.prefill: torch.sdpa.math\n");
    assert_eq!(Prefill::llama3_8b().chosen(&engine).unwrap(), "torch.sdpa.math");
    stack.unlock("attention.gqa.prefill");
    assert_eq!(Prefill::llama3_8b().chosen(&engine).unwrap(), "flash_attn.v3.prefill");
}

/// An empty file, as an editor leaves it for a moment while it saves, is refused; Windows line ends and a byte-order mark are taken.
#[test]
fn files_of_every_editor_are_read() {
    let engine = house_on("h100");
    let error = engine.load_config_text("layerzero.yaml", "").unwrap_err();
    assert!(error.to_string().contains("the file is empty"), "{error}");
    assert_eq!(chosen("# nothing is asked for\nversion: 1\n"), "flash_attn.v3.prefill");
    assert_eq!(chosen("version: 1\r\ndeny:\r\n  - flash_attn.v3.prefill\r\n"), "flash_attn.v2.prefill");
    assert_eq!(chosen("\u{feff}deny: [flash_attn]\n"), "torch.sdpa.flash");
}

/// A preference for a backend that is not installed changes nothing and is no error: the file serves several machines.
#[test]
fn a_preference_for_what_is_not_there_changes_nothing() {
    assert_eq!(chosen("prefer_sources: [xformers]\navoid_sources: [deepspeed]\n"), "flash_attn.v3.prefill");
}

/// Everything is allowed but nothing fits the list: the error says for each kernel that it is not on it.
#[test]
fn an_allow_list_without_a_fitting_kernel_is_an_error() {
    let engine = house_on("h100");
    govern(&engine, "allow_sources: [xformers]\n");
    let error = Prefill::llama3_8b().chosen(&engine).unwrap_err();
    let missing = error.reasons().iter().filter(|reason| reason.code == ReasonCode::PolicyNotAllowed).count();
    assert_eq!(missing, 13, "{error}");
}

/// An override names a kernel that cannot run the call: it gives way, because an override is a wish and a lock is not.
#[test]
fn an_override_gives_way_where_a_lock_does_not() {
    let masked = Prefill { mask: Some(lz_core::DType::Bool), ..Prefill::multi_head() };
    let engine = house_on("h100");
    govern(
        &engine,
        "rules:\n  - { condition: seq_len > 0, action: { kernel_override: torch.sdpa.flash } }\n",
    );
    assert_eq!(Prefill::multi_head().chosen(&engine).unwrap(), "torch.sdpa.flash");
    assert_eq!(masked.chosen(&engine).unwrap(), "torch.sdpa.cudnn");
    govern(&engine, "rules:\n  - { condition: seq_len > 0, lock: torch.sdpa.flash }\n");
    let error = masked.chosen(&engine).unwrap_err();
    assert!(
        matches!(error, lz_core::Error::Locked { .. }) && error.has(ReasonCode::AttnMaskUnsupported),
        "{error}"
    );
}

/// A policy that says the same as the one in force is loaded again: nothing changes, and no cached decision is thrown away.
#[test]
fn the_same_policy_again_changes_nothing() {
    let engine = house_on("h100");
    let stack = govern(&engine, "deny: [flash_attn.v3.prefill]\n");
    let (generation, digest) = (engine.generation(), stack.digest());
    let document =
        Document::read("layerzero.yaml", "deny: [flash_attn.v3.prefill]\n", &vocabulary()).unwrap();
    stack.load(document);
    assert_eq!((engine.generation(), stack.digest()), (generation, digest));
}

/// A call sets a value that is none: it is refused with what is needed, and none of the values of that call are taken.
#[test]
fn a_call_sets_all_of_its_values_or_none() {
    let engine = house_on("h100");
    let stack = stack(&engine);
    let values =
        [("deterministic".to_owned(), Given::Bool(true)), ("cache.max_sise".to_owned(), Given::Int(5))];
    let error = stack.configure(values, "lz.configure").unwrap_err();
    assert_eq!(error.to_string(), "unknown setting `cache.max_sise`; did you mean `cache.max_size`?");
    assert!(!engine.policy().deterministic.value);
}
