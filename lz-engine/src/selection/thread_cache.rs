//! What a thread remembers between calls: the state of the world it last saw, the last calls of each operation with their
//! kernels, scratch memory.
//!
//! A call is remembered whole, so that looking for it is a comparison of words and finding it settles everything: its cell,
//! its guards and its scratch memory depend on nothing but the call and the state of the world. What depends on more (free
//! memory, circuits that are not closed) is never remembered here.

use std::sync::Arc;

use super::operation_table::OperationTable;
use super::publish::Published;
use super::snapshot::World;
use crate::compiled::CompiledKernel;
use crate::selection::exact_cache::Settled;
use crate::telemetry::Tally;
use lz_core::context::{Context, Extent, MAX_WORDS};
use lz_core::mode::ModeChange;
use lz_core::plan::Transforms;
use lz_core::run::Scratch;

/// Calls that are remembered an operation.
const WAYS: usize = 4;
/// A call that comes twice in a row is remembered at once. Of calls that take turns only one in so many is: replacing a way
/// on each call would cost more than it brings.
const PATIENCE: u32 = 16;
/// Hits of one thread between two looks at a clock.
const HITS_BETWEEN_LOOKS: u32 = 1 << 16;

/// What one level of calls of a thread remembers.
#[derive(Default)]
pub(crate) struct Local {
    /// The number of the world.
    pub generation: u64,
    /// Hits since a clock was looked at, and how many there may be.
    pub hits: u32,
    pub patience: u32,
    /// Whether it has belonged to a thread before.
    pub is_kept: bool,
    pub recent: Recent,
    pub scratch: Scratch,
    pub world: Option<Arc<World>>,
    /// What was not yet told to telemetry.
    pub tally: Tally,
    /// The next one in a row of spare ones.
    pub below: Option<&'static mut Local>,
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
        self.generation = world.generation;
        self.patience = world.watch.patience(HITS_BETWEEN_LOOKS);
        self.world = Some(world);
    }

    /// Tells telemetry what this thread has counted by itself.
    pub fn tell(&mut self) {
        if let Some(world) = &self.world {
            self.tally.tell(self.hits, &world.watching.telemetry);
        }
    }

    /// The way of the call that was made last, if it is this one and it is not time to look at a clock. Ways of a world in
    /// which calls need leave or are watched do not exist, and ways of other worlds are not found.
    #[inline(always)]
    pub fn recall(
        &mut self,
        slot: u32,
        generation: u64,
        change: ModeChange,
        context: &Context,
    ) -> Option<(&Way, &CompiledKernel, &mut Scratch)> {
        // Hits are told to the engine whose world this is.
        if self.generation != generation || self.hits >= self.patience {
            return None;
        }
        let way = self.recent.of(slot)?.latest(generation, change, context)?;
        self.hits += 1;
        Some((way, way.kernel.as_deref()?, &mut self.scratch))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.tell();
    }
}

/// The calls that a thread remembers, by operation slot.
#[derive(Default)]
pub(crate) struct Recent(Vec<Option<Box<Ways>>>);

/// The calls of one operation, and which one is replaced next.
pub(crate) struct Ways {
    ways: [Way; WAYS],
    /// The numbers of the calls, by which one is found quickly; the calls themselves are compared as well.
    calls: [u64; WAYS],
    /// The one that was found last, which is looked at first.
    latest: usize,
    next: usize,
    /// Looks that ended in the shared table since a way was last replaced, and what the last of them was for.
    passed: u32,
    missed: u64,
}

impl Ways {
    const EMPTY: Ways = Ways {
        ways: [const { Way::EMPTY }; WAYS],
        calls: [0; WAYS],
        latest: 0,
        next: 0,
        passed: 0,
        missed: 0,
    };

    /// The way that was found last, if it is this call's.
    #[inline(always)]
    fn latest(&self, generation: u64, change: ModeChange, context: &Context) -> Option<&Way> {
        let way = &self.ways[self.latest % WAYS];
        way.is_of(generation, change, context).then_some(way)
    }

    /// The way of a call, by its number.
    #[inline(always)]
    pub fn find(
        &mut self,
        call: u64,
        generation: u64,
        change: ModeChange,
        context: &Context,
    ) -> Option<&Way> {
        let found = self.calls.iter().position(|known| *known == call)?;
        let way = self.ways.get(found).filter(|way| way.is_of(generation, change, context))?;
        self.latest = found;
        Some(way)
    }

    /// Whether a call that was found in the shared table is to be remembered.
    #[inline(always)]
    pub fn wants(&mut self, call: u64) -> bool {
        self.passed += 1;
        let again = std::mem::replace(&mut self.missed, call) == call;
        again || self.passed >= PATIENCE
    }
}

/// One call and its kernel. The thread's change of mode stands for the mode, whose ground comes with the world.
pub(crate) struct Way {
    /// The world's; 0 for an empty way.
    generation: u64,
    change: ModeChange,
    extent: Extent,
    /// Whether numeric params are compared, too.
    numbers_tell: bool,
    /// What was decided, in the registry of its world.
    pub settled: Settled,
    pub kernel: Option<Arc<CompiledKernel>>,
    words: [u64; MAX_WORDS],
}

impl Way {
    const EMPTY: Way = Way {
        generation: 0,
        change: ModeChange::NONE,
        extent: Extent::NONE,
        numbers_tell: true,
        settled: Settled { workspace: 0, kernel: 0, transforms: Transforms::NONE },
        kernel: None,
        words: [0; MAX_WORDS],
    };

    /// Whether it is this call. Word by word and leaving at the first difference: a wide comparison would have to wait for
    /// the stores that have just made the context.
    #[inline(always)]
    fn is_of(&self, generation: u64, change: ModeChange, context: &Context) -> bool {
        let (sized, rest) = self.words.split_at(context.sized().len().min(MAX_WORDS));
        sized.iter().zip(context.sized()).all(|(known, word)| known == word)
            && (!self.numbers_tell || rest.iter().zip(context.numbers()).all(|(known, word)| known == word))
            && self.generation == generation
            && self.change == change
            && self.extent == context.extent()
    }
}

impl Recent {
    /// The calls of an operation.
    #[inline(always)]
    pub fn of(&mut self, slot: u32) -> Option<&mut Ways> {
        self.0.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Remembers a call whose decision hangs on nothing but the call.
    #[inline(never)]
    pub fn remember(
        &mut self,
        world: &World,
        table: &OperationTable,
        (call, context, change): (u64, &Context, ModeChange),
        settled: Settled,
    ) {
        let slot = table.info.slot() as usize;
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        let Some(place) = self.0.get_mut(slot) else { return };
        let ways = place.get_or_insert_with(|| Box::new(Ways::EMPTY));
        let next = ways.next % WAYS;
        (ways.next, ways.passed, ways.latest) = (next + 1, 0, next);
        ways.calls[next] = call;
        ways.ways[next].fill(world, table, (context, change), settled);
    }
}

impl Way {
    fn fill(
        &mut self,
        world: &World,
        table: &OperationTable,
        (context, change): (&Context, ModeChange),
        settled: Settled,
    ) {
        // The same kernel of the same world is not counted again: the count is shared by all threads.
        if self.generation != world.generation || self.settled.kernel != settled.kernel {
            self.kernel = world.registry.shared(settled.kernel);
        }
        (self.generation, self.change) = (world.generation, change);
        (self.extent, self.numbers_tell) = (context.extent(), table.numbers_tell);
        self.settled = settled;
        for (place, word) in self.words.iter_mut().zip(context.words()) {
            *place = *word;
        }
    }
}
