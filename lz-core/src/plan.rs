//! The result of selection: a kernel, its conversions, its workspace and its fallbacks.
//!
//! A plan is data, independent of how it was made and how it is run.

use std::fmt;

use serde::{Serialize, Serializer};

/// A conversion that a kernel's adapter can do before the kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TransformKind {
    /// The order of dimensions.
    Layout = 1,
    /// Strided tensors into dense ones.
    Contiguous = 2,
    /// Unaligned addresses into aligned ones, by copying.
    Align = 4,
    /// Element types; only used in plans of several operations, if the policy or the caller allows it.
    Dtype = 8,
    /// The result into `out`, by copying; only for kernels that cannot write into `out`.
    Output = 16,
}

impl TransformKind {
    /// Every transform.
    pub const ALL: [TransformKind; 5] = [
        TransformKind::Layout,
        TransformKind::Contiguous,
        TransformKind::Align,
        TransformKind::Dtype,
        TransformKind::Output,
    ];

    /// The name used in descriptors and explanations.
    pub const fn name(self) -> &'static str {
        match self {
            TransformKind::Layout => "layout",
            TransformKind::Contiguous => "contiguous",
            TransformKind::Align => "align",
            TransformKind::Dtype => "dtype",
            TransformKind::Output => "output",
        }
    }

    /// The transform of this name.
    pub fn from_name(name: &str) -> Option<TransformKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A set of transforms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transforms(u8);

impl Transforms {
    /// Nothing to convert.
    pub const NONE: Transforms = Transforms(0);

    /// This set and one more.
    #[must_use]
    pub const fn with(self, kind: TransformKind) -> Transforms {
        Transforms(self.0 | kind as u8)
    }

    /// Whether it is in the set.
    #[inline]
    pub const fn contains(self, kind: TransformKind) -> bool {
        self.0 & kind as u8 != 0
    }

    /// How many there are.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The transforms, in a fixed order.
    pub fn iter(self) -> impl Iterator<Item = TransformKind> {
        TransformKind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<TransformKind> for Transforms {
    fn from_iter<I: IntoIterator<Item = TransformKind>>(kinds: I) -> Transforms {
        kinds.into_iter().fold(Transforms::NONE, Transforms::with)
    }
}

impl fmt::Display for Transforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, kind) in self.iter().enumerate() {
            if position > 0 {
                f.write_str(", ")?;
            }
            f.write_str(kind.name())?;
        }
        Ok(())
    }
}

impl Serialize for Transforms {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(TransformKind::name))
    }
}

/// The plan of one call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The kernel's id.
    pub kernel: String,
    /// Conversions by its adapter.
    pub transforms: Transforms,
    /// Score penalty of the conversions.
    pub transform_cost: f64,
    /// Workspace in bytes.
    pub workspace_bytes: u64,
    /// Its score.
    pub score: f64,
    /// Fallbacks, best first; empty if policy disables them.
    pub fallbacks: Vec<String>,
    /// How the call is split if it is too large for every kernel; the other fields then describe one part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
}

/// How a call is split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Split {
    /// The axis.
    pub axis: String,
    /// Its size.
    pub size: i64,
    /// The maximum size of a part.
    pub part: i64,
    /// The number of parts.
    pub parts: i64,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Split { axis, size, part, parts } = self;
        write!(f, "{axis} {size} is split into {parts} parts of up to {part}")
    }
}
