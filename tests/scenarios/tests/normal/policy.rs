//! Policy from files, environment variables and calls, applied to every operation.

use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use lz_engine::policy::file::Document;
use lz_engine::policy::layer::SettingInput;
use lz_engine::reload::{Outcome, watch};
use lz_scenarios::calls::{DecodePaged, Norm, Prefill, ScenarioCall};
use lz_scenarios::engines::{apply_policy, engine_on, full_engine, stack, vocabulary};
use lz_test_support::Folder;

use super::OTHER_PROCESS;

/// A backend flag that applies everywhere (vllm#53450): one line prefers torch, for prefill, windowed prefill
/// and norm.
#[test]
fn a_backend_preference_applies_to_every_operation() {
    let engine = engine_on("h100");
    apply_policy(
        &engine,
        "rules:\n  - match: { operation: '*' }\n    action: { priority_boost: 40, kernels: torch }\n",
    );
    let windowed = Prefill { window_left: 1023, ..Prefill::llama3_8b() };
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "torch.sdpa.flash");
    assert_eq!(windowed.selected(&engine).unwrap(), "torch.sdpa.flash");
    assert_eq!(Norm::llama3_8b().selected(&engine).unwrap(), "torch.norm.rms");
    // Decode has no torch kernel: a preference never makes a call fail.
    assert_eq!(DecodePaged::llama3_8b().selected(&engine).unwrap(), "flashinfer.fa2.decode");
}

/// A backend per layer group (vllm#48012): layers with a sliding window run one kernel, full-attention layers
/// another, by one rule each.
#[test]
fn rules_select_a_backend_per_layer_group() {
    let engine = engine_on("h100");
    let yaml = "rules:
  - { match: { operation: attention.gqa.prefill, window_left: '>=0' }, lock: torch.sdpa.cudnn }
  - { match: { operation: attention.gqa.prefill, window_left: '<0' }, lock: flash_attn.v2.prefill }
";
    apply_policy(&engine, yaml);
    let windowed = Prefill { window_left: 4095, ..Prefill::llama3_8b() };
    assert_eq!(windowed.selected(&engine).unwrap(), "torch.sdpa.cudnn");
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "flash_attn.v2.prefill");
    assert_eq!(windowed.codes(&engine, "flash_attn.v2.prefill"), ["POLICY_LOCKED_OTHER"]);
}

fn selected_with_environment(variables: &[(&str, &str)]) -> Vec<String> {
    let output =
        Command::new(OTHER_PROCESS).arg("environment").envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A process is started with `LAYERZERO_PREFER` or `LAYERZERO_AVOID`: its selection differs from one without.
#[test]
fn an_environment_variable_prefers_a_backend() {
    assert_eq!(selected_with_environment(&[]), ["flash_attn.v3.prefill"]);
    // Preferences add points and are not absolute: 60 + 20 points minus a conversion are below 75 + 20.
    assert_eq!(
        selected_with_environment(&[("LAYERZERO_PREFER", "torch.sdpa.flash, flash_attn.v2.*")]),
        ["flash_attn.v2.prefill"]
    );
    assert_eq!(selected_with_environment(&[("LAYERZERO_AVOID", "flash_attn")]), ["torch.sdpa.flash"]);
}

/// A process is started with `LAYERZERO_LOCK_ATTENTION_CAUSAL`: the lock on the alias applies to prefill.
#[test]
fn an_environment_variable_locks_an_operation() {
    let lock = ("LAYERZERO_LOCK_ATTENTION_CAUSAL", "torch.sdpa.cudnn");
    assert_eq!(selected_with_environment(&[lock]), ["torch.sdpa.cudnn"]);
    assert_eq!(
        selected_with_environment(&[("LAYERZERO_LOCK_ATTENTION_GQA_PREFILL", "torch.sdpa.math")]),
        ["torch.sdpa.math"]
    );
}

/// A kernel is locked by a call and unlocked again: the selection is the same as before.
#[test]
fn a_lock_by_call_applies_until_it_is_removed() {
    let engine = engine_on("h100");
    let chosen = || Prefill::llama3_8b().selected(&engine).unwrap();
    engine.lock("attention.causal", "torch.sdpa.math").unwrap();
    assert_eq!(chosen(), "torch.sdpa.math");
    let full = Prefill { causal: false, ..Prefill::llama3_8b() };
    assert_eq!(
        full.selected(&engine).unwrap(),
        "flash_attn.v3.prefill",
        "the alias covers causal calls only"
    );
    engine.unlock("attention.causal").unwrap();
    assert_eq!(chosen(), "flash_attn.v3.prefill");
}

/// Preference scopes, nested: each ends with its scope.
#[test]
fn a_preference_ends_with_its_scope() {
    let engine = engine_on("h100");
    let chosen = || Prefill::llama3_8b().selected(&engine).unwrap();
    let outer = engine.prefer(&["flash_attn.v2.prefill".to_owned()]).unwrap();
    assert_eq!(chosen(), "flash_attn.v2.prefill");
    {
        let _inner = engine.prefer(&["torch.sdpa.*".to_owned(), "flash_attn.v3.prefill".to_owned()]).unwrap();
        assert_eq!(chosen(), "flash_attn.v3.prefill");
    }
    assert_eq!(chosen(), "flash_attn.v2.prefill");
    drop(outer);
    assert_eq!(chosen(), "flash_attn.v3.prefill");
}

/// Results look wrong: optimized kernels are disabled for a scope, the reference runs, and afterwards the
/// selection is as before.
#[test]
fn disabling_optimization_selects_the_reference() {
    let engine = full_engine();
    let call = Norm::default();
    {
        let _off = engine.disabled().unwrap();
        assert_eq!(call.selected(&engine).unwrap(), "reference.norm.rms");
        let explanation = call.explain(&engine);
        let native = explanation.candidates.iter().filter(|one| one.backend == "cpu");
        assert!(native.clone().count() > 0);
        for one in native {
            assert_eq!(one.reasons[0].code, "MODE_EXCLUDED", "{}", one.kernel);
        }
    }
    assert!(call.selected(&engine).unwrap().starts_with("cpu.norm.rms."));
}

/// The production profile excludes experimental kernels, the development profile includes them.
#[test]
fn profiles_decide_about_experimental_kernels() {
    let engine = lz_scenarios::engines::host_engine([
        lz_scenarios::engines::host_spec("alpha.x"),
        lz_scenarios::engines::host_spec("alpha.x_experimental").priority(90),
    ]);
    let stack = stack(&engine);
    let profile = |name: &str| {
        stack
            .configure([("profile".to_owned(), SettingInput::Text(name.to_owned()))], "lz.configure")
            .unwrap();
        Norm::default().selected(&engine).unwrap()
    };
    assert_eq!(profile("production"), "alpha.x");
    assert_eq!(profile("development"), "alpha.x_experimental");
    assert_eq!(profile("none"), "alpha.x");
}

/// `lz config`: every value with its source; calls override the environment, which overrides the file.
#[test]
fn every_value_reports_its_source() {
    let engine = full_engine();
    let stack = apply_policy(
        &engine,
        "version: 1\nstrict_mode: true\ndeterministic: false\ncache: { max_size: 500 }\n",
    );
    let variables = [("LAYERZERO_DETERMINISTIC".to_owned(), "1".to_owned())];
    stack.set_environment(&lz_engine::policy::env::read(variables, &vocabulary()).unwrap());
    stack.configure([("cache.max_size".to_owned(), SettingInput::Int(800))], "lz.configure").unwrap();
    let of = |key: &str| {
        let entry = stack.config().into_iter().find(|entry| entry.key == key).unwrap();
        format!("{} from {}", entry.value, entry.source)
    };
    assert_eq!(of("strict_mode"), "true from layerzero.yaml:2");
    assert_eq!(of("deterministic"), "true from LAYERZERO_DETERMINISTIC");
    assert_eq!(of("cache.max_size"), "800 from lz.configure");
    assert_eq!(of("fallback_enabled"), "true from default");
    assert_eq!(engine.policy().cache.value.max_entries, 800);
}

/// The policy file is edited while the server runs: the next call follows the new file, without a restart.
#[test]
fn an_edited_file_applies_to_the_next_call() {
    let folder = Folder::new();
    let file =
        folder.write("layerzero.yaml", "prefer: [torch.sdpa.cudnn, torch.sdpa.flash]\ndeny: [flash_attn]\n");
    let engine = engine_on("h100");
    let (sender, outcomes) = mpsc::channel();
    let on_outcome = move |outcome| drop(sender.send(outcome));
    let reload = watch(&file, Duration::from_millis(10), stack(&engine), vocabulary(), on_outcome).unwrap();
    let applied = || {
        while !matches!(outcomes.recv_timeout(Duration::from_secs(60)).unwrap(), Outcome::Applied) {}
        Prefill::llama3_8b().selected(&engine).unwrap()
    };
    assert_eq!(applied(), "torch.sdpa.flash");
    folder.write("layerzero.yaml", "deny: [flash_attn.v3.prefill]\n");
    assert_eq!(applied(), "flash_attn.v2.prefill");
    drop(reload);
}

/// A backend is denied in the file: no operation runs it, not even as a fallback.
#[test]
fn a_denied_backend_never_runs() {
    let engine = engine_on("h100");
    apply_policy(&engine, "deny_sources: [flash_attn, flashinfer]\n");
    let plan = Prefill::llama3_8b().which(&engine).unwrap();
    assert_eq!(plan.kernel, "torch.sdpa.flash");
    assert!(!plan.fallbacks.iter().any(|kernel| kernel.starts_with("flash")), "{:?}", plan.fallbacks);
    assert_eq!(Norm::llama3_8b().selected(&engine).unwrap(), "torch.norm.rms");
    let error = DecodePaged::llama3_8b().which(&engine).unwrap_err();
    assert!(error.to_string().contains("layerzero.yaml:1"), "{error}");
}

/// The example configuration of the manual is read from a file and applied.
#[test]
fn the_whole_example_of_the_manual_loads() {
    let folder = Folder::new();
    let file = folder.write(
        "layerzero.yaml",
        "version: 1
prefer_sources: [flash_attn, flashinfer]
avoid_sources: [experimental_lib]
rules:
  - match: { sm: '>=90', operation: attention.* }
    prefer: flash_attn.v3.*
  - match: { seq_len: '>16384' }
    avoid_sources: [xformers]
",
    );
    let text = std::fs::read_to_string(&file).unwrap();
    let engine = engine_on("h100");
    stack(&engine).load(Document::read("layerzero.yaml", &text, &vocabulary()).unwrap());
    let explanation = Prefill::llama3_8b().explain(&engine);
    assert_eq!(explanation.chosen(), Some("flash_attn.v3.prefill"));
    // 20 for the source, 1 because it is listed first, 20 by the rule.
    assert_eq!(explanation.candidate("flash_attn.v3.prefill").unwrap().score.policy, 41.0);
}
