//! Patterns over names: `flashinfer.*`, `*_experimental`, `attention.mla.decode`.

use std::fmt;

use lz_core::kernel::KernelEntry;
use serde::{Serialize, Serializer};

/// A name in which `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern(String);

impl Pattern {
    /// Parses a pattern; surrounding blanks are ignored.
    pub fn new(text: &str) -> Pattern {
        Pattern(text.trim().to_owned())
    }

    /// The pattern that matches every name.
    pub fn any() -> Pattern {
        Pattern("*".to_owned())
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a plain name.
    pub fn is_exact(&self) -> bool {
        !self.0.contains('*')
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        let mut pieces = self.0.split('*');
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let mut last = None;
        for piece in pieces {
            if let Some(middle) = last.replace(piece) {
                let Some(found) = rest.find(middle) else { return false };
                rest = &rest[found + middle.len()..];
            }
        }
        match last {
            None => rest.is_empty(),
            Some(end) => rest.len() >= end.len() && rest.ends_with(end),
        }
    }

    /// Whether it names versions of kernels: `vendor.norm.rms@2.0`.
    pub fn names_version(&self) -> bool {
        self.0.contains('@')
    }

    /// Whether a kernel matches, by its id or by its backend. A pattern with a version matches that version only, a pattern
    /// without one matches all versions.
    pub fn matches_kernel(&self, entry: &KernelEntry) -> bool {
        let spec = &entry.spec;
        self.matches(&spec.id)
            || self.matches(&spec.backend)
            || match &entry.version_of {
                Some(stable) => !self.names_version() && self.matches(stable),
                None => self.names_version() && self.matches(&format!("{}@{}", spec.id, spec.version)),
            }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_text() {
        let yes = [
            ("a.b", "a.b"),
            ("a.*", "a.b.c"),
            ("*_experimental", "x_experimental"),
            ("a*b*c", "a1b2b3c"),
            ("*", ""),
            ("**", "x"),
            ("a*a", "aa"),
        ];
        for (pattern, name) in yes {
            assert!(Pattern::new(pattern).matches(name), "{pattern} {name}");
        }
        let no = [("a.b", "a.b.c"), ("a*a", "a"), ("a*b*c", "acb"), ("*x", "y"), ("", "a"), ("a.*", "b.a.")];
        for (pattern, name) in no {
            assert!(!Pattern::new(pattern).matches(name), "{pattern} {name}");
        }
    }
}
