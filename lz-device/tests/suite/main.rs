//! The suite of `lz-device`.

mod cuda_driver;
mod machine_files;
