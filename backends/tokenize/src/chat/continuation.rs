//! `continue_final_message`: the rendered conversation ends inside of its last message, so that a model continues it.
//!
//! As in Transformers, a tag is appended to the message and the result is cut at the tag. A template may remove the space at the end of
//! a message, which is part of the tag for this reason.

use serde_json::{Map, Value as Json};

use super::ChatError;

/// The variable that requests it: true, or the name of the field that is continued. Templates do not see it.
pub const VARIABLE: &str = "continue_final_message";

const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The field that is continued unless another one is named.
const CONTENT: &str = "content";

/// Names under which the reasoning of a message is given. Templates read the first, or the second.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Adds the reasoning of each message under the names that templates read.
pub fn alias_reasoning(messages: &mut [Json]) {
    for message in messages.iter_mut().filter_map(Json::as_object_mut) {
        let reasoning = REASONING.into_iter().find_map(|name| message.get(name).filter(|one| !one.is_null()));
        if let Some(reasoning) = reasoning.cloned() {
            let given = std::mem::take(message);
            message.insert("thinking".to_owned(), reasoning.clone());
            message.extend(given);
            message.insert(REASONING[0].to_owned(), reasoning);
        }
    }
}

/// A message that is continued.
pub struct Continuation {
    /// The text of the message.
    text: String,
}

impl Continuation {
    /// Tags the last message if the variables request it, and removes the request from them.
    pub fn start(
        variables: &mut Map<String, Json>,
        template: &str,
    ) -> Result<Option<Continuation>, ChatError> {
        let field = match variables.shift_remove(VARIABLE) {
            None | Some(Json::Null | Json::Bool(false)) => return Ok(None),
            Some(Json::Bool(true)) => CONTENT.to_owned(),
            Some(Json::String(field)) if field.is_empty() => return Ok(None),
            Some(Json::String(field)) => field,
            Some(other) => {
                return Err(refused(format!("must be true, false or the name of a field, found {other}")));
            }
        };
        if variables.get("add_generation_prompt").is_some_and(|prompt| *prompt != Json::Bool(false)) {
            let message = "cannot be used with `add_generation_prompt`: the conversation either ends inside of the last message, or \
                           with the header of a new one";
            return Err(refused(message));
        }
        let last = variables.get_mut("messages").and_then(Json::as_array_mut).and_then(|all| all.last_mut());
        let Some(Json::Object(last)) = last else {
            return Err(refused("needs a last message, which is an object"));
        };
        let missing = || refused(format!("is set, but the last message has no {field:?} to continue"));
        let found = last.get(&field).filter(|found| !found.is_null()).cloned().ok_or_else(missing)?;
        let is_reasoning = REASONING.contains(&field.as_str());
        // Reasoning has several names; the template reads one of them.
        let fields: Vec<&str> = match is_reasoning {
            true => REASONING.into_iter().filter(|name| last.get(*name) == Some(&found)).collect(),
            false => vec![&field],
        };
        if !fields.iter().any(|field| template.contains(field)) {
            return Err(refused(format!("names {field:?}, which the chat template does not use")));
        }
        let text = match found {
            Json::String(text) => {
                let tagged = Json::from(format!("{text}{TAG}"));
                fields.into_iter().for_each(|field| drop(last.insert(field.to_owned(), tagged.clone())));
                text
            }
            Json::Array(_) => tag_last_text(last.get_mut(&field))?,
            other => return Err(refused(format!("needs a text or a list of parts, found {other}"))),
        };
        Ok(Some(Continuation { text }))
    }

    /// Cuts the rendered conversation at the tag.
    pub fn end(&self, mut rendered: String) -> Result<String, ChatError> {
        let (Some(at), true) = (rendered.rfind(trimmed(TAG)), rendered.contains(trimmed(&self.text))) else {
            let message =
                "is set, but the chat template removes parts of the last message, which it would continue";
            return Err(refused(message));
        };
        let keeps_spaces = rendered[at..].starts_with(TAG);
        rendered.truncate(at);
        if !keeps_spaces {
            rendered.truncate(rendered.trim_end_matches(is_space).len());
        }
        Ok(rendered)
    }
}

/// Tags the last part of a message that has a text, and returns the text.
fn tag_last_text(parts: Option<&mut Json>) -> Result<String, ChatError> {
    let parts = parts.and_then(Json::as_array_mut).into_iter().flatten().rev();
    let last = parts.filter_map(|part| part.get_mut("text")).next();
    match last {
        Some(Json::String(text)) => {
            let before = text.clone();
            text.push_str(TAG);
            Ok(before)
        }
        _ => Err(refused("is set, but the last message has no text to continue")),
    }
}

fn refused(message: impl std::fmt::Display) -> ChatError {
    ChatError::Variables(format!("`{VARIABLE}` {message}"))
}

/// Whitespace of Python's `str.strip`.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(is_space)
}
