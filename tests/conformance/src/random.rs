//! Deterministic random numbers, the same on every machine: a case is identified by its seed.

/// SplitMix64: small, fast, and sufficient for drawing test cases.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
    /// Bytes that decide the first draws, in reverse order: two for each.
    steering: Vec<u8>,
}

impl Random {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed, steering: Vec::new() }
    }

    /// Draws that the bytes decide, two for each draw, so that a fuzzer that changes a byte changes one draw. After their end the draws
    /// depend on all bytes.
    pub fn steered(bytes: &[u8]) -> Random {
        let seed =
            bytes.iter().fold(0, |seed: u64, byte| (seed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        Random { state: seed, steering: bytes.iter().rev().copied().collect() }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        if let (Some(first), Some(second)) = (self.steering.pop(), self.steering.pop()) {
            word = u64::from_le_bytes([first, second, 0, 0, 0, 0, 0, 0]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// An integer below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.bits() % end as u64) as usize }
    }

    /// An integer in `low..=high`; `low` if the range is empty.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        let span = i128::from(high) - i128::from(low) + 1;
        if span <= 0 {
            return low;
        }
        (i128::from(low) + (i128::from(self.bits()) % span)) as i64
    }

    /// True with probability 1 / `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A random element.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len()))
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Approximately normal with standard deviation 1: a sum of four uniforms.
    pub fn normal(&mut self) -> f64 {
        let sum: f64 = (0..4).map(|_| self.unit()).sum();
        (sum - 2.0) * 3f64.sqrt()
    }
}

/// The seed of a case: a hash of the operation's name, the test and the case number.
pub fn case_seed(operation: &str, test: &str, case: u64) -> u64 {
    let mut seed = 0xcbf2_9ce4_8422_2325u64;
    for byte in operation.bytes().chain([0]).chain(test.bytes()) {
        seed = (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    Random::new(seed ^ case.wrapping_mul(0xd134_2543_de82_ef95)).bits()
}
