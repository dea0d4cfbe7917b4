//! A small tokenizer that every byte-level candidate supports, and definitions that some reject.

use lz_core::{ReasonCode, Tensor};
use lz_engine::Engine;
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{TOKENIZE_ENCODE, TokenizeDecode, TokenizeEncode, tokenize_decode, tokenize_encode};
use serde_json::{Value, json};

const SMALL: &str = include_str!("../../../lz-ops/tests/data/byte_level_bpe.json");

fn engine() -> Engine {
    let engine = Engine::new();
    engine.register(lz_tokenize::kernels()).unwrap();
    engine
}

fn changed(change: impl FnOnce(&mut Value)) -> Tokenizer {
    let mut definition: Value = serde_json::from_str(SMALL).unwrap();
    change(&mut definition);
    Tokenizer::from_json(definition.to_string().as_bytes()).unwrap()
}

/// The reason codes of each selected encode kernel; empty for kernels that accept the tokenizer.
fn objections(tokenizer: &Tokenizer, selected: impl Fn(&str) -> bool) -> Vec<(String, Vec<ReasonCode>)> {
    let texts = ["a"];
    let context = TokenizeEncode::new(&texts, tokenizer).check().unwrap().context();
    lz_tokenize::kernels()
        .into_iter()
        .filter(|entry| entry.spec.operation == "tokenize.encode" && selected(&entry.spec.id))
        .map(|entry| {
            let id = entry.spec.id.clone();
            let engine = Engine::new();
            engine.register([entry]).unwrap();
            let codes = match engine.which(&TOKENIZE_ENCODE, &context) {
                Ok(_) => Vec::new(),
                Err(error) => error.reasons().iter().map(|reason| reason.code).collect(),
            };
            (id, codes)
        })
        .collect()
}

#[test]
fn every_byte_level_candidate_accepts_the_small_tokenizer() {
    // Kernels for other model kinds.
    let other = [
        "tokenize.wordpiece.encode",
        "tokenize.unigram.encode",
        "tokenize.spm_bpe.encode",
        "tokenize.sentencepiece.encode",
    ];
    for (id, codes) in objections(&changed(|_| {}), |_| true) {
        assert_eq!(codes.is_empty(), !other.contains(&id.as_str()), "{id}: {codes:?}");
    }
}

#[test]
fn unsupported_definitions_are_rejected_with_a_reason() {
    let of = |tokenizer: &Tokenizer, id: &str| objections(tokenizer, |one| one == id).remove(0).1;
    let lowered = changed(|definition| definition["normalizer"] = json!({"type": "Lowercase"}));
    assert_eq!(of(&lowered, "tokenize.bpe.encode"), [ReasonCode::NormalizerMismatch]);
    assert_eq!(of(&lowered, "tokenize.hf.encode"), []);
    let spaced = changed(|definition| definition["pre_tokenizer"] = json!({"type": "WhitespaceSplit"}));
    assert_eq!(of(&spaced, "tokenize.bpe.encode"), [ReasonCode::PretokenizerMismatch]);
    let ranked = changed(|definition| {
        let merges = definition["model"]["merges"].as_array_mut().unwrap();
        merges.reverse();
    });
    assert_eq!(of(&ranked, "tokenize.tiktoken.encode"), [ReasonCode::MergesHashMismatch]);
    assert_eq!(of(&ranked, "tokenize.bpe.encode"), []);
    let doubled = changed(|definition| {
        let single = definition["post_processor"]["single"].as_array_mut().unwrap();
        single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
    });
    assert_eq!(of(&doubled, "tokenize.bpe.encode"), [ReasonCode::SpecialTokensMismatch]);
}

#[test]
fn added_tokens_with_every_option() {
    let options =
        [("lstrip", true, false, false), ("rstrip", false, true, false), ("single_word", false, false, true)];
    for (name, left, right, single) in options {
        for normalized in [false, true] {
            let tokenizer = changed(|definition| {
                let added = definition["added_tokens"].as_array_mut().unwrap();
                added.push(json!({"id": 268, "content": "[x]", "single_word": single, "lstrip": left, "rstrip": right,
                    "normalized": normalized, "special": false}));
            });
            let texts = [
                "a [x] b",
                "a  [x]  [x]\n",
                "a[x]b",
                "[x]",
                " \u{3000}[x]\u{a0} <tool>[x]<|end|>",
                "_[x] é[x]",
            ];
            let args = TokenizeEncode::new(&texts, &tokenizer).return_offsets(true);
            let found = tokenize_encode(&engine(), args).unwrap();
            let expected = tokenize_encode(
                &lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap(),
                args,
            )
            .unwrap();
            let ids = |tensor: &Tensor| tensor.view().as_slice::<i32>().unwrap().to_vec();
            assert_eq!(ids(&found.tokens), ids(&expected.tokens), "{name}");
            assert_eq!(found.offsets.unwrap().bytes(), expected.offsets.unwrap().bytes(), "{name}");
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let tokenizer = changed(|_| {});
    let long = "hello world, don't <tool> Straße 東京\n".repeat(700);
    let texts: Vec<&str> = (0..40).map(|number| &long[..long.floor_char_boundary(number * 613)]).collect();
    let run = |threads| {
        lz_pool::with_threads(threads, || {
            let args = TokenizeEncode::new(&texts, &tokenizer).return_offsets(true);
            let found = tokenize_encode(&engine(), args).unwrap();
            let whole = TokenizeDecode::new(found.tokens.view(), found.indptr.view(), &tokenizer);
            let back = tokenize_decode(&engine(), whole).unwrap().texts;
            (
                found.tokens.bytes().to_vec(),
                found.indptr.bytes().to_vec(),
                found.offsets.unwrap().bytes().to_vec(),
                back,
            )
        })
    };
    assert_eq!(run(1), run(4));
    let without: Vec<String> = texts.iter().map(|text| text.replace("<|begin|>", "")).collect();
    assert_eq!(run(1).3, without);
}
