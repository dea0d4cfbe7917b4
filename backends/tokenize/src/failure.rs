//! Why a verification ends without success.

use lz_core::Reason;
use lz_ops::tokenizer::Tokenizer;

use crate::background;

/// Why a candidate has no outcome, or has failed.
pub enum Failure {
    /// It is not equal, or does not support the definition.
    Rejected(Reason),
    /// The tokenizer is not used any more.
    Stopped,
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Failure {
        Failure::Rejected(reason)
    }
}

/// Ends the step of the background thread.
pub fn next_step(tokenizer: &Tokenizer) -> Result<(), Failure> {
    if background::next_step(tokenizer) { Ok(()) } else { Err(Failure::Stopped) }
}
