//! Injects faults for a minute; `cargo xtask chaos` runs for as long as wanted.

use std::process::Command;

#[test]
fn no_invariant_is_violated() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_lz-chaos")).args(["--seconds", "60"]).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("no invariant was violated"), "{text}");
}
