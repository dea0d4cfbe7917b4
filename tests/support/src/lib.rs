//! What test suites share: temporary folders, fixtures of wrong files, the catalogue as operations of run time.

mod fixtures;
mod folder;

pub use fixtures::{fixtures, hold, operation, operations};
pub use folder::Folder;
