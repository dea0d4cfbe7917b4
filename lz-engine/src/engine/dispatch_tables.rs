//! Dispatch tables that an engine reads and uses.

use std::path::Path;
use std::sync::Arc;

use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_files as files;

use super::Engine;
use crate::selection::loaded_tables::{LoadedTable, LoadedTables, TableState};
use crate::selection::snapshot::SnapshotParts;
use crate::table::{DispatchTable, TableError, capabilities_hash};

impl Engine {
    /// Loads a dispatch table, replacing an earlier one with the same hardware signature.
    ///
    /// A table of another machine or of other capabilities is rejected, and the error lists all differences.
    pub fn load_dispatch_table(&self, path: &Path) -> Result<TableState, Error> {
        let name = path.display().to_string();
        let text = files::read_text(path, files::MAX_TABLE_BYTES).map_err(|error| TableError {
            path: name.clone(),
            report: None,
            reasons: vec![Reason::new(ReasonCode::TableInvalid).message(error.to_string())],
        })?;
        self.use_dispatch_table(&name, &text)
    }

    /// Like [`Engine::load_dispatch_table`], from text; `path` is its name in messages.
    pub fn use_dispatch_table(&self, path: &str, text: &str) -> Result<TableState, Error> {
        let mut state = None;
        self.change(|parts| {
            let operations: Vec<&'static OperationInfo> = parts.registry.operations().collect();
            let table = DispatchTable::read(path, text, &operations)?;
            let hash = capabilities_hash(&parts.registry, table.operations());
            let ours = parts.devices.signature_like(&table.hardware_signature);
            table.verify(path, &ours, &hash)?;
            let loaded = LoadedTable { path: path.to_owned(), table: Arc::new(table), stale: None };
            state = LoadedTables(vec![loaded.clone()]).states().pop();
            Ok(Some(SnapshotParts { solved: Arc::new(parts.solved.with(loaded)), ..parts }))
        })?;
        let read = || Reason::new(ReasonCode::TableInvalid);
        state.ok_or_else(|| TableError { path: path.to_owned(), report: None, reasons: vec![read()] }.into())
    }

    /// Removes all dispatch tables.
    pub fn unload_dispatch_tables(&self) {
        // Removal cannot fail.
        self.change(|parts| Ok(Some(SnapshotParts { solved: Arc::default(), ..parts }))).ok();
    }

    /// The loaded dispatch tables, including stale ones.
    pub fn dispatch_tables(&self) -> Vec<TableState> {
        self.snapshot().solved.states()
    }
}
