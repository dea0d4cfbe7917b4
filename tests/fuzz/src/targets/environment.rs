//! Environment variables: one `NAME=value` per line.

use lz_engine::policy::env;

use super::policy::vocabulary;
use crate::diagnostics;

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let variables: Vec<(String, String)> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    match env::read(variables.clone(), vocabulary()) {
        Ok(environment) => {
            // The order of variables has no meaning.
            let reversed = env::read(variables.into_iter().rev(), vocabulary());
            let reversed = reversed.unwrap_or_else(|report| panic!("{report}"));
            assert_eq!(format!("{:?}", reversed.layer), format!("{:?}", environment.layer));
            assert_eq!(reversed.config, environment.config);
            true
        }
        Err(report) => {
            diagnostics::check(&report);
            false
        }
    }
}
