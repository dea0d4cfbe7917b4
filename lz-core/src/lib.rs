//! The selection engine: it decides, checks and calls, and knows no particular operation.

pub mod device;
