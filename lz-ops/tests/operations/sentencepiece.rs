//! SentencePiece models written by hand. The ids were checked with the library; the Python tests compare many
//! more models with it.

use lz_core::Handle;
use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use proptest::prelude::*;

const UNIGRAM: u8 = 1;
const BPE: u8 = 2;

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 128);
    [&[number << 3 | 2, content.len() as u8], content].concat()
}

/// A model: pieces with score and type, and the settings of the normalizer.
fn model(kind: u8, pieces: &[(&str, f32, u8)], normalizer: &[u8]) -> Vec<u8> {
    let piece = |(text, score, kind): &(&str, f32, u8)| {
        let rest = [&[0x15], &score.to_le_bytes()[..], &[0x18, *kind]].concat();
        field(1, &[field(1, text.as_bytes()), rest].concat())
    };
    let mut model: Vec<u8> = pieces.iter().flat_map(piece).collect();
    model.extend([field(2, &[0x18, kind]), field(3, normalizer)].concat());
    model
}

fn pieces() -> Vec<(&'static str, f32, u8)> {
    vec![
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("\u{2581}", -3.0, 1),
        ("a", -2.0, 1),
        ("b", -2.0, 1),
        ("ab", -1.0, 1),
        ("\u{2581}ab", -4.0, 1),
        ("[x]", 0.0, 4),
        ("aa", -1.5, 5),
    ]
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, true).unwrap().into_iter().map(|token| token.id).collect()
}

#[test]
fn user_defined_pieces_stay_whole_and_control_words_are_text() {
    for kind in [UNIGRAM, BPE] {
        let tokenizer = Tokenizer::from_sentencepiece(&model(kind, &pieces(), &[])).unwrap();
        assert_eq!(ids(&tokenizer, "[x]ab"), [2, 7, 5]);
        assert_eq!(ids(&tokenizer, "ab  a"), [6, 2, 3]);
        // Adjacent unknown characters are one token.
        assert_eq!(ids(&tokenizer, "<s>"), [2, 0]);
        // Unused pieces are never produced.
        assert_eq!(ids(&tokenizer, "aa"), [2, 3, 3]);
        assert_eq!(ids(&tokenizer, " \t")[..1], [2]);
        assert!(ids(&tokenizer, "  ").is_empty());
        assert_eq!(tokenizer.decode(&[6, 2, 3, 1, 0, 900], true).unwrap(), "ab a \u{2047} ");
    }
}

#[test]
fn offsets_are_bytes_before_normalization() {
    let tokenizer = Tokenizer::from_sentencepiece(&model(UNIGRAM, &pieces(), &[])).unwrap();
    let ranges: Vec<_> =
        tokenizer.encode("  ab  éa ", true).unwrap().into_iter().map(|token| token.bytes).collect();
    assert_eq!(ranges, [2..4, 4..6, 6..8, 8..9]);
}

#[test]
fn model_converted_to_json_keeps_its_digest() {
    let read = Tokenizer::from_sentencepiece(&model(BPE, &pieces(), &[])).unwrap();
    assert_eq!(read.digest(), Tokenizer::from_json(read.json()).unwrap().digest());
    assert_eq!(read.digest(), read.splitting_special_tokens().unwrap().digest());
    let other = Tokenizer::from_sentencepiece(&model(BPE, &pieces(), &[0x18, 0])).unwrap();
    assert_ne!(read.digest(), other.digest());
}

#[test]
fn unsupported_models_are_rejected() {
    let error = |model: &[u8]| match Tokenizer::from_sentencepiece(model) {
        Err(TokenizerError::SentencePiece { message }) => message,
        other => panic!("{other:?}"),
    };
    let good = model(BPE, &pieces(), &[]);
    assert!(error(&[good.clone(), vec![9 << 3, 1]].concat()).contains("field 9 of ModelProto"));
    assert!(error(&good[..good.len() - 1]).contains("damaged"));
    assert!(error(&model(BPE, &pieces()[1..], &[])).contains("UNKNOWN"));
    assert!(error(&model(UNIGRAM, &pieces(), &field(2, &[1; 40]))).contains("precompiled_charsmap"));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        kind in 1u8..5,
        text in "[ab<>sx\u{2581} \u{fb01}\\[\\]]{0,12}",
    ) {
        let mut bytes = model(kind, &pieces(), &[]);
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if let Ok(tokenizer) = Tokenizer::from_sentencepiece(&bytes) {
            let ids = ids(&tokenizer, &text);
            prop_assert!(tokenizer.decode(&ids, true).is_ok());
        }
    }
}
