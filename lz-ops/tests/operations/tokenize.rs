//! Tokenization with a small byte-level BPE whose byte tokens have the byte's value as id.

use std::any::Any;

use lz_core::Handle;
use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use lz_ops::{TokenizeDecode, TokenizeEncode, TokenizeEncodeOutput, tokenize_decode, tokenize_encode};
use proptest::prelude::*;

use crate::{values, view};

const JSON: &str = include_str!("../data/byte_level_bpe.json");

fn tokenizer() -> Tokenizer {
    Tokenizer::from_json(JSON.as_bytes()).unwrap()
}

fn encode(texts: &[&str], special: bool) -> TokenizeEncodeOutput {
    let tokenizer = tokenizer();
    let args = TokenizeEncode::new(texts, &tokenizer).add_special_tokens(special).return_offsets(true);
    tokenize_encode(&crate::reference_engine(), args).unwrap()
}

fn decode(ids: &[i32], indptr: &[i64], skip: bool) -> Vec<String> {
    let tokenizer = tokenizer();
    let args =
        TokenizeDecode::new(view(ids, &[ids.len() as i64]), view(indptr, &[indptr.len() as i64]), &tokenizer)
            .skip_special_tokens(skip);
    tokenize_decode(&crate::reference_engine(), args).unwrap().texts
}

#[test]
fn merges_added_tokens_and_the_post_processor() {
    let result = encode(&["hello world", "", "hell<tool>é<|end|>"], true);
    // The file specifies truncation to 3 and padding to 8; both are ignored.
    assert_eq!(values::<i64>(&result.indptr), [0, 3, 4, 10]);
    let expected = [266, 259, 264, 266, 266, 258, 267, 0xc3, 0xa9, 265];
    assert_eq!(values::<i32>(&result.tokens), expected);
    // Offsets are in bytes: both bytes of é map to the same range.
    let offsets = values::<i64>(&result.offsets.unwrap());
    let pairs: Vec<(i64, i64)> = offsets.chunks(2).map(|pair| (pair[0], pair[1])).collect();
    assert_eq!(pairs[..4], [(0, 0), (0, 5), (5, 11), (0, 0)]);
    assert_eq!(pairs[4..], [(0, 0), (0, 4), (4, 10), (10, 12), (10, 12), (12, 19)]);
    let plain = encode(&["hello world"], false);
    assert_eq!(values::<i32>(&plain.tokens), [259, 264]);
    assert_eq!(encode(&[], true).tokens.shape(), [0]);
}

#[test]
fn offsets_are_absent_unless_requested() {
    let tokenizer = tokenizer();
    let result =
        tokenize_encode(&crate::reference_engine(), TokenizeEncode::new(&["hello"], &tokenizer)).unwrap();
    assert!(result.offsets.is_none());
}

#[test]
fn decoding_skips_special_and_unknown_tokens() {
    let ids = [266, 259, 264, 265, 5000, 0xc3, 0xa9, 0xc3];
    assert_eq!(decode(&ids, &[0, 5, 5, 7, 8], true), ["hello world", "", "é", "\u{fffd}"]);
    assert_eq!(decode(&ids, &[0, 4, 8], false), ["<|begin|>hello world<|end|>", "é\u{fffd}"]);
    assert_eq!(decode(&[265, 266], &[0, 2], true), [""]);
    assert_eq!(decode(&[], &[0], true), Vec::<String>::new());
}

#[test]
fn digest_distinguishes_definitions() {
    let digest = tokenizer().digest();
    let other = JSON.replace("\"l d\"", "\"l e\"").replace("\"ld\"", "\"le\"").replace("Ġwor ld", "Ġwor le");
    let other = Tokenizer::from_json(other.replace("Ġworld", "Ġworle").as_bytes()).unwrap();
    assert_ne!(digest, other.digest());
    assert_eq!(tokenizer().json(), JSON.as_bytes());
}

const TRUNCATION: &str =
    r#"{"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}"#;
const PADDING: &str = r#"{"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 265,
    "pad_type_id": 0, "pad_token": "<|end|>"}"#;

#[test]
fn truncation_and_padding_are_rejected_or_ignored_on_request() {
    for (name, stated) in [("truncation", TRUNCATION), ("padding", PADDING)] {
        let json = JSON.replace(&format!("\"{name}\": null"), &format!("\"{name}\": {stated}"));
        assert_ne!(json, JSON);
        let error = Tokenizer::from_json(json.as_bytes()).unwrap_err();
        assert!(matches!(error, TokenizerError::Setting { name: found, .. } if found == name));
        for part in [name, "null", "whole_texts"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        let whole = Tokenizer::whole_texts(json.as_bytes()).unwrap();
        assert_eq!(whole.digest(), tokenizer().digest());
        assert_eq!(whole.encode("hello world hello", false), tokenizer().encode("hello world hello", false));
        // The JSON passed to other processes contains no setting that they would reject.
        assert!(Tokenizer::from_json(whole.json()).is_ok());
    }
}

#[test]
fn non_regular_files_are_rejected() {
    let error = Tokenizer::from_file("/dev/zero").unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn definitions_above_the_limits_are_rejected() {
    let error = |json: String| Tokenizer::from_json(json.as_bytes()).unwrap_err();
    let large = error(JSON.replace("\"id\": 267", "\"id\": 4294967294"));
    assert!(matches!(&large, TokenizerError::Limit { part, .. } if part == "added_tokens"), "{large}");
    let deep = "[".repeat(200_000);
    assert!(matches!(error(deep), TokenizerError::Json { .. }));
    assert!(matches!(Tokenizer::from_json(b"{\"model\": \"\xff\"}"), Err(TokenizerError::Json { .. })));
    assert!(matches!(Tokenizer::from_json(b"{\"model\": \"\0\"}"), Err(TokenizerError::Json { .. })));
}

#[test]
fn invalid_definitions_are_rejected() {
    let error = |json: &str| Tokenizer::from_json(json.as_bytes()).unwrap_err();
    assert!(matches!(error("{"), TokenizerError::Json { .. }));
    assert!(matches!(error("{}"), TokenizerError::Definition { .. } | TokenizerError::Failed { .. }));
    assert!(matches!(error("[1]"), TokenizerError::Definition { .. }));
    let random = JSON.replace("\"dropout\": null", "\"dropout\": 0.1");
    assert_eq!(error(&random), TokenizerError::Random { dropout: "0.1".to_owned() });
    assert!(matches!(
        Tokenizer::from_file("/nowhere/tokenizer.json"),
        Err(TokenizerError::Unreadable { .. })
    ));
}

#[test]
fn handle_of_another_type_is_rejected() {
    struct OtherHandle;
    impl Handle for OtherHandle {
        fn digest(&self) -> [u8; 32] {
            [0; 32]
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }
    let error =
        tokenize_encode(&crate::reference_engine(), TokenizeEncode::new(&["a"], &OtherHandle)).unwrap_err();
    assert!(error.to_string().contains("lz_ops::tokenizer::Tokenizer"), "{error}");
}

proptest! {
    #[test]
    fn every_text_round_trips(
        // Not the text alone: proptest would parse it for each text.
        texts in proptest::collection::vec(
            proptest::string::string_regex("\\PC*|(hello| world|<tool>|é|\n)*").unwrap(), 0..4,
        ),
    ) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let result = encode(&texts, true);
        let (tokens, indptr) = (values::<i32>(&result.tokens), values::<i64>(&result.indptr));
        prop_assert_eq!(decode(&tokens, &indptr, true), texts.clone());
        let offsets = values::<i64>(&result.offsets.unwrap());
        for (b, text) in texts.iter().enumerate() {
            for t in indptr[b] as usize..indptr[b + 1] as usize {
                let (start, end) = (offsets[2 * t] as usize, offsets[2 * t + 1] as usize);
                prop_assert!(text.get(start..end).is_some(), "{start}..{end} of {text:?}");
            }
        }
    }
}

#[test]
fn special_tokens_in_a_text_can_be_plain_text() {
    let split = tokenizer().splitting_special_tokens().unwrap();
    assert_ne!(split.digest(), tokenizer().digest());
    assert_eq!(split.digest(), Tokenizer::from_json(split.json()).unwrap().digest());
    let ids = |tokenizer: &Tokenizer, special: bool| -> Vec<u32> {
        let tokens = tokenizer.encode("hello<|end|><tool>", special).unwrap();
        tokens.into_iter().map(|token| token.id).collect()
    };
    assert_eq!(ids(&tokenizer(), false), [259, 265, 267]);
    // Tokens that are not special are still split off, and the post-processor still adds its own.
    let text: Vec<u32> = "<|end|>".bytes().map(u32::from).collect();
    assert_eq!(ids(&split, false), [vec![259], text.clone(), vec![267]].concat());
    assert_eq!(ids(&split, true), [vec![266, 259], text, vec![267]].concat());
}
