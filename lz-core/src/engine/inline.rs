//! What a thread remembers between calls: the state of the world it last saw, a few decisions an operation, scratch memory.
//!
//! A call takes the memory of its thread with it and gives it back when it is over. A kernel that calls the engine again
//! finds it taken and gets one of its own, which is kept below for the next time: so nothing that a running call uses can
//! be replaced under it, and no count is touched on a hit.

use std::cell::Cell;
use std::sync::Arc;

use super::guard::Guard;
use super::publish::Published;
use super::table::OperationTable;
use super::world::World;
use crate::compiled::CompiledKernel;
use crate::context::{Context, FLAG_WORDS, MAX_AXES};
use crate::engine::decide::{Decision, Workspace};
use crate::mode::Mode;
use crate::plan::Transforms;
use crate::run::Scratch;

/// Decisions that are remembered an operation.
const WAYS: usize = 4;
/// Guards that are remembered a decision; one with more is found in the shared table.
const GUARDS: usize = 4;
/// Of calls that take turns in more cells than there are ways, only one in so many is remembered: replacing a way on each
/// call would cost more than it brings.
const PATIENCE: u32 = 16;

/// What one level of calls of a thread remembers.
#[derive(Default)]
pub(crate) struct Local {
    /// Copies of what a hit needs of the world, so that it need not be touched.
    pub generation: u64,
    pub careful: bool,
    pub ground: Mode,
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

impl Local {
    /// Sees to it that the remembered state of the world is the current one.
    #[inline]
    pub fn refresh(&mut self, published: &Published<World>) {
        if self.generation != published.number() {
            self.reload(published);
        }
    }

    #[cold]
    fn reload(&mut self, published: &Published<World>) {
        let world = published.load();
        (self.generation, self.careful, self.ground) = (world.generation, world.careful, world.mode);
        self.world = Some(world);
    }
}

/// The decisions that a thread remembers, by operation slot.
#[derive(Default)]
pub(crate) struct Recent(Vec<Option<Box<Ways>>>);

/// The decisions of one operation, and which one is replaced next.
struct Ways {
    ways: [Way; WAYS],
    next: usize,
    /// Looks that ended in the shared table since a way was last replaced.
    passed: u32,
}

/// One decision, its cell as ranges, so that a look is a handful of comparisons.
pub(crate) struct Way {
    /// The world's; 0 for an empty way.
    generation: u64,
    mode: u64,
    mask: [u64; FLAG_WORDS],
    flags: [u64; FLAG_WORDS],
    axes: usize,
    low: [i64; MAX_AXES],
    span: [u64; MAX_AXES],
    /// Remainders that must be looked at, which is all that a way can keep of guards.
    guards: [Guard; GUARDS],
    guarded: usize,
    /// The kernel's index in the registry of its world.
    pub index: u32,
    pub kernel: Option<Arc<CompiledKernel>>,
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
        guards: [Guard::Rule { rule: 0, expect: false }; GUARDS],
        guarded: 0,
        index: 0,
        kernel: None,
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
        if outside {
            return false;
        }
        self.guarded == 0 || self.guards.iter().take(self.guarded).all(|guard| guard.stands_alone(context))
    }
}

impl Recent {
    /// The way that covers a call.
    #[inline(always)]
    pub fn find(&self, slot: u32, generation: u64, mode: Mode, context: &Context) -> Option<&Way> {
        let ways = self.0.get(slot as usize)?.as_ref()?;
        ways.ways.iter().find(|way| way.covers(generation, mode, context))
    }

    /// Remembers a decision, unless its guards need more than the context.
    pub fn remember(
        &mut self,
        world: &World,
        table: &OperationTable,
        context: &Context,
        mode: Mode,
        decision: &Decision,
    ) {
        let guarded = decision.guards.len();
        if guarded > GUARDS || !decision.guards.iter().all(|guard| matches!(guard, Guard::Modulus { .. })) {
            return;
        }
        let slot = table.info.slot() as usize;
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        let Some(place) = self.0.get_mut(slot) else { return };
        let ways = place
            .get_or_insert_with(|| Box::new(Ways { ways: [const { Way::EMPTY }; WAYS], next: 0, passed: 0 }));
        ways.passed += 1;
        let next = ways.next % WAYS;
        let Some(way) = ways.ways.get_mut(next) else { return };
        if way.generation == world.generation && ways.passed < PATIENCE {
            return;
        }
        (ways.next, ways.passed) = (next + 1, 0);
        way.fill(world, table, context, mode, decision);
    }
}

impl Way {
    fn fill(
        &mut self,
        world: &World,
        table: &OperationTable,
        context: &Context,
        mode: Mode,
        decision: &Decision,
    ) {
        *self = Way {
            generation: world.generation,
            mode: mode.word(),
            mask: table.mask,
            axes: table.axes.len().min(MAX_AXES),
            guarded: decision.guards.len(),
            index: decision.kernel,
            kernel: world.registry.shared(decision.kernel),
            transforms: decision.transforms,
            workspace: decision.workspace,
            ..Way::EMPTY
        };
        for (place, guard) in self.guards.iter_mut().zip(&decision.guards) {
            *place = *guard;
        }
        for word in 0..FLAG_WORDS {
            self.flags[word] = context.flags[word] & table.mask[word];
        }
        for (axis, cells) in table.axes.iter().enumerate().take(MAX_AXES) {
            let (low, high) = cells.range(context.axes[axis]);
            self.low[axis] = low;
            self.span[axis] = high.wrapping_sub(low) as u64;
        }
    }
}
