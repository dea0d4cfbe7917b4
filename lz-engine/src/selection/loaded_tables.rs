//! The tables that an engine uses, and their answers for a call.
//!
//! A loaded table matched this machine and its capabilities. When kernels are added or removed, it may become stale: it stays visible
//! and decides nothing.

use std::sync::Arc;

use serde::Serialize;

use crate::registry::Registry;
use crate::selection::operation_table::OperationTable;
use crate::table::{Decision, DispatchTable, TableAnswer, capabilities_hash};
use lz_core::context::{Context, Store};
use lz_core::device::DeviceSpec;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// A loaded table.
#[derive(Debug, Clone)]
pub(crate) struct LoadedTable {
    pub path: String,
    pub table: Arc<DispatchTable>,
    /// Why it is stale.
    pub stale: Option<Reason>,
}

/// All tables of an engine, at most one per hardware signature.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoadedTables(pub(crate) Vec<LoadedTable>);

/// The answer of the tables for a call.
#[derive(Debug, Default)]
pub(crate) enum Hint<'a> {
    /// Nothing.
    #[default]
    None,
    /// Ranks these candidates first, in this order, unless policy overrules it (and why).
    Decided { loaded: &'a LoadedTable, positions: Vec<u16>, overruled: Option<&'static str> },
    /// The operation is in the table, but this call is not.
    Outside { loaded: &'a LoadedTable, reason: Reason },
    /// The table is stale.
    Stale { loaded: &'a LoadedTable, reason: &'a Reason },
}

impl Hint<'_> {
    /// Candidates that rank before all others.
    pub fn first(&self) -> &[u16] {
        match self {
            Hint::Decided { positions, overruled: None, .. } => positions,
            _ => &[],
        }
    }

    /// Why the call is refused: the table makes calls outside of it an error.
    pub fn forbids(&self) -> Option<&Reason> {
        match self {
            Hint::Outside { loaded, reason } => loaded.table.outside_is_error.then_some(reason),
            _ => None,
        }
    }
}

impl LoadedTables {
    /// Adds a table, replacing the one with the same hardware signature.
    #[must_use]
    pub fn with(&self, loaded: LoadedTable) -> LoadedTables {
        let other = |one: &&LoadedTable| one.table.hardware_signature != loaded.table.hardware_signature;
        let mut tables: Vec<LoadedTable> = self.0.iter().filter(other).cloned().collect();
        tables.push(loaded);
        tables.sort_by(|a, b| a.table.hardware_signature.cmp(&b.table.hardware_signature));
        LoadedTables(tables)
    }

    /// The same tables with another registry: recomputes which are stale.
    pub fn with_registry(tables: &Arc<LoadedTables>, registry: &Registry) -> Arc<LoadedTables> {
        if tables.0.is_empty() {
            return Arc::clone(tables);
        }
        let mut next = (**tables).clone();
        for loaded in &mut next.0 {
            let found = capabilities_hash(registry, loaded.table.operations());
            let required = loaded.table.capabilities_hash.as_deref().unwrap_or_default();
            loaded.stale = (found != required)
                .then(|| Reason::new(ReasonCode::TableCapabilitiesMismatch).required(required).found(found));
        }
        Arc::new(next)
    }

    /// Sizes where answers for an operation change.
    pub fn cuts(&self, operation: &OperationInfo, visit: &mut dyn FnMut(Store, i64)) {
        self.0.iter().for_each(|loaded| loaded.table.cuts(operation, visit));
    }

    /// Whether answers for an operation depend on scalars, which are not part of a cell.
    pub fn reads_scalars(&self, operation: &OperationInfo) -> bool {
        self.0.iter().any(|loaded| loaded.table.reads_scalars(operation))
    }

    /// A 48-bit digest of the answer for a call.
    pub fn digest(
        &self,
        table: &OperationTable,
        registry: &Registry,
        context: &Context,
        device: Option<&DeviceSpec>,
    ) -> u64 {
        let (kind, positions) = match self.hint(table, registry, context, device) {
            Hint::None => (1, Vec::new()),
            Hint::Stale { .. } => (2, Vec::new()),
            Hint::Outside { .. } => (3, Vec::new()),
            Hint::Decided { positions, .. } => (4, positions),
        };
        let mixed = positions.iter().fold(kind, |all: u64, position| {
            (all ^ u64::from(*position)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
        });
        mixed & ((1 << 48) - 1)
    }

    /// The answer for a call, before policy is applied.
    pub fn hint<'a>(
        &'a self,
        table: &OperationTable,
        registry: &Registry,
        context: &Context,
        device: Option<&DeviceSpec>,
    ) -> Hint<'a> {
        let Some(device) = device.filter(|_| !self.0.is_empty()) else { return Hint::None };
        let signature = device.hardware_signature();
        let Some(loaded) = self.0.iter().find(|one| one.table.hardware_signature == signature) else {
            return Hint::None;
        };
        match loaded.table.lookup(table.info, context) {
            TableAnswer::Unknown => Hint::None,
            _ if loaded.stale.is_some() => match &loaded.stale {
                Some(reason) => Hint::Stale { loaded, reason },
                None => Hint::None,
            },
            TableAnswer::Outside(reason) => Hint::Outside { loaded, reason },
            TableAnswer::Decision(decision) => {
                Hint::Decided { loaded, positions: positions(table, registry, decision), overruled: None }
            }
        }
    }

    /// The tables, for display.
    pub fn states(&self) -> Vec<TableState> {
        let state = |loaded: &LoadedTable| TableState {
            path: loaded.path.clone(),
            model_id: loaded.table.model_id.clone(),
            hardware_signature: loaded.table.hardware_signature.clone(),
            operations: loaded.table.operations().map(str::to_owned).collect(),
            stale: loaded.stale.as_ref().map(Reason::to_string),
        };
        self.0.iter().map(state).collect()
    }
}

/// The decided kernel and its fallbacks as candidate positions; unknown ids are skipped.
fn positions(table: &OperationTable, registry: &Registry, decision: &Decision) -> Vec<u16> {
    let ids = std::iter::once(&decision.kernel).chain(&decision.fallbacks);
    ids.filter_map(|id| table.position_of(registry, id)).collect()
}

/// A loaded table, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableState {
    /// The file.
    pub path: String,
    /// The model that it was built for.
    pub model_id: String,
    /// Its hardware signature.
    pub hardware_signature: String,
    /// The operations that it decides.
    pub operations: Vec<String>,
    /// Why it is stale; `None` if it is not.
    pub stale: Option<String>,
}
