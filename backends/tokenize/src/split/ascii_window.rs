//! SIMD classification of 16 bytes of text: finds the length of a run of ASCII letters without a branch on its length.

/// Bit masks of the classes of 16 bytes.
#[derive(Debug, PartialEq)]
pub struct AsciiWindow {
    upper: u32,
    lower: u32,
    /// Non-ASCII bytes, whose class depends on more than one byte.
    non_ascii: u32,
}

/// A run of letters inside a window.
pub struct Run {
    /// Number of letters.
    pub length: usize,
    /// Whether the byte after the run is in the window and is ASCII, so that the run certainly ends there.
    pub closed: bool,
}

/// Bytes of a window.
pub const WIDTH: usize = 16;

impl AsciiWindow {
    /// The window at a position; `None` if fewer than [`WIDTH`] bytes are left.
    #[inline(always)]
    pub fn at(text: &[u8], position: usize) -> Option<AsciiWindow> {
        let bytes: &[u8; WIDTH] = text.get(position..position + WIDTH)?.try_into().ok()?;
        Some(AsciiWindow::of(bytes))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn of(bytes: &[u8; WIDTH]) -> AsciiWindow {
        use std::arch::x86_64::{
            __m128i, _mm_add_epi8, _mm_cmplt_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
        };
        // SAFETY: SSE2 is part of every x86-64, and the load reads the 16 bytes behind the reference.
        unsafe {
            let text = _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>());
            // Shifts the first letter to the minimum signed byte; then one comparison finds the 26 letters.
            let within = |first: u8| {
                let shifted = _mm_add_epi8(text, _mm_set1_epi8((0x80u8.wrapping_sub(first)) as i8));
                _mm_movemask_epi8(_mm_cmplt_epi8(shifted, _mm_set1_epi8((0x80u8 + 26) as i8))) as u32
            };
            AsciiWindow {
                upper: within(b'A'),
                lower: within(b'a'),
                non_ascii: _mm_movemask_epi8(text) as u32,
            }
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    fn of(bytes: &[u8; WIDTH]) -> AsciiWindow {
        use std::arch::aarch64::{
            vandq_u8, vcgeq_u8, vcltq_u8, vdupq_n_u8, vgetq_lane_u64, vld1q_u8, vpaddq_u8,
            vreinterpretq_u64_u8, vsubq_u8,
        };
        /// The bit of each byte in its half of a mask.
        const BITS: [u8; WIDTH] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        // SAFETY: NEON is part of every aarch64, and the loads read the 16 bytes behind the references.
        let masks = unsafe {
            let (text, bits) = (vld1q_u8(bytes.as_ptr()), vld1q_u8(BITS.as_ptr()));
            let within =
                |first: u8| vandq_u8(bits, vcltq_u8(vsubq_u8(text, vdupq_n_u8(first)), vdupq_n_u8(26)));
            let non_ascii = vandq_u8(bits, vcgeq_u8(text, vdupq_n_u8(0x80)));
            // Three pairwise additions join the bits of eight bytes each, of all masks at once.
            let pairs = vpaddq_u8(vpaddq_u8(within(b'A'), within(b'a')), vpaddq_u8(non_ascii, non_ascii));
            vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(pairs, pairs)))
        };
        let mask = |index: u32| (masks >> (16 * index)) as u32 & 0xffff;
        AsciiWindow { upper: mask(0), lower: mask(1), non_ascii: mask(2) }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    #[inline(always)]
    fn of(bytes: &[u8; WIDTH]) -> AsciiWindow {
        AsciiWindow::byte_by_byte(bytes)
    }

    /// The definition, for other architectures and for tests.
    #[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    fn byte_by_byte(bytes: &[u8; WIDTH]) -> AsciiWindow {
        let mask = |is: fn(&u8) -> bool| {
            bytes
                .iter()
                .enumerate()
                .fold(0u32, |mask, (position, byte)| mask | u32::from(is(byte)) << position)
        };
        AsciiWindow {
            upper: mask(u8::is_ascii_uppercase),
            lower: mask(u8::is_ascii_lowercase),
            non_ascii: mask(|byte| *byte >= 0x80),
        }
    }

    /// The run of letters after `skip` bytes.
    #[inline(always)]
    pub fn letters(&self, skip: usize) -> Run {
        self.run(skip, ((self.upper | self.lower) >> skip).trailing_ones() as usize)
    }

    /// Number of lowercase letters that the window begins with.
    #[inline(always)]
    pub fn lowercase(&self) -> usize {
        self.lower.trailing_ones() as usize
    }

    /// The run of uppercase and then lowercase letters after `skip` bytes; either may be empty.
    #[inline(always)]
    pub fn cased_word(&self, skip: usize) -> Run {
        let upper = (self.upper >> skip).trailing_ones() as usize;
        let lower = (self.lower >> (skip + upper)).trailing_ones() as usize;
        self.run(skip, upper + lower)
    }

    #[inline(always)]
    fn run(&self, skip: usize, length: usize) -> Run {
        let end = skip + length;
        Run { length, closed: end < WIDTH && self.non_ascii >> end & 1 == 0 }
    }
}

/// Whether a contraction can begin at a position.
#[inline(always)]
pub fn contraction_may_follow(text: &[u8], position: usize) -> bool {
    text.get(position) == Some(&b'\'')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_classified_at_every_position() {
        for byte in 0..=u8::MAX {
            for position in 0..WIDTH {
                for around in [b'x', b'Q', b' ', 0xc3] {
                    let mut bytes = [around; WIDTH];
                    bytes[position] = byte;
                    assert_eq!(AsciiWindow::of(&bytes), AsciiWindow::byte_by_byte(&bytes), "{bytes:?}");
                }
            }
        }
        let mixed = *b"aZ[`{@\x7f\x80\xffzA09 '_";
        assert_eq!(AsciiWindow::of(&mixed), AsciiWindow::byte_by_byte(&mixed));
    }
}
