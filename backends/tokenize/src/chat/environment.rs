//! The Jinja environment of chat templates, with the functions and settings of Transformers.

use std::borrow::Cow;
use std::ffi::CString;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior};

use super::python_format::{JsonStyle, write_json, write_str};
use super::{ChatError, MAX_STEPS, failed};

/// The name of the template in the environment.
pub const NAME: &str = "chat";

/// Maximum bytes of a formatted time.
const MAX_TIME_BYTES: usize = 1024;

/// The message of `raise_exception`.
#[derive(Debug)]
pub struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An environment with one template.
pub fn new(source: &str) -> Result<Environment<'_>, ChatError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| failed(&error))?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(format);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", to_string);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    let added = match without_generation_tags(source) {
        Cow::Borrowed(source) => environment.add_template(NAME, source),
        Cow::Owned(source) => environment.add_template_owned(NAME, source),
    };
    added.map_err(|error| failed(&error))?;
    Ok(environment)
}

/// Writes a value as Python's `str` does.
fn format(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        out.write_str(text)?;
        return Ok(());
    }
    let mut text = String::new();
    write_str(value, &mut text)?;
    out.write_str(&text)?;
    Ok(())
}

fn to_string(value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    write_str(value, &mut text)?;
    Ok(text)
}

/// `json.dumps` with the defaults of Transformers: characters are not escaped, neither for ASCII nor for HTML.
fn to_json(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<usize>>("indent")?,
    };
    let separators: Option<(String, String)> =
        match options.get::<Option<Vec<String>>>("separators")?.as_deref() {
            None => None,
            Some([items, keys]) => Some((items.clone(), keys.clone())),
            Some(_) => {
                let message = "`separators` must be a pair of strings";
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        };
    let (items, keys) =
        separators.unwrap_or_else(|| (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()));
    let style = JsonStyle {
        indent,
        items,
        keys,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut text = String::new();
    write_json(value, &style, 0, &mut text)?;
    Ok(text)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The local time, formatted by the function of the C library that Python's `strftime` calls.
fn strftime_now(format: &str) -> Result<String, Error> {
    let failed =
        |what: &str| Error::new(ErrorKind::InvalidOperation, format!("`strftime_now({format:?})`: {what}"));
    // An empty result is an error for `strftime`, so the format ends with a character that is removed again.
    let terminated = CString::new(format!("{format}.")).map_err(|_| failed("the format has a zero byte"))?;
    let mut buffer = [0u8; MAX_TIME_BYTES];
    // SAFETY: `time` accepts null; `localtime_r` writes `parts`, for which all zeros are valid; `strftime` writes at most the length of
    // the buffer and reads the terminated format and `parts`.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut parts).is_null() {
            return Err(failed("there is no local time"));
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), terminated.as_ptr(), &parts)
    };
    let text = length.checked_sub(1).and_then(|end| std::str::from_utf8(&buffer[..end]).ok());
    text.map(str::to_owned).ok_or_else(|| failed("the result is too long or is not UTF-8"))
}

/// Transformers' `{% generation %}` marks the text of the assistant for training. Its text is rendered as it is, so the tag becomes a
/// condition that always holds.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut changed = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        changed.push_str(before);
        rest = tag;
        let inner = tag.strip_prefix(['-', '+']).unwrap_or(tag).trim_start();
        let ends = |after: &str| {
            let after = after.trim_start();
            after.strip_prefix(['-', '+']).unwrap_or(after).starts_with("%}")
        };
        for (name, replacement) in [("generation", "if true"), ("endgeneration", "endif")] {
            if let Some(after) = inner.strip_prefix(name).filter(|after| ends(after)) {
                changed.push_str(&tag[..tag.len() - inner.len()]);
                changed.push_str(replacement);
                rest = after;
                break;
            }
        }
    }
    changed.push_str(rest);
    Cow::Owned(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted() {
        let year = strftime_now("%Y").unwrap();
        assert!(year.len() == 4 && year.parse::<u32>().unwrap() >= 2024, "{year}");
        assert_eq!(strftime_now("").unwrap(), "");
        assert_eq!(strftime_now("a%%ü").unwrap(), "a%ü");
        assert!(strftime_now("a\0").is_err());
        assert!(strftime_now(&"%A".repeat(2000)).is_err());
    }

    #[test]
    fn generation_tags_become_conditions() {
        assert_eq!(
            without_generation_tags(
                "a{%- generation -%}b{% endgeneration %}c{% if add_generation_prompt %}d{% endif %}"
            ),
            "a{%- if true -%}b{% endif %}c{% if add_generation_prompt %}d{% endif %}"
        );
        assert_eq!(without_generation_tags("{% generations %}"), "{% generations %}");
    }
}
