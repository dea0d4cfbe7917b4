//! Real tokenizers on real text: every candidate that accepts a tokenizer returns exactly the definition's tokens, offsets and texts.
//!
//! `cargo xtask test` downloads the data; `LZ_TOKENIZER_DATA` overrides its folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use lz_core::{KernelEntry, Tensor};
use lz_engine::Engine;
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{TokenizeEncode, tokenize_decode, tokenize_encode};
use serde_json::{Value, json};

fn folder() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder =
        std::env::var_os("LZ_TOKENIZER_DATA").map_or(root.join("target/oracles/tokenizers-4"), PathBuf::from);
    assert!(
        folder.is_dir(),
        "no tokenizers at {}; run `cargo xtask tokenizer-data` to download them",
        folder.display()
    );
    folder
}

/// Bytes of each text that are used. Most of the time is spent in the definitions.
fn max_bytes() -> usize {
    std::env::var("LZ_TOKENIZER_BYTES").ok().and_then(|text| text.parse().ok()).unwrap_or(150_000)
}

/// Several kinds of text, in documents of a few kilobytes.
fn documents() -> &'static [String] {
    static DOCUMENTS: OnceLock<Vec<String>> = OnceLock::new();
    DOCUMENTS.get_or_init(|| {
        let mut documents = Vec::new();
        for text in [read("novel.txt"), read("languages.txt"), python_sources()] {
            // Sampled from the whole text, so that every language is included.
            let pieces: Vec<&str> = cut(&text, 8000).collect();
            let step = (text.len() / max_bytes()).max(1);
            documents.extend(pieces.into_iter().step_by(step).map(str::to_owned));
        }
        documents.push("👩‍🚀👩🏽‍💻🇩🇪🏳️‍🌈 ❤️‍🔥 e\u{301} <|endoftext|> \u{0}".repeat(50));
        documents
    })
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// The sources of the installed Python's standard library.
fn python_sources() -> String {
    let print = "import glob, sysconfig\nfor path in sorted(glob.glob(sysconfig.get_paths()['stdlib'] + '/*.py')): print(path)";
    let output = Command::new("python3").args(["-c", print]).output().unwrap();
    let paths = String::from_utf8(output.stdout).unwrap();
    paths.lines().filter_map(|path| std::fs::read_to_string(path).ok()).collect()
}

fn cut(mut text: &str, size: usize) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (piece, rest) = text.split_at(text.floor_char_boundary(size.min(text.len())));
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

struct Expected {
    ids: Vec<i32>,
    offsets: Vec<i64>,
}

fn expected(tokenizer: &Tokenizer) -> Vec<Expected> {
    let one = |text: &String| {
        let tokens = tokenizer.encode(text, true).unwrap();
        Expected {
            ids: tokens.iter().map(|token| token.id as i32).collect(),
            offsets: tokens
                .iter()
                .flat_map(|token| [token.bytes.start as i64, token.bytes.end as i64])
                .collect(),
        }
    };
    let half = documents().len() / 2;
    std::thread::scope(|scope| {
        let second = scope.spawn(|| documents()[half..].iter().map(one).collect::<Vec<_>>());
        let mut all: Vec<Expected> = documents()[..half].iter().map(one).collect();
        all.extend(second.join().unwrap());
        all
    })
}

fn engine_with(entry: &KernelEntry) -> Engine {
    let engine = Engine::new();
    engine.register([entry.clone()]).unwrap();
    engine
}

fn values<T: Copy + lz_core::element::Element>(tensor: &Tensor) -> Vec<T> {
    tensor.view().as_slice::<T>().unwrap().to_vec()
}

/// Compares every kernel with the definition. Returns `equal` or the rejection reason of each kernel.
fn check(name: &str, tokenizer: &Tokenizer) -> BTreeMap<String, String> {
    let expected = expected(tokenizer);
    let texts: Vec<&str> = documents().iter().map(String::as_str).collect();
    let mut outcomes = BTreeMap::new();
    for entry in lz_tokenize::kernels() {
        // `tokenize.hf` is the definition itself.
        if entry.spec.id.starts_with("tokenize.hf.") || entry.spec.operation != "tokenize.encode" {
            continue;
        }
        let engine = engine_with(&entry);
        let args = TokenizeEncode::new(&texts, tokenizer);
        let outcome = match tokenize_encode(&engine, args) {
            Err(error) => {
                outcomes.insert(
                    entry.spec.id.clone(),
                    error.reasons().first().map_or(error.to_string(), |reason| reason.to_string()),
                );
                continue;
            }
            Ok(outcome) => outcome,
        };
        let (ids, indptr) = (values::<i32>(&outcome.tokens), values::<i64>(&outcome.indptr));
        for (number, expected) in expected.iter().enumerate() {
            let found = &ids[indptr[number] as usize..indptr[number + 1] as usize];
            assert_eq!(
                found,
                expected.ids,
                "{}: {name}: {:?}",
                entry.spec.id,
                texts[number].chars().take(40).collect::<String>()
            );
        }
        // Phrases are cached on their second occurrence and hit from the third on.
        for _ in 0..2 {
            let again = tokenize_encode(&engine, args).unwrap();
            assert!(values::<i32>(&again.tokens) == ids, "{}: {name}: again", entry.spec.id);
        }
        outcomes.insert(entry.spec.id.clone(), "equal".to_owned());
        if let Ok(spanned) = tokenize_encode(&engine, args.return_offsets(true)) {
            let offsets = values::<i64>(&spanned.offsets.unwrap());
            let all: Vec<i64> =
                expected.iter().flat_map(|expected| expected.offsets.iter().copied()).collect();
            assert_eq!(offsets, all, "{}: {name}: offsets", entry.spec.id);
            outcomes.insert(format!("{} offsets", entry.spec.id), "equal".to_owned());
        }
    }
    decode(name, tokenizer, &expected, &mut outcomes);
    outcomes
}

/// Compares decoding with the definition, on whole texts and on ranges that split characters.
fn decode(name: &str, tokenizer: &Tokenizer, expected: &[Expected], outcomes: &mut BTreeMap<String, String>) {
    let mut ids: Vec<i32> = Vec::new();
    let mut indptr = vec![0i64];
    for (one, number) in expected.iter().zip(0usize..) {
        let from = (number % 7).min(one.ids.len());
        ids.extend(&one.ids[from..one.ids.len().min(from + 900 + number % 5)]);
        // An unknown id, and byte tokens that are not valid UTF-8.
        ids.extend([2_000_000_000, 200, 130, 161]);
        indptr.push(ids.len() as i64);
    }
    let range = |b: usize| {
        ids[indptr[b] as usize..indptr[b + 1] as usize].iter().map(|id| *id as u32).collect::<Vec<_>>()
    };
    let texts: Vec<String> =
        (0..expected.len()).map(|b| tokenizer.decode(&range(b), true).unwrap()).collect();
    let (ids_view, indptr_view) = (
        Tensor::from_slice(&ids, &[ids.len() as i64]).unwrap(),
        Tensor::from_slice(&indptr, &[indptr.len() as i64]).unwrap(),
    );
    for entry in lz_tokenize::kernels() {
        if entry.spec.id.starts_with("tokenize.hf.") || entry.spec.operation != "tokenize.decode" {
            continue;
        }
        let args = lz_ops::TokenizeDecode::new(ids_view.view(), indptr_view.view(), tokenizer);
        if let Ok(found) = tokenize_decode(&engine_with(&entry), args) {
            for (found, expected) in found.texts.iter().zip(&texts) {
                assert_eq!(found, expected, "{}: {name}", entry.spec.id);
            }
            outcomes.insert(entry.spec.id.clone(), "equal".to_owned());
        }
    }
}

fn file(name: &str) -> Tokenizer {
    Tokenizer::from_file(folder().join(format!("{name}.json"))).unwrap()
}

#[track_caller]
fn all_equal(outcomes: &BTreeMap<String, String>, ids: &[impl AsRef<str>]) {
    for id in ids {
        let id = id.as_ref();
        assert_eq!(outcomes.get(id).map(String::as_str), Some("equal"), "{id}: {outcomes:?}");
    }
}

/// The operations of a native kernel.
fn native(name: &str) -> [String; 3] {
    ["encode", "encode offsets", "decode"].map(|what| format!("tokenize.{name}.{what}"))
}

#[test]
fn llama2() {
    all_equal(&check("llama2", &file("llama2")), &native("spm_bpe"));
}

#[test]
fn bert() {
    let outcomes = check("bert", &file("bert"));
    all_equal(&outcomes, &native("wordpiece"));
    assert!(outcomes["tokenize.bpe.encode"].starts_with("[TOKENIZER_MODEL_UNSUPPORTED]"), "{outcomes:?}");
}

#[test]
fn unigrams() {
    all_equal(&check("unigrams", &file("unigram")), &native("unigram"));
}

#[test]
fn gpt2() {
    let outcomes = check("gpt2", &file("gpt2"));
    all_equal(&outcomes, &native("bpe"));
}

#[test]
fn llama3() {
    let outcomes = check("llama3", &file("llama3"));
    all_equal(&outcomes, &native("bpe"));
    all_equal(&outcomes, &["tokenize.tiktoken.encode"]);
    // A structured reason, not a panic message.
    let reason = &outcomes["tokenize.github_bpe.encode"];
    assert!(reason.starts_with("[MERGES_HASH_MISMATCH]") && reason.contains("no merges lead to"), "{reason}");
}

/// Regression: the perfect-hash map could not be built for this number of merges.
#[test]
fn gemma3() {
    all_equal(&check("gemma3", &file("gemma3")), &native("spm_bpe"));
}

/// Code points of blocks with many categories, in other contexts than those of the verification.
fn code_points() -> Vec<String> {
    let blocks = [0..=0x33ffu32, 0xa490..=0xabff, 0xf900..=0x11fff, 0x1e000..=0x1ffff];
    let points: Vec<char> = blocks.into_iter().flatten().filter_map(char::from_u32).collect();
    let shown = |point: &char| format!("x{point}y{point}Z {point}7.{point} ");
    points.chunks(256).map(|points| points.iter().map(shown).collect()).collect()
}

/// Libraries with other Unicode tables are rejected for tokenizers whose tokens depend on them.
#[test]
fn every_accepted_kernel_is_equal_on_all_categories_of_code_points() {
    let texts = code_points();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut declined = Vec::new();
    for name in ["bert_cased", "claude", "deepseek_v3", "gpt4o", "mistral_nemo"] {
        let tokenizer = file(name);
        let definition = |text: &&str| {
            tokenizer.encode(text, true).unwrap().iter().map(|token| token.id as i32).collect::<Vec<_>>()
        };
        let expected: Vec<i32> = texts.iter().flat_map(definition).collect();
        for entry in lz_tokenize::kernels() {
            if entry.spec.id.starts_with("tokenize.hf.") || entry.spec.operation != "tokenize.encode" {
                continue;
            }
            match tokenize_encode(&engine_with(&entry), TokenizeEncode::new(&texts, &tokenizer)) {
                Ok(found) => {
                    assert!(values::<i32>(&found.tokens) == expected, "{name}: {}", entry.spec.id);
                }
                Err(error) if entry.spec.id == "tokenize.hf1.encode" => {
                    let reason = error.reasons()[0].to_string();
                    assert!(
                        reason.contains("[TOKENIZER_NOT_EQUAL]") && reason.contains("U+"),
                        "{name}: {reason}"
                    );
                    declined.push(name);
                }
                Err(_) => {}
            }
        }
    }
    assert!(declined.contains(&"gpt4o") && declined.contains(&"claude"), "{declined:?}");
}

/// Definitions whose splitters are compiled from their expressions: several stages (DeepSeek), an expression of its own (Mistral Nemo).
#[test]
fn compiled_splitters() {
    for name in ["deepseek_v3", "mistral_nemo"] {
        all_equal(&check(name, &file(name)), &native("bpe"));
    }
}

/// A `Split` that removes what its expression does not match, and NFKC.
#[test]
fn inverted_splits_and_nfkc() {
    for name in ["gpt4o", "claude"] {
        all_equal(&check(name, &file(name)), &native("bpe"));
    }
}

/// The pretokenizer of Falcon, whose last splits see the byte alphabet, with the vocabulary of GPT-2.
#[test]
fn splits_of_the_byte_alphabet() {
    let mut definition: Value = serde_json::from_str(&read("gpt2.json")).unwrap();
    definition["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Punctuation", "behavior": "Contiguous"},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        {"type": "Digits", "individual_digits": false},
        {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": false},
    ]});
    let tokenizer = Tokenizer::from_json(definition.to_string().as_bytes()).unwrap();
    all_equal(&check("falcon", &tokenizer), &native("bpe"));
}

#[test]
fn qwen3() {
    all_equal(&check("qwen3", &file("qwen3")), &native("bpe"));
}

#[test]
fn tiktoken_encodings() {
    for (name, core) in
        [("cl100k_base", tiktoken_rs::cl100k_base()), ("o200k_base", tiktoken_rs::o200k_base())]
    {
        let tokenizer = lz_tokenize::encoding(name).unwrap().unwrap();
        let outcomes = check(name, &tokenizer);
        all_equal(&outcomes, &native("bpe"));
        all_equal(&outcomes, &["tokenize.tiktoken.encode"]);
        let core = core.unwrap();
        for text in documents() {
            let ours: Vec<u32> =
                tokenizer.encode(text, false).unwrap().iter().map(|token| token.id).collect();
            assert_eq!(ours, core.encode_with_special_tokens(text), "{name}");
        }
    }
}
