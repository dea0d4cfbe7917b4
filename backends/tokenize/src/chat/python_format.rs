//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deeper values are refused, because writing them recurses.
const MAX_DEPTH: usize = 200;

/// Options of `json.dumps`.
pub struct JsonStyle {
    /// Spaces per level; one line without it.
    pub indent: Option<usize>,
    /// Between items.
    pub items: String,
    /// Between a key and its value.
    pub keys: String,
    /// Whether keys are sorted.
    pub sort_keys: bool,
    /// Whether other characters than ASCII are escaped.
    pub ascii: bool,
}

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested in more than {MAX_DEPTH} levels"))
}

/// Appends a value as `str` writes it: strings as they are, everything else as `repr`.
pub fn write_str(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => write_repr(value, 0, out)?,
    }
    Ok(())
}

fn write_repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Number => write_number(value, out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(&item, depth + 1, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, depth + 1, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// A string literal as `repr` writes it: in double quotes if that avoids escapes.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', quote]),
            '\0'..' ' | '\x7f' => out.push_str(&format!("\\x{:02x}", u32::from(character))),
            _ => out.push(character),
        }
    }
    out.push(quote);
}

fn write_number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => out.push_str(&float(number)),
        _ => out.push_str(&value.to_string()),
    }
}

/// A float as `repr` writes it: the shortest digits, with an exponent for very small and large numbers.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Appends a value as `json.dumps` writes it.
pub fn write_json(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::String => write_json_string(value.as_str().unwrap_or_default(), style.ascii, out),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(number) if number.is_nan() => out.push_str("NaN"),
            Ok(number) if number.is_infinite() => {
                out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
            }
            _ => write_number(value, out),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            enclosed('[', ']', &items, style, depth, out, |item, out| {
                write_json(item, style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            enclosed('{', '}', &keys, style, depth, out, |key, out| {
                match key.as_str() {
                    Some(text) => write_json_string(text, style.ascii, out),
                    // Numbers, booleans and none become strings.
                    None => {
                        out.push('"');
                        write_json(key, style, depth + 1, out)?;
                        out.push('"');
                    }
                }
                out.push_str(&style.keys);
                write_json(&value.get_item(key)?, style, depth + 1, out)
            })?;
        }
        kind => {
            let message = format!("a value of type {kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

fn enclosed(
    open: char,
    close: char,
    items: &[Value],
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.items);
        }
        line(depth + 1, out);
        write(item, out)?;
    }
    if !items.is_empty() {
        line(depth, out);
    }
    out.push(close);
    Ok(())
}

fn write_json_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..' ' => out.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ if ascii && !character.is_ascii() => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_in_python() {
        for (number, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(number), expected);
        }
    }

    #[test]
    fn values_are_written_as_in_python() {
        let json: serde_json::Value =
            serde_json::from_str(r#"{"b": [1, 2.0, true, null], "a": "it's \"ü\"\n", "c": {}, "d": []}"#)
                .unwrap();
        let value = Value::from(minijinja::value::Serde(&json));
        let mut text = String::new();
        write_str(&value, &mut text).unwrap();
        assert_eq!(text, r#"{'b': [1, 2.0, True, None], 'a': 'it\'s "ü"\n', 'c': {}, 'd': []}"#);
        let mut style =
            JsonStyle { indent: None, items: ", ".into(), keys: ": ".into(), sort_keys: true, ascii: true };
        text.clear();
        write_json(&value, &style, 0, &mut text).unwrap();
        assert_eq!(text, r#"{"a": "it's \"\u00fc\"\n", "b": [1, 2.0, true, null], "c": {}, "d": []}"#);
        (style.indent, style.items, style.sort_keys) = (Some(2), ",".to_owned(), false);
        text.clear();
        write_json(&value, &style, 0, &mut text).unwrap();
        assert!(
            text.starts_with("{\n  \"b\": [\n    1,\n    2.0,")
                && text.ends_with("\"c\": {},\n  \"d\": []\n}"),
            "{text}"
        );
    }
}
