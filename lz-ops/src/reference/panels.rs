//! Where the bytes of a weight lie once `mlp.linear.pack` has laid them out: what it and those that take panels have in common.

use lz_core::tensor::TensorView;

/// Rows of a panel.
pub const ROWS: i64 = 16;

/// Bytes of a word.
pub const WORD: i64 = 4;

/// One byte of a row of a weight that lies in rows or, with `panels`, in panels: as the tensor's dtype reads it.
pub fn byte_at(weight: &TensorView<'_>, panels: bool, row: i64, byte: i64) -> i64 {
    if panels {
        weight.int_at(&[row / ROWS, byte / WORD, row % ROWS, byte % WORD])
    } else {
        weight.int_at(&[row, byte])
    }
}
