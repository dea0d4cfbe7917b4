//! `lz-worker`, once more: cargo hands a test the programs of its own package, and building another one from a test would build
//! everything that it uses again.

use std::process::ExitCode;

fn main() -> ExitCode {
    lz_worker::program::main()
}
