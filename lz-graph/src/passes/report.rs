//! What passes did, for `explain`.

use std::fmt;
use std::sync::Arc;

use super::{Tolerance, names};
use crate::graph::Origin;

/// One replacement.
#[derive(Debug, Clone)]
pub struct Rewrite {
    /// The pass.
    pub pass: &'static str,
    /// Where the replaced nodes came from, the result first.
    pub replaced: Vec<Arc<Origin>>,
    /// The new node: its operation, or its kind.
    pub by: String,
    /// How much values may differ.
    pub tolerance: Tolerance,
}

/// What passes did.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Replacements, in order.
    pub rewrites: Vec<Rewrite>,
    /// Rounds over all passes; the last one changed nothing.
    pub rounds: usize,
    /// Whether the limit on rounds stopped the passes before a fixed point.
    pub stopped: bool,
    /// Passes that verification could not run, and why.
    pub unverified: Vec<String>,
}

impl Report {
    /// Replacements per pass, in the order of the passes; passes without any are left out.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let count = |name| self.rewrites.iter().filter(|rewrite| rewrite.pass == name).count();
        names().map(|name| (name, count(name))).filter(|(_, count)| *count > 0).collect()
    }

    /// The largest tolerance of a rewrite that was applied.
    pub fn tolerance(&self) -> Tolerance {
        self.rewrites.iter().map(|rewrite| rewrite.tolerance).max().unwrap_or(Tolerance::Exact)
    }
}

impl fmt::Display for Rewrite {
    /// `attention: attention.gqa.prefill replaces aten.matmul, aten.softmax`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} replaces ", self.pass, self.by)?;
        for (index, origin) in self.replaced.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{origin}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> =
            self.counts().iter().map(|(name, count)| format!("{name} {count}")).collect();
        write!(
            f,
            "{} rounds: {}",
            self.rounds,
            if counts.is_empty() { "nothing".to_owned() } else { counts.join(", ") }
        )
    }
}
