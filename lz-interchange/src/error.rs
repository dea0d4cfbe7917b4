//! What can be wrong with a `Definition`, or with an operation that is exported as one, as data.

use std::fmt;

/// Characters of the longest name of an axis, an argument or a definition. YAML takes keys of up to 1024 characters.
pub(crate) const MAX_NAME: usize = 256;

/// Everything that keeps a file from being imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportError {
    /// The file as the caller named it.
    pub file: String,
    /// What is wrong, in the order of the file.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The JSON path: `$.inputs.q.shape[0]`.
    pub path: String,
    /// What is wrong.
    pub kind: ProblemKind,
}

/// What is wrong at a place of a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProblemKind {
    /// The text is not JSON.
    Syntax {
        /// What the JSON reader says, with line and column.
        message: String,
    },
    /// Another kind of value is needed.
    WrongForm {
        /// What is needed.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// The format has no such key here.
    UnknownKey {
        /// The key that was probably meant.
        suggestion: Option<String>,
    },
    /// A key that stands here already.
    DuplicateKey,
    /// A key that must be there is not.
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// A text or mapping that must say something is empty.
    Empty,
    /// A name that is too long for a key of a schema.
    LongName {
        /// Its characters.
        count: usize,
    },
    /// No dialect has such a dtype.
    UnknownDtype {
        /// What is written.
        dtype: String,
        /// The dtype that was probably meant.
        suggestion: Option<String>,
    },
    /// Neither `const` nor `var`.
    UnknownAxisType {
        /// What is written.
        word: String,
    },
    /// A size that no axis can have.
    BadSize,
    /// A `var` axis with a value.
    ValueOfVar,
    /// A shape names an axis that is not defined.
    UndefinedAxis {
        /// The name.
        axis: String,
        /// The axis that was probably meant.
        suggestion: Option<String>,
    },
    /// The reference has no function `run` at its top level.
    NoRun,
    /// A schema needs at least one tensor input.
    NoTensor,
    /// A schema needs at least one output that is a tensor, or an input that is changed in place.
    NoOutput,
    /// A schema needs at least one axis.
    NoAxis,
}

impl fmt::Display for ImportError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(formatter, "{} is not a definition that can be imported: {count} problem{plural}", self.file)?;
        self.problems.iter().try_for_each(|problem| write!(formatter, "\n  {problem}"))
    }
}

impl std::error::Error for ImportError {}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.kind)
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProblemKind::Syntax { message } => write!(formatter, "this is not JSON: {message}"),
            ProblemKind::WrongForm { expected, found } => {
                write!(formatter, "expected {expected}, found {found}")
            }
            ProblemKind::UnknownKey { suggestion } => {
                formatter.write_str("the format has no such key")?;
                did_you_mean(formatter, suggestion.as_deref())
            }
            ProblemKind::DuplicateKey => formatter.write_str("this key stands here twice"),
            ProblemKind::MissingKey { key } => write!(formatter, "`{key}` is missing"),
            ProblemKind::Empty => formatter.write_str("this is empty"),
            ProblemKind::UnknownDtype { dtype, suggestion } => {
                write!(formatter, "`{dtype}` is not a dtype of definitions")?;
                did_you_mean(formatter, suggestion.as_deref())
            }
            ProblemKind::UnknownAxisType { word } => {
                write!(formatter, "`{word}` is not a type of axis; there are `const` and `var`")
            }
            ProblemKind::BadSize => formatter.write_str("a size is an integer from 0 that fits 64 bits"),
            ProblemKind::ValueOfVar => formatter.write_str("a `var` axis has no value"),
            ProblemKind::UndefinedAxis { axis, suggestion } => {
                write!(formatter, "axis `{axis}` is not defined in `axes`")?;
                did_you_mean(formatter, suggestion.as_deref())
            }
            ProblemKind::NoRun => {
                formatter.write_str("the reference defines no function `run` at its top level")
            }
            ProblemKind::LongName { count } => {
                write!(formatter, "a name has at most {MAX_NAME} characters, and this one has {count}")
            }
            ProblemKind::NoTensor => formatter.write_str("a schema needs at least one tensor input"),
            ProblemKind::NoOutput => formatter
                .write_str("a schema needs at least one output of numbers, and none of these outputs is one"),
            ProblemKind::NoAxis => formatter.write_str("a schema needs at least one axis in a shape"),
        }
    }
}

fn did_you_mean(formatter: &mut fmt::Formatter<'_>, suggestion: Option<&str>) -> fmt::Result {
    suggestion.map_or(Ok(()), |name| write!(formatter, "; did you mean `{name}`?"))
}

/// Why an operation has no `Definition` for what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportError {
    /// The format knows tensors and scalars only.
    NotTensors {
        /// The text or handle.
        argument: String,
    },
    /// The operation has no such axis.
    UnknownAxis {
        /// The name that was given.
        axis: String,
        /// The axis that was probably meant.
        suggestion: Option<String>,
    },
    /// The axis cannot have this size.
    BadSize {
        /// The axis.
        axis: String,
        /// The size that was given.
        size: i64,
        /// The only size that it has, for a fixed axis.
        fixed: Option<i64>,
    },
    /// The operation has no such dtype variable.
    UnknownTypeVariable {
        /// The name that was given.
        variable: String,
        /// The variable that was probably meant.
        suggestion: Option<String>,
    },
    /// The variable cannot be this dtype.
    DtypeNotAllowed {
        /// The variable.
        variable: String,
        /// The dtype that was given.
        dtype: &'static str,
    },
    /// The operation has no such enum parameter.
    UnknownEnum {
        /// The name that was given.
        param: String,
        /// The parameter that was probably meant.
        suggestion: Option<String>,
    },
    /// The enum has no such case.
    UnknownCase {
        /// The parameter.
        param: String,
        /// The case that was given.
        case: String,
        /// The case that was probably meant.
        suggestion: Option<String>,
    },
    /// No dialect of the format can name the dtype.
    UnsupportedDtype {
        /// The argument.
        argument: String,
        /// Its dtype.
        dtype: &'static str,
    },
    /// The sizes break a constraint of the operation.
    Violates {
        /// What the constraint says.
        message: String,
        /// The constraint.
        check: String,
    },
}

impl fmt::Display for ExportError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::NotTensors { argument } => {
                write!(formatter, "`{argument}` is not a tensor, and definitions know nothing else")
            }
            ExportError::UnknownAxis { axis, suggestion } => {
                write!(formatter, "the operation has no axis `{axis}`")?;
                did_you_mean(formatter, suggestion.as_deref())
            }
            ExportError::BadSize { axis, size, fixed: Some(fixed) } => {
                write!(formatter, "axis `{axis}` is always {fixed}, so it cannot be {size}")
            }
            ExportError::BadSize { axis, size, fixed: None } => {
                write!(formatter, "axis `{axis}` cannot be {size}: a size is an integer from 0")
            }
            ExportError::UnknownTypeVariable { variable, suggestion } => {
                write!(formatter, "the operation has no dtype variable `{variable}`")?;
                did_you_mean(formatter, suggestion.as_deref())
            }
            ExportError::DtypeNotAllowed { variable, dtype } => {
                write!(formatter, "dtype variable `{variable}` cannot be {dtype}")
            }
            ExportError::UnknownEnum { param, suggestion } => {
                write!(formatter, "the operation has no enum parameter `{param}`")?;
                did_you_mean(formatter, suggestion.as_deref())
            }
            ExportError::UnknownCase { param, case, suggestion } => {
                write!(formatter, "`{param}` has no case `{case}`")?;
                did_you_mean(formatter, suggestion.as_deref())
            }
            ExportError::UnsupportedDtype { argument, dtype } => {
                write!(formatter, "`{argument}` is {dtype}, which definitions cannot name")
            }
            ExportError::Violates { message, check } => {
                write!(formatter, "these sizes break a constraint: {message} (`{check}`)")
            }
        }
    }
}

impl std::error::Error for ExportError {}
