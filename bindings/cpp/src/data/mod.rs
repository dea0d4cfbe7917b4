//! Plain data that crosses the bridge. The functions that take and return it are in the bridge of `generated`.

#[rustfmt::skip]
mod generated;

pub use generated::ffi::*;
