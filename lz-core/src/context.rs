//! The context of one call: everything selection may look at, packed by generated code without allocating.
//!
//! A context has three parts, one after the other in one row of words. *Flags* are small exact fields (dtypes, presence,
//! bools, enums, stride classes, place) packed into words. *Axes* are sizes, exact here; the cache decides what shares a
//! bucket. *Scalars* are numeric params, seen by limits and rules but not part of a key unless some limit looks at them.
//! How long each part is depends on the operation ([`Extent`]); words beyond that are neither written nor read, because
//! building and comparing contexts is most of what a remembered decision costs.
//! [`Field`]s say where each thing is, so the engine can read any operation's context.

use std::borrow::Cow;
use std::fmt;
use std::mem::MaybeUninit;

use lz_schema::DType;
use lz_schema::expr::Value;

use crate::tensor::{Place, TensorView};

/// Words of flags.
pub const FLAG_WORDS: usize = lz_schema::layout::FLAG_WORDS as usize;
pub use lz_schema::layout::{MAX_AXES, MAX_SCALARS};
/// The most words that a context can have.
pub const MAX_WORDS: usize = FLAG_WORDS + MAX_AXES + MAX_SCALARS;

/// How many words each part of an operation's contexts has: a byte each, and one for all of them together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Extent(u32);

impl Extent {
    /// No words at all.
    pub const NONE: Extent = Extent::new(0, 0, 0);

    /// So many words of flags, axes and scalars; what there is no room for is left out.
    pub const fn new(flags: usize, axes: usize, scalars: usize) -> Extent {
        let flags = if flags < FLAG_WORDS { flags } else { FLAG_WORDS };
        let axes = if axes < MAX_AXES { axes } else { MAX_AXES };
        let scalars = if scalars < MAX_SCALARS { scalars } else { MAX_SCALARS };
        Extent(((flags + axes + scalars) | flags << 8 | axes << 16 | scalars << 24) as u32)
    }

    /// What these places take.
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

    /// Words in all.
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

    /// Where a word of a store is, if there is one.
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

/// Everything selection may look at.
#[derive(Clone, Copy)]
pub struct Context {
    extent: Extent,
    /// The first `extent.words()` are written; the others are not.
    words: [MaybeUninit<u64>; MAX_WORDS],
}

impl Context {
    /// Nothing known, of no operation.
    pub const EMPTY: Context = Context::unwritten(Extent::NONE);

    /// A context whose words are still to be written, as many as the extent says, before anybody sees it.
    #[inline(always)]
    const fn unwritten(extent: Extent) -> Context {
        Context { extent, words: [const { MaybeUninit::uninit() }; MAX_WORDS] }
    }

    /// Nothing known of a call with these fields: all zero.
    pub fn of(fields: &[Field]) -> Context {
        Context::blank(Extent::of(fields.iter().map(|field| field.store)))
    }

    /// As many words of zero as the extent says.
    pub fn blank(extent: Extent) -> Context {
        let mut context = Context::unwritten(extent);
        for word in context.words.iter_mut().take(context.extent.words()) {
            word.write(0);
        }
        context
    }

    /// From all words of an operation's context, in order. Generated code calls it with as many words as the extent has; if
    /// there are fewer, the context has none.
    #[inline(always)]
    pub fn packed<const WORDS: usize>(extent: Extent, words: [u64; WORDS]) -> Context {
        let extent = if extent.words() <= WORDS { extent } else { Extent::NONE };
        let mut context = Context::unwritten(extent);
        for (place, word) in context.words.iter_mut().zip(words) {
            place.write(word);
        }
        context
    }

    /// How long its parts are.
    #[inline]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// All words: flags, axes, scalars.
    #[inline]
    pub fn words(&self) -> &[u64] {
        // SAFETY: every constructor writes as many words as the extent says, which is at most all of them, and nothing
        // takes a word back; a written `MaybeUninit<u64>` is a `u64`.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.extent.words()) }
    }

    /// Words of flags, of axes and of scalars. They are on the way of every call, so that no bound is checked again.
    #[inline(always)]
    fn three(&self) -> (&[u64], &[u64], &[u64]) {
        let (flags, axes, scalars) = (self.extent.flags(), self.extent.axes(), self.extent.scalars());
        let first: *const u64 = self.words.as_ptr().cast();
        // SAFETY: an extent is only made by `Extent::new`, where the parts together are its words, one after the other; and
        // as many words as the extent says are written, as above.
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
        self.three().0
    }

    /// Sizes, in the schema's order; a pack is its product. To be read as `i64`.
    #[inline(always)]
    pub fn axes(&self) -> &[u64] {
        self.three().1
    }

    /// Numeric params.
    #[inline(always)]
    pub fn numbers(&self) -> &[u64] {
        self.three().2
    }

    /// Flags and axes: all that tells cells apart.
    #[inline(always)]
    pub fn sized(&self) -> &[u64] {
        let length = self.extent.flags() + self.extent.axes();
        // SAFETY: as in `three`: flags and axes are the first of the words that are written.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), length) }
    }

    /// Reads a field's raw bits; 0 for one that the context has no word for.
    #[inline]
    pub fn raw(&self, store: Store) -> u64 {
        match store {
            Store::Flag { word, .. } => {
                store.bits_of(self.flags().get(usize::from(word)).copied().unwrap_or_default())
            }
            Store::Axis(index) => self.axes().get(usize::from(index)).copied().unwrap_or_default(),
            Store::Scalar(index) => self.numbers().get(usize::from(index)).copied().unwrap_or_default(),
        }
    }

    /// Writes a field's raw bits; one that the context has no word for is not written.
    #[inline]
    pub fn set(&mut self, store: Store, raw: u64) {
        let _ = self.replace(store, raw);
    }

    /// Replaces a field's raw bits; `false` if they do not fit or there is no word for them.
    #[must_use]
    #[inline]
    pub fn replace(&mut self, store: Store, raw: u64) -> bool {
        let Some(place) = self.extent.position(store).and_then(|position| self.words.get_mut(position))
        else {
            return false;
        };
        match store {
            Store::Flag { shift, bits, .. } => {
                let mask = (1u64 << bits) - 1;
                // SAFETY: a position within the extent is a word that a constructor has written.
                let before = unsafe { place.assume_init() };
                place.write(before & !(mask << shift) | (raw & mask) << shift);
                raw & mask == raw
            }
            Store::Axis(_) | Store::Scalar(_) => {
                place.write(raw);
                true
            }
        }
    }

    /// Reads a field as a value of the expression language.
    #[inline]
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
/// alignment of its address as a power of two from 1 to 64; 7 is [`FRESH_OUTPUT`]'s. A view knows its own.
#[inline]
pub fn stride_class(view: &TensorView<'_>) -> u64 {
    view.stride_class()
}

/// The [`stride_class`] of an output that is allocated for the call: dense, and aligned as no given one is, so that the two can
/// be told apart. An output that the call does not produce counts as one, so that it makes no difference.
pub const FRESH_OUTPUT: u64 = 1 | 1 << 1 | 1 << 2 | FRESH_ALIGNMENT << 3;

/// The alignment of [`FRESH_OUTPUT`].
pub const FRESH_ALIGNMENT: u64 = 7;

/// A place in eleven bits: platform and device number.
#[inline]
pub fn place_bits(place: Place) -> u64 {
    place.platform as u64 | (u64::from(place.index) & 0xff) << 3
}

/// The dtype of a [`FieldKind::DType`] field's raw bits.
#[inline]
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
