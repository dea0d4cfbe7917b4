//! Packed layout of integer weights, as `mlp.linear.pack` produces it: panels of 16 rows, with 4-byte words
//! of the rows interleaved, so that a vector holds one word of as many rows as it has lanes. Unpacked weights
//! are packed on the fly. Independent of the meaning of the bytes.

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

/// Maximum words that are packed at once.
pub(super) const WORDS: usize = 128;

/// Buffer for [`WORDS`] words of a panel.
#[repr(align(64))]
pub(super) struct PanelBuffer(pub [u8; STEP * WORDS]);

/// The words of a weight.
pub(super) struct PackedWords<'a> {
    bytes: AnyRows<'a>,
    panels: bool,
    /// Rows of the weight.
    pub rows: usize,
    /// Bytes per row.
    pub stored: usize,
}

impl<'a> PackedWords<'a> {
    /// Of a weight with `rows` rows of `stored` bytes, stored in panels or in rows.
    pub(super) fn new(
        view: &'a TensorView<'_>,
        panels: bool,
        rows: usize,
        stored: usize,
    ) -> Result<PackedWords<'a>, KernelError> {
        let shape = if panels { Shape::Trailing(3) } else { Shape::Last };
        Ok(PackedWords { bytes: AnyRows::new(view, shape)?, panels, rows, stored })
    }

    /// Words per row.
    pub(super) fn count(&self) -> usize {
        self.stored.div_ceil(WORD)
    }

    /// Number of panels.
    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    /// How many words are available at once: all of them if they are stored packed.
    pub(super) fn max_words(&self) -> usize {
        if self.is_packed() { self.count() } else { WORDS }
    }

    fn is_packed(&self) -> bool {
        self.panels && self.bytes.width() == self.count() * STEP
    }

    /// Whether the weight is stored by rows.
    pub(super) fn is_row_major(&self) -> bool {
        !self.panels
    }

    /// Address of a row, if the weight is stored by rows.
    pub(super) fn row(&self, row: usize) -> *const u8 {
        self.bytes.start(row)
    }

    /// Words of a panel, one [`STEP`] after the other: in place, or packed into the buffer. Past the last
    /// panel all are 0.
    ///
    /// # Safety
    /// The words are inside a row, and at most [`PackedWords::max_words`].
    #[inline(always)]
    pub(super) unsafe fn panel<S: Simd>(
        &self,
        s: S,
        panel: usize,
        words: Range<usize>,
        buffer: &mut PanelBuffer,
    ) -> *const u8 {
        if panel < self.panels() && self.is_packed() {
            // SAFETY: the panel is dense, and the caller guarantees the words.
            return unsafe { self.bytes.start(panel).add(words.start * STEP) };
        }
        let to = buffer.0.as_mut_ptr();
        // SAFETY: the buffer is large enough, which the caller guarantees.
        unsafe {
            if panel >= self.panels() {
                std::ptr::write_bytes(to, 0, words.len() * STEP);
            } else if self.panels {
                self.gather(panel, words, to);
            } else {
                self.transpose(s, panel, words, to);
            }
        }
        to
    }

    /// Gathers a panel that is not dense, word by word.
    ///
    /// # Safety
    /// The words are inside a row of the panel, and the destination has space for them.
    #[cold]
    unsafe fn gather(&self, panel: usize, words: Range<usize>, to: *mut u8) {
        let width = self.bytes.width();
        let row_parts = STEP / width;
        for (offset, word) in words.enumerate() {
            for part in 0..row_parts {
                let from = self.bytes.start((panel * self.count() + word) * row_parts + part);
                // SAFETY: the caller guarantees source and destination.
                unsafe { std::ptr::copy_nonoverlapping(from, to.add(offset * STEP + part * width), width) };
            }
        }
    }

    /// Packs rows of bytes, one block of words at a time.
    ///
    /// # Safety
    /// As [`PackedWords::gather`].
    #[inline(never)]
    pub(super) unsafe fn transpose<S: Simd>(&self, s: S, panel: usize, words: Range<usize>, to: *mut u8) {
        #[repr(align(64))]
        struct Block([f32; 256]);
        s.vectorize(|| {
            let mut block = Block([0.0; 256]);
            let block = block.0.as_mut_ptr();
            let mut word = 0;
            while word < words.len() {
                let count = S::LANES.min(words.len() - word);
                for first in (0..ROWS).step_by(S::LANES) {
                    for lane in 0..S::LANES {
                        let row = panel * ROWS + first + lane;
                        let at = (words.start + word) * WORD;
                        // SAFETY: bytes are copied only as far as the row has them; a block has LANES rows of
                        // LANES words.
                        unsafe {
                            let to = block.add(lane * S::LANES);
                            if row >= self.rows {
                                s.store(to, s.splat(0.0));
                            } else if at + S::LANES * WORD <= self.stored {
                                s.store(to, s.load(self.bytes.start(row).add(at).cast()));
                            } else {
                                s.store(to, s.splat(0.0));
                                let remaining = self.stored - at;
                                std::ptr::copy_nonoverlapping(
                                    self.bytes.start(row).add(at),
                                    to.cast(),
                                    remaining,
                                );
                            }
                        }
                    }
                    // SAFETY: the caller guarantees the destination; words past the last are not written.
                    unsafe {
                        let to = to.add(word * STEP).cast::<f32>().add(first);
                        if count == S::LANES {
                            s.transpose(block, to, ROWS);
                        } else {
                            for word in 0..count {
                                for lane in 0..S::LANES {
                                    *to.add(word * ROWS + lane) = *block.add(lane * S::LANES + word);
                                }
                            }
                        }
                    }
                }
                word += S::LANES;
            }
        });
    }

    /// Reads one byte by row and byte index.
    #[cold]
    pub(super) fn byte(&self, row: usize, byte: usize) -> u8 {
        let (panel, word) = (row / ROWS, byte / WORD);
        let (row_inside, byte_inside) = (row % ROWS, byte % WORD);
        let at = if !self.panels {
            self.bytes.start(row).wrapping_add(byte)
        } else if self.is_packed() {
            self.bytes.start(panel).wrapping_add(word * STEP + row_inside * WORD + byte_inside)
        } else {
            let (width, offset) = (self.bytes.width(), row_inside * WORD + byte_inside);
            let first = (panel * self.count() + word) * (STEP / width);
            self.bytes.start(first + offset / width).wrapping_add(offset % width)
        };
        // SAFETY: `start` checks the row, and callers pass bytes inside the row.
        unsafe { at.read() }
    }
}
