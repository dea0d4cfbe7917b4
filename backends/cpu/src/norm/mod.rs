//! Normalisation of rows.

mod rms;

pub(crate) use rms::RmsRows;
