//! The context of one call: everything that selection may depend on, packed by generated code without allocation.
//!
//! A context is a row of words with three parts. *Flags* are small exact fields (dtypes, presence, bools, enums, stride classes,
//! device) packed into words. *Axes* are exact sizes, and behind them statistics of values; the cache maps both to cells. *Scalars*
//! are numeric params, visible to limits and rules, and part of a cache key only if one of those reads them.
//! The length of each part depends on the operation ([`Extent`]); words beyond it are neither written nor read, because building
//! and comparing contexts dominates the cost of a thread-cache hit.
//! [`Field`]s describe where each value is stored, so that the engine can read the context of any operation.

use std::borrow::Cow;
use std::fmt;
use std::mem::MaybeUninit;

use lz_schema::DType;
use lz_schema::expr::Value;

use crate::tensor::{Device, TensorView};

/// Words of flags.
pub const FLAG_WORDS: usize = lz_schema::layout::FLAG_WORDS as usize;
pub use lz_schema::layout::{MAX_AXES, MAX_SCALARS};
/// Maximum number of words of a context.
pub const MAX_WORDS: usize = FLAG_WORDS + MAX_AXES + MAX_SCALARS;

/// The number of words of each part of an operation's contexts: one byte per part, and one for the sum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Extent(u32);

impl Extent {
    /// No words at all.
    pub const NONE: Extent = Extent::new(0, 0, 0);

    /// Numbers of words of flags, axes and scalars, clamped to the maximum.
    pub const fn new(flags: usize, axes: usize, scalars: usize) -> Extent {
        let flags = if flags < FLAG_WORDS { flags } else { FLAG_WORDS };
        let axes = if axes < MAX_AXES { axes } else { MAX_AXES };
        let scalars = if scalars < MAX_SCALARS { scalars } else { MAX_SCALARS };
        Extent(((flags + axes + scalars) | flags << 8 | axes << 16 | scalars << 24) as u32)
    }

    /// The extent that covers these stores.
    pub fn of(stores: impl IntoIterator<Item = Store>) -> Extent {
        let (mut flags, mut axes, mut scalars) = (0, 0, 0);
        for store in stores {
            match store {
                Store::Flag { word, .. } => flags = flags.max(usize::from(word) + 1),
                Store::Axis(index) => axes = axes.max(usize::from(index) + 1),
                Store::Scalar(index) => scalars = scalars.max(usize::from(index) + 1),
            }
        }
        Extent::new(flags, axes, scalars)
    }

    /// Total number of words.
    #[inline(always)]
    pub const fn words(self) -> usize {
        (self.0 & 0xff) as usize
    }

    /// Words of flags.
    #[inline(always)]
    pub const fn flags(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    /// Axes.
    #[inline(always)]
    pub const fn axes(self) -> usize {
        (self.0 >> 16 & 0xff) as usize
    }

    /// Numeric params.
    #[inline(always)]
    pub const fn scalars(self) -> usize {
        (self.0 >> 24) as usize
    }

    /// The word index of a store, if it is within the extent.
    #[inline]
    fn position(self, store: Store) -> Option<usize> {
        let (first, length, index) = match store {
            Store::Flag { word, .. } => (0, self.flags(), word),
            Store::Axis(index) => (self.flags(), self.axes(), index),
            Store::Scalar(index) => (self.flags() + self.axes(), self.scalars(), index),
        };
        (usize::from(index) < length).then_some(first + usize::from(index))
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} flags, {} axes, {} scalars", self.flags(), self.axes(), self.scalars())
    }
}

/// Everything that selection may depend on.
#[derive(Clone, Copy)]
pub struct Context {
    extent: Extent,
    /// The first `extent.words()` are written; the others are not.
    words: [MaybeUninit<u64>; MAX_WORDS],
}

impl Context {
    /// An empty context of no operation.
    pub const EMPTY: Context = Context::unwritten(Extent::NONE);

    /// A context whose words must be written, up to the extent, before it is used.
    #[inline(always)]
    const fn unwritten(extent: Extent) -> Context {
        Context { extent, words: [const { MaybeUninit::uninit() }; MAX_WORDS] }
    }

    /// A context with these fields, all zero.
    pub fn of(fields: &[Field]) -> Context {
        Context::blank(Extent::of(fields.iter().map(|field| field.store)))
    }

    /// A context of this extent, all zero.
    pub fn blank(extent: Extent) -> Context {
        let mut context = Context::unwritten(extent);
        for word in context.words.iter_mut().take(context.extent.words()) {
            word.write(0);
        }
        context
    }

    /// From all words of an operation's context, in order. Generated code passes as many words as the extent has; with fewer, the
    /// context is empty.
    #[inline(always)]
    pub fn packed<const WORDS: usize>(extent: Extent, words: [u64; WORDS]) -> Context {
        let extent = if extent.words() <= WORDS { extent } else { Extent::NONE };
        let mut context = Context::unwritten(extent);
        for (slot, word) in context.words.iter_mut().zip(words) {
            slot.write(word);
        }
        context
    }

    /// The number of words of each part.
    #[inline]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// All words: flags, axes, scalars.
    #[inline]
    pub fn words(&self) -> &[u64] {
        // SAFETY: every constructor writes `extent.words()` words, at most `MAX_WORDS`, and nothing
        // uninitializes one; a written `MaybeUninit<u64>` is a `u64`.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.extent.words()) }
    }

    /// Flags, axes and scalars. On the hit path, so without bounds checks.
    #[inline(always)]
    fn parts(&self) -> (&[u64], &[u64], &[u64]) {
        let (flags, axes, scalars) = (self.extent.flags(), self.extent.axes(), self.extent.scalars());
        let first: *const u64 = self.words.as_ptr().cast();
        // SAFETY: an extent is only created by `Extent::new`, where the parts are adjacent and their sum is the number of words; and
        // that many words are written, as above.
        unsafe {
            (
                std::slice::from_raw_parts(first, flags),
                std::slice::from_raw_parts(first.add(flags), axes),
                std::slice::from_raw_parts(first.add(flags + axes), scalars),
            )
        }
    }

    /// Words of flags.
    #[inline(always)]
    pub fn flags(&self) -> &[u64] {
        self.parts().0
    }

    /// Sizes, in the schema's order, then statistics; a pack is its product. To be interpreted as `i64`.
    #[inline(always)]
    pub fn axes(&self) -> &[u64] {
        self.parts().1
    }

    /// Numeric params.
    #[inline(always)]
    pub fn scalars(&self) -> &[u64] {
        self.parts().2
    }

    /// Flags and axes: the words that determine the cell.
    #[inline(always)]
    pub fn cell_words(&self) -> &[u64] {
        let length = self.extent.flags() + self.extent.axes();
        // SAFETY: as in `parts`: flags and axes are the first of the written words.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), length) }
    }

    /// Reads a field's raw bits; 0 if it is outside the extent.
    #[inline]
    pub fn raw(&self, store: Store) -> u64 {
        match store {
            Store::Flag { word, .. } => {
                store.bits_of(self.flags().get(usize::from(word)).copied().unwrap_or_default())
            }
            Store::Axis(index) => self.axes().get(usize::from(index)).copied().unwrap_or_default(),
            Store::Scalar(index) => self.scalars().get(usize::from(index)).copied().unwrap_or_default(),
        }
    }

    /// Writes a field's raw bits; ignored if it is outside the extent.
    #[inline]
    pub fn set(&mut self, store: Store, raw: u64) {
        let _ = self.replace(store, raw);
    }

    /// Replaces a field's raw bits; `false` if they do not fit or the field is outside the extent.
    #[must_use]
    #[inline]
    pub fn replace(&mut self, store: Store, raw: u64) -> bool {
        let Some(slot) = self.extent.position(store).and_then(|position| self.words.get_mut(position)) else {
            return false;
        };
        match store {
            Store::Flag { shift, bits, .. } => {
                let mask = (1u64 << bits) - 1;
                // SAFETY: a position within the extent was written by a constructor.
                let before = unsafe { slot.assume_init() };
                slot.write(before & !(mask << shift) | (raw & mask) << shift);
                raw & mask == raw
            }
            Store::Axis(_) | Store::Scalar(_) => {
                slot.write(raw);
                true
            }
        }
    }

    /// Reads a field as a value of the expression language.
    #[inline]
    pub fn value(&self, field: &Field) -> Value {
        let raw = self.raw(field.store);
        match field.kind {
            FieldKind::Axis { .. } | FieldKind::Statistic { .. } | FieldKind::Int => Value::Int(raw as i64),
            FieldKind::Float => Value::Float(f64::from_bits(raw)),
            FieldKind::Bool | FieldKind::Given => Value::Bool(raw != 0),
            FieldKind::Enum(_) | FieldKind::DType => Value::Enum(raw as u32),
            FieldKind::Strides | FieldKind::Device | FieldKind::Digest => Value::Int(raw as i64),
        }
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Context) -> bool {
        self.extent == other.extent && self.words() == other.words()
    }
}

impl Eq for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("extent", &self.extent).field("words", &self.words()).finish()
    }
}

/// Where a field is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// In a flag word.
    Flag {
        /// Index of the word.
        word: u8,
        /// Lowest bit.
        shift: u8,
        /// Number of bits, below 64.
        bits: u8,
    },
    /// An axis or a statistic.
    Axis(u8),
    /// A numeric param.
    Scalar(u8),
}

impl Store {
    /// The field's bits out of its word.
    #[inline]
    fn bits_of(self, word: u64) -> u64 {
        match self {
            Store::Flag { shift, bits, .. } => (word >> shift) & ((1u64 << bits) - 1),
            Store::Axis(_) | Store::Scalar(_) => word,
        }
    }
}

/// The kind of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldKind {
    /// Size of an axis.
    Axis {
        /// Upper bounds of buckets; `None` for exact. Empty for one bucket (ignored by scoring).
        buckets: Option<Cow<'static, [i64]>>,
    },
    /// Statistic of the values of an input; −1 if unknown.
    Statistic {
        /// Upper bounds of buckets; the first is −1.
        bounds: Cow<'static, [i64]>,
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
    /// Dtype variable: 0 if unbound, else the number of the dtype.
    DType,
    /// [`stride_class`] of an input or output tensor; 0 for an absent input, [`FRESH_OUTPUT`] for an output that is allocated.
    Strides,
    /// [`device_bits`]: the device of the tensors.
    Device,
    /// 60 bits of a handle's digest.
    Digest,
}

impl FieldKind {
    /// For an axis or a statistic, the upper bounds of its buckets: `Some(None)` if every size is a bucket.
    pub fn buckets(&self) -> Option<Option<&[i64]>> {
        match self {
            FieldKind::Axis { buckets } => Some(buckets.as_deref()),
            FieldKind::Statistic { bounds } => Some(Some(bounds)),
            _ => None,
        }
    }
}

/// One field of a context.
///
/// An operation's fields begin with its expression slots in order (axes, params, `given`), so that a variable's index in an
/// expression is the index of its field; dtype variables, stride classes and the device follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name in the schema (`given(mask)`, `strides(q)` for derived ones).
    pub name: Cow<'static, str>,
    /// Its kind.
    pub kind: FieldKind,
    /// Where it is stored.
    pub store: Store,
}

/// Six bits about a tensor's strides and alignment: bit 0 present, bit 1 dense row-major, bit 2 dense last dimension, bits 3–5 the
/// alignment of its address as a power of two from 1 to 64; 7 is reserved for [`FRESH_OUTPUT`].
#[inline]
pub fn stride_class(view: &TensorView<'_>) -> u64 {
    view.stride_class()
}

/// The [`stride_class`] of an output that is allocated for the call: dense, with an alignment value that no given output has. An
/// output that the call does not produce has the same class.
pub const FRESH_OUTPUT: u64 = 1 | 1 << 1 | 1 << 2 | FRESH_ALIGNMENT << 3;

/// The alignment of [`FRESH_OUTPUT`].
pub const FRESH_ALIGNMENT: u64 = 7;

/// A device in eleven bits: platform and device index.
#[inline]
pub fn device_bits(device: Device) -> u64 {
    device.platform as u64 | (u64::from(device.index) & 0xff) << 3
}

/// The dtype of a [`FieldKind::DType`] field's raw bits.
#[inline]
pub fn dtype_of(raw: u64) -> Option<DType> {
    DType::from_number(u8::try_from(raw).ok()?)
}

/// The part of a handle's digest that is stored in a context; callers that cache by handle compare the whole digest.
#[inline]
pub fn digest_bits(digest: &[u8; 32]) -> u64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(word) >> 4
}
