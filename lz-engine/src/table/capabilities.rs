//! A hash of what there is to choose from for some operations: two engines with the same hash have the same candidates.

use sha2::{Digest, Sha256};

use crate::registry::Registry;

/// SHA-256 over the schemas of these operations and everything that their kernels say of themselves, sorted by id.
///
/// A spec is hashed by its debug form, which has every field: whoever adds one need not remember this place, and the price,
/// another hash after an upgrade, is the careful side to err on.
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
