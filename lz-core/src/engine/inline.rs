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
use crate::telemetry::Tally;

/// Decisions that are remembered an operation.
const WAYS: usize = 4;
/// Guards that are remembered a decision; one with more is found in the shared table.
const GUARDS: usize = 4;
/// Of calls that take turns in more cells than there are ways, only one in so many is remembered: replacing a way on each
/// call would cost more than it brings.
const PATIENCE: u32 = 16;

/// Hits of one thread between two looks at a clock.
const HITS_BETWEEN_LOOKS: u32 = 1 << 16;

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
    /// Hits since a clock was looked at, and how many there may be.
    pub hits: u32,
    pub patience: u32,
    /// What was not yet told to telemetry.
    pub tally: Tally,
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
    match taken {
        Ok(Some(local)) => local,
        _ => fresh(),
    }
}

#[cold]
#[inline(never)]
fn fresh() -> Box<Local> {
    Box::default()
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
        self.tell();
        let world = published.load();
        (self.generation, self.ground) = (world.generation, world.mode);
        self.careful = world.careful || world.watch.every_call();
        self.patience = world.watch.patience(HITS_BETWEEN_LOOKS);
        self.world = Some(world);
    }

    /// Tells telemetry what this thread has counted by itself.
    pub fn tell(&mut self) {
        if let Some(world) = &self.world {
            self.tally.tell(self.hits, &world.watching.telemetry);
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.tell();
    }
}

/// Tells what this thread has counted, on every level of its calls.
pub(crate) fn tell_all() {
    let mut local = take();
    let mut level = Some(&mut local);
    while let Some(one) = level {
        one.tell();
        level = one.below.as_mut();
    }
    give_back(local);
}

/// The decisions that a thread remembers, by operation slot.
#[derive(Default)]
pub(crate) struct Recent(Vec<Option<Box<Ways>>>);

/// The decisions of one operation, and which one is replaced next.
struct Ways {
    ways: [Way; WAYS],
    /// The one that was found last, which is looked at first.
    latest: usize,
    next: usize,
    /// Looks that ended in the shared table since a way was last replaced.
    passed: u32,
}

impl Ways {
    const EMPTY: Ways = Ways { ways: [const { Way::EMPTY }; WAYS], latest: 0, next: 0, passed: 0 };
}

/// One decision, its cell as ranges, so that a look is a handful of comparisons.
pub(crate) struct Way {
    /// The world's; 0 for an empty way.
    generation: u64,
    mode: u64,
    /// How many flag words, axes and guards there are to look at.
    words: u8,
    axes: u8,
    guarded: u8,
    pub transforms: Transforms,
    /// The kernel's index in the registry of its world.
    pub index: u32,
    pub kernel: Option<Arc<CompiledKernel>>,
    pub workspace: Workspace,
    /// Mask and what must be left.
    flags: [(u64, u64); FLAG_WORDS],
    /// The smallest size, and how many more there are.
    ranges: [(i64, u64); MAX_AXES],
    /// Remainders that must be looked at, which is all that a way can keep of guards.
    guards: [Guard; GUARDS],
}

impl Way {
    const EMPTY: Way = Way {
        generation: 0,
        mode: 0,
        words: 0,
        axes: 0,
        guarded: 0,
        transforms: Transforms::NONE,
        index: 0,
        kernel: None,
        workspace: Workspace::Bytes(0),
        flags: [(0, 0); FLAG_WORDS],
        ranges: [(0, 0); MAX_AXES],
        guards: [Guard::Rule { rule: 0, expect: false }; GUARDS],
    };

    /// Whether the call is in the cell. Word by word and leaving at the first difference: a wide comparison would have to
    /// wait for the stores that have just made the context.
    #[inline(always)]
    fn covers(&self, generation: u64, mode: Mode, context: &Context) -> bool {
        if self.generation != generation || self.mode != mode.word() {
            return false;
        }
        for ((mask, wanted), flags) in self.flags.iter().zip(&context.flags).take(usize::from(self.words)) {
            if flags & mask != *wanted {
                return false;
            }
        }
        for ((low, span), size) in self.ranges.iter().zip(&context.axes).take(usize::from(self.axes)) {
            if size.wrapping_sub(*low) as u64 > *span {
                return false;
            }
        }
        self.guarded == 0 || self.guards_stand(context)
    }

    #[inline(never)]
    fn guards_stand(&self, context: &Context) -> bool {
        self.guards.iter().take(usize::from(self.guarded)).all(|guard| guard.stands_alone(context))
    }
}

impl Recent {
    /// The way that covers a call.
    #[inline(always)]
    pub fn find(&mut self, slot: u32, generation: u64, mode: Mode, context: &Context) -> Option<&Way> {
        let Ways { ways, latest, .. } = &mut **self.0.get_mut(slot as usize)?.as_mut()?;
        for turn in 0..WAYS {
            let position = (*latest + turn) % WAYS;
            if ways[position].covers(generation, mode, context) {
                *latest = position;
                return Some(&ways[position]);
            }
        }
        None
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
        let ways = place.get_or_insert_with(|| Box::new(Ways::EMPTY));
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
        let words = table.mask.iter().rposition(|mask| *mask != 0).map_or(0, |last| last + 1);
        *self = Way {
            generation: world.generation,
            mode: mode.word(),
            words: words as u8,
            axes: table.axes.len().min(MAX_AXES) as u8,
            guarded: decision.guards.len().min(GUARDS) as u8,
            index: decision.kernel,
            kernel: world.registry.shared(decision.kernel),
            transforms: decision.transforms,
            workspace: decision.workspace,
            ..Way::EMPTY
        };
        for (place, guard) in self.guards.iter_mut().zip(&decision.guards) {
            *place = *guard;
        }
        for ((place, mask), flags) in self.flags.iter_mut().zip(table.mask).zip(context.flags) {
            *place = (mask, flags & mask);
        }
        for ((place, cells), size) in self.ranges.iter_mut().zip(&table.axes).zip(context.axes) {
            let (low, high) = cells.range(size);
            *place = (low, high.wrapping_sub(low) as u64);
        }
    }
}
