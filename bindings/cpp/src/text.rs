//! Tokenizers, streaming decoding and chat templates for C++.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use lz_core::{Error, Reason, ReasonCode};
use lz_ops::tokenizer::{self, TokenizerError};
use lz_plugin::abi::Tokenizer;
use lz_tokenize::{
    BatchError, BatchOptions, ChatError, ChatTemplates, Padding, Rows, Side, TextStream, Truncation,
    VerificationState,
};
use serde_json::{Map, Value, json};

use crate::call::{Failure, guarded};
use crate::data::{self, ChatVariables, TokenMatrices, TokenRows};

/// A tokenizer handle for C++; empty until a definition is loaded.
#[derive(Debug, Default)]
pub struct TokenizerHandle {
    tokenizer: Option<tokenizer::Tokenizer>,
    /// The chat templates, once they were used or given.
    chat: OnceLock<Result<ChatTemplates, ChatError>>,
    /// The folder of the file, where the chat templates are.
    folder: Option<PathBuf>,
}

impl TokenizerHandle {
    fn loaded(&self) -> Result<&tokenizer::Tokenizer, Error> {
        self.tokenizer.as_ref().ok_or_else(|| configuration_error("the tokenizer was moved from".to_owned()))
    }

    /// The chat templates, read from the folder of the tokenizer on first use.
    fn chat_templates(&self) -> Result<&ChatTemplates, Error> {
        let templates = self.chat.get_or_init(|| match &self.folder {
            Some(folder) => ChatTemplates::from_folder(folder),
            None => Ok(ChatTemplates::default()),
        });
        templates.as_ref().map_err(|error| configuration_error(error.to_string()))
    }
}

/// An empty handle.
pub fn tokenizer_new() -> Box<TokenizerHandle> {
    Box::default()
}

fn configuration_error(message: String) -> Error {
    let reasons = vec![Reason::new(ReasonCode::TokenizerIdMismatch).message(message.clone())];
    Error::Configuration { subject: "a tokenizer".to_owned(), message, reasons }
}

fn tokenizer_error(error: &TokenizerError) -> Error {
    configuration_error(error.to_string())
}

/// Loads a tokenizer from a file of any format. With `whole_texts`, truncation and padding in a `tokenizer.json` are ignored;
/// otherwise they are an error.
pub fn tokenizer_load(handle: &mut TokenizerHandle, path: &str, whole_texts: bool) -> *mut Failure {
    guarded(|| {
        let read = lz_tokenize::from_file(path, whole_texts);
        handle.tokenizer = Some(read.map_err(|error| tokenizer_error(&error))?);
        handle.folder = Path::new(path).parent().map(Path::to_owned);
        Ok(())
    })
}

/// Parses the content of a `tokenizer.json`, as [`tokenizer_load`] does.
pub fn tokenizer_parse(handle: &mut TokenizerHandle, json: &[u8], whole_texts: bool) -> *mut Failure {
    let read = if whole_texts { tokenizer::Tokenizer::whole_texts } else { tokenizer::Tokenizer::from_json };
    guarded(|| {
        handle.tokenizer = Some(read(json).map_err(|error| tokenizer_error(&error))?);
        Ok(())
    })
}

/// Loads a built-in encoding of tiktoken by its name.
pub fn tokenizer_of_encoding(handle: &mut TokenizerHandle, name: &str) -> *mut Failure {
    guarded(|| {
        let unknown = || {
            let known = lz_tokenize::ENCODINGS.join(", ");
            configuration_error(format!("unknown encoding `{name}`; expected one of {known}"))
        };
        let read = lz_tokenize::encoding(name).ok_or_else(unknown)?;
        handle.tokenizer = Some(read.map_err(|error| tokenizer_error(&error))?);
        Ok(())
    })
}

/// The number of tokens, with added ones; 0 for a tokenizer that was moved from.
pub fn tokenizer_vocabulary_size(handle: &TokenizerHandle) -> usize {
    handle.tokenizer.as_ref().map_or(0, tokenizer::Tokenizer::vocabulary_size)
}

/// Writes the token of an id. Returns whether there is one.
pub fn tokenizer_token_of(handle: &TokenizerHandle, id: u32, token: &mut String) -> bool {
    let found = handle.tokenizer.as_ref().and_then(|tokenizer| tokenizer.token_of(id));
    found.map(|found| *token = found).is_some()
}

/// Writes the id of a token. Returns whether there is one.
pub fn tokenizer_id_of(handle: &TokenizerHandle, token: &str, id: &mut u32) -> bool {
    let found = handle.tokenizer.as_ref().and_then(|tokenizer| tokenizer.id_of(token));
    found.map(|found| *id = found).is_some()
}

/// Creates a tokenizer that encodes special tokens in a text as plain text.
pub fn tokenizer_split_special(handle: &TokenizerHandle, into: &mut TokenizerHandle) -> *mut Failure {
    guarded(|| {
        let made = handle.tokenizer.as_ref().map(tokenizer::Tokenizer::splitting_special_tokens).transpose();
        let tokenizer = made.map_err(|error| tokenizer_error(&error))?;
        *into = TokenizerHandle { tokenizer, chat: handle.chat.clone(), folder: handle.folder.clone() };
        Ok(())
    })
}

/// Creates a tokenizer with the chat templates and special tokens of a `tokenizer_config.json`.
pub fn tokenizer_with_chat(
    handle: &TokenizerHandle,
    config: &str,
    into: &mut TokenizerHandle,
) -> *mut Failure {
    guarded(|| {
        let templates =
            ChatTemplates::from_config(config).map_err(|error| configuration_error(error.to_string()))?;
        let tokenizer = handle.tokenizer.clone();
        *into = TokenizerHandle { tokenizer, chat: OnceLock::from(Ok(templates)), folder: None };
        Ok(())
    })
}

/// Renders a conversation. `messages` and what the options have as JSON are JSON texts; empty ones are not given.
pub fn tokenizer_render_chat(
    handle: &TokenizerHandle,
    messages: &str,
    options: &ChatVariables<'_>,
    text: &mut String,
) -> *mut Failure {
    guarded(|| {
        let mut variables = match options.variables {
            "" => Map::new(),
            given => match parsed("variables", given)? {
                Value::Object(variables) => variables,
                other => {
                    let message =
                        format!("the variables of a chat template must be a JSON object, found {other}");
                    return Err(configuration_error(message));
                }
            },
        };
        variables.insert("messages".to_owned(), parsed("messages", messages)?);
        variables.insert("add_generation_prompt".to_owned(), options.add_generation_prompt.into());
        variables.insert("continue_final_message".to_owned(), options.continue_field.into());
        for (name, given) in [("tools", options.tools), ("documents", options.documents)] {
            if !given.is_empty() {
                variables.insert(name.to_owned(), parsed(name, given)?);
            }
        }
        let template = (!options.chat_template.is_empty()).then_some(options.chat_template);
        let rendered = handle.chat_templates()?.render(&Value::Object(variables).to_string(), template);
        *text = rendered.map_err(|error| configuration_error(error.to_string()))?;
        Ok(())
    })
}

/// The messages of a conversation with these roles and contents, as JSON.
pub fn chat_messages(roles: &[&str], contents: &[&str]) -> String {
    let messages = roles.iter().zip(contents);
    let messages = messages.map(|(role, content)| json!({"role": role, "content": content}));
    messages.collect::<Value>().to_string()
}

/// A `tokenizer_config.json` with these entries.
pub fn chat_config(names: &[&str], values: &[&str]) -> String {
    let entries = names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
    Value::Object(entries.collect()).to_string()
}

fn parsed(name: &str, text: &str) -> Result<Value, Error> {
    let error = |error| configuration_error(format!("the {name} of a conversation are not JSON: {error}"));
    serde_json::from_str(text).map_err(error)
}

/// How far the verification of the native kernel is: `not started`, `running`, `verified`, or why none is equal to the definition.
pub fn tokenizer_verification(handle: &TokenizerHandle) -> String {
    let Some(tokenizer) = &handle.tokenizer else { return "not started".to_owned() };
    match lz_tokenize::verification_state(tokenizer) {
        VerificationState::NotStarted => "not started".to_owned(),
        VerificationState::Running => "running".to_owned(),
        VerificationState::Verified => "verified".to_owned(),
        VerificationState::Rejected(reason) => reason.to_string(),
    }
}

/// Waits for the verification, at most for these seconds if they are not negative. Returns whether it has ended.
pub fn tokenizer_wait_verified(handle: &TokenizerHandle, seconds: f64) -> bool {
    // A negative or an enormous number is no duration.
    let timeout = Duration::try_from_secs_f64(seconds).ok();
    handle.tokenizer.as_ref().is_none_or(|tokenizer| lz_tokenize::wait_verified(tokenizer, timeout))
}

/// An invalid argument of `tokenize_batch`.
fn batch_argument(argument: &str, message: String) -> Error {
    let reason = Reason::new(ReasonCode::ParamOutOfRange).argument(argument).message(message);
    Error::Validation { operation: "tokenize_batch".to_owned(), reasons: vec![reason] }
}

fn batch_error(error: &BatchError) -> Error {
    batch_argument(error.argument(), error.to_string())
}

/// An option as a number of at least `least`.
fn at_least<T: TryFrom<i64>>(name: &str, value: i64, least: i64) -> Result<T, Error> {
    let valid = T::try_from(value).ok().filter(|_| value >= least);
    valid.ok_or_else(|| {
        batch_argument(name, format!("`{name}` must be an integer of at least {least}, not {value}"))
    })
}

/// The choice with the number of a C++ enumerator. A cast can make other numbers.
fn choice<T: Copy>(name: &str, value: u8, choices: &[T]) -> Result<T, Error> {
    choices.get(usize::from(value)).copied().ok_or_else(|| {
        let last = choices.len() - 1;
        batch_argument(name, format!("`{name}` must be an enumerator from 0 to {last}, not {value}"))
    })
}

const SIDES: [Side; 2] = [Side::Left, Side::Right];
const TRUNCATIONS: [Truncation; 3] =
    [Truncation::LongestFirst, Truncation::OnlyFirst, Truncation::OnlySecond];
/// The length of the last one is that of the options.
const PADDINGS: [Padding; 3] = [Padding::Longest, Padding::MaxLength, Padding::Fixed(0)];

fn batch_options(
    tokenizer: &tokenizer::Tokenizer,
    given: &data::BatchOptions<'_>,
) -> Result<BatchOptions, Error> {
    let max_length = given.has_max_length.then(|| at_least("max_length", given.max_length, 0)).transpose()?;
    let pad_id = match (given.has_pad_token, given.has_pad_id) {
        (true, _) => {
            Some(lz_tokenize::pad_id(tokenizer, given.pad_token).map_err(|error| batch_error(&error))?)
        }
        (false, true) => Some(at_least("pad_id", given.pad_id.into(), 0)?),
        (false, false) => None,
    };
    let padding = match choice("padding", given.padding, &PADDINGS)? {
        Padding::Fixed(_) => Padding::Fixed(at_least("padding", given.padded_length, 1)?),
        other => other,
    };
    Ok(BatchOptions {
        special: given.add_special_tokens,
        max_length,
        stride: at_least("stride", given.stride, 0)?,
        truncation: choice("truncation", given.truncation, &TRUNCATIONS)?,
        truncation_side: choice("truncation_side", given.truncation_side, &SIDES)?,
        overflow: given.return_overflow,
        padding,
        multiple_of: at_least("pad_to_multiple_of", given.pad_to_multiple_of, 1)?,
        padding_side: choice("padding_side", given.padding_side, &SIDES)?,
        pad_id,
        offsets: given.return_offsets,
    })
}

fn rows<'a>(given: &TokenRows<'a>) -> Rows<'a> {
    Rows { ids: given.tokens, offsets: given.offsets, indptr: given.indptr }
}

fn batch(
    handle: &TokenizerHandle,
    first: &TokenRows<'_>,
    second: Option<&TokenRows<'_>>,
    options: &data::BatchOptions<'_>,
    matrices: &mut TokenMatrices,
) -> *mut Failure {
    guarded(|| {
        let tokenizer = handle.loaded()?;
        let options = batch_options(tokenizer, options)?;
        let made = lz_tokenize::batch(tokenizer, rows(first), second.map(rows), &options);
        let made = made.map_err(|error| batch_error(&error))?;
        *matrices = TokenMatrices {
            length: made.length,
            input_ids: made.ids,
            attention_mask: made.attention_mask,
            token_type_ids: made.type_ids,
            special_tokens_mask: made.special_mask,
            sample: made.samples,
            offsets: made.offsets,
        };
        Ok(())
    })
}

/// Combines the tokens of texts to a batch with rows of equal length.
pub fn tokenizer_batch(
    handle: &TokenizerHandle,
    first: &TokenRows<'_>,
    options: &data::BatchOptions<'_>,
    matrices: &mut TokenMatrices,
) -> *mut Failure {
    batch(handle, first, None, options, matrices)
}

/// Combines the tokens of pairs of texts to a batch with rows of equal length.
pub fn tokenizer_batch_of_pairs(
    handle: &TokenizerHandle,
    first: &TokenRows<'_>,
    second: &TokenRows<'_>,
    options: &data::BatchOptions<'_>,
    matrices: &mut TokenMatrices,
) -> *mut Failure {
    batch(handle, first, Some(second), options, matrices)
}

/// Writes the C representation of a tokenizer, which is valid as long as the handle.
///
/// # Safety
/// The pointer is valid for writing an `lz_tokenizer`.
pub unsafe fn tokenizer_describe(handle: &TokenizerHandle, description: *mut Tokenizer) {
    let Some(read) = &handle.tokenizer else { return };
    if let Ok(made) = Tokenizer::of(read) {
        // SAFETY: guaranteed by the caller.
        unsafe { description.write(made) };
    }
}

/// A streaming decoder for C++; empty until it is started.
#[derive(Default)]
pub struct TextStreamHandle {
    stream: Option<TextStream>,
}

/// An empty handle.
pub fn text_stream_new() -> Box<TextStreamHandle> {
    Box::default()
}

/// Starts a stream for a tokenizer.
pub fn text_stream_start(
    stream: &mut TextStreamHandle,
    tokenizer: &TokenizerHandle,
    skip_special_tokens: bool,
) -> *mut Failure {
    guarded(|| {
        stream.stream = Some(TextStream::new(tokenizer.loaded()?, skip_special_tokens));
        Ok(())
    })
}

/// Adds ids; `text` is what they complete.
pub fn text_stream_push(stream: &mut TextStreamHandle, ids: &[i32], text: &mut String) -> *mut Failure {
    guarded(|| {
        let stream = started(stream)?;
        text.clear();
        for id in ids {
            let negative = || configuration_error(format!("a token id must not be negative, found {id}"));
            let id = u32::try_from(*id).map_err(|_| negative())?;
            text.push_str(&stream.push(id).map_err(|error| tokenizer_error(&error))?);
        }
        Ok(())
    })
}

/// Ends the text; `text` is what is left of it.
pub fn text_stream_finish(stream: &mut TextStreamHandle, text: &mut String) -> *mut Failure {
    guarded(|| {
        *text = started(stream)?.finish().map_err(|error| tokenizer_error(&error))?;
        Ok(())
    })
}

fn started(stream: &mut TextStreamHandle) -> Result<&mut TextStream, Error> {
    stream.stream.as_mut().ok_or_else(|| configuration_error("the stream was moved from".to_owned()))
}
