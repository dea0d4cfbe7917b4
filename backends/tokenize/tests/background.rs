//! Verification in the background: what calls select before, during and after it.

use lz_core::device::Platform;
use lz_core::{Context, ReasonCode};
use lz_engine::Engine;
use lz_engine::policy::layer::SettingInput;
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{TOKENIZE_ENCODE, TokenizeEncode, tokenize_encode};
use lz_tokenize::{VerificationState, pause_verification, verification_state, wait_verified};
use serde_json::{Value, json};

const SMALL: &str = include_str!("../../../lz-ops/tests/data/byte_level_bpe.json");
const NATIVE: &str = "tokenize.bpe.encode";
const DEFINITION: &str = "tokenize.hf.encode";
const TEXTS: [&str; 2] = ["hello world 12345", "don't!!! 東京タワー"];

/// A tokenizer that no other test uses.
fn tokenizer(name: &str) -> Tokenizer {
    let mut definition: Value = serde_json::from_str(SMALL).unwrap();
    let token = json!({"id": 268, "content": format!("<{name}>"), "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true});
    definition["added_tokens"].as_array_mut().unwrap().push(token);
    Tokenizer::from_json(definition.to_string().as_bytes()).unwrap()
}

fn engine() -> Engine {
    Engine::with_kernels(lz_tokenize::kernels()).unwrap()
}

fn context(tokenizer: &Tokenizer) -> Context {
    TokenizeEncode::new(&TEXTS, tokenizer).check().unwrap().context()
}

fn tokens(engine: &Engine, tokenizer: &Tokenizer) -> Vec<u8> {
    tokenize_encode(engine, TokenizeEncode::new(&TEXTS, tokenizer)).unwrap().tokens.bytes().to_vec()
}

fn expected(tokenizer: &Tokenizer) -> Vec<u8> {
    let reference = Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    tokens(&reference, tokenizer)
}

fn selected(engine: &Engine, tokenizer: &Tokenizer) -> String {
    engine.decide(&TOKENIZE_ENCODE, &context(tokenizer)).unwrap()
}

#[test]
fn the_definition_encodes_until_the_native_kernel_is_verified() {
    let tokenizer = tokenizer("moves");
    let engines = [engine(), engine()];
    let right = expected(&tokenizer);
    assert_eq!(verification_state(&tokenizer), VerificationState::NotStarted);
    let pause = pause_verification();
    for engine in &engines {
        // Twice: the second decision is cached.
        for _ in 0..2 {
            assert_eq!(tokens(engine, &tokenizer), right);
            assert_eq!(selected(engine, &tokenizer), DEFINITION);
        }
        let explained = engine.explain(&TOKENIZE_ENCODE, &context(&tokenizer));
        assert_eq!(explained.chosen(), Some(DEFINITION));
        let native = explained.candidate(NATIVE).unwrap();
        assert_eq!(native.reasons.len(), 1, "{:?}", native.reasons);
        assert_eq!(native.reasons[0].code, ReasonCode::TokenizerVerifying.as_str());
        assert!(
            explained.to_string().contains("verification against the reference is running"),
            "{explained}"
        );
        let readiness = engine.readiness(&[Platform::Cpu]);
        assert!(!readiness.check("handles").unwrap().ok, "{readiness:?}");
    }
    assert_eq!(verification_state(&tokenizer), VerificationState::Running);
    let generations = engines.each_ref().map(Engine::generation);
    drop(pause);
    assert!(wait_verified(&tokenizer, None));
    assert_eq!(verification_state(&tokenizer), VerificationState::Verified);
    for (engine, before) in engines.iter().zip(generations) {
        assert!(engine.generation() > before);
        assert_eq!(engine.cached_decisions(), 0);
        assert_eq!(selected(engine, &tokenizer), NATIVE);
        assert_eq!(tokens(engine, &tokenizer), right);
        let explained = engine.explain(&TOKENIZE_ENCODE, &context(&tokenizer));
        assert_eq!(explained.chosen(), Some(NATIVE));
    }
}

#[test]
fn the_setting_verifies_before_the_first_call() {
    let tokenizer = tokenizer("setting");
    let engine = engine();
    let on = [("tokenizer_verification.before_first_call".to_owned(), SettingInput::Bool(true))];
    engine.configure(on).unwrap();
    assert_eq!(selected(&engine, &tokenizer), NATIVE);
    assert_eq!(tokens(&engine, &tokenizer), expected(&tokenizer));
    assert_eq!(engine.explain(&TOKENIZE_ENCODE, &context(&tokenizer)).chosen(), Some(NATIVE));
}

#[test]
fn a_call_that_only_an_unverified_kernel_can_run_waits_for_it() {
    let locked = tokenizer("locked");
    let engine = engine();
    engine.lock("tokenize.encode", NATIVE).unwrap();
    assert_eq!(tokens(&engine, &locked), expected(&locked));
    assert_eq!(selected(&engine, &locked), NATIVE);

    let alone = |name: &str| {
        let kernels = lz_tokenize::kernels().into_iter().filter(|entry| entry.spec.id == NATIVE);
        (Engine::with_kernels(kernels).unwrap(), tokenizer(name))
    };
    let (engine, tokenizer) = alone("explained");
    assert_eq!(engine.explain(&TOKENIZE_ENCODE, &context(&tokenizer)).chosen(), Some(NATIVE));
    let (engine, tokenizer) = alone("planned");
    assert_eq!(engine.which(&TOKENIZE_ENCODE, &context(&tokenizer)).unwrap().kernel, NATIVE);
}

#[test]
fn recorded_decisions_do_not_depend_on_the_verification() {
    let tokenizer = tokenizer("recorded");
    let engine = engine();
    engine.record_decisions(true);
    tokens(&engine, &tokenizer);
    let kernels: Vec<String> = engine.freeze().decisions().map(|one| one.kernel.clone()).collect();
    assert_eq!(kernels, [NATIVE]);
}

#[test]
fn a_warm_up_waits_for_the_verification() {
    let tokenizer = tokenizer("warm");
    let engine = engine();
    engine.cold_kernels(&[(&TOKENIZE_ENCODE, context(&tokenizer))]);
    assert_eq!(selected(&engine, &tokenizer), NATIVE);
}

#[test]
fn an_engine_that_is_dropped_during_a_verification_is_not_notified() {
    let tokenizer = tokenizer("engine dropped");
    let first = engine();
    let pause = pause_verification();
    assert_eq!(selected(&first, &tokenizer), DEFINITION);
    drop(first);
    drop(pause);
    assert!(wait_verified(&tokenizer, None));
    assert_eq!(selected(&engine(), &tokenizer), NATIVE);
}

#[test]
fn threads_that_call_during_a_verification_get_the_same_tokens() {
    let tokenizer = tokenizer("threads");
    let (engine, right) = (engine(), expected(&tokenizer));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..200).for_each(|_| assert_eq!(tokens(&engine, &tokenizer), right)));
        }
        scope.spawn(|| assert!(wait_verified(&tokenizer, None)));
    });
    assert_eq!(selected(&engine, &tokenizer), NATIVE);
}
