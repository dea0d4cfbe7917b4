//! Stores, looks up, invalidates and prunes measurements.

use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, params, params_from_iter};

use super::filter::seconds;
use super::snapshot::OperationEvidence;
use super::{
    Bucket, DropReason, Evidence, EvidenceKey, Filter, Invalidation, Measurement, PerfDb, Rejection, Setting,
    Timing,
};

pub(super) const COLUMNS: &str = "operation, device_uuid, bucket, kernel, kernel_version, driver, toolkit, torch, layerzero, dtypes,
     capabilities_hash, environment, median_ns, p95_ns, variance_ns2, samples, warmup_ns, measured_at, expires_at, valid";

pub(super) const KEY: &str = "operation = ?1 AND device_uuid = ?2 AND bucket = ?3 AND kernel = ?4 AND kernel_version = ?5
     AND driver = ?6 AND toolkit = ?7 AND torch = ?8 AND layerzero = ?9 AND dtypes = ?10 AND capabilities_hash = ?11
     AND environment = ?12";

/// A lookup for a call. Matches any kernel and environment.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The operation.
    pub operation: &'a str,
    /// Machine and software; all must match.
    pub setting: &'a Setting,
    /// The dtypes in the engine's notation.
    pub dtypes: &'a str,
    /// The packed context bucket.
    pub bucket: &'a Bucket,
}

impl PerfDb {
    /// Stores a measurement: merged with a valid row of the same key; an invalid or expired row is replaced.
    pub fn record(&self, measurement: &Measurement) -> Result<(), DropReason> {
        self.record_all(std::slice::from_ref(measurement))
    }

    /// Stores several measurements in one transaction.
    pub fn record_all(&self, measurements: &[Measurement]) -> Result<(), DropReason> {
        if let Some(rejection) = measurements.iter().find_map(|measurement| measurement.check().err()) {
            return Err(self.refuse(rejection));
        }
        self.write(|transaction| {
            measurements.iter().try_for_each(|measurement| merge(transaction, measurement))
        })
    }

    /// All measurements of a call that are valid at `now`, by median.
    pub fn lookup(&self, query: Query<'_>, now: u64) -> Vec<Evidence> {
        self.read(|connection| {
            let sql = format!(
                "SELECT {COLUMNS} FROM measurement
                 WHERE operation = ?1 AND device_uuid = ?2 AND bucket = ?3 AND driver = ?4 AND toolkit = ?5
                   AND torch = ?6 AND layerzero = ?7 AND dtypes = ?8 AND valid AND (expires_at IS NULL OR expires_at > ?9)
                 ORDER BY median_ns, kernel, environment"
            );
            let setting = query.setting;
            let values = params![
                query.operation,
                setting.device_uuid,
                query.bucket.to_bytes(),
                setting.driver,
                setting.toolkit,
                setting.torch,
                setting.layerzero,
                query.dtypes,
                seconds(now),
            ];
            collect(connection, &sql, values)
        })
    }

    /// All measurements of an operation under one setting that are valid at `now`, for scoring without database access.
    pub fn load_operation(&self, operation: &str, setting: &Setting, now: u64) -> OperationEvidence {
        let rows = self.read(|connection| {
            let sql = format!(
                "SELECT {COLUMNS} FROM measurement
                 WHERE operation = ?1 AND device_uuid = ?2 AND driver = ?3 AND toolkit = ?4 AND torch = ?5 AND layerzero = ?6
                   AND valid AND (expires_at IS NULL OR expires_at > ?7)"
            );
            let values = params![
                operation,
                setting.device_uuid,
                setting.driver,
                setting.toolkit,
                setting.torch,
                setting.layerzero,
                seconds(now),
            ];
            collect(connection, &sql, values)
        });
        OperationEvidence::new(operation, rows)
    }

    /// The measurements that match a filter, in key order, up to `limit`.
    pub fn show(&self, filter: &Filter, limit: usize) -> Vec<Evidence> {
        self.read(|connection| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let sql = format!(
                "SELECT {COLUMNS} FROM measurement WHERE {} ORDER BY operation, bucket, kernel LIMIT {limit}",
                Filter::CONDITION
            );
            collect(connection, &sql, params_from_iter(filter.values()))
        })
    }

    /// How many measurements match a filter.
    pub fn count(&self, filter: &Filter) -> u64 {
        self.read(|connection| {
            let sql = format!("SELECT count(*) FROM measurement WHERE {}", Filter::CONDITION);
            connection
                .query_row(&sql, params_from_iter(filter.values()), |row| row.get::<_, u32>(0))
                .map(u64::from)
        })
    }

    /// Deletes the measurements that match a filter and returns the count. A filter without conditions is rejected: to delete
    /// everything, delete the file.
    pub fn prune(&self, filter: &Filter) -> Result<usize, DropReason> {
        if filter.is_everything() {
            let why = "has no condition and would delete everything".to_owned();
            return Err(self.refuse(Rejection { field: "filter", why }));
        }
        self.write(|transaction| {
            let sql = format!("DELETE FROM measurement WHERE {}", Filter::CONDITION);
            transaction.execute(&sql, params_from_iter(filter.values()))
        })
    }

    /// Invalidates measurements after a change and returns the count.
    pub fn invalidate(&self, change: &Invalidation) -> Result<usize, DropReason> {
        self.write(|transaction| match change {
            Invalidation::SettingChanged(setting) => transaction.execute(
                "UPDATE measurement SET valid = 0 WHERE valid AND device_uuid = ?1
                   AND (driver <> ?2 OR toolkit <> ?3 OR torch <> ?4 OR layerzero <> ?5)",
                params![
                    setting.device_uuid,
                    setting.driver,
                    setting.toolkit,
                    setting.torch,
                    setting.layerzero
                ],
            ),
            Invalidation::KernelVersion { kernel, version } => transaction.execute(
                "UPDATE measurement SET valid = 0 WHERE valid AND kernel = ?1 AND kernel_version <> ?2",
                params![kernel, version],
            ),
            Invalidation::Capabilities { kernel, capabilities_hash } => transaction.execute(
                "UPDATE measurement SET valid = 0 WHERE valid AND kernel = ?1 AND capabilities_hash <> ?2",
                params![kernel, capabilities_hash],
            ),
            Invalidation::Kernel(kernel) => {
                transaction.execute("UPDATE measurement SET valid = 0 WHERE valid AND kernel = ?1", [kernel])
            }
        })
    }
}

fn collect(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
) -> rusqlite::Result<Vec<Evidence>> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(values, evidence)?;
    // Malformed rows, written by another program, are skipped.
    rows.filter_map(Result::transpose).collect()
}

/// Reads a row in the order of `COLUMNS`.
pub(super) fn evidence(row: &Row<'_>) -> rusqlite::Result<Option<Evidence>> {
    let bucket: Vec<u8> = row.get(2)?;
    let environment: String = row.get(11)?;
    let (Some(bucket), Ok(environment)) = (Bucket::from_bytes(&bucket), environment.parse()) else {
        return Ok(None);
    };
    let unsigned = |column| row.get::<_, i64>(column).map(|value| u64::try_from(value).unwrap_or(0));
    let evidence = Evidence {
        key: EvidenceKey {
            operation: row.get(0)?,
            bucket,
            kernel: row.get(3)?,
            kernel_version: row.get(4)?,
            setting: Setting {
                device_uuid: row.get(1)?,
                driver: row.get(5)?,
                toolkit: row.get(6)?,
                torch: row.get(7)?,
                layerzero: row.get(8)?,
            },
            dtypes: row.get(9)?,
            capabilities_hash: row.get(10)?,
            environment,
        },
        timing: Timing {
            median_ns: row.get(12)?,
            p95_ns: row.get(13)?,
            variance_ns2: row.get(14)?,
            samples: unsigned(15)?,
            warmup_ns: row.get(16)?,
            measured_at: unsigned(17)?,
        },
        expires_at: row.get::<_, Option<i64>>(18)?.map(|value| u64::try_from(value).unwrap_or(0)),
        valid: row.get(19)?,
    };
    Ok(evidence.timing.check().is_ok().then_some(evidence))
}

/// The row of a key, valid or not.
pub(super) fn find(transaction: &Transaction<'_>, key: &EvidenceKey) -> rusqlite::Result<Option<Evidence>> {
    let sql = format!("SELECT {COLUMNS} FROM measurement WHERE {KEY}");
    let mut statement = transaction.prepare_cached(&sql)?;
    let values = params_from_iter(key_values(key));
    Ok(statement.query_row(values, evidence).optional()?.flatten())
}

fn merge(transaction: &Transaction<'_>, measurement: &Measurement) -> rusqlite::Result<()> {
    let now = measurement.timing.measured_at;
    let known = find(transaction, &measurement.key)?.filter(|known| known.counts_at(now));
    let timing = known.map_or(measurement.timing, |known| known.timing.merged(&measurement.timing));
    upsert(
        transaction,
        &Evidence { key: measurement.key.clone(), timing, expires_at: measurement.expires_at, valid: true },
    )
}

/// The columns of `KEY`.
pub(super) fn key_values(key: &EvidenceKey) -> [Box<dyn ToSql + '_>; 12] {
    let setting = &key.setting;
    [
        Box::new(&key.operation),
        Box::new(&setting.device_uuid),
        Box::new(key.bucket.to_bytes()),
        Box::new(&key.kernel),
        Box::new(&key.kernel_version),
        Box::new(&setting.driver),
        Box::new(&setting.toolkit),
        Box::new(&setting.torch),
        Box::new(&setting.layerzero),
        Box::new(&key.dtypes),
        Box::new(&key.capabilities_hash),
        Box::new(key.environment.to_string()),
    ]
}

/// The columns of `COLUMNS`.
pub(super) fn row_values(evidence: &Evidence) -> impl Iterator<Item = Box<dyn ToSql + '_>> {
    let timing = &evidence.timing;
    let rest: [Box<dyn ToSql + '_>; 8] = [
        Box::new(timing.median_ns),
        Box::new(timing.p95_ns),
        Box::new(timing.variance_ns2),
        Box::new(seconds(timing.samples)),
        Box::new(timing.warmup_ns),
        Box::new(seconds(timing.measured_at)),
        Box::new(evidence.expires_at.map(seconds)),
        Box::new(evidence.valid),
    ];
    key_values(&evidence.key).into_iter().chain(rest)
}

/// Inserts or replaces a row.
pub(super) fn upsert(transaction: &Transaction<'_>, evidence: &Evidence) -> rusqlite::Result<()> {
    let sql = format!(
        "INSERT OR REPLACE INTO measurement ({COLUMNS})
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)"
    );
    transaction.prepare_cached(&sql)?.execute(params_from_iter(row_values(evidence)))?;
    Ok(())
}
