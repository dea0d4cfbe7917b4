//! Runs the performance scenarios and prints their times; `--json` prints one JSON object per line for `cargo
//! xtask bench`. Any other argument selects the cases whose name contains it.

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
