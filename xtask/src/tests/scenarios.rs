//! Every scenario category is complete, and scenario names are unique.

use std::collections::HashSet;
use std::path::Path;

use crate::scenarios;

/// Minimum number of scenarios per category.
const MIN_SCENARIOS: usize = 35;

#[test]
fn each_category_is_complete_and_scenario_names_are_unique() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut names = HashSet::new();
    for (title, scenarios) in scenarios::read(root).unwrap() {
        assert!(scenarios.len() >= MIN_SCENARIOS, "{title}: {} scenarios", scenarios.len());
        for scenario in scenarios {
            assert!(scenario.sentence.len() > 30, "{}: {}", scenario.file, scenario.name);
            assert!(names.insert(scenario.name.clone()), "two scenarios have the name `{}`", scenario.name);
        }
    }
}
