//! Rows of tables by id: copied bit by bit, or decoded.

mod lookup;
mod quantized;

pub(crate) use lookup::LookupRows;
pub(crate) use quantized::LookupQuantizedRows;
