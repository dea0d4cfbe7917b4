//! Indices of references: a place inside the leading dimensions, extended by what the loops add.

use lz_core::tensor::Dims;

/// A leading index and one more position.
pub fn with(mut leading: Dims, last: i64) -> Dims {
    // Shapes were checked to have at most the rank that fits; a full index would name no element.
    let _fits = leading.push(last);
    leading
}

/// Several parts of an index in a row.
pub fn join(parts: &[&[i64]]) -> Dims {
    let mut index = Dims::empty();
    for &position in parts.iter().flat_map(|part| part.iter()) {
        let _fits = index.push(position);
    }
    index
}
