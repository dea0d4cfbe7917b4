//! Operations by name: the catalogue and the primitives.

use std::collections::HashMap;
use std::sync::LazyLock;

use lz_core::OperationInfo;

static BY_NAME: LazyLock<HashMap<&'static str, &'static OperationInfo>> =
    LazyLock::new(|| lz_ops::OPERATIONS.iter().map(|one| (&*one.name, *one)).collect());

/// The operation with this name.
pub fn find(name: &str) -> Option<&'static OperationInfo> {
    BY_NAME.get(name).copied()
}
