//! A vocabulary of byte strings: from id to bytes, and from bytes to id.

use std::hash::Hasher;

use rustc_hash::FxHasher;

/// Bits of a token id, so that two ids and a rank of a merge fill 64 bits.
pub const ID_BITS: u32 = 21;
/// Maximum number of ids: merges need 256 more for single bytes, and the last value marks empty slots.
pub const MAX_IDS: usize = (1 << ID_BITS) - 256 - 1;

/// The bytes of every id, with a hash index from bytes to indexed ids.
pub struct Vocabulary {
    /// The concatenated tokens.
    bytes: Vec<u8>,
    /// The offset of each id's bytes, and the total length at the end.
    starts: Vec<u32>,
    /// Open addressing. Each slot has id + 1 in the low bits and bits of the hash above, so that few wrong tokens are compared. 0 for an
    /// empty slot.
    slots: Vec<u32>,
}

impl Vocabulary {
    /// From the bytes of each id, empty for ids without a token; at most [`MAX_IDS`].
    pub fn new(tokens: &[Vec<u8>]) -> Vocabulary {
        let mut starts = Vec::with_capacity(tokens.len() + 1);
        let mut bytes = Vec::with_capacity(tokens.iter().map(Vec::len).sum());
        for token in tokens {
            starts.push(bytes.len() as u32);
            bytes.extend_from_slice(token);
        }
        starts.push(bytes.len() as u32);
        let slots = vec![0; (tokens.len() * 2).next_power_of_two().max(16)];
        Vocabulary { bytes, starts, slots }
    }

    /// Adds an id to the hash index.
    pub fn index(&mut self, id: u32) {
        let mask = self.slots.len() - 1;
        let hash = hash(self.bytes_of(id));
        let mut position = hash as usize & mask;
        while self.slots[position] != 0 {
            position = (position + 1) & mask;
        }
        self.slots[position] = hash_bits(hash) | (id + 1);
    }

    /// The indexed id with these bytes.
    #[inline]
    pub fn find(&self, bytes: &[u8]) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let hash = hash(bytes);
        let (mut position, bits) = (hash as usize & mask, hash_bits(hash));
        loop {
            // If the hash bits differ, the result is larger than any id.
            let id = (self.slots[position] ^ bits).wrapping_sub(1);
            if id < MAX_IDS as u32 && self.bytes_of(id) == bytes {
                return Some(id);
            }
            if self.slots[position] == 0 {
                return None;
            }
            position = (position + 1) & mask;
        }
    }

    /// The number of ids.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The bytes of an id; empty for an unknown id.
    #[inline]
    pub fn bytes_of(&self, id: u32) -> &[u8] {
        let index = id as usize;
        match (self.starts.get(index), self.starts.get(index + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }
}

/// The hash bits that are stored above an id.
#[inline]
fn hash_bits(hash: u64) -> u32 {
    (hash >> 32) as u32 >> ID_BITS << ID_BITS
}

/// A hash whose low and high bits are both well mixed.
#[inline]
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}
