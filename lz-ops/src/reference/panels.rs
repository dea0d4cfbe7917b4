//! Packed weight layout of `mlp.linear.pack`, shared with the operations that read panels.

use lz_core::tensor::TensorView;

/// Rows of a panel.
pub const ROWS: i64 = 16;

/// Bytes of a word.
pub const WORD: i64 = 4;

/// One byte of a row of a weight stored by rows or, with `panels`, in panels; interpreted by the tensor's
/// dtype.
pub fn byte_at(weight: &TensorView<'_>, panels: bool, row: i64, byte: i64) -> i64 {
    if panels {
        weight.int_at(&[row / ROWS, byte / WORD, row % ROWS, byte % WORD])
    } else {
        weight.int_at(&[row, byte])
    }
}
