//! Schema migrations, forward only. A released step is never edited; a change is a new step.

use rusqlite::{Connection, TransactionBehavior};

/// The SQLite application id (`LZPD`), so that another program's database is never migrated by mistake.
pub(super) const APPLICATION_ID: i32 = 0x4c5a_5044;

/// The newest schema version of this build.
pub const SCHEMA_VERSION: u32 = STEPS.len() as u32;

/// Step `n` migrates from version `n` to version `n + 1`.
///
/// The primary key starts with the columns of a lookup, so that it serves as its index.
pub(super) const STEPS: [&str; 3] = [
    "CREATE TABLE measurement (
        operation TEXT NOT NULL,
        device_uuid TEXT NOT NULL,
        bucket BLOB NOT NULL,
        kernel TEXT NOT NULL,
        kernel_version TEXT NOT NULL,
        driver TEXT NOT NULL,
        toolkit TEXT NOT NULL,
        torch TEXT NOT NULL,
        layerzero TEXT NOT NULL,
        dtypes TEXT NOT NULL,
        capabilities_hash TEXT NOT NULL,
        environment TEXT NOT NULL,
        median_ns REAL NOT NULL,
        p95_ns REAL NOT NULL,
        variance_ns2 REAL NOT NULL,
        samples INTEGER NOT NULL CHECK (samples > 0),
        warmup_ns REAL NOT NULL,
        measured_at INTEGER NOT NULL,
        expires_at INTEGER,
        valid INTEGER NOT NULL DEFAULT 1,
        PRIMARY KEY (operation, device_uuid, bucket, kernel, kernel_version, driver, toolkit, torch, layerzero,
                     dtypes, capabilities_hash, environment)
    ) STRICT, WITHOUT ROWID;",
    "CREATE TABLE health (
        scope TEXT NOT NULL,
        name TEXT NOT NULL,
        version TEXT NOT NULL,
        device_uuid TEXT NOT NULL,
        bucket BLOB NOT NULL,
        state TEXT NOT NULL,
        failures INTEGER NOT NULL,
        reopenings INTEGER NOT NULL,
        last_error TEXT NOT NULL,
        next_probe_at INTEGER,
        updated_at INTEGER NOT NULL,
        PRIMARY KEY (device_uuid, scope, name, version, bucket)
    ) STRICT, WITHOUT ROWID;",
    "CREATE TABLE trial (
        device_uuid TEXT NOT NULL,
        kernel TEXT NOT NULL,
        version TEXT NOT NULL,
        bucket BLOB NOT NULL,
        boot TEXT NOT NULL,
        pid_namespace TEXT NOT NULL,
        pid INTEGER NOT NULL,
        started INTEGER NOT NULL,
        began_at INTEGER NOT NULL,
        PRIMARY KEY (device_uuid, kernel, version, bucket, boot, pid_namespace, pid, started)
    ) STRICT, WITHOUT ROWID;",
];

/// Migrates to the current version in one transaction and returns the version found.
pub(super) fn migrate(connection: &mut Connection) -> rusqlite::Result<u32> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Read inside the transaction: another process may have migrated while this one waited for the lock.
    let found = version(&transaction)?;
    for step in STEPS.iter().skip(found as usize) {
        transaction.execute_batch(step)?;
    }
    if found < SCHEMA_VERSION {
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    }
    transaction.commit()?;
    Ok(found)
}

/// The version in the file; a negative one maps to `u32::MAX` and is rejected as newer.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(u32::try_from(version).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_older_version_is_migrated_and_keeps_its_rows() {
        for start in 0..SCHEMA_VERSION {
            let mut connection = Connection::open_in_memory().unwrap();
            for step in STEPS.iter().take(start as usize) {
                connection.execute_batch(step).unwrap();
            }
            connection.pragma_update(None, "user_version", start).unwrap();
            if start > 0 {
                connection
                    .execute(
                        "INSERT INTO measurement VALUES
                         ('o','d',x'','k','1','','','','','','','',1.0,1.0,0.0,1,0.0,0,NULL,1)",
                        [],
                    )
                    .unwrap();
            }
            assert_eq!(migrate(&mut connection).unwrap(), start);
            assert_eq!(migrate(&mut connection).unwrap(), SCHEMA_VERSION, "migration is idempotent");
            let rows: u32 =
                connection.query_row("SELECT count(*) FROM measurement", [], |row| row.get(0)).unwrap();
            assert_eq!(rows, u32::from(start > 0));
            connection.query_row("SELECT count(*) FROM health", [], |row| row.get::<_, u32>(0)).unwrap();
        }
    }
}
