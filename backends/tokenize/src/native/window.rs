//! Sixteen bytes of text at once: how long the word of ASCII letters is that begins there, without a branch on its length.

/// Sixteen bytes that lie inside a text, as one bit a byte for each class of ASCII letters.
pub struct Window {
    upper: u32,
    lower: u32,
    /// Bytes that are not ASCII: whatever they are, it takes more than a window to say.
    wide: u32,
}

/// A run of letters inside a window.
pub struct Run {
    /// How many letters.
    pub length: usize,
    /// Whether the byte after them is in the window and is ASCII, so that the run certainly ends there.
    pub closed: bool,
}

/// Bytes that a window needs.
pub const WIDTH: usize = 16;

impl Window {
    /// The window at a place; `None` at the end of the text.
    #[inline(always)]
    pub fn at(text: &[u8], place: usize) -> Option<Window> {
        let bytes: &[u8; WIDTH] = text.get(place..place + WIDTH)?.try_into().ok()?;
        Some(Window::of(bytes))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn of(bytes: &[u8; WIDTH]) -> Window {
        use std::arch::x86_64::{
            __m128i, _mm_add_epi8, _mm_cmplt_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
        };
        // SAFETY: SSE2 is part of every x86-64, and the load reads the sixteen bytes that the reference lends.
        unsafe {
            let text = _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>());
            // Moved so that the first letter becomes the least signed byte; then one comparison finds the 26.
            let within = |first: u8| {
                let moved = _mm_add_epi8(text, _mm_set1_epi8((0x80u8.wrapping_sub(first)) as i8));
                _mm_movemask_epi8(_mm_cmplt_epi8(moved, _mm_set1_epi8((0x80u8 + 26) as i8))) as u32
            };
            Window { upper: within(b'A'), lower: within(b'a'), wide: _mm_movemask_epi8(text) as u32 }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn of(bytes: &[u8; WIDTH]) -> Window {
        let mask = |is: fn(&u8) -> bool| {
            bytes.iter().enumerate().fold(0u32, |mask, (place, byte)| mask | u32::from(is(byte)) << place)
        };
        Window {
            upper: mask(u8::is_ascii_uppercase),
            lower: mask(u8::is_ascii_lowercase),
            wide: mask(|byte| *byte >= 0x80),
        }
    }

    /// The letters from a place on.
    #[inline(always)]
    pub fn letters(&self, skip: usize) -> Run {
        self.run(skip, ((self.upper | self.lower) >> skip).trailing_ones() as usize)
    }

    /// Capitals and then small letters from a place on; either may be missing.
    #[inline(always)]
    pub fn cased_word(&self, skip: usize) -> Run {
        let capitals = (self.upper >> skip).trailing_ones() as usize;
        let small = (self.lower >> (skip + capitals)).trailing_ones() as usize;
        self.run(skip, capitals + small)
    }

    #[inline(always)]
    fn run(&self, skip: usize, length: usize) -> Run {
        let end = skip + length;
        Run { length, closed: end < WIDTH && self.wide >> end & 1 == 0 }
    }
}

/// Whether a contraction can begin at a place.
#[inline(always)]
pub fn contraction_may_follow(text: &[u8], place: usize) -> bool {
    text.get(place) == Some(&b'\'')
}
