//! Structured inputs: decisions that are read from the bytes of an input.

/// A source of decisions. After its end every decision is 0, the simplest one.
#[derive(Debug)]
pub struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Decisions read from these bytes.
    pub fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices { bytes }
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    /// True for odd bytes.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Eight bytes as a number.
    pub fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// A number that is usually small, and otherwise at the edge of a range.
    pub fn size(&mut self) -> i64 {
        const EDGES: [i64; 8] = [0, -1, 1 << 31, i64::MAX, i64::MIN, i64::MAX / 2, 1 << 40, 3];
        match self.byte() {
            small @ 0..=223 => i64::from(small % 9),
            edge @ 224..=247 => EDGES[usize::from(edge) % EDGES.len()],
            _ => self.word() as i64,
        }
    }

    /// One of several values.
    pub fn pick<'t, T>(&mut self, options: &'t [T]) -> &'t T {
        &options[self.below(options.len())]
    }

    /// The bytes that no decision has read.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}
