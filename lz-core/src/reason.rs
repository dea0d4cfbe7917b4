//! Reasons why a call is invalid or a kernel was not selected, as data and as a sentence.

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use lz_schema::reasons::Reasons;

pub use crate::generated::reasons::{ReasonCategory, ReasonCode};

/// The catalog of reason codes, read on first use: only schemas that are read at run time are checked against it.
pub fn catalog() -> &'static Reasons {
    static CATALOG: OnceLock<Reasons> = OnceLock::new();
    CATALOG.get_or_init(|| {
        match Reasons::load("schemas/reasons.yaml", include_str!("../schemas/reasons.yaml")) {
            Ok(reasons) => reasons,
            // The codes above were generated from this text.
            Err(report) => unreachable!("reasons.yaml was checked when the codes were generated:\n{report}"),
        }
    })
}

/// A reason. Its details are boxed, so that results that may contain a reason stay small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The code.
    pub code: ReasonCode,
    details: Box<Details>,
}

/// The details of a reason. Which fields a code has is defined in `schemas/reasons.yaml`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// The argument that it refers to.
    pub argument: Option<String>,
    /// The axis that it refers to.
    pub axis: Option<String>,
    /// What was required.
    pub required: Option<String>,
    /// What was found.
    pub found: Option<String>,
    /// A sentence that replaces the one made from the fields above.
    pub message: Option<String>,
}

impl Deref for Reason {
    type Target = Details;
    fn deref(&self) -> &Details {
        &self.details
    }
}

impl Reason {
    /// A reason without details.
    pub fn new(code: ReasonCode) -> Reason {
        Reason { code, details: Box::default() }
    }

    /// Sets the argument.
    pub fn argument(mut self, name: impl Into<String>) -> Reason {
        self.details.argument = Some(name.into());
        self
    }

    /// Sets the axis.
    pub fn axis(mut self, name: impl Into<String>) -> Reason {
        self.details.axis = Some(name.into());
        self
    }

    /// Sets what was required.
    pub fn required(mut self, text: impl Into<String>) -> Reason {
        self.details.required = Some(text.into());
        self
    }

    /// Sets what was found.
    pub fn found(mut self, text: impl Into<String>) -> Reason {
        self.details.found = Some(text.into());
        self
    }

    /// Sets the whole sentence.
    pub fn message(mut self, text: impl Into<String>) -> Reason {
        self.details.message = Some(text.into());
        self
    }

    /// The sentence without the code.
    pub fn sentence(&self) -> String {
        if let Some(message) = &self.message {
            return message.clone();
        }
        let mut text = String::new();
        if let Some(argument) = &self.argument {
            text.push_str(argument);
            text.push_str(": ");
        }
        match (&self.required, &self.found) {
            (Some(required), Some(found)) => text.push_str(&format!("requires {required}, found {found}")),
            (Some(required), None) => text.push_str(&format!("requires {required}")),
            (None, Some(found)) => text.push_str(&format!("{} Found {found}.", self.code.sentence())),
            (None, None) => text.push_str(self.code.sentence()),
        }
        text
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.code, self.sentence())
    }
}

impl std::error::Error for Reason {}
