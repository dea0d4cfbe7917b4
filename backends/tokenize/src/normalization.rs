//! The normalizers of byte-level tokenizers: Unicode normalization forms, runs of whitespace, lowercase.

use std::borrow::Cow;

use crate::memory::{self, OutOfMemory};
use crate::nfc::Form;
use crate::unicode::{Classes, SPACE};

/// A normalizer: its steps in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Normalization(pub Vec<Step>);

/// A step of a normalizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A Unicode normalization form.
    Form(Form),
    /// Every run of whitespace becomes one space.
    CollapseSpaces,
    /// The lowercase of each character by itself.
    Lowercase,
}

impl Normalization {
    /// Whether a text stays the same.
    pub fn holds(&self, text: &str) -> bool {
        self.0.iter().all(|step| step.holds(text))
    }

    /// Returns the normalized text.
    pub fn apply<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, OutOfMemory> {
        let mut normalized = Cow::Borrowed(text);
        for step in &self.0 {
            if let Cow::Owned(changed) = step.apply(&normalized)? {
                normalized = Cow::Owned(changed);
            }
        }
        Ok(normalized)
    }
}

impl Step {
    fn holds(self, text: &str) -> bool {
        match self {
            Step::Form(form) => form.holds(text),
            Step::CollapseSpaces => !has_other_spaces(text),
            Step::Lowercase => text.chars().all(is_lowercase),
        }
    }

    fn apply(self, text: &str) -> Result<Cow<'_, str>, OutOfMemory> {
        Ok(match self {
            Step::Form(form) => form.apply(text)?,
            Step::CollapseSpaces if has_other_spaces(text) => {
                let mut collapsed = String::new();
                memory::reserve_text(&mut collapsed, text.len())?;
                let mut after_space = false;
                for character in text.chars() {
                    let space = is_space(character);
                    if !space {
                        collapsed.push(character);
                    } else if !after_space {
                        collapsed.push(' ');
                    }
                    after_space = space;
                }
                Cow::Owned(collapsed)
            }
            Step::Lowercase if !text.chars().all(is_lowercase) => {
                let mut lowercase = String::new();
                memory::reserve_text(&mut lowercase, text.len())?;
                memory::extend_text(&mut lowercase, text.chars().flat_map(char::to_lowercase))?;
                Cow::Owned(lowercase)
            }
            Step::CollapseSpaces | Step::Lowercase => Cow::Borrowed(text),
        })
    }
}

fn is_space(character: char) -> bool {
    Classes::get().of(u32::from(character)) & SPACE != 0
}

/// Whether a text has whitespace other than single spaces.
fn has_other_spaces(text: &str) -> bool {
    let mut after_space = false;
    text.chars().any(|character| {
        let space = is_space(character);
        let other = space && (after_space || character != ' ');
        after_space = space;
        other
    })
}

fn is_lowercase(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_uppercase();
    }
    let mut lowercase = character.to_lowercase();
    lowercase.next() == Some(character) && lowercase.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_applied_in_order() {
        let clip = Normalization(vec![Step::Form(Form::Nfc), Step::CollapseSpaces, Step::Lowercase]);
        for (text, expected) in [
            ("", ""),
            ("a b", "a b"),
            (" A\u{a0}\n B ", " a b "),
            ("E\u{301}\t\tİ", "é i\u{307}"),
            ("ΑΣ", "ας".replace('ς', "σ").as_str()),
            ("\u{85}x", " x"),
        ] {
            assert_eq!(clip.apply(text).unwrap(), expected, "{text:?}");
            assert_eq!(clip.holds(text), text == expected, "{text:?}");
        }
        assert!(Normalization::default().holds("A  B"));
    }
}
