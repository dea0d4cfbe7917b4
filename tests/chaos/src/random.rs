//! Reproducible random numbers (SplitMix64).

/// A random number generator.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// With a seed, and a stream of its own.
    pub fn new(seed: u64, stream: u64) -> Random {
        Random(seed ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True once in `every` times.
    pub fn once_in(&mut self, every: u64) -> bool {
        self.below(every) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }

    /// A value from -1 to 1.
    pub fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
