//! The cache of block plans. The key contains the exact calls and the generation, so a cached plan is what planning again would
//! produce.

use std::sync::Arc;

use dashmap::DashMap;
use lz_core::fork;

use super::graph::{Block, FusionPolicy};
use super::{BlockPlan, Step, explain};
use crate::selection::snapshot::Snapshot;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;
use lz_schema::DType;

/// Maximum number of cached plans; when full, the cache is cleared.
const MAX_CACHED_PLANS: usize = 512;

/// How one step is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Form {
    pub kernel: String,
    /// Number of operations it covers, and the index of its own among them.
    pub covers: usize,
    pub own: usize,
    /// The case of `layout`, if the operation has one.
    pub layout: Option<String>,
    /// The dtype of the incoming tensor, if it is a variable.
    pub dtype: Option<DType>,
    /// Whether the kernel is one of another operation, for dequantized inputs.
    pub is_dequantized: bool,
}

/// A plan and how to run it: a form at each operation where a kernel starts.
#[derive(Debug)]
pub(super) struct Planned {
    pub plan: BlockPlan,
    pub forms: Vec<Option<Form>>,
}

/// Everything that a plan depends on besides the snapshot: mode, operations, contexts, element types.
type Key = Vec<u64>;

/// Plans by key, each with the generation of the snapshot that it was made under.
#[derive(Debug, Default)]
pub(crate) struct PlanCache(DashMap<Key, (u64, Arc<Planned>)>);

impl PlanCache {
    /// The plan of a block to be run: cached, or a new one.
    pub(super) fn plan(
        &self,
        snapshot: &Snapshot,
        mode: Mode,
        steps: &[Step],
    ) -> Result<Arc<Planned>, Error> {
        let key = key(mode, steps);
        if let Some(known) = self.get(&key, snapshot) {
            return Ok(known);
        }
        let block = Block::of(snapshot, mode, steps, FusionPolicy::Runnable)?;
        let forms = block.joint().map(|path| block.forms(&path)).unwrap_or_default();
        let planned = Arc::new(Planned { plan: explain::plan(&block), forms });
        let _inside = fork::hold();
        if self.0.len() >= MAX_CACHED_PLANS {
            self.0.clear();
        }
        self.0.insert(key, (snapshot.generation, Arc::clone(&planned)));
        Ok(planned)
    }

    fn get(&self, key: &Key, snapshot: &Snapshot) -> Option<Arc<Planned>> {
        let _inside = fork::hold();
        let cached = self.0.get(key)?;
        (cached.0 == snapshot.generation).then(|| Arc::clone(&cached.1))
    }
}

fn key(mode: Mode, steps: &[Step]) -> Key {
    let mut key = vec![u64::from(mode.flags()), u64::from(mode.overlay_id())];
    for step in steps {
        push_call(&mut key, step.operation, &step.context);
        key.push(step.dtypes.len() as u64);
        key.extend(step.dtypes.iter().map(|dtype| *dtype as u64));
        match &step.dequantized {
            Some(dequantized) => push_call(&mut key, dequantized.operation, &dequantized.context),
            None => key.push(u64::MAX),
        }
    }
    key
}

fn push_call(key: &mut Key, operation: &OperationInfo, context: &Context) {
    let words = context.words();
    key.push(u64::from(operation.slot()) << 32 | words.len() as u64);
    key.extend(words);
}
