//! Tests of the front end on models that are written here.
