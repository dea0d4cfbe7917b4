//! Short causal convolutions. Channels are the lanes of vectors, so that taps and inputs are read in order.

mod causal1d;
mod step;

pub(crate) use causal1d::Causal1d;
pub(crate) use step::Causal1dStep;
