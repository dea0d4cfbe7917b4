//! The post-processor of a definition as a template: special tokens around one text or around a pair of texts, with their type ids.

use serde_json::Value;

use crate::definition::{kind, shown};

/// A part of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The tokens of the first or the second text.
    Text {
        /// Whether it is the second text.
        second: bool,
        /// The type id of its tokens.
        type_id: u32,
    },
    /// Special tokens.
    Special {
        /// Their ids.
        ids: Vec<u32>,
        /// Their type id.
        type_id: u32,
    },
}

/// What a post-processor makes of one text and of a pair of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// For one text.
    pub single: Vec<Part>,
    /// For two texts.
    pub pair: Vec<Part>,
}

const fn text(second: bool, type_id: u32) -> Part {
    Part::Text { second, type_id }
}

impl Template {
    /// The template of a post-processor; a message if it is not supported.
    pub fn new(value: &Value) -> Result<Template, String> {
        Template::read(value)?.map_or_else(
            || Ok(Template { single: vec![text(false, 0)], pair: vec![text(false, 0), text(true, 1)] }),
            Ok,
        )
    }

    /// `None` for a post-processor that adds nothing.
    fn read(value: &Value) -> Result<Option<Template>, String> {
        let wrong = || format!("unsupported post-processor: {}", shown(value));
        match kind(value) {
            "none" if value.is_null() => Ok(None),
            "ByteLevel" => Ok(None),
            "Sequence" => {
                let mut found = None;
                for part in value["processors"].as_array().into_iter().flatten() {
                    let part = Template::read(part)?;
                    // The second would be applied to the result of the first.
                    if found.is_some() && part.is_some() {
                        return Err(wrong());
                    }
                    found = found.or(part);
                }
                Ok(found)
            }
            "BertProcessing" => Template::framed(value, 1, false).ok_or_else(wrong).map(Some),
            "RobertaProcessing" => Template::framed(value, 0, true).ok_or_else(wrong).map(Some),
            "TemplateProcessing" => Template::stated(value).ok_or_else(wrong).map(Some),
            _ => Err(wrong()),
        }
    }

    /// `cls A sep` and `cls A sep B sep`, or with `two_separators` `cls A sep sep B sep`.
    fn framed(value: &Value, second_type: u32, two_separators: bool) -> Option<Template> {
        let special = |name: &str, type_id| {
            let id = value[name][1].as_u64().and_then(|id| u32::try_from(id).ok())?;
            Some(Part::Special { ids: vec![id], type_id })
        };
        let single = vec![special("cls", 0)?, text(false, 0), special("sep", 0)?];
        let mut pair = single.clone();
        pair.extend(two_separators.then(|| special("sep", 0)).flatten());
        pair.extend([text(true, second_type), special("sep", second_type)?]);
        Some(Template { single, pair })
    }

    fn stated(value: &Value) -> Option<Template> {
        let part = |piece: &Value| {
            let type_id = |part: &Value| part["type_id"].as_u64().and_then(|id| u32::try_from(id).ok());
            if let Some(sequence) = piece.get("Sequence") {
                return Some(text(sequence["id"] != "A", type_id(sequence)?));
            }
            let special = piece.get("SpecialToken")?;
            let ids = value["special_tokens"][special["id"].as_str()?]["ids"].as_array()?;
            let ids = ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
            Some(Part::Special { ids: ids.collect::<Option<_>>()?, type_id: type_id(special)? })
        };
        let parts = |name: &str| value[name].as_array()?.iter().map(part).collect::<Option<Vec<_>>>();
        let template = Template { single: parts("single")?, pair: parts("pair")? };
        let count = |parts: &[Part], second| {
            parts
                .iter()
                .filter(|part| matches!(part, Part::Text { second: found, .. } if *found == second))
                .count()
        };
        let once = count(&template.single, false) == 1
            && count(&template.single, true) == 0
            && count(&template.pair, false) == 1
            && count(&template.pair, true) == 1;
        once.then_some(template)
    }
}

/// The only part of a definition that a template needs; the rest is skipped while parsing.
#[derive(serde::Deserialize)]
struct PostProcessor {
    #[serde(default)]
    post_processor: Value,
}

/// The template of a definition; a message if its post-processor is not supported. A SentencePiece model adds nothing.
pub fn of_definition(json: &[u8]) -> Result<Template, String> {
    let definition: PostProcessor = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    Template::new(&definition.post_processor)
}

/// Number of special tokens of a template.
pub fn added_tokens(parts: &[Part]) -> usize {
    let added = |part: &Part| match part {
        Part::Special { ids, .. } => ids.len(),
        Part::Text { .. } => 0,
    };
    parts.iter().map(added).sum()
}
