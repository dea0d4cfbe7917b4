//! Limits of tokenizer definitions. Definitions are untrusted input: none may use more memory or time than its size justifies.
//!
//! Real definitions are far below each limit; the largest known file has 33 MB, 262 144 tokens and 514 906 merges.

use super::TokenizerError;
use super::json::Json;

/// Maximum bytes of a definition.
pub const MAX_BYTES: usize = 1 << 28;
/// Maximum nesting depth of objects and arrays.
const MAX_DEPTH: usize = 24;
/// Maximum entries of one object or array.
const MAX_ENTRIES: usize = 1 << 22;
/// Maximum bytes of a string in the vocabulary, the merges and the added tokens.
const MAX_TOKEN_BYTES: usize = 1 << 16;
/// Maximum bytes of all added tokens together: the size of their automaton is a multiple of it.
const MAX_ADDED_BYTES: usize = 1 << 22;
/// Maximum steps of the normalizer, the pretokenizer, the post-processor and the decoder together.
const MAX_STEPS: usize = 64;
/// Maximum number of regular expressions: each may compile to several megabytes, whatever its length.
const MAX_EXPRESSIONS: usize = 16;
/// Maximum bytes of a regular expression or string pattern.
const MAX_EXPRESSION_BYTES: usize = 1 << 13;
/// Maximum id: results have `int32` ids.
const MAX_ID: u64 = i32::MAX as u64;

/// The parts that consist of steps.
const STEPS: [&str; 4] = ["normalizer", "pre_tokenizer", "post_processor", "decoder"];

/// Rejects a definition with too many bytes.
pub fn check_size(bytes: usize) -> Result<(), TokenizerError> {
    if bytes > MAX_BYTES {
        return exceeded("the file", "bytes", MAX_BYTES, bytes);
    }
    Ok(())
}

/// Rejects a definition beyond the limits.
pub fn check(definition: &Json<'_>) -> Result<(), TokenizerError> {
    let model = definition.get("model");
    let added = definition.get("added_tokens");
    check_tree("model", model, 1)?;
    check_tree("added_tokens", added, 1)?;
    check_tokens("model.vocab", model.get("vocab"))?;
    check_tokens("model.merges", model.get("merges"))?;
    check_tokens("added_tokens", added)?;
    let mut steps = Steps::default();
    for part in STEPS {
        check_tree(part, definition.get(part), 1)?;
        steps.count(part, definition.get(part))?;
    }
    model.get("vocab").entries().iter().try_for_each(|(token, id)| check_id("model.vocab", token, id))?;
    let mut bytes = 0;
    for token in added.items() {
        let content = token.get("content").as_str().unwrap_or_default();
        check_id("added_tokens", content, token.get("id"))?;
        bytes += content.len();
    }
    if bytes > MAX_ADDED_BYTES {
        return exceeded("added_tokens", "bytes of text", MAX_ADDED_BYTES, bytes);
    }
    Ok(())
}

fn exceeded<T>(part: &str, what: &str, limit: usize, found: usize) -> Result<T, TokenizerError> {
    Err(TokenizerError::Limit {
        part: part.to_owned(),
        message: format!("at most {limit} {what}, found {found}"),
    })
}

/// Checks an id. Ids of other types are rejected later, by the definition's parser.
fn check_id(part: &str, token: &str, id: &Json<'_>) -> Result<(), TokenizerError> {
    let Json::Number(id) = id else { return Ok(()) };
    match id.as_u64() {
        Some(id) if id > MAX_ID => Err(TokenizerError::Limit {
            part: part.to_owned(),
            message: format!("an id must be at most {MAX_ID}, found {id} for {:?}", shortened(token)),
        }),
        _ => Ok(()),
    }
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(40.min(text.len()))]
}

/// Checks the nesting depth and the number of entries of a part.
fn check_tree(part: &str, value: &Json<'_>, depth: usize) -> Result<(), TokenizerError> {
    let entries = match value {
        Json::Array(items) => items.len(),
        Json::Object(entries) => entries.len(),
        _ => return Ok(()),
    };
    if depth > MAX_DEPTH {
        return exceeded(part, "levels of nested lists and objects", MAX_DEPTH, depth);
    }
    if entries > MAX_ENTRIES {
        return exceeded(part, "entries in a list or object", MAX_ENTRIES, entries);
    }
    match value {
        Json::Array(items) => items.iter().try_for_each(|item| check_tree(part, item, depth + 1)),
        Json::Object(entries) => entries.iter().try_for_each(|(_, item)| check_tree(part, item, depth + 1)),
        _ => Ok(()),
    }
}

/// Checks the strings of a list or the keys of an object. The nesting is already checked.
fn check_tokens(part: &str, value: &Json<'_>) -> Result<(), TokenizerError> {
    let check = |text: &str| match text.len() > MAX_TOKEN_BYTES {
        true => exceeded(part, "bytes in a token", MAX_TOKEN_BYTES, text.len()),
        false => Ok(()),
    };
    match value {
        Json::String(text) => check(text),
        Json::Array(items) => items.iter().try_for_each(|item| check_tokens(part, item)),
        Json::Object(entries) => {
            entries.iter().try_for_each(|(key, item)| check(key).and_then(|()| check_tokens(part, item)))
        }
        _ => Ok(()),
    }
}

/// Counts steps and regular expressions.
#[derive(Default)]
struct Steps {
    steps: usize,
    expressions: usize,
}

impl Steps {
    fn count(&mut self, part: &str, value: &Json<'_>) -> Result<(), TokenizerError> {
        match value {
            Json::Array(items) => items.iter().try_for_each(|item| self.count(part, item)),
            Json::Object(entries) => {
                self.steps += usize::from(entries.iter().any(|(key, _)| key == "type"));
                if self.steps > MAX_STEPS {
                    return exceeded(part, "steps in all parts together", MAX_STEPS, self.steps);
                }
                self.expression(part, value.get("pattern"))?;
                entries.iter().try_for_each(|(_, item)| self.count(part, item))
            }
            _ => Ok(()),
        }
    }

    /// Checks a pattern. Plain strings are compiled as well.
    fn expression(&mut self, part: &str, pattern: &Json<'_>) -> Result<(), TokenizerError> {
        let expression = pattern.get("Regex").as_str();
        let Some(text) = expression.or_else(|| pattern.get("String").as_str()) else { return Ok(()) };
        self.expressions += usize::from(expression.is_some());
        if self.expressions > MAX_EXPRESSIONS {
            return exceeded(
                part,
                "regular expressions in all parts together",
                MAX_EXPRESSIONS,
                self.expressions,
            );
        }
        if text.len() > MAX_EXPRESSION_BYTES {
            return exceeded(part, "bytes in a pattern", MAX_EXPRESSION_BYTES, text.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checked(definition: &Value) -> Result<(), TokenizerError> {
        check(&Json::parse(definition.to_string().as_bytes()).unwrap())
    }

    fn message(definition: &Value) -> String {
        checked(definition).unwrap_err().to_string()
    }

    #[test]
    fn each_limit_error_names_the_part_and_the_found_value() {
        let mut nested = json!({"type": "Lowercase"});
        for _ in 0..MAX_DEPTH {
            nested = json!({"type": "Sequence", "normalizers": [nested]});
        }
        let step = json!({"type": "Split", "pattern": {"Regex": "a"}});
        let cases = [
            (
                json!({"model": {"vocab": {"a": 2_147_483_648u32}}}),
                ["model.vocab", "found 2147483648 for \"a\""],
            ),
            (
                json!({"added_tokens": [{"id": u32::MAX - 1, "content": "x"}]}),
                ["added_tokens", "found 4294967294"],
            ),
            (json!({"normalizer": nested}), ["normalizer", "nested"]),
            (json!({"model": {"vocab": {"a".repeat(70_000): 1}}}), ["model", "found 70000"]),
            (json!({"model": {"merges": ["a".repeat(70_000)]}}), ["model", "found 70000"]),
            (json!({"pre_tokenizer": vec![json!({"type": "Digits"}); 65]}), ["pre_tokenizer", "found 65"]),
            (json!({"decoder": vec![step; 17]}), ["decoder", "found 17"]),
            (json!({"normalizer": {"pattern": {"String": "x".repeat(9000)}}}), ["normalizer", "found 9000"]),
        ];
        for (definition, expected) in cases {
            let found = message(&definition);
            assert!(expected.iter().all(|part| found.contains(part)), "{found}");
        }
        assert!(checked(&json!({"model": {"vocab": {"a": 2_147_483_647u32, "b": -1, "c": null}}})).is_ok());
        assert!(check_size(MAX_BYTES + 1).is_err() && check_size(MAX_BYTES).is_ok());
    }
}
