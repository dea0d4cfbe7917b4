//! The thread state: the thread cache, the last snapshot seen, scratch memory and unflushed counters.
//!
//! The thread cache is keyed by the whole call, so a lookup is a comparison of words and a hit needs no cell key, guard or
//! workspace evaluation. Decisions that depend on anything but the call and the snapshot (free memory, circuits that are not
//! closed) are never inserted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::operation_table::OperationTable;
use super::publish::Published;
use super::snapshot::Snapshot;
use crate::compiled::CompiledKernel;
use crate::selection::exact_cache::CachedDecision;
use crate::telemetry::ThreadCounters;
use lz_core::context::{Context, Extent, MAX_WORDS};
use lz_core::mode::ModeOverride;
use lz_core::plan::Transforms;
use lz_core::run::Scratch;

/// How often kernels were replaced or removed in this process.
static RELEASES: AtomicU64 = AtomicU64::new(0);

/// Announces that the next snapshot has no longer all kernels of the one before: threads that load it clear their caches.
pub(crate) fn announce_release() {
    RELEASES.fetch_add(1, Ordering::Relaxed);
}

/// The number of releases so far.
pub(crate) fn releases() -> u64 {
    RELEASES.load(Ordering::Relaxed)
}

/// Entries per operation.
const ENTRIES: usize = 4;
/// A call that misses twice in a row is inserted at once. Otherwise only one miss in this many is inserted: for working sets
/// larger than the cache, replacing an entry on each call costs more than it saves.
const INSERT_AFTER_MISSES: u32 = 16;
/// Hits of one thread between two reads of a clock.
const HITS_BETWEEN_CLOCK_READS: u32 = 1 << 16;

/// The state of a thread for one nesting level of calls.
#[derive(Default)]
pub(crate) struct ThreadState {
    /// The generation of `world`.
    pub generation: u64,
    /// Hits in the shared caches since the last clock read, and the limit of hits, which is also that of each entry.
    pub hits: u32,
    pub hit_budget: u32,
    /// Hits in the shared caches when a call was last considered for sampling.
    sampled_hits: u32,
    /// Whether the thread's exit hook is installed.
    pub has_exit_hook: bool,
    pub thread_cache: ThreadCache,
    pub scratch: Scratch,
    pub snapshot: Option<Arc<Snapshot>>,
    /// Counters not yet flushed to telemetry.
    pub tally: ThreadCounters,
    /// The number of releases up to which entries of other snapshots were cleared.
    releases: u64,
    /// The next one in the list of spare states.
    pub next_spare: Option<&'static mut ThreadState>,
}

impl ThreadState {
    /// Loads the current snapshot if the held one is stale.
    #[inline]
    pub fn refresh(&mut self, published: &Published<Snapshot>) {
        if self.generation != published.number() {
            self.reload(published);
        }
    }

    #[cold]
    fn reload(&mut self, published: &Published<Snapshot>) {
        self.flush();
        let snapshot = published.load();
        self.generation = snapshot.generation;
        self.hit_budget = snapshot.observe.hit_budget(HITS_BETWEEN_CLOCK_READS);
        self.restart();
        if snapshot.releases > self.releases {
            self.releases = snapshot.releases;
            self.thread_cache.release_stale(self.generation);
        }
        self.snapshot = Some(snapshot);
    }

    /// Drops the snapshot and all entries, so that nothing keeps replaced kernels loaded.
    pub fn release(&mut self) {
        self.flush();
        (self.snapshot, self.generation) = (None, 0);
        self.restart();
        self.thread_cache.release_stale(0);
    }

    fn restart(&mut self) {
        (self.hits, self.sampled_hits) = (0, 0);
        self.tally.restart();
    }

    /// Flushes this thread's counters to telemetry, including the hits of the thread cache: those since the last flush belong
    /// to the held snapshot.
    pub fn flush(&mut self) {
        self.thread_cache.collect_hits(&mut self.tally);
        self.flush_tally();
    }

    /// Flushes the counters without the hits of the thread cache.
    fn flush_tally(&mut self) {
        self.flush_totals();
        if let Some(snapshot) = &self.snapshot {
            self.tally.flush_kernels(|kernel, calls| {
                if let Some(kernel) = snapshot.registry.compiled(kernel) {
                    snapshot.observation.telemetry.metrics.called(kernel.spec(), calls);
                }
            });
        }
    }

    /// Flushes the totals only, as a cache hit does: it must not allocate.
    #[cold]
    #[inline(never)]
    pub fn flush_totals(&mut self) {
        if let Some(snapshot) = &self.snapshot {
            self.tally.flush_totals(self.hits, &snapshot.observation.telemetry);
        }
    }

    /// Counts a selection on the slow path.
    pub fn count_slow_selection(&mut self) {
        self.tally.slow_selections += 1;
        if self.tally.is_due() {
            self.flush_tally();
        }
    }

    /// The number of calls for which a call on the slow path stands in samples: the hits since the last one, and itself.
    pub fn take_weight(&mut self) -> u32 {
        let shared = self.hits.saturating_sub(self.sampled_hits);
        self.sampled_hits = self.hits;
        self.tally.take_unsampled().saturating_add(shared).saturating_add(1)
    }

    /// Whether a budget of a call is used up: it is to be sampled, and a clock read is due.
    pub fn is_exhausted(&mut self, slot: u32, change: ModeOverride, context: &Context) -> bool {
        let generation = self.generation;
        let entry = self.thread_cache.of(slot).and_then(|set| set.entry_of(generation, change, context));
        self.hits >= self.hit_budget || entry.is_some_and(|entry| entry.budget == 0)
    }

    /// Renews the budgets of a call that are used up. Others are kept, so that each call of a loop is sampled.
    pub fn renew_budgets(&mut self, slot: u32, change: ModeOverride, context: &Context) {
        let generation = self.generation;
        let entry = self.thread_cache.of(slot).and_then(|set| set.entry_of(generation, change, context));
        if let Some(entry) = entry.filter(|entry| entry.budget == 0) {
            entry.collect_hits(&mut self.tally);
            (entry.budget, entry.collected) = (self.hit_budget, self.hit_budget);
        }
        self.flush_tally();
    }

    /// Restarts the count of hits in the shared caches if it is used up.
    pub fn renew_shared_budget(&mut self) {
        if self.hits >= self.hit_budget {
            self.restart();
        }
    }

    /// The latest entry, if it is this call's and no clock read is due. Entries are only inserted for calls that need no permit
    /// and are not observed; entries of other snapshots do not match.
    #[inline(always)]
    pub fn lookup_latest(
        &mut self,
        slot: u32,
        generation: u64,
        change: ModeOverride,
        context: &Context,
    ) -> Option<(&ThreadCacheEntry, &CompiledKernel, &mut Scratch)> {
        // Hits are counted for the engine of the held snapshot.
        if self.generation != generation {
            return None;
        }
        let entry = self.thread_cache.of(slot)?.latest(generation, change, context)?;
        entry.budget = entry.budget.checked_sub(1)?;
        Some((entry, entry.kernel.as_deref()?, &mut self.scratch))
    }
}

impl Drop for ThreadState {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The per-thread decision cache, by operation slot.
#[derive(Default)]
pub(crate) struct ThreadCache(Vec<Option<Box<ThreadCacheSet>>>);

/// The entries of one operation, replaced round-robin.
pub(crate) struct ThreadCacheSet {
    entries: [ThreadCacheEntry; ENTRIES],
    /// Hashes of the calls, compared before the calls themselves.
    calls: [u64; ENTRIES],
    /// The entry hit last, which is compared first.
    latest: usize,
    next: usize,
    /// Misses since the last insertion, and the hash of the last miss.
    misses: u32,
    last_miss: u64,
}

impl ThreadCacheSet {
    const EMPTY: ThreadCacheSet = ThreadCacheSet {
        entries: [const { ThreadCacheEntry::EMPTY }; ENTRIES],
        calls: [0; ENTRIES],
        latest: 0,
        next: 0,
        misses: 0,
        last_miss: 0,
    };

    /// Without entries.
    #[cfg(test)]
    pub fn empty() -> ThreadCacheSet {
        ThreadCacheSet::EMPTY
    }

    /// The entry hit last, if it is this call's.
    #[inline(always)]
    fn latest(
        &mut self,
        generation: u64,
        change: ModeOverride,
        context: &Context,
    ) -> Option<&mut ThreadCacheEntry> {
        let entry = &mut self.entries[self.latest % ENTRIES];
        entry.matches(generation, change, context).then_some(entry)
    }

    /// The entry of a call, by its hash.
    #[inline(always)]
    pub fn find(
        &mut self,
        call: u64,
        generation: u64,
        change: ModeOverride,
        context: &Context,
    ) -> Option<&mut ThreadCacheEntry> {
        let found = self.calls.iter().position(|known| *known == call)?;
        let entry = self.entries.get_mut(found).filter(|entry| entry.matches(generation, change, context))?;
        self.latest = found;
        Some(entry)
    }

    /// Whether a call is in the cache: one that was sent to the slow path only to be timed or to read a clock.
    pub fn contains(&self, call: u64, generation: u64) -> bool {
        let mut known = self.calls.iter().zip(&self.entries);
        known.any(|(known, entry)| *known == call && entry.generation == generation)
    }

    /// The entry of a call.
    fn entry_of(
        &mut self,
        generation: u64,
        change: ModeOverride,
        context: &Context,
    ) -> Option<&mut ThreadCacheEntry> {
        self.entries.iter_mut().find(|entry| entry.matches(generation, change, context))
    }

    /// Whether a call that missed is to be inserted.
    #[inline(always)]
    pub fn should_insert(&mut self, call: u64) -> bool {
        self.misses += 1;
        let again = std::mem::replace(&mut self.last_miss, call) == call;
        again || self.misses >= INSERT_AFTER_MISSES
    }
}

/// A call and its decision. Keyed by the thread's mode override; the base mode is in the snapshot.
pub(crate) struct ThreadCacheEntry {
    /// Of the snapshot; 0 for an empty entry.
    generation: u64,
    /// Hits until the next clock read, and its value when hits were last collected: the difference is the number of hits.
    pub budget: u32,
    collected: u32,
    change: ModeOverride,
    extent: Extent,
    /// Whether scalar params are part of the key.
    keyed_on_scalars: bool,
    /// The decision; its kernel index refers to the registry of the snapshot.
    pub decision: CachedDecision,
    pub kernel: Option<Arc<CompiledKernel>>,
    words: [u64; MAX_WORDS],
}

impl ThreadCacheEntry {
    const EMPTY: ThreadCacheEntry = ThreadCacheEntry {
        generation: 0,
        budget: 0,
        collected: 0,
        change: ModeOverride::NONE,
        extent: Extent::NONE,
        keyed_on_scalars: true,
        decision: CachedDecision { workspace: 0, kernel: 0, transforms: Transforms::NONE },
        kernel: None,
        words: [0; MAX_WORDS],
    };

    /// Compares word by word with early exit: a wide load would stall on store forwarding, because the context has just been
    /// written.
    #[inline(always)]
    fn matches(&self, generation: u64, change: ModeOverride, context: &Context) -> bool {
        let (sized, rest) = self.words.split_at(context.cell_words().len().min(MAX_WORDS));
        sized.iter().zip(context.cell_words()).all(|(known, word)| known == word)
            && (!self.keyed_on_scalars
                || rest.iter().zip(context.scalars()).all(|(known, word)| known == word))
            && self.generation == generation
            && self.change == change
            && self.extent == context.extent()
    }
}

impl ThreadCache {
    /// The entries of an operation.
    #[inline(always)]
    pub fn of(&mut self, slot: u32) -> Option<&mut ThreadCacheSet> {
        self.0.get_mut(slot as usize)?.as_deref_mut()
    }

    fn entries(&mut self) -> impl Iterator<Item = &mut ThreadCacheEntry> {
        self.0.iter_mut().flatten().flat_map(|set| &mut set.entries)
    }

    /// Clears the entries of other snapshots: they would keep replaced kernels loaded.
    fn release_stale(&mut self, generation: u64) {
        for entry in self.entries().filter(|entry| entry.generation != generation) {
            *entry = ThreadCacheEntry::EMPTY;
        }
    }

    /// Moves the hits of all entries to the counters of the thread.
    #[cold]
    fn collect_hits(&mut self, tally: &mut ThreadCounters) {
        self.entries().for_each(|entry| entry.collect_hits(tally));
    }

    /// Inserts a decision that depends on nothing but the call and the snapshot.
    #[inline(never)]
    pub fn insert(
        &mut self,
        snapshot: &Snapshot,
        table: &OperationTable,
        (call, context, change): (u64, &Context, ModeOverride),
        decision: CachedDecision,
        (tally, budget): (&mut ThreadCounters, u32),
    ) {
        let slot = table.info.slot() as usize;
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        let Some(slot) = self.0.get_mut(slot) else { return };
        let set = slot.get_or_insert_with(|| Box::new(ThreadCacheSet::EMPTY));
        let next = set.next % ENTRIES;
        (set.next, set.misses, set.latest) = (next + 1, 0, next);
        set.calls[next] = call;
        let entry = &mut set.entries[next];
        entry.collect_hits(tally);
        (entry.budget, entry.collected) = (budget, budget);
        entry.fill(snapshot, table, (context, change), decision);
    }
}

impl ThreadCacheEntry {
    fn collect_hits(&mut self, tally: &mut ThreadCounters) {
        let hits = self.collected.saturating_sub(self.budget);
        if hits > 0 {
            tally.collect(self.decision.kernel, hits);
            self.collected = self.budget;
        }
    }

    fn fill(
        &mut self,
        snapshot: &Snapshot,
        table: &OperationTable,
        (context, change): (&Context, ModeOverride),
        decision: CachedDecision,
    ) {
        // Avoids touching the reference count, which all threads share, if the kernel is the same.
        if self.generation != snapshot.generation || self.decision.kernel != decision.kernel {
            self.kernel = snapshot.registry.shared(decision.kernel);
        }
        (self.generation, self.change) = (snapshot.generation, change);
        (self.extent, self.keyed_on_scalars) = (context.extent(), table.keyed_on_scalars);
        self.decision = decision;
        for (slot, word) in self.words.iter_mut().zip(context.words()) {
            *slot = *word;
        }
    }
}
