//! A rank or a tuner beside the process of a scenario; see `lz_scenarios::process`.

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    lz_scenarios::process::serve(&arguments);
}
