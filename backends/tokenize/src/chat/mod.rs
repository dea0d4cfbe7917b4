//! Chat templates: renders a conversation with the Jinja template of a model, as Transformers does.
//!
//! Templates come with models, so they are not trusted: the number of steps, the depth of recursion and the size of the result are
//! bounded. Memory for intermediate strings is not. Nothing here depends on how texts are tokenized.

mod continuation;
mod environment;
mod python_format;
mod sources;

use std::fmt;

use minijinja::value::{Serde, Value};
use serde_json::{Map, Value as Json};

use self::continuation::Continuation;
pub use self::sources::ChatTemplates;

/// Steps of a template, about one for each operation of the Jinja interpreter.
const MAX_STEPS: u64 = 4_000_000;
/// Maximum bytes of a rendered conversation.
const MAX_OUTPUT: usize = 1 << 28;
/// Stack of the rendering thread. A template can nest a list in itself once in a few steps, and dropping it recurses.
const STACK: usize = 1 << 29;

/// Why a conversation cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatError {
    /// There is no template, or none of that name.
    Missing(String),
    /// A file cannot be read or is not what its name says.
    File(String),
    /// The variables are not a JSON object with a list of messages.
    Variables(String),
    /// The template refused the conversation with `raise_exception`.
    Refused(String),
    /// The template did not end within its number of steps, or wrote too much.
    Unbounded(String),
    /// The template is not valid, or failed.
    Template(String),
}

impl fmt::Display for ChatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChatError::Refused(message) => write!(f, "the chat template refuses the conversation: {message}"),
            ChatError::Unbounded(message) => write!(f, "the chat template was stopped: {message}"),
            ChatError::Template(message) => write!(f, "the chat template failed: {message}"),
            ChatError::Missing(message) | ChatError::File(message) | ChatError::Variables(message) => {
                f.write_str(message)
            }
        }
    }
}

impl std::error::Error for ChatError {}

impl ChatTemplates {
    /// Renders a conversation. `variables` is a JSON object with `messages` and everything else that the template may use: `tools`,
    /// `documents`, `add_generation_prompt` and others. `template` is the name of a template, or a template; without it, `tool_use` is
    /// chosen if there are tools and such a template, and `default` otherwise. With `continue_final_message` in the variables, which is
    /// true or the name of a field of the last message, the result ends inside of that message.
    pub fn render(&self, variables: &str, template: Option<&str>) -> Result<String, ChatError> {
        let given: Map<String, Json> = serde_json::from_str(variables)
            .map_err(|error| ChatError::Variables(format!("the variables are not a JSON object: {error}")))?;
        if !given.get("messages").is_some_and(Json::is_array) {
            return Err(ChatError::Variables("`messages` must be a list of messages".to_owned()));
        }
        // Transformers defines these in any case.
        let mut all = Map::from_iter([
            ("tools".to_owned(), Json::Null),
            ("documents".to_owned(), Json::Null),
            ("add_generation_prompt".to_owned(), Json::Bool(false)),
        ]);
        all.extend(self.special_tokens().clone());
        all.extend(given);
        let source = self.select(template, !all["tools"].is_null())?;
        if let Some(messages) = all.get_mut("messages").and_then(Json::as_array_mut) {
            continuation::alias_reasoning(messages);
        }
        let continuation = Continuation::start(&mut all, source)?;
        let rendered = run_bounded(source, &all)?;
        match continuation {
            Some(continuation) => continuation.end(rendered),
            None => Ok(rendered),
        }
    }
}

/// Renders on a thread with a large stack.
fn run_bounded(source: &str, variables: &Map<String, Json>) -> Result<String, ChatError> {
    std::thread::scope(|scope| {
        let render = || {
            let environment = environment::new(source)?;
            let template = environment.get_template(environment::NAME).map_err(|error| failed(&error))?;
            let mut output = Bounded(Vec::new());
            let rendered = template.render_captured_to(Value::from(Serde(variables)), &mut output);
            drop(rendered.map_err(|error| failed(&error))?);
            String::from_utf8(output.0).map_err(|error| ChatError::Template(error.to_string()))
        };
        let thread = std::thread::Builder::new().name("lz-chat".to_owned()).stack_size(STACK);
        let started = thread.spawn_scoped(scope, render);
        let started =
            started.map_err(|error| ChatError::Template(format!("could not start a thread: {error}")))?;
        started.join().unwrap_or_else(|_| Err(ChatError::Template("the template engine panicked".to_owned())))
    })
}

/// Refuses to grow beyond [`MAX_OUTPUT`].
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(std::io::Error::other(TooLong));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The output exceeds [`MAX_OUTPUT`].
#[derive(Debug)]
struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its output exceeds {MAX_OUTPUT} bytes")
    }
}

impl std::error::Error for TooLong {}

/// Classifies an error of the template engine by its causes.
fn failed(error: &minijinja::Error) -> ChatError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if let Some(environment::Raised(message)) = one.downcast_ref() {
            return ChatError::Refused(message.clone());
        }
        if let Some(error) = one.downcast_ref::<minijinja::Error>()
            && error.kind() == minijinja::ErrorKind::OutOfFuel
        {
            return ChatError::Unbounded(format!("it takes more than {MAX_STEPS} steps"));
        }
        let written = one.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if written.is_some_and(|inner| inner.is::<TooLong>()) || one.is::<TooLong>() {
            return ChatError::Unbounded(TooLong.to_string());
        }
        cause = one.source();
    }
    ChatError::Template(match error.line() {
        Some(line) => format!("{error} (line {line} of the template)"),
        None => error.to_string(),
    })
}
