//! The bucket of a call: what measurements and failures are remembered by.
//!
//! A bucket depends on the schema alone, never on which kernels are registered, so that what was stored yesterday is found
//! today. Decisions are cached by finer cells; a cell never straddles two buckets.

use crate::context::{Context, FLAG_WORDS, FieldKind, MAX_AXES, Store};
use crate::operation::OperationInfo;

/// The words of a bucket, without allocating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    words: [u64; FLAG_WORDS + MAX_AXES],
    length: usize,
}

impl Bucket {
    /// The bucket of a call: its flags without places, digests and alignments, then one word an axis.
    pub fn of(operation: &OperationInfo, context: &Context) -> Bucket {
        let mut mask = [0u64; FLAG_WORDS];
        let mut bucket = Bucket { words: [0; FLAG_WORDS + MAX_AXES], length: FLAG_WORDS };
        for field in operation.fields.iter() {
            match (field.store, &field.kind) {
                (Store::Flag { .. }, FieldKind::Place | FieldKind::Digest) => {}
                (Store::Flag { word, shift, bits }, kind) => {
                    let mut field_mask = (1u64 << bits) - 1;
                    if *kind == FieldKind::Strides {
                        field_mask &= STRIDE_SPEED_BITS;
                    }
                    mask[usize::from(word) % FLAG_WORDS] |= field_mask << shift;
                }
                (Store::Axis(axis), FieldKind::Axis { buckets }) => {
                    let size = context.raw(field.store) as i64;
                    let position = FLAG_WORDS + usize::from(axis) % MAX_AXES;
                    bucket.length = bucket.length.max(position + 1);
                    bucket.words[position] = match buckets {
                        None => size as u64,
                        Some(bounds) => bounds.partition_point(|bound| *bound < size) as u64,
                    };
                }
                _ => {}
            }
        }
        for ((word, flags), mask) in bucket.words.iter_mut().zip(context.flags()).zip(mask) {
            *word = flags & mask;
        }
        bucket
    }

    /// The words.
    pub fn words(&self) -> &[u64] {
        &self.words[..self.length]
    }
}

/// Of a stride class, what changes speed: present, dense, last dimension dense.
pub(crate) const STRIDE_SPEED_BITS: u64 = 0b111;
