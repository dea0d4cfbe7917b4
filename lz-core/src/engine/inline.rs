//! The thread state: the thread cache, the last snapshot seen, scratch memory and unflushed counters.
//!
//! The thread cache is keyed by the whole call, so a lookup is a comparison of words and a hit needs no cell key, guard or
//! workspace evaluation. Decisions that depend on anything but the call and the snapshot (free memory, circuits that are not
//! closed) are never inserted.

use std::sync::Arc;

use super::publish::Published;
use super::table::OperationTable;
use super::world::World;
use crate::compiled::CompiledKernel;
use crate::context::{Context, Extent, MAX_WORDS};
use crate::known::Settled;
use crate::mode::ModeChange;
use crate::plan::Transforms;
use crate::run::Scratch;
use crate::telemetry::Tally;

/// Entries per operation.
const WAYS: usize = 4;
/// A call that misses twice in a row is inserted at once. Otherwise only one miss in this many is inserted: for working sets
/// larger than the cache, replacing an entry on each call costs more than it saves.
const PATIENCE: u32 = 16;
/// Hits of one thread between two reads of a clock.
const HITS_BETWEEN_LOOKS: u32 = 1 << 16;

/// The state of a thread for one nesting level of calls.
#[derive(Default)]
pub(crate) struct Local {
    /// The generation of `world`.
    pub generation: u64,
    /// Hits since the last clock read, and the limit.
    pub hits: u32,
    pub patience: u32,
    /// Whether the thread's exit hook is installed.
    pub is_kept: bool,
    pub recent: Recent,
    pub scratch: Scratch,
    pub world: Option<Arc<World>>,
    /// Counters not yet flushed to telemetry.
    pub tally: Tally,
    /// The next one in the list of spare states.
    pub below: Option<&'static mut Local>,
}

impl Local {
    /// Loads the current snapshot if the held one is stale.
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

    /// Flushes this thread's counters to telemetry.
    pub fn tell(&mut self) {
        if let Some(world) = &self.world {
            self.tally.tell(self.hits, &world.watching.telemetry);
        }
    }

    /// The latest entry, if it is this call's and no clock read is due. Entries are only inserted for calls that need no permit
    /// and are not observed; entries of other snapshots do not match.
    #[inline(always)]
    pub fn recall(
        &mut self,
        slot: u32,
        generation: u64,
        change: ModeChange,
        context: &Context,
    ) -> Option<(&Way, &CompiledKernel, &mut Scratch)> {
        // Hits are counted for the engine of the held snapshot.
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

/// The per-thread decision cache, by operation slot.
#[derive(Default)]
pub(crate) struct Recent(Vec<Option<Box<Ways>>>);

/// The entries of one operation, replaced round-robin.
pub(crate) struct Ways {
    ways: [Way; WAYS],
    /// Hashes of the calls, compared before the calls themselves.
    calls: [u64; WAYS],
    /// The entry hit last, which is compared first.
    latest: usize,
    next: usize,
    /// Misses since the last insertion, and the hash of the last miss.
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

    /// The entry hit last, if it is this call's.
    #[inline(always)]
    fn latest(&self, generation: u64, change: ModeChange, context: &Context) -> Option<&Way> {
        let way = &self.ways[self.latest % WAYS];
        way.is_of(generation, change, context).then_some(way)
    }

    /// The entry of a call, by its hash.
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

    /// Whether a call that missed is to be inserted.
    #[inline(always)]
    pub fn wants(&mut self, call: u64) -> bool {
        self.passed += 1;
        let again = std::mem::replace(&mut self.missed, call) == call;
        again || self.passed >= PATIENCE
    }
}

/// A call and its decision. Keyed by the thread's mode override; the base mode is in the snapshot.
pub(crate) struct Way {
    /// Of the snapshot; 0 for an empty entry.
    generation: u64,
    change: ModeChange,
    extent: Extent,
    /// Whether scalar params are part of the key.
    numbers_tell: bool,
    /// The decision; its kernel index refers to the registry of the snapshot.
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

    /// Compares word by word with early exit: a wide load would stall on store forwarding, because the context has just been
    /// written.
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
    /// The entries of an operation.
    #[inline(always)]
    pub fn of(&mut self, slot: u32) -> Option<&mut Ways> {
        self.0.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Inserts a decision that depends on nothing but the call and the snapshot.
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
        // Avoids touching the reference count, which all threads share, if the kernel is the same.
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
