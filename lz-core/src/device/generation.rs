//! Maps compute capabilities to GPU generations, as data that a descriptor may extend.
//!
//! A new GPU must not require a new release of the engine: a backend's descriptor can add rows. Later rows win.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A GPU generation by its lower-case name: `hopper`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(String);

impl Generation {
    /// The generation with this name; upper case and the long form `ada_lovelace` are accepted.
    pub fn named(name: &str) -> Generation {
        let lower = name.trim().to_ascii_lowercase();
        Generation(if lower == "ada_lovelace" { "ada".to_owned() } else { lower })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tensor-core instruction sets. They are not nested: `wgmma` exists on Hopper only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum InstructionSet {
    /// Warp-level matrix instructions.
    #[serde(rename = "mma.sync")]
    MmaSync,
    /// Hopper's warp-group instructions.
    #[serde(rename = "wgmma")]
    Wgmma,
    /// Datacenter Blackwell's fifth-generation instructions.
    #[serde(rename = "tcgen05.mma")]
    Tcgen05Mma,
}

impl InstructionSet {
    /// The name used in descriptors.
    pub const fn name(self) -> &'static str {
        match self {
            InstructionSet::MmaSync => "mma.sync",
            InstructionSet::Wgmma => "wgmma",
            InstructionSet::Tcgen05Mma => "tcgen05.mma",
        }
    }

    /// The instruction set of this name.
    pub fn from_name(name: &str) -> Option<InstructionSet> {
        [Self::MmaSync, Self::Wgmma, Self::Tcgen05Mma].into_iter().find(|set| set.name() == name)
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A row: the compute capabilities `first_sm..=last_sm` and their properties.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationEntry {
    /// First compute capability of the range, as one number (90 for 9.0).
    pub first_sm: u32,
    /// Last compute capability of the range, inclusive.
    pub last_sm: u32,
    /// The generation.
    pub generation: Generation,
    /// Tensor-core generation.
    pub tensor_core_generation: u32,
    /// Tensor-core instruction sets.
    pub instruction_sets: Vec<InstructionSet>,
}

/// Why rows were rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GenerationTableError {
    /// A range ends before it starts.
    EmptyRange {
        /// First compute capability.
        first_sm: u32,
        /// Last compute capability.
        last_sm: u32,
    },
    /// A row has no generation name.
    Unnamed {
        /// First compute capability of that row.
        first_sm: u32,
    },
}

impl fmt::Display for GenerationTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyRange { first_sm, last_sm } => {
                write!(f, "the SM range {first_sm}..={last_sm} is empty")
            }
            Self::Unnamed { first_sm } => {
                write!(f, "the generation that starts at SM {first_sm} has no name")
            }
        }
    }
}

impl std::error::Error for GenerationTableError {}

/// Rows in order of precedence; the last row that covers a compute capability wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GenerationTable {
    rows: Vec<GenerationEntry>,
}

impl Default for GenerationTable {
    /// Turing to Blackwell.
    ///
    /// Ada counts as third-generation here, although NVIDIA calls it fourth: kernels that require generation 4 mean Hopper's
    /// instructions, which Ada lacks. Blackwell covers 10.0 and 10.3 (datacenter), 11.0 (embedded, formerly 10.1), 12.0 and 12.1
    /// (workstation); the last two have no `tcgen05`: same generation, different instructions. Other compute capabilities (10.7 is the
    /// next generation) are unknown and not guessed; a descriptor or a policy can define them.
    fn default() -> Self {
        use InstructionSet::{MmaSync, Tcgen05Mma, Wgmma};
        let row =
            |first_sm, last_sm, name, tensor_core_generation, sets: &[InstructionSet]| GenerationEntry {
                first_sm,
                last_sm,
                generation: Generation::named(name),
                tensor_core_generation,
                instruction_sets: sets.to_vec(),
            };
        GenerationTable {
            rows: vec![
                row(75, 79, "turing", 2, &[MmaSync]),
                row(80, 88, "ampere", 3, &[MmaSync]),
                row(89, 89, "ada", 3, &[MmaSync]),
                row(90, 99, "hopper", 4, &[MmaSync, Wgmma]),
                row(100, 103, "blackwell", 5, &[MmaSync, Tcgen05Mma]),
                row(110, 110, "blackwell", 5, &[MmaSync, Tcgen05Mma]),
                row(120, 121, "blackwell", 5, &[MmaSync]),
            ],
        }
    }
}

impl GenerationTable {
    /// The row of a compute capability.
    pub fn lookup(&self, sm: u32) -> Option<&GenerationEntry> {
        self.rows.iter().rev().find(|row| row.first_sm <= sm && sm <= row.last_sm)
    }

    /// Adds rows that override existing ones. If any row is invalid, nothing changes.
    pub fn extend(
        &mut self,
        rows: impl IntoIterator<Item = GenerationEntry>,
    ) -> Result<(), GenerationTableError> {
        let rows: Vec<GenerationEntry> = rows.into_iter().collect();
        for row in &rows {
            if row.first_sm > row.last_sm {
                return Err(GenerationTableError::EmptyRange {
                    first_sm: row.first_sm,
                    last_sm: row.last_sm,
                });
            }
            if row.generation.name().is_empty() {
                return Err(GenerationTableError::Unnamed { first_sm: row.first_sm });
            }
        }
        self.rows.extend(rows);
        Ok(())
    }

    /// The rows, in order of precedence.
    pub fn rows(&self) -> &[GenerationEntry] {
        &self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(table: &GenerationTable, sm: u32) -> Option<(String, u32)> {
        table.lookup(sm).map(|row| (row.generation.name().to_owned(), row.tensor_core_generation))
    }

    #[test]
    fn turing_to_blackwell() {
        let table = GenerationTable::default();
        let expected = [
            (70, None),
            (75, Some(("turing", 2))),
            (80, Some(("ampere", 3))),
            (86, Some(("ampere", 3))),
            (89, Some(("ada", 3))),
            (90, Some(("hopper", 4))),
            (100, Some(("blackwell", 5))),
            (103, Some(("blackwell", 5))),
            (107, None),
            (110, Some(("blackwell", 5))),
            (120, Some(("blackwell", 5))),
            (121, Some(("blackwell", 5))),
            (130, None),
        ];
        for (sm, expected) in expected {
            assert_eq!(
                named(&table, sm),
                expected.map(|(name, generation)| (name.to_owned(), generation)),
                "{sm}"
            );
        }
    }

    #[test]
    fn wgmma_exists_on_hopper_only() {
        let table = GenerationTable::default();
        let has = |sm: u32, set| table.lookup(sm).is_some_and(|row| row.instruction_sets.contains(&set));
        assert!(has(90, InstructionSet::Wgmma) && !has(100, InstructionSet::Wgmma));
        assert!(has(100, InstructionSet::Tcgen05Mma) && !has(120, InstructionSet::Tcgen05Mma));
    }

    #[test]
    fn extend_overrides_and_adds_rows() {
        let mut table = GenerationTable::default();
        let rows: Vec<GenerationEntry> = serde_json::from_str(
            r#"[{"first_sm": 89, "last_sm": 89, "generation": "ada", "tensor_core_generation": 4, "instruction_sets": ["mma.sync"]},
                {"first_sm": 200, "last_sm": 219, "generation": "rubin", "tensor_core_generation": 6, "instruction_sets": ["tcgen05.mma"]}]"#,
        )
        .unwrap();
        table.extend(rows).unwrap();
        assert_eq!(named(&table, 89), Some(("ada".to_owned(), 4)));
        assert_eq!(named(&table, 210), Some(("rubin".to_owned(), 6)));
        assert_eq!(named(&table, 86), Some(("ampere".to_owned(), 3)));
    }

    #[test]
    fn invalid_row_changes_nothing() {
        let mut table = GenerationTable::default();
        let good = table.lookup(90).cloned().unwrap();
        let empty = GenerationEntry { first_sm: 9, last_sm: 8, ..good.clone() };
        let error =
            table.extend([GenerationEntry { first_sm: 300, last_sm: 301, ..good }, empty]).unwrap_err();
        assert_eq!(error, GenerationTableError::EmptyRange { first_sm: 9, last_sm: 8 });
        assert_eq!(table, GenerationTable::default());
    }
}
