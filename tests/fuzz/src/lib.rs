//! Fuzz targets: one for each kind of input from outside, and one that compares kernels with the reference.
//!
//! A target is a function of bytes that panics when a promise is broken: a panic or an overflow of the code under test, an error without
//! a location, a text that does not survive printing and parsing, two implementations that disagree, or more memory or time than the size
//! of the input justifies.
//!
//! `cargo test` replays the checked-in corpus (`corpus/TARGET`) and a fixed number of mutations of it, the same on every machine.
//! `cargo xtask fuzz` searches with coverage guidance.

pub mod choices;
pub mod corpus;
pub mod diagnostics;
pub mod limits;
pub mod mutate;
pub mod targets;

pub use targets::TARGETS;

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and the name of the folder of its corpus.
    pub name: &'static str,
    /// Panics when the input breaks a promise. Returns whether the input was accepted: a corpus whose inputs are all rejected tests little.
    pub run: fn(&[u8]) -> bool,
    /// Mutations of the corpus in `cargo test`, such that all targets together take about 15 CPU seconds.
    pub mutations: u32,
    /// Longer inputs are not drawn.
    pub max_bytes: usize,
    /// Memory that an input may use whatever its size.
    pub base_memory: usize,
}

impl Target {
    /// The target with a name.
    pub fn find(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Runs one input within the limits of memory and time. Returns whether it was accepted.
    pub fn check(&self, input: &[u8]) -> bool {
        limits::within(self, input.len(), || (self.run)(input))
    }
}
