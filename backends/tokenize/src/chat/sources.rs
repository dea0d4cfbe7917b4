//! The chat templates of a model and its special tokens, from the files next to its tokenizer.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value as Json};

use super::ChatError;

/// The name of the template that is used without a name.
const DEFAULT: &str = "default";
/// The name of the template that is preferred for conversations with tools.
const WITH_TOOLS: &str = "tool_use";
/// Special tokens that templates know as variables.
const TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The templates of a model by name, and its special tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatTemplates {
    templates: BTreeMap<String, String>,
    tokens: Map<String, Json>,
}

impl ChatTemplates {
    /// One template, without special tokens.
    pub fn new(template: impl Into<String>) -> ChatTemplates {
        ChatTemplates {
            templates: BTreeMap::from([(DEFAULT.to_owned(), template.into())]),
            tokens: Map::new(),
        }
    }

    /// From the content of a `tokenizer_config.json`: `chat_template`, which is one template or a list of named ones, and the special
    /// tokens.
    pub fn from_config(config: &str) -> Result<ChatTemplates, ChatError> {
        let config: Json = serde_json::from_str(config)
            .map_err(|error| ChatError::File(format!("`tokenizer_config.json` is not JSON: {error}")))?;
        let mut read = ChatTemplates::default();
        match &config["chat_template"] {
            Json::Null => {}
            Json::String(template) => drop(read.templates.insert(DEFAULT.to_owned(), template.clone())),
            Json::Array(named) => {
                for one in named {
                    let (Some(name), Some(template)) = (one["name"].as_str(), one["template"].as_str())
                    else {
                        return Err(unexpected_templates());
                    };
                    read.templates.insert(name.to_owned(), template.to_owned());
                }
            }
            Json::Object(named) => {
                for (name, template) in named {
                    let template = template.as_str().ok_or_else(unexpected_templates)?;
                    read.templates.insert(name.clone(), template.to_owned());
                }
            }
            _ => return Err(unexpected_templates()),
        }
        for name in TOKENS {
            // A token is a text, or an object with its properties.
            let token = config[name].as_str().or_else(|| config[name]["content"].as_str());
            if let Some(token) = token {
                read.tokens.insert(name.to_owned(), Json::from(token));
            }
        }
        Ok(read)
    }

    /// From a folder with `tokenizer_config.json`, `chat_template.jinja` and `additional_chat_templates`, all of which may be missing.
    /// `chat_template.jinja` replaces the template of the configuration.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<ChatTemplates, ChatError> {
        let folder = folder.as_ref();
        let config = read(&folder.join("tokenizer_config.json"))?;
        let mut found =
            config.map_or_else(|| Ok(ChatTemplates::default()), |text| Self::from_config(&text))?;
        if let Some(template) = read(&folder.join("chat_template.jinja"))? {
            found.templates.insert(DEFAULT.to_owned(), template);
        }
        let Ok(entries) = folder.join("additional_chat_templates").read_dir() else { return Ok(found) };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_stem().and_then(|name| name.to_str());
            if path.extension().is_some_and(|extension| extension == "jinja")
                && let (Some(name), Some(template)) = (name, read(&path)?)
            {
                found.templates.insert(name.to_owned(), template);
            }
        }
        Ok(found)
    }

    /// The content of a `tokenizer_config.json` that [`ChatTemplates::from_config`] reads.
    pub fn to_config(&self) -> String {
        let mut config = self.tokens.clone();
        let named =
            self.templates.iter().map(|(name, template)| (name.clone(), Json::from(template.as_str())));
        config.insert("chat_template".to_owned(), Json::Object(named.collect()));
        Json::Object(config).to_string()
    }

    /// The names of the templates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.keys().map(String::as_str)
    }

    /// The special tokens, as variables of templates.
    pub fn special_tokens(&self) -> &Map<String, Json> {
        &self.tokens
    }

    /// The template to use.
    pub(super) fn select<'a>(
        &'a self,
        wanted: Option<&'a str>,
        has_tools: bool,
    ) -> Result<&'a str, ChatError> {
        let named = |name: &str| self.templates.get(name).map(String::as_str);
        if let Some(wanted) = wanted {
            // Only templates have braces.
            let given = wanted.contains("{{") || wanted.contains("{%");
            return named(wanted).or(given.then_some(wanted)).ok_or_else(|| self.missing(wanted));
        }
        has_tools
            .then(|| named(WITH_TOOLS))
            .flatten()
            .or_else(|| named(DEFAULT))
            .ok_or_else(|| self.missing(DEFAULT))
    }

    fn missing(&self, name: &str) -> ChatError {
        let known: Vec<&str> = self.names().collect();
        ChatError::Missing(if known.is_empty() {
            "the tokenizer has no chat template: there is none in `tokenizer_config.json` or `chat_template.jinja` next to its file"
                .to_owned()
        } else {
            format!("the tokenizer has no chat template {name:?}; it has {}", known.join(", "))
        })
    }
}

fn unexpected_templates() -> ChatError {
    let expected = "a template, or a list of objects with `name` and `template`";
    ChatError::File(format!("`chat_template` in `tokenizer_config.json` must be {expected}"))
}

/// The text of a file; `None` if there is no such file.
fn read(path: &Path) -> Result<Option<String>, ChatError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ChatError::File(format!("could not read {}: {error}", path.display()))),
    }
}
