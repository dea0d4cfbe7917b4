//! Native WordPiece, unigram and SentencePiece BPE on adversarial texts: characters that combine, are removed, grow in normalization, or
//! have a meaning for the tokenizer.

use lz_core::Tensor;
use lz_engine::Engine;
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{TokenizeDecode, TokenizeEncode, tokenize_decode, tokenize_encode};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Letters, combining marks, characters that decompose, grow or are removed, line ends, all kinds of spaces, composed and decomposed
/// syllables, voiced marks, emoji, U+2581, quotation marks, and added tokens.
const POOL: [&str; 56] = [
    "a", "b", "ab", "A", "B", " ", " ", "  ", "\u{301}", "\u{323}", "\u{308}", "é", "É", "ß", "İ", "ﬁ", "Ǆ",
    "½", "㎏", "\u{212b}", "\r", "\n", "\r\n", "\t", "\u{a0}", "\u{3000}", "\u{85}", "\u{200b}", "\u{200d}",
    "\u{ad}", "\u{0}", "\u{fffd}", "가", "\u{1100}", "\u{1161}", "\u{11a8}", "か", "カ", "ｶ", "\u{ff9e}",
    "\u{3099}", "क", "\u{94d}", "ष", "\u{93f}", "東", "京", "👩", "🏽", "🇩", "▁", "``", "'", ".", "[X]",
    "\u{600}",
];

fn tokenizer(mut definition: Value) -> Tokenizer {
    definition["version"] = "1.0".into();
    definition["added_tokens"] = json!([{"id": 1, "content": "[X]", "single_word": false, "lstrip": false, "rstrip": true,
        "normalized": false, "special": true}]);
    Tokenizer::from_json(definition.to_string().as_bytes()).unwrap()
}

fn metaspace(scheme: &str, split: bool) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split})
}

fn word_piece() -> Tokenizer {
    let names = [
        "[UNK]", "[X]", "a", "b", "ab", "##a", "##b", "##ab", "##e", "e", "'", ".", "東", "か", "##か", "ka",
        "ss", "##i", "\u{1100}",
    ];
    let vocabulary: Value = names
        .into_iter()
        .zip(0..)
        .map(|(name, id)| (name.to_owned(), Value::from(id)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    tokenizer(json!({
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["a", 2], "cls": ["b", 3]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 20, "vocab": vocabulary},
    }))
}

fn unigram(normalizer: Value, pre_tokenizer: Value, bytes: bool) -> Tokenizer {
    let names = [
        "<unk>", "[X]", "▁", "a", "b", "ab", "▁a", "▁ab", "é", "が", "か", "fi", "1", "東", "京都", "▁▁",
        "aba", "カ",
    ];
    let mut vocabulary: Vec<(String, f64)> = names
        .into_iter()
        .zip(1..)
        .map(|(name, number)| (name.to_owned(), -f64::from(number) * 0.7))
        .collect();
    if bytes {
        vocabulary.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), -20.0)));
    }
    tokenizer(json!({
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": metaspace("always", true),
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": bytes, "vocab": vocabulary},
    }))
}

fn char_bpe(normalizer: Value, pre_tokenizer: Value, bytes: bool, merges: &[(&str, &str)]) -> Tokenizer {
    let mut names: Vec<String> = ["<unk>", "[X]", "▁", "a", "b", "é", "か", "東"].map(str::to_owned).to_vec();
    names.extend(merges.iter().map(|(left, right)| format!("{left}{right}")));
    if bytes {
        names.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    }
    let vocabulary: serde_json::Map<String, Value> =
        names.into_iter().zip(0..).map(|(name, id)| (name, Value::from(id))).collect();
    tokenizer(json!({
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": bytes, "vocab": vocabulary, "merges": merges},
    }))
}

/// Every tokenizer with the kernel that must accept it.
fn all() -> Vec<(&'static str, Tokenizer)> {
    let nfkc = || json!({"type": "NFKC"});
    let written = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let collapsed = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
    let trimmed = json!({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""});
    let prepended = json!({"type": "Prepend", "prepend": "▁"});
    let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
    let words = json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always", true)]});
    let merges = [("▁", "a"), ("a", "b"), ("▁", "▁"), ("▁a", "b"), ("b", "é"), ("▁▁", "▁▁")];
    let across = [("a", "▁"), ("a▁", "b"), ("b", "b")];
    let quotes = json!({"type": "Replace", "pattern": {"String": "``"}, "content": "\""});
    vec![
        ("wordpiece", word_piece()),
        ("unigram", unigram(nfkc(), metaspace("always", true), false)),
        ("unigram", unigram(nfkc(), metaspace("first", true), true)),
        ("unigram", unigram(Value::Null, metaspace("never", false), true)),
        ("unigram", unigram(nfkc(), words, false)),
        (
            "unigram",
            unigram(
                sequence(vec![nfkc(), trimmed, collapsed.clone(), prepended.clone(), written.clone()]),
                Value::Null,
                true,
            ),
        ),
        (
            "unigram",
            unigram(
                sequence(vec![
                    quotes,
                    json!({"type": "NFKD"}),
                    json!({"type": "StripAccents"}),
                    json!({"type": "Lowercase"}),
                    json!({"type": "Strip", "strip_left": false, "strip_right": true}),
                    collapsed,
                ]),
                metaspace("always", true),
                false,
            ),
        ),
        (
            "spm_bpe",
            char_bpe(
                sequence(vec![json!({"type": "Prepend", "prepend": "▁"}), written.clone()]),
                Value::Null,
                true,
                &merges,
            ),
        ),
        ("spm_bpe", char_bpe(written, Value::Null, false, &merges)),
        ("spm_bpe", char_bpe(Value::Null, metaspace("first", false), true, &across)),
    ]
}

fn engine(kernel: &str) -> Engine {
    let engine = Engine::new();
    let prefix = format!("tokenize.{kernel}.");
    engine
        .register(lz_tokenize::kernels().into_iter().filter(|entry| entry.spec.id.starts_with(&prefix)))
        .unwrap();
    engine
}

/// Tokens without and with offsets, offsets, and decoded texts of one engine.
fn round_trip(
    engine: &Engine,
    tokenizer: &Tokenizer,
    text: &str,
) -> (Vec<i32>, Vec<i32>, Vec<i64>, Vec<String>) {
    let texts = [text];
    let args = TokenizeEncode::new(&texts, tokenizer);
    let ids = |tensor: &Tensor| tensor.view().as_slice::<i32>().unwrap().to_vec();
    let plain = tokenize_encode(engine, args).unwrap();
    let spanned = tokenize_encode(engine, args.return_offsets(true)).unwrap();
    let offsets = spanned.offsets.unwrap().view().as_slice::<i64>().unwrap().to_vec();
    let back = TokenizeDecode::new(plain.tokens.view(), plain.indptr.view(), tokenizer);
    let both = [true, false]
        .map(|skip| tokenize_decode(engine, back.skip_special_tokens(skip)).unwrap().texts.remove(0));
    (ids(&plain.tokens), ids(&spanned.tokens), offsets, both.to_vec())
}

#[test]
fn adversarial_texts_are_equal_to_the_reference() {
    let cases: Vec<(Engine, Tokenizer)> =
        all().into_iter().map(|(kernel, tokenizer)| (engine(kernel), tokenizer)).collect();
    let reference = lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    let mut runner = proptest::test_runner::TestRunner::default();
    let text = proptest::collection::vec(proptest::sample::select(POOL.to_vec()), 0..14)
        .prop_map(|parts| parts.concat());
    runner
        .run(&text, |text| {
            for (number, (engine, tokenizer)) in cases.iter().enumerate() {
                prop_assert_eq!(
                    round_trip(engine, tokenizer, &text),
                    round_trip(&reference, tokenizer, &text),
                    "{}: {:?}",
                    number,
                    text
                );
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn unsupported_parts_are_rejected() {
    let rejection = |kernel: &str, tokenizer: &Tokenizer| {
        let texts = ["a"];
        tokenize_encode(&engine(kernel), TokenizeEncode::new(&texts, tokenizer)).unwrap_err().to_string()
    };
    let late = json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}]});
    assert!(
        rejection("unigram", &unigram(late, metaspace("always", true), false))
            .contains("NORMALIZER_MISMATCH")
    );
    assert!(
        rejection("unigram", &unigram(Value::Null, json!({"type": "Whitespace"}), false))
            .contains("PRETOKENIZER_MISMATCH")
    );
    assert!(
        rejection("wordpiece", &unigram(Value::Null, metaspace("always", true), false))
            .contains("TOKENIZER_MODEL_UNSUPPORTED")
    );
    assert!(rejection("spm_bpe", &word_piece()).contains("TOKENIZER_MODEL_UNSUPPORTED"));
}
