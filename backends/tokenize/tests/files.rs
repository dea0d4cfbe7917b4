//! Files of every format: hostile ones are refused with a message, within limits of time and memory.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use lz_test_support::Folder;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Loads content as a file of a name; the file is removed again.
fn load(name: &str, content: &[u8]) -> Result<Tokenizer, TokenizerError> {
    let folder = Folder::new();
    lz_tokenize::from_file(folder.write(name, content), false)
}

#[track_caller]
fn refused(name: &str, content: impl AsRef<[u8]>, expected: &str) {
    let message = load(name, content.as_ref()).unwrap_err().to_string();
    assert!(message.contains(expected), "{message}");
}

fn tekken() -> Value {
    let token = |rank: usize, bytes: &[u8]| json!({"rank": rank, "token_bytes": BASE64.encode(bytes), "token_str": null});
    let mut vocabulary: Vec<Value> = (0..=255u8).map(|byte| token(usize::from(byte), &[byte])).collect();
    vocabulary.push(token(256, b"ab"));
    json!({"config": {"pattern": r"\p{L}+|\P{L}", "default_vocab_size": 259, "default_num_special_tokens": 2},
        "vocab": vocabulary, "special_tokens": [{"rank": 0, "token_str": "<s>", "is_control": true}]})
}

#[test]
fn tekken_files() {
    let tokenizer = load("tekken.json", tekken().to_string().as_bytes()).unwrap();
    let ids =
        |text: &str| tokenizer.encode(text, true).unwrap().iter().map(|token| token.id).collect::<Vec<_>>();
    assert_eq!(ids("ab<"), [258, 2 + u32::from(b'<')]);
    assert_eq!((tokenizer.id_of("<s>"), tokenizer.token_of(1).as_deref()), (Some(0), Some("<SPECIAL_1>")));
    let changed = |change: fn(&mut Value)| {
        let mut definition = tekken();
        change(&mut definition);
        definition.to_string()
    };
    let huge = changed(|file| file["config"]["default_vocab_size"] = 4_000_000_000u32.into());
    refused("tekken.json", huge, "exceeds a limit");
    let reserved = changed(|file| file["config"]["default_num_special_tokens"] = 300.into());
    refused("tekken.json", reserved, "default_vocab_size");
    let rank = changed(|file| file["special_tokens"][0]["rank"] = 2.into());
    refused("tekken.json", rank, "special_tokens");
    let byte = changed(|file| drop(file["vocab"].as_array_mut().unwrap().remove(65)));
    refused("tekken.json", byte, "no token for byte 0x41");
    let long = changed(|file| file["vocab"][256]["token_bytes"] = BASE64.encode([97; 600]).into());
    refused("tekken.json", long, "600 bytes");
    refused("tekken.json", changed(|file| file["config"]["pattern"] = Value::Null), "pattern");
    refused("tekken.json", changed(|file| file["config"]["pattern"] = "(".into()), "");
}

#[test]
fn ranks_and_vocabularies() {
    refused("x.tiktoken", format!("{} 0\n", BASE64.encode([97; 4096])), "4096 bytes");
    refused("x.tiktoken", "<html>", "an HTML or XML page");
    refused("x.tiktoken", "no rank", "line 1 of the ranks");
    refused("tokenizer.model", "YQ== 0\nYg== 1\n", "2 tiktoken ranks");
    refused("x.tiktoken", "YQ== 0\nYg== 99999999999\n", "line 2");
    refused("vocab.txt", "[UNK]\n[CLS]\n", "from_vocabulary");
    refused("vocab.txt", [0xff, 0xfe, b'\n'], "from_vocabulary");
    refused("empty.model", "", "an empty file");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_are_refused_or_loaded(
        name in prop::sample::select(vec!["tokenizer.json", "tokenizer.model", "x.tiktoken", "vocab.txt", "tekken.json", "x"]),
        start in prop::sample::select(vec!["", "{", "YQ== 0\n", "[UNK]\n", "{\"config\": {}, \"vocab\": []", "#version"]),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let content = [start.as_bytes(), &bytes].concat();
        if let Err(error) = load(name, &content) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
