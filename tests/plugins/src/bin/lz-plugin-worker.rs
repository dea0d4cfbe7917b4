//! `lz-worker` as a binary of this package: cargo provides tests only with binaries of their own package.

use std::process::ExitCode;

fn main() -> ExitCode {
    lz_worker::program::main()
}
