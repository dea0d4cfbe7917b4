//! Unifies features of third-party crates across the workspace; see `Cargo.toml`. Contains no code.
