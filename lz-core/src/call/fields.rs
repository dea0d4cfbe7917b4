//! Constructors of context fields, short enough for tables with one line per field.

use std::borrow::Cow;

use crate::context::{Field, FieldKind, Store};

impl Field {
    /// An axis; without buckets every size is a case of its own.
    pub const fn axis(name: &'static str, index: u8, buckets: Option<&'static [i64]>) -> Field {
        let buckets = match buckets {
            Some(bounds) => Some(Cow::Borrowed(bounds)),
            None => None,
        };
        let kind = FieldKind::Axis { buckets };
        Field { name: Cow::Borrowed(name), kind, store: Store::Axis(index) }
    }

    /// A statistic of values with these bounds of buckets.
    pub const fn statistic(name: &'static str, index: u8, bounds: &'static [i64]) -> Field {
        let kind = FieldKind::Statistic { bounds: Cow::Borrowed(bounds) };
        Field { name: Cow::Borrowed(name), kind, store: Store::Axis(index) }
    }

    /// A numeric parameter.
    pub const fn scalar(name: &'static str, kind: FieldKind, index: u8) -> Field {
        Field { name: Cow::Borrowed(name), kind, store: Store::Scalar(index) }
    }

    /// Bits of a flag word.
    pub const fn flag(name: &'static str, kind: FieldKind, word: u8, shift: u8, bits: u8) -> Field {
        Field { name: Cow::Borrowed(name), kind, store: Store::Flag { word, shift, bits } }
    }

    /// An enum parameter with these cases, in bits of a flag word.
    pub const fn cases(
        name: &'static str,
        cases: &'static [Cow<'static, str>],
        word: u8,
        shift: u8,
        bits: u8,
    ) -> Field {
        Field::flag(name, FieldKind::Enum(Cow::Borrowed(cases)), word, shift, bits)
    }
}
