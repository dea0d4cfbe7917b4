//! Second process of a scenario: a rank or a tuner that shares a database with the test; see
//! `lz_scenarios::process`.

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    lz_scenarios::process::run_subcommand(&arguments);
}
