//! Policies: every invalid file has its exact diagnostic, and valid ones become what selection reads.

use std::sync::{Arc, Mutex};

use lz_engine::policy::env;
use lz_engine::policy::file::{Document, Vocabulary};
use lz_engine::policy::layer::{Layer, SettingInput};
use lz_engine::policy::stack::PolicyStack;
use lz_engine::policy::{Action, Policy};
use lz_schema::diagnostics::Code;
use lz_test_support::{fixtures, hold, operations};

const PASS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policies/pass");
const FAIL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policies/fail");

fn vocabulary() -> Vocabulary {
    Vocabulary::new(operations().iter().copied())
}

fn variables(text: &str) -> Vec<(String, String)> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn document(text: &str) -> Document {
    Document::read("layerzero.yaml", text, &vocabulary()).unwrap_or_else(|report| panic!("{report}"))
}

fn stack(text: &str) -> PolicyStack {
    let stack = PolicyStack::new(|_| {});
    stack.load(document(text));
    stack
}

#[test]
fn each_invalid_policy_has_its_diagnostic() {
    let vocabulary = vocabulary();
    let count = hold(FAIL, |name, text| {
        let report = if name.ends_with(".env") {
            env::read(variables(text), &vocabulary).err()
        } else {
            Document::read(name, text, &vocabulary).err()
        };
        report.map(|report| report.render())
    });
    assert!(count >= 60, "{count} fixtures");
}

#[test]
fn each_policy_diagnostic_has_a_fixture() {
    let names: Vec<String> = fixtures(FAIL).into_iter().map(|(_, name, _)| name).collect();
    for code in Code::ALL.iter().filter(|code| (Code::PolicyVersion..Code::JsonSyntax).contains(code)) {
        assert!(
            names.iter().any(|name| name.starts_with(code.id())),
            "{code} has no fixture in tests/policies/fail"
        );
    }
}

#[test]
fn example_policies_are_valid() {
    for (_, name, text) in fixtures(PASS) {
        if let Err(report) = Document::read(&name, &text, &vocabulary()) {
            panic!("{report}");
        }
    }
}

#[test]
fn both_rule_syntaxes_are_equivalent() {
    let policy = stack(
        "rules:
  - match: { operation: attention.*, sm: '>=90', dtype: [float16, bfloat16], causal: true }
    prefer: flash_attn.v3.*
  - condition: target.sm_version >= 90 and dtype in [float16, bfloat16] and causal
    operation: attention.*
    prefer: flash_attn.v3.*
",
    )
    .policy();
    let conditions: Vec<&str> = policy.rules.iter().filter_map(|rule| rule.condition.as_deref()).collect();
    assert_eq!(
        conditions,
        [
            "(sm >= 90) and (dtype in [f16, bf16]) and (causal)",
            "sm >= 90 and dtype in [f16, bf16] and causal"
        ]
    );
    assert_eq!(policy.rules[0].actions, policy.rules[1].actions);
    assert_eq!(policy.rules[0].source.to_string(), "layerzero.yaml:2");
    assert_eq!(policy.rules[1].source.to_string(), "layerzero.yaml:4");
}

#[test]
fn every_action_is_converted() {
    let policy = stack(
        "rules:
  - condition: sm >= 80
    prefer: a.*
    avoid_sources: [b]
    allow: c
    deny: d
    lock: e
    action: { kernel_override: f, priority_boost: 2.5, kernels: 'g.*', filter_kernels: [priority > 3] }
",
    )
    .policy();
    insta::assert_debug_snapshot!(policy.rules[0].actions.iter().map(describe).collect::<Vec<_>>(), @r#"
    [
        "prefer a.*",
        "avoid b",
        "allow c",
        "deny d",
        "lock e",
        "override f",
        "filter priority > 3",
        "boost g.* by 2.5",
    ]
    "#);
}

fn describe(action: &Action) -> String {
    match action {
        Action::Prefer(pattern) => format!("prefer {pattern}"),
        Action::Avoid(pattern) => format!("avoid {pattern}"),
        Action::Boost(pattern, points) => format!("boost {pattern} by {points}"),
        Action::Deny(pattern) => format!("deny {pattern}"),
        Action::Allow(pattern) => format!("allow {pattern}"),
        Action::Override(kernel) => format!("override {kernel}"),
        Action::Lock(kernel) => format!("lock {kernel}"),
        Action::Filter(text) => format!("filter {text}"),
    }
}

#[test]
fn later_layers_win_with_their_source() {
    let stack =
        stack("deterministic: false\ncache: { max_size: 7 }\nprefer_sources: [a]\navoid_sources: [b, c]\n");
    let shown = |key: &str| {
        let entries = stack.config();
        let found: Vec<String> = entries
            .iter()
            .filter(|entry| entry.key == key)
            .map(|entry| format!("{} from {}", entry.value, entry.source))
            .collect();
        found.join("; ")
    };
    assert_eq!(shown("deterministic"), "false from layerzero.yaml:1");
    assert_eq!(shown("strict_mode"), "false from default");
    assert_eq!(shown("cache.max_size"), "7 from layerzero.yaml:2");

    let environment =
        variables("LAYERZERO_DETERMINISTIC=1\nLAYERZERO_PREFER=b, x\nLAYERZERO_LOCK_NORM_RMS=cpu.norm.rms\n");
    stack.set_environment(&env::read(environment, &vocabulary()).unwrap());
    assert_eq!(shown("deterministic"), "true from LAYERZERO_DETERMINISTIC");
    assert_eq!(shown("prefer"), "b from LAYERZERO_PREFER; x from LAYERZERO_PREFER");
    assert_eq!(shown("avoid"), "c from layerzero.yaml:4", "what is preferred later is no longer avoided");
    assert_eq!(shown("locks.norm.rms"), "cpu.norm.rms from LAYERZERO_LOCK_NORM_RMS");

    stack.configure([("deterministic".to_owned(), SettingInput::Bool(false))], "lz.configure").unwrap();
    assert_eq!(shown("deterministic"), "false from lz.configure");
    stack.unlock("norm.rms");
    assert_eq!(shown("locks.norm.rms"), "");
    stack.lock("norm.rms", "reference.norm.rms", "lz.lock");
    assert_eq!(shown("locks.norm.rms"), "reference.norm.rms from lz.lock");
}

#[test]
fn all_environment_variables_are_read() {
    let environment = variables(
        "PATH=/bin\nLAYERZERO_DISABLED=yes\nLAYERZERO_VERBOSE=0\nLAYERZERO_DEBUG=on\nLAYERZERO_AVOID=xformers\n\
         LAYERZERO_CONFIG=/etc/layerzero.yaml\nLAYERZERO_PROFILE=production\nLAYERZERO_PREFFER=x\nLAYERZERO_LOCK_ATTENTION=a.b\n",
    );
    let read = env::read(environment, &vocabulary()).unwrap();
    assert_eq!(read.config.as_deref(), Some("/etc/layerzero.yaml"));
    assert_eq!(read.warnings.len(), 1);
    assert_eq!(read.warnings[0].suggestion.as_deref(), Some("LAYERZERO_PREFER"));
    let policy = read.layer.policy();
    assert!(!policy.enabled.value);
    assert_eq!(policy.enabled.source.to_string(), "LAYERZERO_DISABLED");
    assert_eq!(policy.avoid[0].kernels.as_str(), "xformers");
    assert_eq!(policy.locks[0].operation.as_str(), "attention.*");
}

#[test]
fn profile_is_between_file_and_environment() {
    let text = "log_selections: false\nprofile: canary\nprofiles:\n  canary:\n    log_selections: true\n    deterministic: true\n";
    let stack = stack(text);
    let value = stack.value("log_selections").unwrap();
    assert_eq!(value.source.to_string(), "layerzero.yaml:5 (profile canary)");
    stack.set_environment(&env::read(variables("LAYERZERO_DETERMINISTIC=0"), &vocabulary()).unwrap());
    assert!(!stack.policy().deterministic.value, "the environment is above the profile");
    stack
        .configure([("profile".to_owned(), SettingInput::Text("production".to_owned()))], "lz.configure")
        .unwrap();
    assert_eq!(stack.value("log_selections").unwrap().value.to_string(), "false");
    assert!(
        stack
            .configure([("profile".to_owned(), SettingInput::Text("x".to_owned()))], "lz.configure")
            .is_err()
    );
}

#[test]
fn experimental_kernels_are_denied_unless_allowed() {
    let denied =
        |text: &str| stack(text).policy().deny.iter().any(|entry| entry.kernels.matches("fa4_experimental"));
    assert!(denied("profile: production\n"));
    assert!(denied("enabled: true\n"));
    assert!(!denied("profile: development\n"));
}

#[test]
fn configure_is_all_or_nothing() {
    let stack = stack("enabled: true\n");
    let wrong = [
        ("deterministic".to_owned(), SettingInput::Bool(true)),
        ("memory_headroom_mb".to_owned(), SettingInput::Int(-3)),
    ];
    let error = stack.configure(wrong, "lz.configure").unwrap_err();
    assert_eq!(error.to_string(), "`memory_headroom_mb` needs an integer >= 0, found `-3`");
    assert!(!stack.policy().deterministic.value);
    let error =
        stack.configure([("determinstic".to_owned(), SettingInput::Bool(true))], "lz.configure").unwrap_err();
    assert_eq!(error.to_string(), "unknown setting `determinstic`; did you mean `deterministic`?");
}

#[test]
fn every_change_is_published() {
    let published: Arc<Mutex<Vec<Policy>>> = Arc::default();
    let sink = Arc::clone(&published);
    let stack = PolicyStack::new(move |layer| sink.lock().unwrap().push(layer.policy()));
    stack.lock("norm.rms", "cpu.norm.rms", "lz.lock");
    stack.configure([("enabled".to_owned(), SettingInput::Bool(false))], "lz.configure").unwrap();
    stack.unlock("norm.rms");
    stack.configure([("enabled".to_owned(), SettingInput::Bool(true))], "lz.configure").unwrap();
    let published = published.lock().unwrap();
    let shown: Vec<(usize, bool)> =
        published.iter().map(|policy| (policy.locks.len(), policy.enabled.value)).collect();
    assert_eq!(shown, [(1, true), (1, false), (0, false), (0, true)]);
    assert_eq!(published.last(), Some(&stack.policy()));
}

#[test]
fn first_preference_is_the_strongest() {
    let policy = stack("prefer_sources: [a, b, c]\n").policy();
    let boosts: Vec<String> = policy.rules.iter().flat_map(|rule| &rule.actions).map(describe).collect();
    assert_eq!(boosts, ["boost a by 2", "boost b by 1"]);
}

#[test]
fn digest_is_independent_of_sources() {
    let one = stack("# a comment\ndeterministic: true\n");
    let other = stack("enabled: true\n");
    assert_ne!(one.digest(), other.digest());
    other.configure([("deterministic".to_owned(), SettingInput::Bool(true))], "lz.configure").unwrap();
    assert_eq!(one.digest(), other.digest());
}

#[test]
fn policy_defaults_match_setting_defaults() {
    let mut policy = Layer::new().policy();
    policy.deny.clear();
    assert_eq!(policy, Policy::default());
}
