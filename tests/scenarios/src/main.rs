//! Prints what the performance scenarios cost; with `--json` one object a line, as `cargo xtask bench` wants it. Any other
//! argument leaves only the cases whose names contain it.

use lz_scenarios::performance::{self, Bench};

fn main() {
    let mut bench = Bench::default();
    for argument in std::env::args().skip(1) {
        if argument == "--json" {
            bench.json = true;
        } else {
            bench.filter = Some(argument.replace(' ', "_"));
        }
    }
    performance::run(bench);
}
