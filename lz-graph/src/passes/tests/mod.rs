//! Tests of all passes.
