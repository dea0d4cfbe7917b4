//! Tokens as bytes: the bytes of an id, and the id of bytes.

use std::hash::Hasher;

use rustc_hash::FxHasher;

use super::merge::{ID_BITS, MOST_IDS};

/// The bytes of every id, and which ids bytes that stand alone have.
pub struct Vocabulary {
    /// All tokens one after the other.
    bytes: Vec<u8>,
    /// Where the bytes of each id begin, and one more for the end.
    starts: Vec<u32>,
    /// Open addressing; an id plus one below some bits of the hash, so that few wrong ids are looked at. 0 for an empty slot.
    slots: Vec<u32>,
}

impl Vocabulary {
    /// From the bytes of each id, ids without a token having none; at most [`MOST_IDS`].
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

    /// Lets an id be found by its bytes.
    pub fn index(&mut self, id: u32) {
        let mask = self.slots.len() - 1;
        let hash = hash(self.bytes_of(id));
        let mut place = hash as usize & mask;
        while self.slots[place] != 0 {
            place = (place + 1) & mask;
        }
        self.slots[place] = above(hash) | (id + 1);
    }

    /// The id of bytes that was indexed.
    #[inline]
    pub fn find(&self, bytes: &[u8]) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let hash = hash(bytes);
        let (mut place, above) = (hash as usize & mask, above(hash));
        loop {
            // A slot of other bits stays too large for an id.
            let id = (self.slots[place] ^ above).wrapping_sub(1);
            if id < MOST_IDS as u32 && self.bytes_of(id) == bytes {
                return Some(id);
            }
            if self.slots[place] == 0 {
                return None;
            }
            place = (place + 1) & mask;
        }
    }

    /// How many ids there are.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The bytes of an id; none for one that it does not have.
    #[inline]
    pub fn bytes_of(&self, id: u32) -> &[u8] {
        let place = id as usize;
        match (self.starts.get(place), self.starts.get(place + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }
}

/// The bits of a hash that stand above an id.
#[inline]
fn above(hash: u64) -> u32 {
    (hash >> 32) as u32 >> ID_BITS << ID_BITS
}

/// Spread over all bits, the low ones included.
#[inline]
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}
