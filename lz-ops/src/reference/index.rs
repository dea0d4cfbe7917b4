//! Helpers for tensor indices: leading dimensions extended by loop variables.

use lz_core::tensor::Dims;

/// A leading index and one more position.
pub fn with(mut leading: Dims, last: i64) -> Dims {
    // Ranks are validated; the result would otherwise not address any element.
    let _fits = leading.push(last);
    leading
}

/// Concatenates parts of an index.
pub fn join(parts: &[&[i64]]) -> Dims {
    let mut index = Dims::empty();
    for &position in parts.iter().flat_map(|part| part.iter()) {
        let _fits = index.push(position);
    }
    index
}
