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
    let stripped = changed(|definition| definition["normalizer"] = json!({"type": "StripAccents"}));
    assert_eq!(of(&stripped, "tokenize.bpe.encode"), [ReasonCode::NormalizerMismatch]);
    assert_eq!(of(&stripped, "tokenize.hf.encode"), []);
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

/// Texts of every category, with and without spaces.
const TEXTS: [&str; 8] = [
    "hello world 12345 hello",
    "  two  spaces\n\n and\r\nlines \t",
    "don't!!! (x) ... \u{201c}quoted\u{201d} 3.14",
    "Straße 東京タワー ½ ² Ⅷ ① ١٢٣ १२३",
    "ﬁ １２ e\u{301} \u{a0}\u{3000} ㎏",
    "",
    "👩‍🚀 \u{0} \u{200b}",
    "a1b2 hello<tool>hello 1,234,567",
];

/// Checks that the native kernel accepts a tokenizer and returns the definition's tokens and offsets.
#[track_caller]
fn check_native(tokenizer: &Tokenizer) {
    let kernels = lz_tokenize::kernels().into_iter().filter(|entry| entry.spec.id == "tokenize.bpe.encode");
    let engine = Engine::new();
    engine.register(kernels).unwrap();
    let long = TEXTS.concat().repeat(40);
    let texts = [TEXTS.as_slice(), &[long.as_str()]].concat();
    // Repeated, because phrases are cached.
    for _ in 0..3 {
        let plain = tokenize_encode(&engine, TokenizeEncode::new(&texts, tokenizer)).unwrap();
        let args = TokenizeEncode::new(&texts, tokenizer).return_offsets(true);
        let found = tokenize_encode(&engine, args).unwrap();
        let reference = Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
        let expected = tokenize_encode(&reference, args).unwrap();
        assert_eq!(plain.tokens.bytes(), expected.tokens.bytes());
        assert_eq!(found.tokens.bytes(), expected.tokens.bytes());
        assert_eq!(found.offsets.unwrap().bytes(), expected.offsets.unwrap().bytes());
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn split(expression: &str, behavior: &str, invert: bool) -> Value {
    json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert})
}

#[test]
fn splitters_are_compiled_from_the_definition() {
    let digits = |individual: bool| json!({"type": "Digits", "individual_digits": individual});
    let punctuation = |behavior: &str| json!({"type": "Punctuation", "behavior": behavior});
    let sequences = [
        // Command R, and the same with runs of digits.
        vec![digits(true), byte_level(true)],
        vec![digits(false), byte_level(true)],
        vec![punctuation("Contiguous"), digits(true), byte_level(true)],
        vec![punctuation("Isolated"), byte_level(true)],
        // CLIP's expression: what it does not match is dropped.
        vec![split(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "Removed", true), byte_level(false)],
        vec![split(r"\s+", "Removed", false), byte_level(false)],
        vec![split(r"\p{N}{1,3}", "Isolated", false), split(r"[一-龥]+", "Isolated", true), byte_level(true)],
        vec![
            split(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", "Isolated", false),
            byte_level(false),
        ],
    ];
    // Falcon, and other splits of the byte alphabet, in which bytes of one character may be digits or punctuation.
    let falcon = [
        punctuation("Contiguous"),
        byte_level(true),
        digits(false),
        split("[0-9][0-9][0-9]", "Isolated", false),
    ];
    let later = [
        falcon.to_vec(),
        vec![byte_level(true), digits(true)],
        vec![byte_level(false), punctuation("Isolated"), digits(false)],
        vec![byte_level(false), split(r"Ġ?[a-z]+|[^Ġa-z]", "Isolated", false)],
    ];
    for pretokenizers in sequences.into_iter().chain(later) {
        let tokenizer = changed(|definition| {
            definition["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": pretokenizers});
        });
        check_native(&tokenizer);
    }
}

#[test]
fn splitters_that_are_not_understood_are_rejected() {
    let unsupported = [
        vec![split(r"\bword", "Isolated", false), byte_level(false)],
        vec![split(r"a++", "Isolated", false), byte_level(false)],
        vec![split(r"\s+", "MergedWithPrevious", false), byte_level(false)],
        vec![byte_level(true), json!({"type": "Whitespace"})],
        vec![byte_level(true), byte_level(true)],
        vec![
            split(r"\p{N}", "Isolated", false),
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        ],
        vec![json!({"type": "Whitespace"}), byte_level(true)],
        vec![],
    ];
    for pretokenizers in unsupported {
        let tokenizer = changed(|definition| {
            definition["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": pretokenizers});
        });
        let codes = objections(&tokenizer, |id| id == "tokenize.bpe.encode").remove(0).1;
        assert_eq!(codes, [ReasonCode::PretokenizerMismatch], "{pretokenizers:?}");
    }
}

#[test]
fn normalization_forms_of_byte_level_tokenizers() {
    let nested = json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}]});
    let none = json!({"type": "Sequence", "normalizers": []});
    let collapsing = json!({"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "});
    let lowercase = json!({"type": "Lowercase"});
    let clip = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, collapsing, lowercase]});
    for normalizer in
        [json!({"type": "NFC"}), json!({"type": "NFKC"}), nested, none, collapsing, lowercase, clip]
    {
        check_native(&changed(|definition| definition["normalizer"] = normalizer.clone()));
    }
}

/// A tokenizer like CLIP's: tokens that end a piece have a suffix.
fn marked(change: impl FnOnce(&mut Value)) -> Tokenizer {
    changed(|definition| {
        let added = definition["added_tokens"].as_array().unwrap().clone();
        let model = &mut definition["model"];
        model["end_of_word_suffix"] = json!("</w>");
        let merges = model["merges"].as_array().unwrap().clone();
        let vocabulary = model["vocab"].as_object_mut().unwrap();
        // Added tokens that the model does not have would get the first ids after it.
        for token in &added {
            vocabulary.insert(token["content"].as_str().unwrap().to_owned(), token["id"].clone());
        }
        let next = vocabulary.values().map(|id| id.as_u64().unwrap()).max().unwrap() + 1;
        let mut ids: Vec<(String, u64)> =
            vocabulary.iter().map(|(token, id)| (token.clone(), id.as_u64().unwrap())).collect();
        ids.sort_by_key(|(_, id)| *id);
        for ((token, _), id) in ids.into_iter().zip(next..) {
            vocabulary.insert(format!("{token}</w>"), json!(id));
        }
        let pairs = merges.iter().map(|merge| match merge {
            Value::String(text) => text.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap(),
            other => (other[0].as_str().unwrap().to_owned(), other[1].as_str().unwrap().to_owned()),
        });
        // Every second merge is also one at the end of a piece; the marked one comes first or last.
        let both = pairs.enumerate().flat_map(|(number, (left, right))| {
            let plain = format!("{left} {right}");
            match number % 3 {
                0 => vec![format!("{plain}</w>"), plain],
                1 => vec![plain.clone(), format!("{plain}</w>")],
                _ => vec![plain],
            }
        });
        model["merges"] = both.collect::<Vec<_>>().into();
        change(definition);
    })
}

#[test]
fn tokens_that_end_a_piece_are_marked() {
    let clip = |definition: &mut Value| {
        let split = split(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "Removed", true);
        let replace = json!({"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "});
        definition["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, byte_level(true)]});
        definition["normalizer"] =
            json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, replace, {"type": "Lowercase"}]});
    };
    let unmerged = marked(|definition| definition["model"]["ignore_merges"] = json!(true));
    let codes = objections(&unmerged, |id| id == "tokenize.bpe.encode").remove(0).1;
    assert_eq!(codes, [ReasonCode::TokenizerModelUnsupported]);
    for tokenizer in [marked(|_| {}), marked(clip)] {
        check_native(&tokenizer);
        let codes = objections(&tokenizer, |id| id == "tokenize.tiktoken.encode").remove(0).1;
        assert_eq!(codes.len(), 1, "{codes:?}");
        // Decoding keeps the marks, as the definition does.
        let engine = Engine::new();
        engine
            .register(
                lz_tokenize::kernels().into_iter().filter(|entry| entry.spec.id == "tokenize.bpe.decode"),
            )
            .unwrap();
        let ids: Vec<i32> =
            tokenizer.encode("hello, hello1", false).unwrap().iter().map(|token| token.id as i32).collect();
        let (tokens, indptr) = (
            Tensor::from_slice(&ids, &[ids.len() as i64]).unwrap(),
            Tensor::from_slice(&[0, ids.len() as i64], &[2]).unwrap(),
        );
        let found =
            tokenize_decode(&engine, TokenizeDecode::new(tokens.view(), indptr.view(), &tokenizer)).unwrap();
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        assert_eq!(found.texts, [tokenizer.decode(&ids, true).unwrap()]);
        assert!(found.texts[0].contains("</w>"), "{:?}", found.texts);
    }
}

/// Bytes that UTF-8 never has need no token; others do.
#[test]
fn vocabularies_without_some_bytes() {
    let without = |token: &str| {
        changed(|definition| {
            // Another token has its id, so that the ids of added tokens stay.
            let vocabulary = definition["model"]["vocab"].as_object_mut().unwrap();
            let id = vocabulary.remove(token).unwrap();
            vocabulary.insert("unused".to_owned(), id);
        })
    };
    for token in ["À", "Á", "õ", "ÿ"] {
        check_native(&without(token));
    }
    let codes = objections(&without("â"), |id| id == "tokenize.bpe.encode").remove(0).1;
    assert_eq!(codes, [ReasonCode::VocabHashMismatch]);
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

#[test]
fn one_long_text_is_split_over_threads() {
    let tokenizer = changed(|_| {});
    let long = "hello world, don't <tool> Straße 東京\n  hello 12 ".repeat(9000);
    let solid = "x".repeat(300_000);
    let texts = [long.as_str(), "short", &solid];
    let run = |threads| {
        lz_pool::with_threads(threads, || {
            tokenize_encode(&engine(), TokenizeEncode::new(&texts[..2], &tokenizer))
                .unwrap()
                .tokens
                .bytes()
                .to_vec()
        })
    };
    let alone = run(1);
    assert_eq!(run(4), alone);
    let definition = tokenizer.encode(&long[..60_000], false).unwrap();
    let ids: Vec<u8> =
        definition.iter().take(10_000).flat_map(|token| (token.id as i32).to_ne_bytes()).collect();
    // The first token is the one that the post-processor adds.
    assert_eq!(alone[4..][..ids.len()], ids);
    let solid = |threads| {
        lz_pool::with_threads(threads, || {
            tokenize_encode(&engine(), TokenizeEncode::new(&texts[2..], &tokenizer))
                .unwrap()
                .tokens
                .bytes()
                .to_vec()
        })
    };
    assert_eq!(solid(1), solid(4));
}
