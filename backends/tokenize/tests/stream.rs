//! Streaming decoding returns what decoding all ids at once returns, and never half a character.

use lz_ops::tokenizer::Tokenizer;
use lz_tokenize::TextStream;
use proptest::prelude::*;
use serde_json::json;

const BYTE_LEVEL: &str = include_str!("../../../lz-ops/tests/data/byte_level_bpe.json");

fn byte_level() -> Tokenizer {
    Tokenizer::from_json(BYTE_LEVEL.as_bytes()).unwrap()
}

/// Character BPE with byte fallback, as Llama 2 has it: a leading space is removed, and bytes become text only together.
fn byte_fallback() -> Tokenizer {
    let mut vocabulary = serde_json::Map::new();
    for token in ["<unk>", "<s>", "</s>"] {
        vocabulary.insert(token.to_owned(), vocabulary.len().into());
    }
    for byte in 0..256 {
        vocabulary.insert(format!("<0x{byte:02X}>"), vocabulary.len().into());
    }
    for token in ["▁", "a", "b", "é", "▁a", "ab"] {
        vocabulary.insert(token.to_owned(), vocabulary.len().into());
    }
    let special = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let definition = json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocabulary,
            "merges": [["▁", "a"], ["a", "b"]]},
    });
    Tokenizer::from_json(definition.to_string().as_bytes()).unwrap()
}

fn word_piece() -> Tokenizer {
    let names = ["[UNK]", "[SEP]", "a", "##b", "don", "'", "t", ".", "n"];
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        names.iter().zip(0..).map(|(name, id)| ((*name).to_owned(), id.into())).collect();
    let definition = json!({
        "version": "1.0",
        "added_tokens": [{"id": 1, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true}],
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
            "vocab": vocabulary},
    });
    Tokenizer::from_json(definition.to_string().as_bytes()).unwrap()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip: bool) -> (Vec<String>, String) {
    let mut stream = TextStream::new(tokenizer, skip);
    let steps: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    let last = stream.finish().unwrap();
    let all = steps.concat() + &last;
    // The stream can be used again.
    let again: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    assert_eq!(again + &stream.finish().unwrap(), all);
    (steps, all)
}

fn texts() -> impl Strategy<Value = String> {
    let pieces =
        ["a", "b", " ", "  ", "é", "東京", "👩‍🚀", "<s>", "</s>", "<|end|>", "don't", ".", "e\u{301}", "\n"];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn steps_of_a_text_are_its_characters(text in texts(), skip in any::<bool>()) {
        for tokenizer in [byte_level(), byte_fallback(), word_piece()] {
            let ids: Vec<u32> = tokenizer.encode(&text, true).unwrap().iter().map(|token| token.id).collect();
            let (steps, all) = streamed(&tokenizer, &ids, skip);
            prop_assert_eq!(&all, &tokenizer.decode(&ids, skip).unwrap());
            prop_assert!(!steps.iter().any(|step| step.contains('\u{fffd}')), "{:?}", steps);
        }
    }

    #[test]
    fn any_ids_of_a_byte_level_tokenizer_give_their_text(ids in prop::collection::vec(0u32..300, 0..60), skip in any::<bool>()) {
        let tokenizer = byte_level();
        let (_, all) = streamed(&tokenizer, &ids, skip);
        prop_assert_eq!(all, tokenizer.decode(&ids, skip).unwrap());
    }

    /// Byte tokens that are not UTF-8 become U+FFFD; no other text is lost.
    #[test]
    fn any_ids_with_byte_fallback_keep_the_text_of_other_tokens(ids in prop::collection::vec(0u32..265, 0..60)) {
        let tokenizer = byte_fallback();
        let (_, all) = streamed(&tokenizer, &ids, true);
        let letters = |text: &str| text.chars().filter(|character| matches!(character, 'a' | 'b')).count();
        let others: Vec<u32> = ids.iter().copied().filter(|id| !(3..259).contains(id)).collect();
        prop_assert!(letters(&all) >= letters(&tokenizer.decode(&others, true).unwrap()), "{:?}", all);
    }
}

#[test]
fn an_endless_run_of_invalid_bytes_is_returned_in_time() {
    let tokenizer = byte_fallback();
    let mut stream = TextStream::new(&tokenizer, true);
    let returned: String = (0..2000).map(|_| stream.push(3 + 0x9d).unwrap()).collect();
    assert!(returned.chars().count() > 1500);
    let rest = stream.finish().unwrap();
    assert_eq!((returned + &rest).chars().count(), 2000);
}
