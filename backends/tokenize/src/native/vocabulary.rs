//! Tokens as bytes: the bytes of an id, and the id of bytes.

use std::hash::Hasher;

use rustc_hash::FxHasher;

/// The bytes of every id, and which ids bytes that stand alone have.
pub struct Vocabulary {
    /// All tokens one after the other.
    bytes: Vec<u8>,
    /// Where the bytes of each id begin, and one more for the end.
    starts: Vec<u32>,
    /// Open addressing; an id plus one, 0 for an empty slot.
    slots: Vec<u32>,
}

impl Vocabulary {
    /// From the bytes of each id, ids without a token having none.
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
        let mut place = hash(self.bytes_of(id)) as usize & mask;
        while self.slots[place] != 0 {
            place = (place + 1) & mask;
        }
        self.slots[place] = id + 1;
    }

    /// The id of bytes that was indexed.
    #[inline]
    pub fn find(&self, bytes: &[u8]) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut place = hash(bytes) as usize & mask;
        loop {
            let id = self.slots[place].checked_sub(1)?;
            if self.bytes_of(id) == bytes {
                return Some(id);
            }
            place = (place + 1) & mask;
        }
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

/// Spread over all bits, the low ones included.
#[inline]
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}
