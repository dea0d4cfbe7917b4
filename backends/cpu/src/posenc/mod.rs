//! Position encodings.

mod alibi;
mod rope;

pub(crate) use alibi::AlibiRows;
pub(crate) use rope::{Angles, Positions, RopeRows, rotate};
