//! What a thread remembers between calls: the state of the world it last saw, a few decisions an operation, scratch memory.
//!
//! A call takes the memory of its thread with it and gives it back when it is over. A kernel that calls the engine again
//! finds it taken and gets one of its own, which is kept below for the next time: so nothing that a running call uses can
//! be replaced under it, and no count is touched on a hit.

use std::cell::Cell;
use std::sync::Arc;

use super::table::OperationTable;
use super::world::World;
use crate::context::{Context, FLAG_WORDS, MAX_AXES};
use crate::engine::decide::{Decision, Workspace};
use crate::mode::Mode;
use crate::plan::Transforms;
use crate::run::Scratch;

/// Decisions that are remembered an operation.
const WAYS: usize = 4;

/// What one level of calls of a thread remembers.
#[derive(Default)]
pub(crate) struct Local {
    pub world: Option<Arc<World>>,
    pub decisions: Recent,
    pub scratch: Scratch,
    /// Hits since a clock was looked at.
    pub hits: u32,
    below: Option<Box<Local>>,
}

thread_local! {
    static LOCAL: Cell<Option<Box<Local>>> = const { Cell::new(None) };
}

/// Takes what this thread remembers.
#[inline]
pub(crate) fn take() -> Box<Local> {
    let taken = LOCAL.try_with(|cell| {
        let mut local = cell.take()?;
        cell.set(local.below.take());
        Some(local)
    });
    // A thread that is ending has no memory left; the call works without.
    taken.ok().flatten().unwrap_or_default()
}

/// Gives it back.
#[inline]
pub(crate) fn give_back(mut local: Box<Local>) {
    let _ = LOCAL.try_with(|cell| {
        local.below = cell.take();
        cell.set(Some(local));
    });
}

/// The decisions that a thread remembers, by operation slot.
#[derive(Default)]
pub(crate) struct Recent(Vec<Option<Box<Ways>>>);

/// The decisions of one operation, and which one is replaced next.
struct Ways {
    ways: [Way; WAYS],
    next: usize,
}

/// One decision, its cell as ranges, so that a look is a handful of comparisons.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// The world's; 0 for an empty way.
    generation: u64,
    mode: u64,
    mask: [u64; FLAG_WORDS],
    flags: [u64; FLAG_WORDS],
    axes: usize,
    low: [i64; MAX_AXES],
    span: [u64; MAX_AXES],
    pub kernel: u32,
    pub transforms: Transforms,
    pub workspace: Workspace,
}

impl Way {
    const EMPTY: Way = Way {
        generation: 0,
        mode: 0,
        mask: [0; FLAG_WORDS],
        flags: [0; FLAG_WORDS],
        axes: 0,
        low: [0; MAX_AXES],
        span: [0; MAX_AXES],
        kernel: 0,
        transforms: Transforms::NONE,
        workspace: Workspace::Bytes(0),
    };

    /// Whether the call is in the cell. Differences are gathered and looked at once: the answer is nearly always the same,
    /// while the single comparisons would be many branches.
    #[inline(always)]
    fn covers(&self, generation: u64, mode: Mode, context: &Context) -> bool {
        let mut differs = (self.generation ^ generation) | (self.mode ^ mode.word());
        for word in 0..FLAG_WORDS {
            differs |= (context.flags[word] & self.mask[word]) ^ self.flags[word];
        }
        if differs != 0 {
            return false;
        }
        let mut outside = false;
        for axis in 0..self.axes.min(MAX_AXES) {
            outside |= context.axes[axis].wrapping_sub(self.low[axis]) as u64 > self.span[axis];
        }
        !outside
    }
}

impl Recent {
    /// The way that covers a call.
    #[inline(always)]
    pub fn find(&self, slot: u32, generation: u64, mode: Mode, context: &Context) -> Option<&Way> {
        let ways = self.0.get(slot as usize)?.as_ref()?;
        ways.ways.iter().find(|way| way.covers(generation, mode, context))
    }

    /// Remembers a decision whose cell needs no guard.
    pub fn remember(
        &mut self,
        generation: u64,
        table: &OperationTable,
        context: &Context,
        mode: Mode,
        decision: &Decision,
    ) {
        if !decision.guards.is_empty() {
            return;
        }
        let slot = table.info.slot() as usize;
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        let Some(place) = self.0.get_mut(slot) else { return };
        let ways = place.get_or_insert_with(|| Box::new(Ways { ways: [Way::EMPTY; WAYS], next: 0 }));
        let mut way = Way {
            generation,
            mode: mode.word(),
            mask: table.mask,
            axes: table.axes.len().min(MAX_AXES),
            kernel: decision.kernel,
            transforms: decision.transforms,
            workspace: decision.workspace,
            ..Way::EMPTY
        };
        for word in 0..FLAG_WORDS {
            way.flags[word] = context.flags[word] & table.mask[word];
        }
        for (axis, cells) in table.axes.iter().enumerate().take(MAX_AXES) {
            let (low, high) = cells.range(context.axes[axis]);
            way.low[axis] = low;
            way.span[axis] = high.wrapping_sub(low) as u64;
        }
        let next = ways.next % WAYS;
        ways.ways[next] = way;
        ways.next = next + 1;
    }
}
