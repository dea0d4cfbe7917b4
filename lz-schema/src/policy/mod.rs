//! The parsed form of policy files: settings, locks, lists, rules and profiles, with spans.
//!
//! This module checks only the structure of a policy. The engine checks whether operations, kernels and names in conditions
//! exist.

mod json;
mod kernels;
mod read;
mod settings;

pub use json::PolicySchema;
pub use read::read;
pub use settings::{
    Kind, NAMING_CODE, SETTINGS, SYNONYMS, Setting, SettingValue, WITHOUT_EFFECT, without_effect,
};

use crate::raw::Expression;
use crate::source::{Span, Spanned};

/// One file, or one profile of it.
#[derive(Debug, Clone, Default)]
pub struct PolicyFile {
    /// Settings, in the order of the file.
    pub settings: Vec<SettingEntry>,
    /// `operation: kernel`.
    pub locks: Vec<(Spanned<String>, Spanned<String>)>,
    /// Entries of lists.
    pub lists: Vec<(List, Spanned<String>)>,
    /// Conditional rules.
    pub rules: Vec<RawRule>,
    /// Keys that nothing reads, each with the reason.
    pub ignored: Vec<(Spanned<String>, &'static str)>,
    /// Named profiles; profiles do not nest.
    pub profiles: Vec<(Spanned<String>, PolicyFile)>,
}

/// A setting and its value.
#[derive(Debug, Clone)]
pub struct SettingEntry {
    /// The setting.
    pub setting: &'static Setting,
    /// Its value.
    pub value: SettingValue,
    /// The span of the value.
    pub span: Span,
}

/// The lists of kernels and backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// Only these kernels are allowed.
    Allow,
    /// These kernels are forbidden.
    Deny,
    /// These kernels are preferred.
    Prefer,
    /// These kernels are avoided.
    Avoid,
}

impl List {
    /// All lists, each with its keys for patterns of kernels and for names of backends.
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

/// A parsed rule.
#[derive(Debug, Clone, Default)]
pub struct RawRule {
    /// Its span.
    pub span: Span,
    /// Its name.
    pub name: Option<Spanned<String>>,
    /// The operations or aliases that it applies to; `None` for all.
    pub operation: Option<Spanned<String>>,
    /// Whether an unknown operation is a warning: the rule is an entry of `kernels`.
    pub is_lenient: bool,
    /// Its conditions, all of which must be true.
    pub conditions: Vec<RawCondition>,
    /// Its actions.
    pub actions: Vec<Spanned<RawAction>>,
}

/// One condition of a rule.
#[derive(Debug, Clone)]
pub enum RawCondition {
    /// `condition: "batch_size >= 8"`.
    Text(Expression),
    /// One entry of `match:`, converted to an expression.
    Match {
        /// The name.
        key: Spanned<String>,
        /// The comparison: `sm >= 90`.
        text: String,
        /// The span of the value.
        value: Span,
    },
}

/// An action of a rule.
#[derive(Debug, Clone, PartialEq)]
pub enum RawAction {
    /// Adds kernels to a list.
    List(List, String),
    /// Only this kernel; an error if it cannot run the call.
    Lock(String),
    /// This kernel is preferred over all others if it can run the call.
    Override(String),
    /// Added to the score of kernels that match the pattern.
    Boost(String, f64),
    /// Only kernels whose properties satisfy an expression.
    Filter(Expression),
}
