//! The tables that an engine uses, and what they say about a call.
//!
//! A table that is here once belonged to this machine and these capabilities. When kernels come or go it may not any more:
//! then it is stale, stays visible and decides nothing.

use std::sync::Arc;

use serde::Serialize;

use crate::registry::Registry;
use crate::selection::operation_table::OperationTable;
use crate::table::{Decision, DispatchTable, Found, capabilities_hash};
use lz_core::context::{Context, Store};
use lz_core::device::DeviceSpec;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// A table in use.
#[derive(Debug, Clone)]
pub(crate) struct LoadedTable {
    pub path: String,
    pub table: Arc<DispatchTable>,
    /// Why it is not used any more.
    pub stale: Option<Reason>,
}

/// All tables of an engine, at most one for each kind of hardware.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoadedTables(pub(crate) Vec<LoadedTable>);

/// What tables say about a call.
#[derive(Debug, Default)]
pub(crate) enum Hint<'a> {
    /// Nothing.
    #[default]
    None,
    /// These candidates first, in this order; unless policy overrules it, and why.
    Decided { loaded: &'a LoadedTable, positions: Vec<u16>, overruled: Option<&'static str> },
    /// The operation is in the table, this call is not.
    Outside { loaded: &'a LoadedTable, reason: Reason },
    /// The table is not used any more.
    Stale { loaded: &'a LoadedTable, reason: &'a Reason },
}

impl Hint<'_> {
    /// Candidates that go before all others.
    pub fn first(&self) -> &[u16] {
        match self {
            Hint::Decided { positions, overruled: None, .. } => positions,
            _ => &[],
        }
    }

    /// Why the call may not be run at all: the table makes what lies outside an error.
    pub fn forbids(&self) -> Option<&Reason> {
        match self {
            Hint::Outside { loaded, reason } => loaded.table.outside_is_error.then_some(reason),
            _ => None,
        }
    }
}

impl LoadedTables {
    /// With a table, instead of the one for the same hardware if there is one.
    #[must_use]
    pub fn with(&self, loaded: LoadedTable) -> LoadedTables {
        let other = |one: &&LoadedTable| one.table.hardware_signature != loaded.table.hardware_signature;
        let mut tables: Vec<LoadedTable> = self.0.iter().filter(other).cloned().collect();
        tables.push(loaded);
        tables.sort_by(|a, b| a.table.hardware_signature.cmp(&b.table.hardware_signature));
        LoadedTables(tables)
    }

    /// The same tables beside another registry: what no longer fits is stale, what fits again is not.
    pub fn beside(tables: &Arc<LoadedTables>, registry: &Registry) -> Arc<LoadedTables> {
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

    /// Where answers for an operation change along each size.
    pub fn cuts(&self, operation: &OperationInfo, tell: &mut dyn FnMut(Store, i64)) {
        self.0.iter().for_each(|loaded| loaded.table.cuts(operation, tell));
    }

    /// Whether answers for an operation depend on numbers, which are not part of a cell of decisions.
    pub fn reads_numbers(&self, operation: &OperationInfo) -> bool {
        self.0.iter().any(|loaded| loaded.table.reads_numbers(operation))
    }

    /// What they say about a call, in 48 bits: the same for the same answer.
    pub fn says(
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

    /// What they say about a call, before policy is asked.
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
            Found::Unknown => Hint::None,
            _ if loaded.stale.is_some() => match &loaded.stale {
                Some(reason) => Hint::Stale { loaded, reason },
                None => Hint::None,
            },
            Found::Outside(reason) => Hint::Outside { loaded, reason },
            Found::Decision(decision) => {
                Hint::Decided { loaded, positions: positions(table, registry, decision), overruled: None }
            }
        }
    }

    /// What there is, for people.
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

/// The decided kernel and its fallbacks as candidates; ids that are not there are left out.
fn positions(table: &OperationTable, registry: &Registry, decision: &Decision) -> Vec<u16> {
    let ids = std::iter::once(&decision.kernel).chain(&decision.fallbacks);
    ids.filter_map(|id| table.position_of(registry, id)).collect()
}

/// A table in use, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableState {
    /// Where it came from.
    pub path: String,
    /// What it was solved for.
    pub model_id: String,
    /// The hardware that it belongs to.
    pub hardware_signature: String,
    /// The operations that it decides for.
    pub operations: Vec<String>,
    /// Why it decides nothing any more; `None` while it does.
    pub stale: Option<String>,
}
