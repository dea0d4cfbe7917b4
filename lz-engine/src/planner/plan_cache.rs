//! Plans of blocks that were made before. A plan is kept for exactly these calls in exactly this state of the world, so that it
//! is what planning again would give.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::graph::{Block, Fusing};
use super::{BlockPlan, Step, explain};
use crate::selection::snapshot::World;
use lz_core::error::Error;
use lz_core::mode::Mode;
use lz_schema::DType;

/// Blocks that are kept at most; a further one begins anew.
const MOST: usize = 512;

/// One step as it is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Form {
    pub kernel: String,
    /// How many operations it does, and which of them is its own.
    pub covers: usize,
    pub own: usize,
    /// The case of `layout`, where the operation has one.
    pub layout: Option<String>,
    /// The element type of what flows in, where that is a variable.
    pub dtype: Option<DType>,
}

/// A plan and how to run it: by operation, a form where a kernel begins.
#[derive(Debug)]
pub(super) struct Planned {
    pub plan: BlockPlan,
    pub forms: Vec<Option<Form>>,
}

/// Everything that a plan depends on beside the world: mode, operations, whole contexts, element types.
type Key = Vec<u64>;

/// Plans by what they depend on.
#[derive(Debug, Default)]
pub(crate) struct KeptPlans(Mutex<(u64, HashMap<Key, Arc<Planned>>)>);

impl KeptPlans {
    /// The plan of a block as it is run: the one that is kept, or a new one.
    pub(super) fn plan(&self, world: &World, mode: Mode, steps: &[Step]) -> Result<Arc<Planned>, Error> {
        let key = key(mode, steps);
        {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.0 == world.generation
                && let Some(planned) = kept.1.get(&key)
            {
                return Ok(Arc::clone(planned));
            }
        }
        let block = Block::of(world, mode, steps, Fusing::Runnable)?;
        let forms = block.joint().map(|path| block.forms(&path)).unwrap_or_default();
        let planned = Arc::new(Planned { plan: explain::plan(&block), forms });
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.0 != world.generation || kept.1.len() >= MOST {
            kept.1.clear();
        }
        kept.0 = world.generation;
        kept.1.insert(key, Arc::clone(&planned));
        Ok(planned)
    }
}

fn key(mode: Mode, steps: &[Step]) -> Key {
    let mut key = vec![u64::from(mode.asks()), u64::from(mode.laid())];
    for step in steps {
        let words = step.context.words();
        key.push(u64::from(step.operation.slot()) << 32 | words.len() as u64);
        key.extend(words);
        key.push(step.dtypes.len() as u64);
        key.extend(step.dtypes.iter().map(|dtype| *dtype as u64));
    }
    key
}
