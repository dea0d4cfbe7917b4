//! What the operator wants, said in a file, in the environment or by a call, and honoured everywhere.

use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use lz_engine::policy::file::Document;
use lz_engine::policy::layer::Given;
use lz_engine::reload::{Outcome, watch};
use lz_scenarios::calls::{Ask, DecodePaged, Norm, Prefill};
use lz_scenarios::house::{govern, house, house_on, stack, vocabulary};
use lz_test_support::Folder;

use super::OTHER;

/// A backend flag that is honoured everywhere (vllm#53450): one line prefers torch, and prefill, windowed prefill and norm all take it.
#[test]
fn a_backend_flag_is_honoured_in_every_operation() {
    let engine = house_on("h100");
    govern(
        &engine,
        "rules:\n  - match: { operation: '*' }\n    action: { priority_boost: 40, kernels: torch }\n",
    );
    let windowed = Prefill { window_left: 1023, ..Prefill::llama3_8b() };
    assert_eq!(Prefill::llama3_8b().chosen(&engine).unwrap(), "torch.sdpa.flash");
    assert_eq!(windowed.chosen(&engine).unwrap(), "torch.sdpa.flash");
    assert_eq!(Norm::llama3_8b().chosen(&engine).unwrap(), "torch.norm.rms");
    // Decode has no kernel of torch: a preference never leaves a call without one.
    assert_eq!(DecodePaged::llama3_8b().chosen(&engine).unwrap(), "flashinfer.fa2.decode");
}

/// A backend per layer group (vllm#48012): layers with a window run one kernel, full ones another, by one rule each.
#[test]
fn a_layer_group_has_a_backend_of_its_own() {
    let engine = house_on("h100");
    let yaml = "rules:
  - { match: { operation: attention.gqa.prefill, window_left: '>=0' }, lock: torch.sdpa.cudnn }
  - { match: { operation: attention.gqa.prefill, window_left: '<0' }, lock: flash_attn.v2.prefill }
";
    govern(&engine, yaml);
    let windowed = Prefill { window_left: 4095, ..Prefill::llama3_8b() };
    assert_eq!(windowed.chosen(&engine).unwrap(), "torch.sdpa.cudnn");
    assert_eq!(Prefill::llama3_8b().chosen(&engine).unwrap(), "flash_attn.v2.prefill");
    assert_eq!(windowed.codes(&engine, "flash_attn.v2.prefill"), ["POLICY_LOCKED_OTHER"]);
}

fn under(variables: &[(&str, &str)]) -> Vec<String> {
    let output = Command::new(OTHER).arg("environment").envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A process is started with `LAYERZERO_PREFER=torch`: it decides otherwise than one without, and nothing else was said.
#[test]
fn an_environment_variable_prefers_a_backend() {
    assert_eq!(under(&[]), ["flash_attn.v3.prefill"]);
    // Preferences weigh; they do not overrule: 60 and 20 points less a conversion are below 75 and 20.
    assert_eq!(
        under(&[("LAYERZERO_PREFER", "torch.sdpa.flash, flash_attn.v2.*")]),
        ["flash_attn.v2.prefill"]
    );
    assert_eq!(under(&[("LAYERZERO_AVOID", "flash_attn")]), ["torch.sdpa.flash"]);
}

/// A process is started with `LAYERZERO_LOCK_ATTENTION_CAUSAL`: the lock on the alias binds prefill.
#[test]
fn an_environment_variable_locks_an_operation() {
    let lock = ("LAYERZERO_LOCK_ATTENTION_CAUSAL", "torch.sdpa.cudnn");
    assert_eq!(under(&[lock]), ["torch.sdpa.cudnn"]);
    assert_eq!(under(&[("LAYERZERO_LOCK_ATTENTION_GQA_PREFILL", "torch.sdpa.math")]), ["torch.sdpa.math"]);
}

/// An engineer pins a kernel by a call, looks, and unpins it: the choice is what it was before.
#[test]
fn a_lock_by_call_binds_until_it_is_taken_back() {
    let engine = house_on("h100");
    let chosen = || Prefill::llama3_8b().chosen(&engine).unwrap();
    engine.lock("attention.causal", "torch.sdpa.math").unwrap();
    assert_eq!(chosen(), "torch.sdpa.math");
    let full = Prefill { causal: false, ..Prefill::llama3_8b() };
    assert_eq!(full.chosen(&engine).unwrap(), "flash_attn.v3.prefill", "the alias is about causal calls");
    engine.unlock("attention.causal").unwrap();
    assert_eq!(chosen(), "flash_attn.v3.prefill");
}

/// A preference for the length of a block, and one inside another: each ends with its block.
#[test]
fn a_preference_lasts_as_long_as_its_block() {
    let engine = house_on("h100");
    let chosen = || Prefill::llama3_8b().chosen(&engine).unwrap();
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

/// Results look wrong: optimisation is switched off for a block, the reference runs, and afterwards all is as before.
#[test]
fn switching_off_leaves_the_reference() {
    let engine = house();
    let call = Norm::default();
    {
        let _off = engine.disabled().unwrap();
        assert_eq!(call.chosen(&engine).unwrap(), "reference.norm.rms");
        let explanation = call.explain(&engine);
        let native = explanation.candidates.iter().filter(|one| one.backend == "cpu");
        assert!(native.clone().count() > 0);
        for one in native {
            assert_eq!(one.reasons[0].code, "MODE_EXCLUDED", "{}", one.kernel);
        }
    }
    assert!(call.chosen(&engine).unwrap().starts_with("cpu.norm.rms."));
}

/// The production profile keeps experimental kernels out, the development profile lets them in.
#[test]
fn profiles_decide_about_experimental_kernels() {
    let engine = lz_scenarios::house::host_house([
        lz_scenarios::house::host_spec("alpha.x"),
        lz_scenarios::house::host_spec("alpha.x_experimental").priority(90),
    ]);
    let stack = stack(&engine);
    let profile = |name: &str| {
        stack.configure([("profile".to_owned(), Given::Text(name.to_owned()))], "lz.configure").unwrap();
        Norm::default().chosen(&engine).unwrap()
    };
    assert_eq!(profile("production"), "alpha.x");
    assert_eq!(profile("development"), "alpha.x_experimental");
    assert_eq!(profile("none"), "alpha.x");
}

/// `lz config`: every value with where it came from, the file's line below the environment below the call.
#[test]
fn every_value_says_where_it_came_from() {
    let engine = house();
    let stack =
        govern(&engine, "version: 1\nstrict_mode: true\ndeterministic: false\ncache: { max_size: 500 }\n");
    let variables = [("LAYERZERO_DETERMINISTIC".to_owned(), "1".to_owned())];
    stack.set_environment(&lz_engine::policy::env::read(variables, &vocabulary()).unwrap());
    stack.configure([("cache.max_size".to_owned(), Given::Int(800))], "lz.configure").unwrap();
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
fn an_edited_file_steers_the_next_call() {
    let folder = Folder::new();
    let file =
        folder.write("layerzero.yaml", "prefer: [torch.sdpa.cudnn, torch.sdpa.flash]\ndeny: [flash_attn]\n");
    let engine = house_on("h100");
    let (sender, outcomes) = mpsc::channel();
    let told = move |outcome| drop(sender.send(outcome));
    let reload = watch(&file, Duration::from_millis(10), stack(&engine), vocabulary(), told).unwrap();
    let applied = || {
        while !matches!(outcomes.recv_timeout(Duration::from_secs(60)).unwrap(), Outcome::Applied) {}
        Prefill::llama3_8b().chosen(&engine).unwrap()
    };
    assert_eq!(applied(), "torch.sdpa.flash");
    folder.write("layerzero.yaml", "deny: [flash_attn.v3.prefill]\n");
    assert_eq!(applied(), "flash_attn.v2.prefill");
    drop(reload);
}

/// A licence forbids a backend: it is denied in the file, and no operation runs it any more, not even as a fallback.
#[test]
fn a_denied_backend_runs_nowhere() {
    let engine = house_on("h100");
    govern(&engine, "deny_sources: [flash_attn, flashinfer]\n");
    let plan = Prefill::llama3_8b().which(&engine).unwrap();
    assert_eq!(plan.kernel, "torch.sdpa.flash");
    assert!(!plan.fallbacks.iter().any(|kernel| kernel.starts_with("flash")), "{:?}", plan.fallbacks);
    assert_eq!(Norm::llama3_8b().chosen(&engine).unwrap(), "torch.norm.rms");
    let error = DecodePaged::llama3_8b().which(&engine).unwrap_err();
    assert!(error.to_string().contains("layerzero.yaml:1"), "{error}");
}

/// The configuration that a colleague sends is checked before it is used: the file is read, named and loaded as it stands.
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
    let engine = house_on("h100");
    stack(&engine).load(Document::read("layerzero.yaml", &text, &vocabulary()).unwrap());
    let explanation = Prefill::llama3_8b().explain(&engine);
    assert_eq!(explanation.chosen(), Some("flash_attn.v3.prefill"));
    // 20 for the source, 1 because it stands first, 20 by the rule.
    assert_eq!(explanation.candidate("flash_attn.v3.prefill").unwrap().score.policy, 41.0);
}
