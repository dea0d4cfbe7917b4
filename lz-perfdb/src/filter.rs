//! Row filters as data that binds to one fixed SQL condition. Text of a caller never becomes SQL.

use rusqlite::ToSql;

use super::Setting;

/// A filter of measurements. All conditions that are set must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Only this operation.
    pub operation: Option<String>,
    /// Only this kernel.
    pub kernel: Option<String>,
    /// Only this device.
    pub device_uuid: Option<String>,
    /// Only what was last measured before this time, in seconds since 1970.
    pub measured_before: Option<u64>,
    /// Only what has expired by this time, in seconds since 1970.
    pub expired_by: Option<u64>,
    /// Only what has been invalidated.
    pub invalid_only: bool,
}

impl Filter {
    /// Whether no condition is set.
    pub fn is_everything(&self) -> bool {
        *self == Filter::default()
    }

    pub(super) const CONDITION: &str = "(?1 IS NULL OR operation = ?1) AND (?2 IS NULL OR kernel = ?2)
         AND (?3 IS NULL OR device_uuid = ?3) AND (?4 IS NULL OR measured_at < ?4)
         AND (?5 IS NULL OR (expires_at IS NOT NULL AND expires_at <= ?5)) AND (?6 = 0 OR valid = 0)";

    pub(super) fn values(&self) -> [Box<dyn ToSql + '_>; 6] {
        [
            Box::new(self.operation.as_deref()),
            Box::new(self.kernel.as_deref()),
            Box::new(self.device_uuid.as_deref()),
            Box::new(self.measured_before.map(seconds)),
            Box::new(self.expired_by.map(seconds)),
            Box::new(self.invalid_only),
        ]
    }
}

/// SQLite's integers are signed.
pub(super) fn seconds(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A change that invalidates measurements. Invalid rows stay for inspection until they are pruned or measured
/// again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invalidation {
    /// The device now runs under this setting: rows of another driver, toolkit, torch or LayerZero version become invalid.
    SettingChanged(Setting),
    /// The kernel now has this version: rows of other versions become invalid.
    KernelVersion {
        /// The kernel.
        kernel: String,
        /// The version that stays valid.
        version: String,
    },
    /// The backend's descriptor changed: rows of this kernel with another digest become invalid.
    Capabilities {
        /// The kernel.
        kernel: String,
        /// The digest that stays valid.
        capabilities_hash: String,
    },
    /// All rows of a kernel become invalid.
    Kernel(String),
}
