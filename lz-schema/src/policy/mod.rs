//! Policy files as they are written: settings, locks, lists, rules and profiles, each with its place.
//!
//! This module knows the form of a policy, not its meaning: whether an operation, a kernel or a name in a condition exists is
//! asked by the engine, which knows them.

mod json;
mod read;
mod settings;

pub use json::PolicySchema;
pub use read::read;
pub use settings::{Kind, NAMING_CODE, SETTINGS, SYNONYMS, Setting, SettingValue};

use crate::raw::Expression;
use crate::source::{Span, Spanned};

/// One file, or one profile of it.
#[derive(Debug, Clone, Default)]
pub struct PolicyFile {
    /// Settings that it gives, in the order of the file.
    pub settings: Vec<GivenSetting>,
    /// `operation: kernel`.
    pub locks: Vec<(Spanned<String>, Spanned<String>)>,
    /// Entries of lists.
    pub lists: Vec<(List, Spanned<String>)>,
    /// Conditional rules.
    pub rules: Vec<RawRule>,
    /// Named profiles; a profile has none of its own.
    pub profiles: Vec<(Spanned<String>, PolicyFile)>,
}

/// A setting and its value.
#[derive(Debug, Clone)]
pub struct GivenSetting {
    /// Which.
    pub setting: &'static Setting,
    /// Its value.
    pub value: SettingValue,
    /// Where the value was written.
    pub span: Span,
}

/// The lists of kernels and backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// Only these.
    Allow,
    /// Never these.
    Deny,
    /// Rather these.
    Prefer,
    /// Rather not these.
    Avoid,
}

impl List {
    /// Every list with its keys: patterns of kernels, and names of backends.
    pub const ALL: [(List, &'static str, &'static str); 4] = [
        (List::Allow, "allow", "allow_sources"),
        (List::Deny, "deny", "deny_sources"),
        (List::Prefer, "prefer", "prefer_sources"),
        (List::Avoid, "avoid", "avoid_sources"),
    ];

    /// The key of the list.
    pub fn key(self) -> &'static str {
        List::ALL.iter().find(|(list, ..)| *list == self).map_or("", |(_, key, _)| key)
    }
}

/// A rule as written.
#[derive(Debug, Clone, Default)]
pub struct RawRule {
    /// Where it begins.
    pub span: Span,
    /// Its name.
    pub name: Option<Spanned<String>>,
    /// The operations or aliases that it is about; `None` for all.
    pub operation: Option<Spanned<String>>,
    /// What must hold, part by part.
    pub conditions: Vec<RawCondition>,
    /// What it does.
    pub actions: Vec<Spanned<RawAction>>,
}

/// One part of what must hold.
#[derive(Debug, Clone)]
pub enum RawCondition {
    /// `condition: "batch_size >= 8"`.
    Text(Expression),
    /// One entry of `match:`, already an expression.
    Match {
        /// The name.
        key: Spanned<String>,
        /// The whole comparison: `sm >= 90`.
        text: String,
        /// Where the value was written.
        value: Span,
    },
}

/// What a rule does.
#[derive(Debug, Clone, PartialEq)]
pub enum RawAction {
    /// Puts kernels into a list.
    List(List, String),
    /// This kernel or an error.
    Lock(String),
    /// This kernel first, as long as it can run the call.
    Override(String),
    /// Points for kernels of this pattern.
    Boost(String, f64),
    /// Only kernels for which an expression over their own properties holds.
    Filter(Expression),
}
