//! The context of one call: everything selection may look at, packed by generated code without allocating.
//!
//! A context has three parts. *Flags* are small exact fields (dtypes, presence, bools, enums, stride classes, place)
//! packed into words. *Axes* are sizes, exact here; the cache decides what shares a bucket. *Scalars* are numeric params,
//! seen by limits and rules but not part of a key unless some limit looks at them.
//! [`Field`]s say where each thing is, so the engine can read any operation's context.

use std::borrow::Cow;

use lz_schema::DType;
use lz_schema::expr::Value;

use crate::tensor::{Place, TensorView};

/// Words of flags.
pub const FLAG_WORDS: usize = lz_schema::layout::FLAG_WORDS as usize;
pub use lz_schema::layout::{MAX_AXES, MAX_SCALARS};

/// Everything selection may look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Small exact fields.
    pub flags: [u64; FLAG_WORDS],
    /// Sizes, in the schema's order; a pack is its product.
    pub axes: [i64; MAX_AXES],
    /// Bits of numeric params (i64 or f64), in the schema's order of numeric params.
    pub scalars: [u64; MAX_SCALARS],
}

impl Context {
    /// Nothing known.
    pub const EMPTY: Context =
        Context { flags: [0; FLAG_WORDS], axes: [0; MAX_AXES], scalars: [0; MAX_SCALARS] };

    /// Writes small bits into a flag word. Generated code calls it with constants, so it folds away.
    #[inline(always)]
    pub fn put(&mut self, word: usize, shift: u32, bits: u64) {
        self.flags[word] |= bits << shift;
    }

    /// Reads a field's raw bits.
    #[inline]
    pub fn raw(&self, store: Store) -> u64 {
        match store {
            Store::Flag { word, shift, bits } => {
                (self.flags[usize::from(word) % FLAG_WORDS] >> shift) & ((1u64 << bits) - 1)
            }
            Store::Axis(index) => self.axes[usize::from(index) % MAX_AXES] as u64,
            Store::Scalar(index) => self.scalars[usize::from(index) % MAX_SCALARS],
        }
    }

    /// Replaces a field's raw bits; `false` if they do not fit.
    #[must_use]
    pub fn replace(&mut self, store: Store, raw: u64) -> bool {
        match store {
            Store::Flag { word, shift, bits } => {
                let mask = (1u64 << bits) - 1;
                let word = &mut self.flags[usize::from(word) % FLAG_WORDS];
                *word = *word & !(mask << shift) | (raw & mask) << shift;
                raw & mask == raw
            }
            Store::Axis(index) => {
                self.axes[usize::from(index) % MAX_AXES] = raw as i64;
                true
            }
            Store::Scalar(index) => {
                self.scalars[usize::from(index) % MAX_SCALARS] = raw;
                true
            }
        }
    }

    /// Reads a field as a value of the expression language.
    pub fn value(&self, field: &Field) -> Value {
        let raw = self.raw(field.store);
        match field.kind {
            FieldKind::Axis { .. } | FieldKind::Int => Value::Int(raw as i64),
            FieldKind::Float => Value::Float(f64::from_bits(raw)),
            FieldKind::Bool | FieldKind::Given => Value::Bool(raw != 0),
            FieldKind::Enum(_) | FieldKind::DType => Value::Enum(raw as u32),
            FieldKind::Strides | FieldKind::Place | FieldKind::Digest => Value::Int(raw as i64),
        }
    }
}

/// Where a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// In a flag word.
    Flag {
        /// Which word.
        word: u8,
        /// Lowest bit.
        shift: u8,
        /// How many bits, below 64.
        bits: u8,
    },
    /// An axis.
    Axis(u8),
    /// A numeric param.
    Scalar(u8),
}

/// What a field is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldKind {
    /// Size of an axis; how the cache may share decisions.
    Axis {
        /// Upper bounds of buckets; `None` for exact. Empty for one bucket (ignored by scoring).
        buckets: Option<Cow<'static, [i64]>>,
    },
    /// Integer param.
    Int,
    /// Float param.
    Float,
    /// Bool param.
    Bool,
    /// Enum param and its cases.
    Enum(Cow<'static, [Cow<'static, str>]>),
    /// Whether an optional input was passed.
    Given,
    /// Dtype variable: 0 when unbound, else the dtype's number.
    DType,
    /// [`stride_class`] of a tensor, input or output; 0 for an absent input, [`FRESH_OUTPUT`] for an output that is not given.
    Strides,
    /// [`place_bits`].
    Place,
    /// 60 bits of a handle's digest.
    Digest,
}

/// One field of a context.
///
/// An operation's fields begin with its expression slots in order (axes, params, `given`), so that a variable's index in an
/// expression is the index of its field; dtype variables, stride classes and the place follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name as the schema has it (`given(mask)`, `strides(q)` for derived ones).
    pub name: Cow<'static, str>,
    /// What it is.
    pub kind: FieldKind,
    /// Where it is.
    pub store: Store,
}

/// Six bits about a tensor's strides and alignment: bit 0 set for present, bit 1 dense row-major, bit 2 dense last dimension, bits 3–5 the
/// alignment of its address as a power of two from 1 to 64 (7 is never used).
#[inline]
pub fn stride_class(view: &TensorView<'_>) -> u64 {
    let contiguous = u64::from(view.layout().is_contiguous());
    let last = u64::from(view.layout().last_is_dense());
    let alignment = u64::from(view.address().trailing_zeros().min(6));
    1 | contiguous << 1 | last << 2 | alignment << 3
}

/// The [`stride_class`] of an output that is allocated for the call: dense and aligned. An output that the call does not
/// produce counts as one, so that it makes no difference.
pub const FRESH_OUTPUT: u64 = 1 | 1 << 1 | 1 << 2 | 6 << 3;

/// A place in eleven bits: platform and device number.
#[inline]
pub fn place_bits(place: Place) -> u64 {
    place.platform as u64 | (u64::from(place.index) & 0xff) << 3
}

/// The dtype of a [`FieldKind::DType`] field's raw bits.
pub fn dtype_of(raw: u64) -> Option<DType> {
    DType::from_number(u8::try_from(raw).ok()?)
}

/// The part of a handle's digest that goes into a context; the whole digest is compared by whoever caches by handle.
#[inline]
pub fn digest_bits(digest: &[u8; 32]) -> u64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(word) >> 4
}
