//! Converts the policy's `gpu_generations` to a generation table: the built-in rows, extended and overridden by the operator's.

use lz_schema::policy::SettingValue;

use super::layer::Layer;
use lz_core::device::{Generation, GenerationEntry, GenerationTable, GenerationTableError};

/// The table, if the layer sets any generation.
pub(crate) fn table(layer: &Layer) -> Option<Result<GenerationTable, GenerationTableError>> {
    let ranges = match layer.stated_setting("gpu_generations.sm_to_generation") {
        Some(SettingValue::Ranges(ranges)) => ranges.as_slice(),
        _ => &[],
    };
    let cores = match layer.stated_setting("gpu_generations.generation_to_tc_gen") {
        Some(SettingValue::Numbers(cores)) => cores.as_slice(),
        _ => &[],
    };
    if ranges.is_empty() && cores.is_empty() {
        return None;
    }
    let known = GenerationTable::default();
    let stated = |generation: &Generation| {
        let found = cores.iter().find(|(name, _)| Generation::named(name) == *generation);
        found.and_then(|(_, number)| u32::try_from(*number).ok())
    };
    let mut rows: Vec<GenerationEntry> = known.rows().to_vec();
    rows.extend(ranges.iter().map(|(first, last, name)| {
        let generation = Generation::named(name);
        // Unstated properties are taken from the row of the same name, or from the row that covers these SMs.
        let like =
            known.rows().iter().find(|row| row.generation == generation).or_else(|| known.lookup(*first));
        GenerationEntry {
            first_sm: *first,
            last_sm: *last,
            tensor_core_generation: like.map_or(0, |row| row.tensor_core_generation),
            instruction_sets: like.map(|row| row.instruction_sets.clone()).unwrap_or_default(),
            generation,
        }
    }));
    for row in &mut rows {
        row.tensor_core_generation = stated(&row.generation).unwrap_or(row.tensor_core_generation);
    }
    let mut table = GenerationTable::default();
    Some(table.extend(rows).map(|()| table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::file::{Document, Vocabulary};

    fn of(text: &str) -> Option<GenerationTable> {
        let document = Document::read("test.yaml", text, &Vocabulary::default()).unwrap();
        table(&document.layer).map(Result::unwrap)
    }

    #[test]
    fn policy_overrides_generation_table() {
        assert!(of("enabled: true\n").is_none());
        let table = of(
            "gpu_generations:\n  sm_to_generation: { 130..139: rubin }\n  generation_to_tc_gen: { rubin: 6, hopper: 7 }\n",
        );
        let table = table.unwrap();
        let at = |sm: u32| table.lookup(sm).map(|row| (row.generation.name(), row.tensor_core_generation));
        assert_eq!(at(131), Some(("rubin", 6)));
        assert_eq!(at(90), Some(("hopper", 7)));
        assert_eq!(at(80).map(|(name, _)| name), Some("ampere"));
    }
}
