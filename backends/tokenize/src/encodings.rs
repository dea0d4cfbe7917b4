//! The encodings of tiktoken by name, from ranks that are compiled in: nothing is ever downloaded. Each becomes a definition
//! like any other, so that every candidate can be held against it.

use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use tiktoken_rs::CoreBPE;

use crate::alphabet;
use crate::native::split::{CL100K, GPT2, O200K};

/// The names that [`encoding`] knows.
pub const ENCODINGS: [&str; 7] =
    ["cl100k_base", "gpt2", "o200k_base", "o200k_harmony", "p50k_base", "p50k_edit", "r50k_base"];

/// The tokenizer of a named encoding; `None` if there is no encoding of that name.
///
/// Special tokens are cut out of texts wherever they stand, as with tiktoken's `allowed_special="all"`.
pub fn encoding(name: &str) -> Option<Result<Tokenizer, TokenizerError>> {
    let (core, expression) = match name {
        "cl100k_base" => (tiktoken_rs::cl100k_base(), CL100K),
        "o200k_base" => (tiktoken_rs::o200k_base(), O200K),
        "o200k_harmony" => (tiktoken_rs::o200k_harmony(), O200K),
        "p50k_base" => (tiktoken_rs::p50k_base(), GPT2),
        "p50k_edit" => (tiktoken_rs::p50k_edit(), GPT2),
        "gpt2" | "r50k_base" => (tiktoken_rs::r50k_base(), GPT2),
        _ => return None,
    };
    let failed = |message: String| TokenizerError::Definition { message };
    let made = core
        .map_err(|error| failed(error.to_string()))
        .and_then(|core| Tokenizer::from_json(definition(&core, expression).to_string().as_bytes()));
    Some(made)
}

/// More ids than any encoding has.
const MOST: u32 = 1 << 18;

fn definition(core: &CoreBPE, expression: &str) -> Value {
    let mut special: Vec<(u32, &str)> = core
        .special_tokens()
        .into_iter()
        .filter_map(|text| Some((core.encode_with_special_tokens(text).first().copied()?, text)))
        .collect();
    special.sort_unstable();
    let is_special = |id: u32| special.binary_search_by_key(&id, |(id, _)| *id).is_ok();
    let tokens: Vec<(u32, Vec<u8>)> = (0..MOST)
        .filter(|id| !is_special(*id))
        .filter_map(|id| Some((id, core.decode_bytes(&[id]).ok()?)))
        .collect();
    let added: Vec<Value> = special
        .iter()
        .map(|(id, text)| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    // Special tokens that the vocabulary does not have would get other ids.
    let plain = tokens.iter().map(|(id, bytes)| (alphabet::token_of(bytes), Value::from(*id)));
    let named = special.iter().map(|(id, text)| ((*text).to_owned(), Value::from(*id)));
    let vocabulary: Map<String, Value> = plain.chain(named).collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
                  "vocab": vocabulary, "merges": merges(&tokens)},
    })
}

/// Ranks join any two tokens whose bytes together are a token, by the rank of that token: as many pairs as there are ways to
/// cut each token in two.
fn merges(tokens: &[(u32, Vec<u8>)]) -> Vec<Value> {
    let ranks: FxHashMap<&[u8], u32> = tokens.iter().map(|(id, bytes)| (bytes.as_slice(), *id)).collect();
    let mut merges = Vec::new();
    for (_, bytes) in tokens {
        let halves = (1..bytes.len()).filter_map(|cut| {
            let (left, right) = bytes.split_at(cut);
            Some((*ranks.get(left)?, *ranks.get(right)?, left, right))
        });
        let mut halves: Vec<_> = halves.collect();
        halves.sort_unstable();
        merges.extend(
            halves
                .into_iter()
                .map(|(_, _, left, right)| json!([alphabet::token_of(left), alphabet::token_of(right)])),
        );
    }
    merges
}
