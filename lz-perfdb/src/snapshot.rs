//! In-memory measurements of one operation, for scoring: no lock, no database access, no allocation per lookup.

use super::{Bucket, Evidence};

/// All valid measurements of one operation under one setting, ordered by bucket, then by kernel.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OperationEvidence {
    operation: String,
    rows: Vec<Evidence>,
}

impl OperationEvidence {
    /// Sorts the rows.
    pub fn new(operation: &str, mut rows: Vec<Evidence>) -> OperationEvidence {
        rows.sort_by(|a, b| {
            let order =
                |row: &Evidence| (row.key.kernel.clone(), row.key.dtypes.clone(), row.key.environment);
            a.key.bucket.cmp(&b.key.bucket).then_with(|| order(a).cmp(&order(b)))
        });
        OperationEvidence { operation: operation.to_owned(), rows }
    }

    /// The operation.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// All rows.
    pub fn rows(&self) -> &[Evidence] {
        &self.rows
    }

    /// The rows of one bucket, for all kernels, dtypes and environments.
    pub fn of_bucket(&self, bucket: &[u64]) -> &[Evidence] {
        let start = self.rows.partition_point(|row| row.key.bucket.words() < bucket);
        let rest = self.rows.get(start..).unwrap_or_default();
        let length = rest.partition_point(|row| row.key.bucket.words() == bucket);
        rest.get(..length).unwrap_or_default()
    }

    /// The rows of one kernel in its current version and with its current capabilities, in one bucket.
    pub fn of_kernel<'a>(
        &'a self,
        bucket: &Bucket,
        dtypes: &'a str,
        kernel: &'a str,
        kernel_version: &'a str,
        capabilities_hash: &'a str,
    ) -> impl Iterator<Item = &'a Evidence> {
        self.of_bucket(bucket.words()).iter().filter(move |row| {
            row.key.kernel == kernel
                && row.key.dtypes == dtypes
                && row.key.kernel_version == kernel_version
                && row.key.capabilities_hash == capabilities_hash
        })
    }
}
