//! A hash of the candidates of some operations: engines with the same hash have the same candidates.

use sha2::{Digest, Sha256};

use crate::registry::Registry;

/// SHA-256 over the schemas of these operations and the specs of their kernels, sorted by id.
///
/// A spec is hashed by its debug form, which includes every field, so that a new field cannot be forgotten. The cost is a different hash
/// after some upgrades, which is the safe side.
pub(crate) fn capabilities_hash<'a>(
    registry: &Registry,
    operations: impl IntoIterator<Item = &'a str>,
) -> String {
    let mut names: Vec<&str> = operations.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    let mut hasher = Sha256::new();
    for name in names {
        hasher.update(format!("operation {name}\n"));
        let Some(operation) = registry.operation(name) else { continue };
        hasher.update(format!("schema {}\n", operation.digest));
        let mut kernels: Vec<_> = registry.kernels_of(operation).map(|entry| &entry.spec).collect();
        kernels.sort_by(|a, b| a.id.cmp(&b.id));
        for spec in kernels {
            hasher.update(format!("{spec:?}\n"));
        }
    }
    hex(&hasher.finalize())
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
