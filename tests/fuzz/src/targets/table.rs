//! Dispatch tables: errors have locations, and every spelling of an accepted table answers every call alike.

use lz_conformance::random::Random;
use lz_core::{Context, OperationInfo};
use lz_engine::table::DispatchTable;
use serde_json::Value;

use crate::diagnostics;

/// Calls of each operation.
const CALLS: usize = 16;

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let table = match DispatchTable::read("table.json", &text, &lz_ops::OPERATIONS) {
        Ok(table) => table,
        Err(error) => {
            assert!(!error.reasons.is_empty(), "{error}");
            diagnostics::check(error.report.as_ref().expect("an invalid file has a report"));
            return false;
        }
    };
    // Files of some editors begin with a byte order mark, which readers of files skip.
    let text = text.trim_start_matches('\u{feff}');
    let json: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("accepted, but: {error}"));
    let again = DispatchTable::read("pretty.json", &format!("{json:#}"), &lz_ops::OPERATIONS);
    let again = again.unwrap_or_else(|error| panic!("{error}"));
    let hash = table.capabilities_hash.clone().unwrap_or_default();
    let fits = table.verify("table.json", &table.hardware_signature, &hash);
    assert_eq!(fits.is_ok(), table.capabilities_hash.is_some());
    let mut random = Random::steered(input);
    for info in lz_ops::OPERATIONS.into_iter().filter(|info| text.contains(&*info.name)) {
        for _ in 0..CALLS {
            let context = context(info, &mut random);
            assert_eq!(table.lookup(info, &context), again.lookup(info, &context), "{}", info.name);
        }
    }
    true
}

/// A context with random values; sizes are mostly small and sometimes huge.
fn context(info: &OperationInfo, random: &mut Random) -> Context {
    let mut context = Context::of(&info.fields);
    for field in info.fields.iter() {
        let bits = random.bits();
        context.set(field.store, if bits & 7 == 0 { bits } else { bits >> (40 + (bits & 15)) });
    }
    context
}
