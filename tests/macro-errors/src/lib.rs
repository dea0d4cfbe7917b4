//! Only tests: see `tests/ui.rs`.
