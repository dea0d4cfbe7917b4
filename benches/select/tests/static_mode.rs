//! Static mode has no overhead: it executes the same number of instructions as a direct call of the kernel.

use std::path::Path;

use bench_select::instructions::{can_count, count};

#[test]
fn static_mode_executes_the_same_instructions_as_a_direct_call() {
    if !can_count() {
        eprintln!("valgrind is not installed: instructions were not counted");
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_bench-select"));
    let direct = count(program, "--count-static", "direct_calls");
    let static_mode = count(program, "--count-static", "static_calls");
    assert!(direct.is_some_and(|instructions| instructions > 1000), "{direct:?}");
    assert_eq!(static_mode, direct);
}
