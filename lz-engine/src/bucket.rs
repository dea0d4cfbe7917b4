//! The bucket of a call: the key of measurements and failures.
//!
//! A bucket depends on the schema only, never on the registered kernels, so that stored rows stay valid. Decisions are cached by
//! finer cells; a cell never spans two buckets.

use lz_core::context::{Context, FLAG_WORDS, FieldKind, MAX_AXES, Store};
use lz_core::operation::OperationInfo;

/// The words of a bucket, without allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    words: [u64; FLAG_WORDS + MAX_AXES],
    length: usize,
}

/// How an operation's calls map to buckets, precomputed from its fields.
#[derive(Debug)]
pub(crate) struct BucketForm<'a> {
    /// Flags without device, digests and alignments.
    mask: [u64; FLAG_WORDS],
    /// Axes and statistics by number, with their bucket bounds; without bounds every size is a bucket.
    axes: Vec<(u8, Option<&'a [i64]>)>,
    /// The words of statistics.
    statistics: Vec<usize>,
    length: usize,
}

impl<'a> BucketForm<'a> {
    pub fn new(operation: &'a OperationInfo) -> BucketForm<'a> {
        let mut form = BucketForm {
            mask: [0; FLAG_WORDS],
            axes: Vec::new(),
            statistics: Vec::new(),
            length: FLAG_WORDS,
        };
        for field in operation.fields.iter() {
            match (field.store, &field.kind) {
                (Store::Flag { .. }, FieldKind::Device | FieldKind::Digest) => {}
                (Store::Flag { word, shift, bits }, kind) => {
                    let mut field_mask = (1u64 << bits) - 1;
                    if *kind == FieldKind::Strides {
                        field_mask &= STRIDE_SPEED_BITS;
                    }
                    form.mask[usize::from(word) % FLAG_WORDS] |= field_mask << shift;
                }
                (Store::Axis(axis), kind) => {
                    let word = FLAG_WORDS + usize::from(axis) % MAX_AXES;
                    form.length = form.length.max(word + 1);
                    form.axes.push((axis, kind.buckets().flatten()));
                    if matches!(kind, FieldKind::Statistic { .. }) {
                        form.statistics.push(word);
                    }
                }
                (Store::Scalar(_), _) => {}
            }
        }
        form
    }

    /// The bucket of a call.
    #[inline]
    pub fn of(&self, context: &Context) -> Bucket {
        let mut bucket = Bucket { words: [0; FLAG_WORDS + MAX_AXES], length: self.length };
        for ((word, flags), mask) in bucket.words.iter_mut().zip(context.flags()).zip(&self.mask) {
            *word = flags & mask;
        }
        let sizes = context.axes();
        for (axis, bounds) in &self.axes {
            let size = sizes.get(usize::from(*axis)).copied().unwrap_or_default() as i64;
            bucket.words[FLAG_WORDS + usize::from(*axis) % MAX_AXES] = match bounds {
                None => size as u64,
                Some(bounds) => bounds.partition_point(|bound| *bound < size) as u64,
            };
        }
        bucket
    }

    /// The bucket of the same call without its statistics; `None` if it has none.
    pub fn without_statistics(&self, bucket: &Bucket) -> Option<Bucket> {
        let mut without = *bucket;
        for word in &self.statistics {
            // The first bucket is that of an unknown statistic.
            *without.words.get_mut(*word)? = 0;
        }
        (without != *bucket).then_some(without)
    }
}

impl Bucket {
    /// The bucket of a call: its flags without device, digests and alignments, then one word per axis and statistic.
    pub fn of(operation: &OperationInfo, context: &Context) -> Bucket {
        BucketForm::new(operation).of(context)
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.words[..self.length]
    }
}

/// The bits of a stride class that affect speed: present, dense, last dimension dense.
pub(crate) const STRIDE_SPEED_BITS: u64 = 0b111;
