//! Integer weights as `mlp.linear.pack` lays them out, wherever they lie: words of four bytes, one of each row of a panel side by
//! side, so that a vector holds as many rows as it has lanes. Nothing here knows what the bytes mean.

use std::ops::Range;

use lz_core::{KernelError, TensorView};

use crate::rows::{AnyRows, Shape};
use crate::simd::Simd;

/// Rows of a panel.
pub(super) const ROWS: usize = 16;

/// Bytes of a word.
pub(super) const WORD: usize = 4;

/// Bytes of one word of every row of a panel.
pub(super) const STEP: usize = ROWS * WORD;

/// Most words that are laid out at once.
pub(super) const WORDS: usize = 128;

/// Room for so many words of a panel.
#[repr(align(64))]
pub(super) struct Room(pub [u8; STEP * WORDS]);

/// The words of a weight.
pub(super) struct Words<'a> {
    bytes: AnyRows<'a>,
    panels: bool,
    /// Rows of the weight.
    pub rows: usize,
    /// Bytes of each.
    pub stored: usize,
}

impl<'a> Words<'a> {
    /// Of a weight of so many rows and bytes a row, which lies in panels or in rows.
    pub(super) fn new(
        view: &'a TensorView<'_>,
        panels: bool,
        rows: usize,
        stored: usize,
    ) -> Result<Words<'a>, KernelError> {
        let shape = if panels { Shape::Trailing(3) } else { Shape::Last };
        Ok(Words { bytes: AnyRows::new(view, shape)?, panels, rows, stored })
    }

    /// Words of a row.
    pub(super) fn count(&self) -> usize {
        self.stored.div_ceil(WORD)
    }

    /// Panels of all rows.
    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    /// How many words can be had at once: all where they lie as they are wanted.
    pub(super) fn at_once(&self) -> usize {
        if self.in_place() { self.count() } else { WORDS }
    }

    fn in_place(&self) -> bool {
        self.panels && self.bytes.width() == self.count() * STEP
    }

    /// Whether each row lies as it is stored.
    pub(super) fn in_rows(&self) -> bool {
        !self.panels
    }

    /// Where a row begins that lies as it is stored.
    pub(super) fn row(&self, row: usize) -> *const u8 {
        self.bytes.start(row)
    }

    /// Words of a panel, one [`STEP`] after the other: where they lie, or laid out in the room. Beyond the last panel all are 0.
    ///
    /// # Safety
    /// The words are some of a row, and not more than [`Words::at_once`].
    #[inline(always)]
    pub(super) unsafe fn panel<S: Simd>(
        &self,
        s: S,
        panel: usize,
        words: Range<usize>,
        room: &mut Room,
    ) -> *const u8 {
        if panel < self.panels() && self.in_place() {
            // SAFETY: the panel is dense, and the caller guarantees the words.
            return unsafe { self.bytes.start(panel).add(words.start * STEP) };
        }
        let to = room.0.as_mut_ptr();
        // SAFETY: the room is large enough, as the caller vouches.
        unsafe {
            if panel >= self.panels() {
                std::ptr::write_bytes(to, 0, words.len() * STEP);
            } else if self.panels {
                self.collect(panel, words, to);
            } else {
                self.transpose(s, panel, words, to);
            }
        }
        to
    }

    /// Panels that are not dense, word by word.
    ///
    /// # Safety
    /// The words are some of a row of the panel, and there is room for them.
    #[cold]
    unsafe fn collect(&self, panel: usize, words: Range<usize>, to: *mut u8) {
        let width = self.bytes.width();
        let pieces = STEP / width;
        for (place, word) in words.enumerate() {
            for piece in 0..pieces {
                let from = self.bytes.start((panel * self.count() + word) * pieces + piece);
                // SAFETY: the caller guarantees both sides.
                unsafe { std::ptr::copy_nonoverlapping(from, to.add(place * STEP + piece * width), width) };
            }
        }
    }

    /// Rows of bytes, a square of words at a time.
    ///
    /// # Safety
    /// As [`Words::collect`].
    #[inline(never)]
    pub(super) unsafe fn transpose<S: Simd>(&self, s: S, panel: usize, words: Range<usize>, to: *mut u8) {
        #[repr(align(64))]
        struct Square([f32; 256]);
        s.vectorize(|| {
            let mut square = Square([0.0; 256]);
            let square = square.0.as_mut_ptr();
            let mut word = 0;
            while word < words.len() {
                let count = S::LANES.min(words.len() - word);
                for first in (0..ROWS).step_by(S::LANES) {
                    for lane in 0..S::LANES {
                        let row = panel * ROWS + first + lane;
                        let at = (words.start + word) * WORD;
                        // SAFETY: bytes are copied as far as the row has them; a square has LANES rows of LANES words.
                        unsafe {
                            let to = square.add(lane * S::LANES);
                            if row >= self.rows {
                                s.store(to, s.splat(0.0));
                            } else if at + S::LANES * WORD <= self.stored {
                                s.store(to, s.load(self.bytes.start(row).add(at).cast()));
                            } else {
                                s.store(to, s.splat(0.0));
                                let left = self.stored - at;
                                std::ptr::copy_nonoverlapping(self.bytes.start(row).add(at), to.cast(), left);
                            }
                        }
                    }
                    // SAFETY: the caller guarantees the room; words beyond the last are not written.
                    unsafe {
                        let to = to.add(word * STEP).cast::<f32>().add(first);
                        if count == S::LANES {
                            s.transpose(square, to, ROWS);
                        } else {
                            for word in 0..count {
                                for lane in 0..S::LANES {
                                    *to.add(word * ROWS + lane) = *square.add(lane * S::LANES + word);
                                }
                            }
                        }
                    }
                }
                word += S::LANES;
            }
        });
    }

    /// One byte, as it is stored.
    #[cold]
    pub(super) fn byte(&self, row: usize, byte: usize) -> u8 {
        let (panel, word) = (row / ROWS, byte / WORD);
        let (row_inside, byte_inside) = (row % ROWS, byte % WORD);
        let at = if !self.panels {
            self.bytes.start(row).wrapping_add(byte)
        } else if self.in_place() {
            self.bytes.start(panel).wrapping_add(word * STEP + row_inside * WORD + byte_inside)
        } else {
            let (width, place) = (self.bytes.width(), row_inside * WORD + byte_inside);
            let first = (panel * self.count() + word) * (STEP / width);
            self.bytes.start(first + place / width).wrapping_add(place % width)
        };
        // SAFETY: `start` holds rows to those that are there, and callers ask for bytes of theirs.
        unsafe { at.read() }
    }
}
