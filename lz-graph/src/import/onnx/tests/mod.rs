//! Tests of the front end on models that are written here.

mod files;
mod hostile;
mod importing;
mod indices;
mod writer;
