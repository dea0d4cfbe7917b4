//! The tiktoken encodings by name, from ranks that are compiled in: nothing is downloaded. Each is converted to a `tokenizer.json`
//! definition, so that every candidate can be compared with it.

use lz_core::Handle;
use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Map, Value, json};
use tiktoken_rs::CoreBPE;

use crate::byte_alphabet;
use crate::split::{CL100K, GPT2, O200K, Pattern};

/// The names that [`encoding`] supports.
pub const ENCODINGS: [&str; 7] =
    ["cl100k_base", "gpt2", "o200k_base", "o200k_harmony", "p50k_base", "p50k_edit", "r50k_base"];

/// The tokenizer of a named encoding; `None` for an unknown name.
///
/// Special tokens are recognized anywhere in a text, as with tiktoken's `allowed_special="all"`.
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
    let tokenizer = core.map_err(|error| failed(error.to_string())).and_then(|core| {
        let (tokens, special) = ranks(&core);
        EncodingDefinition { tokens, special, expression, special_is_text: false }.build()
    });
    Some(tokenizer)
}

/// The named encoding with exactly these sorted ranks; `None` if there is none.
pub fn of_ranks_alone(tokens: &[(u32, Vec<u8>)]) -> Option<Result<Tokenizer, TokenizerError>> {
    // The number of ranks tells the encodings apart. The special tokens of p50k_edit and o200k_harmony are not implied by their ranks.
    let (name, core) = match tokens.len() {
        100_256 => ("cl100k_base", tiktoken_rs::cl100k_base()),
        199_998 => ("o200k_base", tiktoken_rs::o200k_base()),
        50_280 => ("p50k_base", tiktoken_rs::p50k_base()),
        50_256 => ("r50k_base", tiktoken_rs::r50k_base()),
        _ => return None,
    };
    let (known, _) = ranks(&core.ok()?);
    (known == tokens).then(|| encoding(name)).flatten()
}

/// The tokens, special tokens and split expression of an encoding.
pub struct EncodingDefinition<'a> {
    /// Tokens by id; merges of lower ids are applied first.
    pub tokens: Vec<(u32, Vec<u8>)>,
    /// Special tokens by id.
    pub special: Vec<(u32, String)>,
    /// The split expression.
    pub expression: &'a str,
    /// Whether special tokens in a text are plain text.
    pub special_is_text: bool,
}

impl EncodingDefinition<'_> {
    /// The tokenizer; an error if the tokens are not those of an encoding.
    pub fn tokenizer(mut self) -> Result<Tokenizer, TokenizerError> {
        self.tokens.sort_unstable();
        self.special.sort_unstable();
        check(&self.tokens, &self.special).map_err(|message| TokenizerError::Definition { message })?;
        self.build()
    }

    fn build(&self) -> Result<Tokenizer, TokenizerError> {
        let mut definition = definition(&self.tokens, &self.special, self.expression);
        if self.special_is_text && !self.special.is_empty() {
            definition["split_special_tokens"] = true.into();
        }
        Tokenizer::from_json(definition.to_string().as_bytes())
    }
}

/// GPT-2's expression as tiktoken writes it since release 0.8. It splits every text in the same way.
const GPT2_POSSESSIVE: &str =
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s";
/// The same for cl100k. It keeps whitespace at the end of a text in one piece, which changes no token of cl100k_base but could change
/// tokens of other ranks.
const CL100K_POSSESSIVE: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s";

/// The tokenizer of any tiktoken encoding, given its tokens by rank, special tokens and split expression. Equal to that of a
/// [named encoding](encoding) with the same ranks.
pub fn encoding_of_ranks(
    tokens: Vec<(u32, Vec<u8>)>,
    special: Vec<(u32, String)>,
    expression: &str,
) -> Result<Tokenizer, TokenizerError> {
    let mut definition = EncodingDefinition { tokens, special, expression, special_is_text: false };
    match expression {
        GPT2_POSSESSIVE => definition.expression = GPT2,
        CL100K_POSSESSIVE => {
            let known = encoding("cl100k_base").transpose()?;
            definition.expression = CL100K;
            let (tokens, special) = (definition.tokens.clone(), definition.special.clone());
            let same = definition.tokenizer()?;
            if known.is_some_and(|known| known.digest() == same.digest()) {
                return Ok(same);
            }
            definition = EncodingDefinition { tokens, special, expression, special_is_text: false };
        }
        _ => {}
    }
    definition.tokenizer()
}

/// Checks what tiktoken assumes: a token for every byte, and unique ids.
fn check(tokens: &[(u32, Vec<u8>)], special: &[(u32, String)]) -> Result<(), String> {
    let mut bytes = [false; 256];
    for (_, token) in tokens {
        match token.as_slice() {
            [] => return Err("the ranks contain an empty token".to_owned()),
            [byte] => bytes[usize::from(*byte)] = true,
            _ => {}
        }
    }
    if let Some(byte) = bytes.iter().position(|found| !found) {
        return Err(format!(
            "the ranks have no token for byte {byte:#04x}; expected one for each of the 256 bytes"
        ));
    }
    let mut ids: Vec<u32> =
        tokens.iter().map(|(id, _)| *id).chain(special.iter().map(|(id, _)| *id)).collect();
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two tokens have id {}; ids must be unique", pair[0]));
    }
    let mut texts: FxHashSet<String> =
        tokens.iter().map(|(_, bytes)| byte_alphabet::token_of(bytes)).collect();
    match special.iter().find(|(_, text)| text.is_empty() || !texts.insert(text.clone())) {
        Some((id, text)) => {
            Err(format!("special token {id} ({text:?}) is empty or also a token of the ranks"))
        }
        None => Ok(()),
    }
}

/// Upper bound of the ids of all built-in encodings.
const MAX_ENCODING_IDS: u32 = 1 << 18;

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
    let tokens: Vec<(u32, Vec<u8>)> = (0..MAX_ENCODING_IDS)
        .filter(|id| !is_special(*id))
        .filter_map(|id| Some((id, core.decode_bytes(&[id]).ok()?)))
        .collect();
    (tokens, special)
}

fn definition(tokens: &[(u32, Vec<u8>)], special: &[(u32, String)], expression: &str) -> Value {
    // tiktoken drops text that the expression does not match. The known expressions match everything.
    let (behavior, invert) =
        if Pattern::of_expression(expression).is_some() { ("Isolated", false) } else { ("Removed", true) };
    let added: Vec<Value> = special
        .iter()
        .map(|(id, text)| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    // Special tokens must be in the vocabulary, or they would be assigned other ids.
    let plain = tokens.iter().map(|(id, bytes)| (byte_alphabet::token_of(bytes), Value::from(*id)));
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

/// The merges that ranks imply: every split of a token into two tokens is a merge with the rank of the token.
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
        merges.extend(halves.into_iter().map(|(_, _, left, right)| {
            json!([byte_alphabet::token_of(left), byte_alphabet::token_of(right)])
        }));
    }
    merges
}
