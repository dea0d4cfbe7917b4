//! The encodings of tiktoken by name, from ranks that are compiled in: nothing is ever downloaded. Each becomes a definition
//! like any other, so that every candidate can be held against it.

use lz_core::Handle;
use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Map, Value, json};
use tiktoken_rs::CoreBPE;

use crate::alphabet;
use crate::native::split::{CL100K, GPT2, O200K, Pattern};

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
    let made = core.map_err(|error| failed(error.to_string())).and_then(|core| {
        let (tokens, special) = ranks(&core);
        Tokenizer::from_json(definition(&tokens, &special, expression).to_string().as_bytes())
    });
    Some(made)
}

/// How tiktoken writes the expression of GPT-2 since its release 0.8; it splits every text alike.
const GPT2_POSSESSIVE: &str =
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s";
/// The same for cl100k. It leaves white space at the end of a text in one piece, which changes no token of cl100k_base, but could
/// change those of other ranks.
const CL100K_POSSESSIVE: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s";

/// The tokenizer of an encoding of tiktoken, whatever its name: tokens by rank, special tokens, and the expression that splits texts.
/// Equal to that of a [named encoding](encoding) if the ranks are.
pub fn encoding_of_ranks(
    mut tokens: Vec<(u32, Vec<u8>)>,
    mut special: Vec<(u32, String)>,
    expression: &str,
) -> Result<Tokenizer, TokenizerError> {
    tokens.sort_unstable();
    special.sort_unstable();
    check(&tokens, &special).map_err(|message| TokenizerError::Definition { message })?;
    let made = |expression: &str| {
        Tokenizer::from_json(definition(&tokens, &special, expression).to_string().as_bytes())
    };
    match expression {
        GPT2_POSSESSIVE => made(GPT2),
        CL100K_POSSESSIVE => {
            let known = encoding("cl100k_base").transpose()?;
            let same = made(CL100K)?;
            if known.is_some_and(|known| known.digest() == same.digest()) {
                Ok(same)
            } else {
                made(expression)
            }
        }
        _ => made(expression),
    }
}

/// What tiktoken itself assumes of ranks: a token for every byte, and no id twice.
fn check(tokens: &[(u32, Vec<u8>)], special: &[(u32, String)]) -> Result<(), String> {
    let mut bytes = [false; 256];
    for (_, token) in tokens {
        match token.as_slice() {
            [] => return Err("a token of the ranks is empty".to_owned()),
            [byte] => bytes[usize::from(*byte)] = true,
            _ => {}
        }
    }
    if let Some(byte) = bytes.iter().position(|found| !found) {
        return Err(format!("the ranks have no token for byte {byte:#04x}"));
    }
    let mut ids: Vec<u32> =
        tokens.iter().map(|(id, _)| *id).chain(special.iter().map(|(id, _)| *id)).collect();
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two tokens have id {}", pair[0]));
    }
    let mut texts: FxHashSet<String> = tokens.iter().map(|(_, bytes)| alphabet::token_of(bytes)).collect();
    match special.iter().find(|(_, text)| text.is_empty() || !texts.insert(text.clone())) {
        Some((id, text)) => {
            Err(format!("special token {id} is empty, or {text:?} is a token of the ranks as well"))
        }
        None => Ok(()),
    }
}

/// More ids than any encoding has.
const MOST: u32 = 1 << 18;

type Ranks = Vec<(u32, Vec<u8>)>;
type Special = Vec<(u32, String)>;

/// The tokens of an encoding by id, and its special tokens.
fn ranks(core: &CoreBPE) -> (Ranks, Special) {
    let mut special: Vec<(u32, String)> = core
        .special_tokens()
        .into_iter()
        .filter_map(|text| Some((core.encode_with_special_tokens(text).first().copied()?, text.to_owned())))
        .collect();
    special.sort_unstable();
    let is_special = |id: u32| special.binary_search_by_key(&id, |(id, _)| *id).is_ok();
    let tokens: Vec<(u32, Vec<u8>)> = (0..MOST)
        .filter(|id| !is_special(*id))
        .filter_map(|id| Some((id, core.decode_bytes(&[id]).ok()?)))
        .collect();
    (tokens, special)
}

fn definition(tokens: &[(u32, Vec<u8>)], special: &[(u32, String)], expression: &str) -> Value {
    // What an expression does not match is no piece to tiktoken; those that are known match everything.
    let (behavior, invert) =
        if Pattern::of_expression(expression).is_some() { ("Isolated", false) } else { ("Removed", true) };
    let added: Vec<Value> = special
        .iter()
        .map(|(id, text)| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    // Special tokens that the vocabulary does not have would get other ids.
    let plain = tokens.iter().map(|(id, bytes)| (alphabet::token_of(bytes), Value::from(*id)));
    let named = special.iter().map(|(id, text)| (text.clone(), Value::from(*id)));
    let vocabulary: Map<String, Value> = plain.chain(named).collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
                  "vocab": vocabulary, "merges": merges(tokens)},
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
