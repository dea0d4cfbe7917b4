//! Reasons: why a call is wrong or a kernel was not chosen, as data first and as a sentence second.

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use lz_schema::reasons::Reasons;

pub use crate::generated::reasons::{ReasonCategory, ReasonCode};

/// Every reason code with what it means, read on first use: only schemas that are read at run time are checked against it.
pub fn catalogue() -> &'static Reasons {
    static CATALOGUE: OnceLock<Reasons> = OnceLock::new();
    CATALOGUE.get_or_init(|| {
        match Reasons::load("schemas/reasons.yaml", include_str!("../../schemas/reasons.yaml")) {
            Ok(reasons) => reasons,
            // The generator read this very text to write the codes above.
            Err(report) => unreachable!("reasons.yaml was checked when the codes were generated:\n{report}"),
        }
    })
}

/// One reason. What it carries beyond its code is behind a pointer, so that results which may hold a reason stay small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// What, for machines.
    pub code: ReasonCode,
    details: Box<Details>,
}

/// What a reason carries. Fields that do not apply stay empty; `schemas/reasons.yaml` says which ones a code has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// The argument it is about.
    pub argument: Option<String>,
    /// The axis it is about.
    pub axis: Option<String>,
    /// What was needed.
    pub required: Option<String>,
    /// What was there.
    pub found: Option<String>,
    /// A whole sentence in place of the one made from the fields above.
    pub message: Option<String>,
}

impl Deref for Reason {
    type Target = Details;
    fn deref(&self) -> &Details {
        &self.details
    }
}

impl Reason {
    /// A bare reason.
    pub fn new(code: ReasonCode) -> Reason {
        Reason { code, details: Box::default() }
    }

    /// Names the argument.
    pub fn argument(mut self, name: impl Into<String>) -> Reason {
        self.details.argument = Some(name.into());
        self
    }

    /// Names the axis.
    pub fn axis(mut self, name: impl Into<String>) -> Reason {
        self.details.axis = Some(name.into());
        self
    }

    /// Says what was needed.
    pub fn required(mut self, text: impl Into<String>) -> Reason {
        self.details.required = Some(text.into());
        self
    }

    /// Says what was there.
    pub fn found(mut self, text: impl Into<String>) -> Reason {
        self.details.found = Some(text.into());
        self
    }

    /// Gives the whole sentence.
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
