//! `lz-worker`: serves the kernels of a plugin to the host that spawned it. See [`lz_worker::program`].

use std::process::ExitCode;

fn main() -> ExitCode {
    lz_worker::program::main()
}
