//! Policy files: errors have locations, an accepted file means the same after its settings are written again, and an engine can use it.

use std::sync::OnceLock;

use lz_core::Context;
use lz_engine::Engine;
use lz_engine::policy::file::{Document, Vocabulary};
use lz_engine::policy::layer::Layer;
use lz_engine::policy::stack::PolicyStack;
use lz_schema::policy::{SETTINGS, SettingValue};
use serde_json::{Map, Value, json};

use crate::diagnostics;

/// The operations that policies may name.
pub fn vocabulary() -> &'static Vocabulary {
    static VOCABULARY: OnceLock<Vocabulary> = OnceLock::new();
    VOCABULARY.get_or_init(|| Vocabulary::new(lz_ops::OPERATIONS))
}

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let document = match Document::read("layerzero.yaml", &text, vocabulary()) {
        Ok(document) => document,
        Err(report) => {
            diagnostics::check(&report);
            return false;
        }
    };
    let layer = document.layer.clone();
    let stack = PolicyStack::new(|_| {});
    stack.load(document);
    let digest = stack.digest();
    assert!(stack.config().iter().all(|entry| !entry.source.0.is_empty()), "a value without its source");
    if let Some(written) = settings(&layer) {
        let again = Document::read("again.yaml", &written, vocabulary());
        let again = again.unwrap_or_else(|report| panic!("{written}\n{report}"));
        for setting in SETTINGS {
            let (found, expected) =
                (again.layer.stated_setting(setting.key), layer.stated_setting(setting.key));
            assert_eq!(found, expected, "{} of {written}", setting.key);
        }
    }
    // An engine of its own: the policy of one input must not change the next.
    let engine = Engine::with_kernels(lz_ops::reference_kernels::kernels().into_iter().take(8));
    let engine = engine.unwrap_or_else(|error| panic!("{error}"));
    match engine.load_config_text("layerzero.yaml", &text) {
        Ok(()) => assert_eq!(engine.settings().digest(), digest),
        Err(error) => assert!(!error.reasons().is_empty(), "{error}"),
    }
    let info = &lz_ops::ACTIVATION_GELU;
    if let Err(error) = engine.which(info, &Context::of(&info.fields)) {
        assert!(!error.to_string().is_empty());
    }
    true
}

/// The stated settings as a policy file; `None` if one of them has no JSON form.
fn settings(layer: &Layer) -> Option<String> {
    let mut root = Map::new();
    for setting in SETTINGS {
        let Some(value) = layer.stated_setting(setting.key) else { continue };
        let mut parts: Vec<&str> = setting.key.split('.').collect();
        let last = parts.pop()?;
        let mut section = &mut root;
        for part in parts {
            let entry = section.entry(part).or_insert_with(|| json!({}));
            section = entry.as_object_mut()?;
        }
        section.insert(last.to_owned(), to_json(value)?);
    }
    (!root.is_empty()).then(|| Value::Object(root).to_string())
}

fn to_json(value: &SettingValue) -> Option<Value> {
    let table = |entries: Vec<(String, Value)>| Value::Object(entries.into_iter().collect());
    Some(match value {
        SettingValue::Bool(value) => json!(value),
        SettingValue::Int(value) => json!(value),
        SettingValue::Float(value) if value.is_finite() => json!(value),
        SettingValue::Float(_) => return None,
        SettingValue::Text(text) => json!(text),
        SettingValue::Ints(values) => json!(values),
        SettingValue::Texts(values) => json!(values),
        SettingValue::WordByName(word, named) => {
            let named = named.iter().map(|(name, word)| (name.clone(), json!(word)));
            table(named.chain([("default".to_owned(), json!(word))]).collect())
        }
        SettingValue::Numbers(numbers) => {
            table(numbers.iter().map(|(name, value)| (name.clone(), json!(value))).collect())
        }
        SettingValue::Ranges(ranges) => table(
            ranges.iter().map(|(first, last, name)| (format!("{first}..{last}"), json!(name))).collect(),
        ),
    })
}
