//! Operations by name: the catalog and the primitives.

use std::collections::HashMap;
use std::sync::LazyLock;

use lz_core::OperationInfo;

static BY_NAME: LazyLock<HashMap<&'static str, &'static OperationInfo>> = LazyLock::new(|| {
    let all = lz_ops::OPERATIONS.iter().chain(lz_primitives::all());
    all.map(|operation| (&*operation.name, *operation)).collect()
});

/// The operation with this name.
pub fn find(name: &str) -> Option<&'static OperationInfo> {
    BY_NAME.get(name).copied()
}
