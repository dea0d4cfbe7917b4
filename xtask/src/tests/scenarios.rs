//! The table of scenarios is full, and no two have the same name.

use std::collections::HashSet;
use std::path::Path;

use crate::scenarios;

/// Scenarios that each category must have at least.
const LEAST: usize = 35;

#[test]
fn each_category_is_full_and_no_two_scenarios_have_the_same_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut names = HashSet::new();
    for (title, scenarios) in scenarios::read(root).unwrap() {
        assert!(scenarios.len() >= LEAST, "{title}: {} scenarios", scenarios.len());
        for scenario in scenarios {
            assert!(scenario.sentence.len() > 30, "{}: {}", scenario.file, scenario.name);
            assert!(names.insert(scenario.name.clone()), "two scenarios are called {}", scenario.name);
        }
    }
}
