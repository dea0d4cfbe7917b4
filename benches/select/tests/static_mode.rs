//! Static mode costs nothing: the same number of instructions as calling the kernel by hand.

use std::path::Path;

use bench_select::instructions::{can_count, count};

#[test]
fn static_mode_is_the_direct_call() {
    if !can_count() {
        eprintln!("valgrind is not installed here: instructions were not counted");
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_bench-select"));
    let direct = count(program, "--count-static", "direct_calls");
    let static_mode = count(program, "--count-static", "static_calls");
    assert!(direct.is_some_and(|instructions| instructions > 1000), "{direct:?}");
    assert_eq!(static_mode, direct);
}
