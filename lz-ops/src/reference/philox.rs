//! Philox-4x32-10, the counter-based random number generator of sampling (Salmon et al., SC 2011). Stateless:
//! the same key and counter always give the same words.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// One block of four random words.
pub fn block(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let [mut k0, mut k1] = key;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..ROUNDS {
        let [low0, high0] = multiply(MULTIPLIERS[0], c0);
        let [low1, high1] = multiply(MULTIPLIERS[1], c2);
        (c0, c1, c2, c3) = (high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0);
        k0 = k0.wrapping_add(KEY_STEPS[0]);
        k1 = k1.wrapping_add(KEY_STEPS[1]);
    }
    [c0, c1, c2, c3]
}

/// The sampling operation. Each has its own blocks, so that operations with the same seed and offset, such as
/// a top-k draft and its verification, draw independently. The schemas specify the constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// `sampling.topk`.
    TopK = 1,
    /// `sampling.topp`.
    TopP = 2,
    /// `sampling.speculative`.
    Speculative = 3,
    /// `sampling.minp`.
    MinP = 4,
}

/// Row and position numbers are below 2⁵⁶: the byte above holds the stream.
const NUMBER_BITS: u32 = 56;

/// The block of one row or position: the seed is the key; offset, stream and number are the counter.
pub fn block_at(stream: Stream, seed: i64, offset: i64, number: u64) -> [u32; 4] {
    let (seed, offset) = (words(seed as u64), words(offset as u64));
    let number = words(number | (stream as u64) << NUMBER_BITS);
    block(seed, [offset[0], offset[1], number[0], number[1]])
}

/// A uniform value in [0, 1) from two words: the upper 53 of their 64 bits.
pub fn uniform(first: u32, second: u32) -> f64 {
    let joined = u64::from(first) | u64::from(second) << 32;
    (joined >> 11) as f64 * 2f64.powi(-53)
}

/// Low word first.
fn words(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Low and high word of a product.
fn multiply(left: u32, right: u32) -> [u32; 2] {
    words(u64::from(left) * u64::from(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known-answer tests published by the authors with Random123.
    #[test]
    fn known_answers() {
        assert_eq!(block([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(block([!0; 2], [!0; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            block([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn seed_offset_and_number_are_64_bits_with_the_low_word_first() {
        let seed = 0x299f_31d0_a409_3822;
        let offset = 0x85a3_08d3_243f_6a88u64 as i64;
        let found = block_at(Stream::Speculative, seed, offset, 0x0070_7344_1319_8a2e);
        assert_eq!(
            found,
            block([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344])
        );
        let last = block([!0; 2], [!0, !0, !0, 0x01ff_ffff]);
        assert_eq!(block_at(Stream::TopK, -1, -1, (1 << NUMBER_BITS) - 1), last);
    }

    #[test]
    fn no_two_draws_of_streams_offsets_and_numbers_share_a_block() {
        let mut seen = std::collections::HashSet::new();
        for stream in [Stream::TopK, Stream::TopP, Stream::Speculative, Stream::MinP] {
            for offset in [0, 1, 2, 1 << 32, -1] {
                for number in (0..100).chain([1 << 32, (1 << NUMBER_BITS) - 1]) {
                    assert!(seen.insert(block_at(stream, 7, offset, number)), "{stream:?} {offset} {number}");
                }
            }
        }
    }

    #[test]
    fn uniforms_fill_the_half_open_interval() {
        assert_eq!(uniform(0, 0), 0.0);
        assert_eq!(uniform(!0, !0), 1.0 - 2f64.powi(-53));
        assert_eq!(uniform(0, 1 << 31), 0.5);
        assert_eq!(uniform((1 << 11) - 1, 0), 0.0);
    }
}
