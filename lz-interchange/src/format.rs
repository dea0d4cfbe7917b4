//! The `Definition` as a file: its parts, reading with all mistakes, writing in one canonical form.

use lz_schema::definition::{DTYPES, FIRST_DIALECT_DTYPES};
use lz_schema::diagnostics::nearest;
use serde_json::{Map, Value, json};

use crate::error::{ImportError, MAX_NAME, Problem, ProblemKind};
use crate::json::{Json, Reader, entry};

/// A FlashInfer-Bench `Definition`. A key that is null in a file counts as left out, except for shapes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names are those of the format")]
pub struct Definition {
    pub name: String,
    pub description: Option<String>,
    pub op_type: String,
    pub tags: Option<Vec<String>>,
    pub axes: Vec<(String, Axis)>,
    pub constraints: Option<Vec<String>>,
    pub inputs: Vec<(String, Argument)>,
    pub outputs: Vec<(String, Argument)>,
    pub reference: Option<String>,
    pub init: Option<String>,
    pub check: Option<String>,
}

/// An axis of a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Axis {
    /// `const`, not `var`.
    pub constant: bool,
    /// The constant; the second dialect may leave it out.
    pub value: Option<i64>,
    /// What it says about itself.
    pub description: Option<String>,
}

/// An input or output of a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Argument {
    /// Names of axes; `None` for a scalar.
    pub shape: Option<Vec<String>>,
    /// One of [`lz_schema::definition::DTYPES`].
    pub dtype: String,
    /// Whether it may be absent (second dialect).
    pub optional: Option<bool>,
    /// The argument of the wrapped function that it goes to (second dialect).
    pub param: Option<String>,
    /// What it says about itself.
    pub description: Option<String>,
}

const KEYS: [&str; 11] = [
    "name",
    "description",
    "op_type",
    "tags",
    "axes",
    "constraints",
    "inputs",
    "outputs",
    "reference",
    "init",
    "check",
];
const REQUIRED: [&str; 5] = ["name", "op_type", "axes", "inputs", "outputs"];

/// Reads a `Definition` of either dialect and reports everything that is wrong with it; `file` is only named in the report.
pub fn read(text: &str, file: &str) -> Result<Definition, ImportError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let failed = |problems| ImportError { file: file.to_owned(), problems };
    let json: Json = serde_json::from_str(text).map_err(|error| {
        let kind = ProblemKind::Syntax { message: error.to_string() };
        failed(vec![Problem { path: "$".to_owned(), kind }])
    })?;
    let mut reader = Reader::default();
    let definition = definition(&json, &mut reader).unwrap_or_default();
    // What a first dialect would refuse is looked at only once the rest is known to be right.
    if reader.problems.is_empty() && !definition.is_second_dialect() {
        first_dialect(&definition, &mut reader);
    }
    if reader.problems.is_empty() { Ok(definition) } else { Err(failed(reader.problems)) }
}

fn definition(json: &Json, reader: &mut Reader) -> Option<Definition> {
    let entries = reader.closed("$", json, &KEYS, &[])?;
    for key in REQUIRED.into_iter().filter(|key| !entries.iter().any(|(found, _)| found == key)) {
        reader.problem("$", ProblemKind::MissingKey { key });
    }
    let mut read = Definition::default();
    for (key, value) in entries {
        let path = entry("$", key);
        match key {
            "name" => {
                read.name = reader.full_text(&path, value).unwrap_or_default();
                bounded(&path, &read.name, reader);
            }
            "op_type" => read.op_type = reader.full_text(&path, value).unwrap_or_default(),
            "description" => read.description = reader.text(&path, value),
            "tags" => read.tags = reader.texts(&path, value),
            "constraints" => read.constraints = reader.texts(&path, value),
            "axes" => read.axes = named(&path, value, reader, axis),
            "inputs" => read.inputs = named(&path, value, reader, argument),
            "outputs" => {
                read.outputs = named(&path, value, reader, argument);
                if *value == Json::Object(Vec::new()) {
                    reader.problem(path, ProblemKind::Empty);
                }
            }
            "reference" => read.reference = reader.full_text(&path, value),
            "init" => read.init = reader.text(&path, value),
            _ => read.check = reader.text(&path, value),
        }
    }
    Some(read)
}

fn bounded(path: &str, name: &str, reader: &mut Reader) {
    let count = name.chars().count();
    if count > MAX_NAME {
        let start: String = path.chars().take(MAX_NAME).collect();
        reader.problem(start, ProblemKind::LongName { count });
    }
}

fn named<T>(
    path: &str,
    json: &Json,
    reader: &mut Reader,
    one: impl Fn(&str, &Json, &mut Reader) -> Option<T>,
) -> Vec<(String, T)> {
    let entries = reader.entries(path, json).unwrap_or_default();
    let read = entries.into_iter().filter_map(|(name, value)| {
        let path = entry(path, name);
        if name.is_empty() {
            reader.problem(&path, ProblemKind::Empty);
        }
        bounded(&path, name, reader);
        Some((name.to_owned(), one(&path, value, reader)?))
    });
    read.collect()
}

fn axis(path: &str, json: &Json, reader: &mut Reader) -> Option<Axis> {
    let entries = reader.closed(path, json, &["type", "value", "description"], &[])?;
    let mut axis = Axis::default();
    let mut typed = false;
    for (key, value) in entries {
        let path = entry(path, key);
        match key {
            "type" => {
                typed = true;
                match reader.text(&path, value)?.as_str() {
                    "const" => axis.constant = true,
                    "var" => {}
                    other => reader.problem(path, ProblemKind::UnknownAxisType { word: other.to_owned() }),
                }
            }
            "value" => axis.value = reader.size(&path, value),
            _ => axis.description = reader.text(&path, value),
        }
    }
    if !typed {
        reader.problem(path, ProblemKind::MissingKey { key: "type" });
    } else if axis.value.is_some() && !axis.constant {
        reader.problem(entry(path, "value"), ProblemKind::ValueOfVar);
    }
    Some(axis)
}

fn argument(path: &str, json: &Json, reader: &mut Reader) -> Option<Argument> {
    let keys = ["shape", "dtype", "optional", "param", "description"];
    let entries = reader.closed(path, json, &keys, &["shape"])?;
    for key in ["shape", "dtype"] {
        if !entries.iter().any(|(found, _)| *found == key) {
            reader.problem(path, ProblemKind::MissingKey { key });
        }
    }
    let mut argument = Argument::default();
    for (key, value) in entries {
        let path = entry(path, key);
        match key {
            "shape" if *value == Json::Null => argument.shape = None,
            "shape" => {
                argument.shape = reader.texts(&path, value);
                argument.shape.iter().flatten().for_each(|axis| bounded(&path, axis, reader));
            }
            "dtype" => {
                argument.dtype = reader.full_text(&path, value)?;
                if !DTYPES.contains(&argument.dtype.as_str()) {
                    let suggestion = nearest(&argument.dtype, DTYPES).map(str::to_owned);
                    let dtype = argument.dtype.clone();
                    reader.problem(path, ProblemKind::UnknownDtype { dtype, suggestion });
                }
            }
            "optional" => argument.optional = reader.flag(&path, value),
            "param" => argument.param = reader.text(&path, value),
            _ => argument.description = reader.text(&path, value),
        }
    }
    Some(argument)
}

impl Definition {
    /// The inputs, then the outputs.
    pub(super) fn arguments(&self) -> impl Iterator<Item = &(String, Argument)> {
        self.inputs.iter().chain(&self.outputs)
    }

    /// Whether anything is there that only the second dialect has.
    pub fn is_second_dialect(&self) -> bool {
        let only_second = |argument: &Argument| {
            argument.optional.is_some()
                || argument.param.is_some()
                || DTYPES.iter().skip(FIRST_DIALECT_DTYPES).any(|dtype| *dtype == argument.dtype)
        };
        // Every trace names the function that it was taken from.
        let traced = self.tags.iter().flatten().any(|tag| tag.starts_with("fi_api:"));
        traced
            || self.reference.is_none()
            || self.init.is_some()
            || self.check.is_some()
            || self.arguments().any(|(_, argument)| only_second(argument))
            || self.outputs.iter().any(|(name, _)| self.inputs.iter().any(|(input, _)| input == name))
    }
}

/// The rules that the second dialect breaks in practice.
fn first_dialect(definition: &Definition, reader: &mut Reader) {
    for (name, _) in definition.axes.iter().filter(|(_, axis)| axis.constant && axis.value.is_none()) {
        reader.problem(entry("$.axes", name), ProblemKind::MissingKey { key: "value" });
    }
    for (section, arguments) in [("$.inputs", &definition.inputs), ("$.outputs", &definition.outputs)] {
        for (name, argument) in arguments {
            for (at, axis) in argument.shape.iter().flatten().enumerate() {
                if definition.axes.iter().any(|(known, _)| known == axis) {
                    continue;
                }
                let known = definition.axes.iter().map(|(known, _)| known.as_str());
                let suggestion = nearest(axis, known).map(str::to_owned);
                let path = format!("{}.shape[{at}]", entry(section, name));
                reader.problem(path, ProblemKind::UndefinedAxis { axis: axis.clone(), suggestion });
            }
        }
    }
    if definition.reference.as_deref().is_some_and(|text| !defines_run(text)) {
        reader.problem("$.reference", ProblemKind::NoRun);
    }
}

/// Whether a Python text has a function `run` at its top level.
fn defines_run(text: &str) -> bool {
    text.lines().any(|line| {
        let name = line.strip_prefix("def ").map(str::trim_start);
        let rest = name.and_then(|name| name.strip_prefix("run"));
        rest.is_some_and(|rest| rest.trim_start().starts_with(['(', '[']))
    })
}

/// The canonical text: keys in one order, two spaces, a line end at the end.
pub fn write(definition: &Definition) -> String {
    let mut object = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            object.insert(key.to_owned(), value);
        }
    };
    put("name", Some(json!(definition.name)));
    put("description", definition.description.as_ref().map(|text| json!(text)));
    put("op_type", Some(json!(definition.op_type)));
    put("tags", definition.tags.as_ref().map(|tags| json!(tags)));
    put("axes", Some(written(&definition.axes, axis_value)));
    put("constraints", definition.constraints.as_ref().map(|constraints| json!(constraints)));
    put("inputs", Some(written(&definition.inputs, argument_value)));
    put("outputs", Some(written(&definition.outputs, argument_value)));
    put("reference", definition.reference.as_ref().map(|text| json!(text)));
    put("init", definition.init.as_ref().map(|text| json!(text)));
    put("check", definition.check.as_ref().map(|text| json!(text)));
    format!("{:#}\n", Value::Object(object))
}

fn written<T>(entries: &[(String, T)], one: impl Fn(&T) -> Value) -> Value {
    Value::Object(entries.iter().map(|(name, value)| (name.clone(), one(value))).collect())
}

fn axis_value(axis: &Axis) -> Value {
    let mut object = Map::new();
    object.insert("type".to_owned(), json!(if axis.constant { "const" } else { "var" }));
    if let Some(value) = axis.value {
        object.insert("value".to_owned(), json!(value));
    }
    if let Some(description) = &axis.description {
        object.insert("description".to_owned(), json!(description));
    }
    Value::Object(object)
}

fn argument_value(argument: &Argument) -> Value {
    let mut object = Map::new();
    object.insert("shape".to_owned(), json!(argument.shape));
    object.insert("dtype".to_owned(), json!(argument.dtype));
    if let Some(optional) = argument.optional {
        object.insert("optional".to_owned(), json!(optional));
    }
    if let Some(param) = &argument.param {
        object.insert("param".to_owned(), json!(param));
    }
    if let Some(description) = &argument.description {
        object.insert("description".to_owned(), json!(description));
    }
    Value::Object(object)
}
