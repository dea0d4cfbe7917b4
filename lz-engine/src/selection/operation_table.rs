//! The compiled form of one operation: its candidates, what policy says about each, compiled rules and locks, and the grid of
//! cells that decisions are cached by.
//!
//! A table depends on one registry, one policy and the loaded dispatch tables. It does not depend on health, measurements or calls.

use std::sync::Arc;

use lz_schema::expr::{self, Program, Type};
use lz_schema::model::Kind;

use super::copied_inputs;
use super::devices::device_store;
use super::prefilter::{BitSet, PassSet, Prefilter, PrefilterBuilder, single_bit};
use crate::bucket::{BucketForm, STRIDE_SPEED_BITS};
use crate::compiled::{CompiledKernel, Facts};
use crate::condition_parts::{Part, parts};
use crate::policy::{Action, ListEntry, Pattern, Policy, Provenance};
use crate::registry::{BackendState, Registry};
use crate::rollout::{Rollouts, Share, VersionGroup};
use crate::selection::cache::hash_text;
use crate::selection::loaded_tables::LoadedTables;
use lz_core::context::{Context, FLAG_WORDS, FieldKind, MAX_AXES, Store};
use lz_core::expression_names::{DEVICE_NAMES, FieldSet, MAX_VALUES, Names, Values, kernel_values};
use lz_core::kernel::KernelEntry;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// The score that an override adds, larger than any sum of other terms.
pub(crate) const OVERRIDE_POINTS: f64 = 1000.0;

/// One operation under one registry and one policy.
#[derive(Debug)]
pub(crate) struct OperationTable {
    pub info: &'static OperationInfo,
    pub candidates: Vec<Candidate>,
    ids: IdIndex,
    pub locks: Vec<CompiledLock>,
    pub rules: Vec<CompiledRule>,
    /// Flag bits that are part of the cache key.
    pub mask: [u64; FLAG_WORDS],
    /// The cells of each axis, by axis number.
    pub axes: Vec<AxisCells>,
    /// Whether scalar params are part of the cache key: a limit, rule, lock or formula reads one.
    pub keyed_on_scalars: bool,
    /// Fields whose exact value is not fixed by a cell.
    pub varying: FieldSet,
    /// The field that holds the device of the tensors.
    pub device_field: Option<Store>,
    /// Stride classes of the tensor inputs, then of the outputs.
    pub strides: Vec<(Store, String)>,
    /// How many of them belong to inputs.
    pub strided_inputs: usize,
    /// Stride classes of the inputs that the engine does not copy.
    pub uncopied: Vec<Store>,
    /// Maps calls to buckets.
    pub bucket: BucketForm<'static>,
    /// Excludes candidates and finds active rules by bitset.
    pub prefilter: Prefilter,
    /// Rules whose condition the prefilter cannot fully evaluate.
    pub unindexed_rules: Vec<u16>,
    /// Rules and locks whose condition varies within a cell, and rules that lock.
    pub varying_rules: Vec<u16>,
    pub varying_locks: Vec<u16>,
    pub locking_rules: Vec<u16>,
    /// JIT-compiled candidates.
    pub jit_candidates: BitSet,
    /// Rule scores, grouped by candidate.
    pub rule_scores: Vec<RuleScore>,
    /// Kernels whose calls are divided among versions.
    pub versions: Vec<VersionGroup>,
}

/// The score that a rule adds to a candidate.
#[derive(Debug)]
pub(crate) struct RuleScore {
    /// The rule's bit; 0 for a rule beyond the width of the bitset.
    pub bit: BitSet,
    pub rule: u16,
    pub points: f64,
}

/// Candidate positions by the hash of their id: open addressing with linear probing.
#[derive(Debug)]
struct IdIndex(Box<[Option<(u64, u16)>]>);

impl IdIndex {
    fn new(known: impl Iterator<Item = (u64, u16)>) -> IdIndex {
        let known: Vec<(u64, u16)> = known.collect();
        let mut slots = vec![None; (2 * known.len() + 1).next_power_of_two()];
        for (hash, position) in known {
            let mut slot = hash as usize % slots.len();
            while slots[slot].is_some() {
                slot = (slot + 1) % slots.len();
            }
            slots[slot] = Some((hash, position));
        }
        IdIndex(slots.into())
    }

    fn of_hash(&self, hash: u64) -> impl Iterator<Item = u16> {
        let first = hash as usize & (self.0.len() - 1);
        let (before, from) = self.0.split_at_checked(first).unwrap_or_default();
        let row = from.iter().chain(before).map_while(|slot| *slot);
        row.filter(move |(known, _)| *known == hash).map(|(_, position)| position)
    }
}

/// A kernel as a candidate under one policy.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// Its index in the registry.
    pub kernel: u32,
    /// Rank in the order of ids; breaks ties.
    pub rank: u16,
    pub facts: Facts,
    /// Score from unconditional preferences.
    pub points: f64,
    /// Range of its entries in the table's `rule_scores`.
    pub rule_scores: (u32, u32),
    /// Origin of `points`.
    pub notes: Vec<PolicyNote>,
    /// Reasons that exclude it from every call.
    pub excluded: Vec<Reason>,
    /// Why this version is not in use; calls that request it by name may use it.
    pub inactive: Option<Box<Reason>>,
    /// Whether an unconditional preference names this version.
    pub is_requested: bool,
}

/// An effect of the policy.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PolicyNote {
    pub what: String,
    pub points: f64,
    pub source: Provenance,
}

/// A condition over a call; all parts must hold.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    pub parts: Vec<Part>,
}

impl Condition {
    pub fn holds(&self, values: &Values<'_>) -> bool {
        self.parts.iter().all(|part| part.holds(values))
    }
}

#[derive(Debug)]
pub(crate) struct CompiledLock {
    /// The candidate's position; `None` if the operation has no such kernel.
    pub candidate: Option<u16>,
    pub kernel: String,
    pub fixes: Vec<(Store, u64)>,
    pub condition: Condition,
    pub source: Provenance,
}

impl CompiledLock {
    pub fn applies(&self, context: &Context, values: &Values<'_>) -> bool {
        self.fixes.iter().all(|(store, bits)| context.raw(*store) == *bits) && self.condition.holds(values)
    }
}

#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub what: String,
    pub condition: Condition,
    /// Points by candidate.
    pub points: Vec<(u16, f64)>,
    /// Candidates that it excludes.
    pub denied: Vec<u16>,
    /// The kernel that it locks: its position, if it is a candidate, and its id.
    pub lock: Option<(Option<u16>, String)>,
    /// Candidates that it requests by version.
    pub versions: Vec<u16>,
    pub source: Provenance,
}

/// How an axis is divided into cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AxisCells {
    /// Every size is a cell.
    Exact,
    /// A new cell starts at each of these sizes.
    Cut(Box<[i64]>),
}

impl AxisCells {
    /// The index of a size's cell; `None` if it does not fit into 32 bits.
    #[inline]
    pub fn cell(&self, size: i64) -> Option<u32> {
        match self {
            AxisCells::Exact => u32::try_from(size).ok(),
            AxisCells::Cut(cuts) => Some(cuts.partition_point(|cut| *cut <= size) as u32),
        }
    }
}

impl OperationTable {
    /// Whether a part has the same truth value for a whole cell.
    pub fn is_cell_constant(&self, part: &Part) -> bool {
        part.cuttable || part.reads & self.varying == 0
    }

    /// The words of a call that its decision can depend on.
    #[inline(always)]
    pub fn key_words<'c>(&self, context: &'c Context) -> &'c [u64] {
        if self.keyed_on_scalars { context.words() } else { context.cell_words() }
    }

    pub fn build(
        info: &'static OperationInfo,
        registry: &Registry,
        policy: &Policy,
        solved: &LoadedTables,
        rollouts: &Rollouts,
    ) -> OperationTable {
        let candidates = candidates(info, registry, policy);
        let id = |candidate: &Candidate| Some(hash_text(&registry.compiled(candidate.kernel)?.spec().id));
        let ids = IdIndex::new(candidates.iter().zip(0u16..).filter_map(|(one, at)| Some((id(one)?, at))));
        let mut table = OperationTable {
            info,
            candidates,
            ids,
            locks: Vec::new(),
            rules: Vec::new(),
            mask: [0; FLAG_WORDS],
            axes: Vec::new(),
            keyed_on_scalars: false,
            varying: 0,
            device_field: device_store(info),
            strides: info
                .fields
                .iter()
                .filter(|field| field.kind == FieldKind::Strides)
                .map(|field| (field.store, field.name.to_string()))
                .collect(),
            strided_inputs: info.schema().inputs.iter().filter(|input| input.kind == Kind::Tensor).count(),
            uncopied: copied_inputs::uncopied(info),
            bucket: BucketForm::new(info),
            prefilter: PrefilterBuilder::default().finish(PassSet::NONE),
            unindexed_rules: Vec::new(),
            varying_rules: Vec::new(),
            varying_locks: Vec::new(),
            locking_rules: Vec::new(),
            jit_candidates: 0,
            rule_scores: Vec::new(),
            versions: Vec::new(),
        };
        table.versions = versions(&mut table.candidates, registry, policy, rollouts);
        let names = Names::of_policy(info);
        table.locks = locks(&table, registry, policy, &names);
        table.rules = rules(&table, registry, policy, &names);
        table.cut_axes(registry, solved);
        table.mask_flags(registry);
        table.keyed_on_scalars = table.scalars_read(registry) != 0 || solved.reads_scalars(info);
        let open = |condition: &Condition, table: &OperationTable| {
            condition.parts.iter().any(|part| !table.is_cell_constant(part))
        };
        let opens = |lock: &CompiledLock| {
            let scalar = lock.fixes.iter().any(|(store, _)| matches!(store, Store::Scalar(_)));
            scalar || open(&lock.condition, &table)
        };
        let (varying_rules, varying_locks, locking_rules) = (
            numbers(&table.rules, |rule| open(&rule.condition, &table)),
            numbers(&table.locks, opens),
            numbers(&table.rules, |rule| rule.lock.is_some()),
        );
        (table.varying_rules, table.varying_locks, table.locking_rules) =
            (varying_rules, varying_locks, locking_rules);
        table.share_points();
        table.build_prefilter(registry);
        table
    }

    /// Groups the scores of rules by candidate, in the order of rules.
    fn share_points(&mut self) {
        for (position, candidate) in self.candidates.iter_mut().enumerate() {
            let first = self.rule_scores.len();
            for (number, rule) in self.rules.iter().enumerate() {
                let mine = rule.points.iter().filter(|(who, _)| usize::from(*who) == position);
                let score = |(_, points): &(u16, f64)| RuleScore {
                    bit: single_bit(number),
                    rule: number as u16,
                    points: *points,
                };
                self.rule_scores.extend(mine.map(score));
            }
            candidate.rule_scores = (first as u32, self.rule_scores.len() as u32);
        }
    }

    /// Builds the prefilter from unconditional exclusions, platforms, dtypes and formats, cell-constant limits and the conditions
    /// of rules.
    fn build_prefilter(&mut self, registry: &Registry) {
        let mut builder = PrefilterBuilder::default();
        let mut never = PassSet::NONE;
        let platform = DEVICE_NAMES.iter().position(|name| *name == "platform");
        let platform = platform.map(|slot| (self.info.fields.len() + slot) as u16);
        let field_of = |store: Store| self.info.fields.iter().position(|field| field.store == store);
        for (position, candidate) in self.candidates.iter().enumerate() {
            let who = PassSet::candidate(position);
            let Some(kernel) = registry.compiled(candidate.kernel) else { continue };
            never.candidates |= if candidate.excluded.is_empty() { 0 } else { who.candidates };
            self.jit_candidates |= if kernel.spec().jit { who.candidates } else { 0 };
            if let Some(platform) = platform {
                builder.add_cases(platform, 1 << kernel.spec().platform as u32, who);
            }
            for need in kernel.dtypes.iter().chain(&kernel.quant_format) {
                if let Some(field) = field_of(need.store) {
                    builder.add_cases(field as u16, need.allowed, who);
                }
            }
            for part in kernel.limits.iter().flat_map(|limit| &limit.parts) {
                if self.is_cell_constant(part) {
                    builder.add(part, who);
                }
            }
        }
        for (number, rule) in self.rules.iter().enumerate() {
            let who = PassSet::rule(number);
            let parts = rule.condition.parts.iter();
            let left = parts.filter(|part| !builder.add(part, who)).count();
            if left > 0 || who == PassSet::NONE {
                self.unindexed_rules.push(number as u16);
            }
        }
        self.prefilter = builder.finish(never);
    }

    pub fn all_parts<'a>(&'a self, registry: &'a Registry) -> impl Iterator<Item = &'a Part> {
        let kernels = self.candidates.iter().filter_map(move |candidate| registry.compiled(candidate.kernel));
        let limits = kernels.flat_map(|kernel| &kernel.limits).flat_map(|limit| &limit.parts);
        let rules = self.rules.iter().flat_map(|rule| &rule.condition.parts);
        let locks = self.locks.iter().flat_map(|lock| &lock.condition.parts);
        limits.chain(rules).chain(locks)
    }

    /// Scalar params that a limit, formula, rule or lock reads: only these can change a decision.
    pub fn scalars_read(&self, registry: &Registry) -> FieldSet {
        let kernels = self.candidates.iter().filter_map(|candidate| registry.compiled(candidate.kernel));
        let formulas = kernels.flat_map(|kernel| {
            kernel.workspace.iter().chain(kernel.grid.iter().flatten()).chain(&kernel.block)
        });
        let mut read = self.all_parts(registry).fold(0, |set, part| set | part.reads);
        read |= formulas.fold(0, |set, formula| set | formula.reads);
        let fixed: Vec<Store> =
            self.locks.iter().flat_map(|lock| &lock.fixes).map(|(store, _)| *store).collect();
        let mut numbers = 0;
        for (index, field) in self.info.fields.iter().enumerate().take(MAX_VALUES) {
            if matches!(field.store, Store::Scalar(_)) {
                numbers |= 1 << index;
                read |= if fixed.contains(&field.store) { 1 << index } else { 0 };
            }
        }
        read & numbers
    }

    /// Divides every axis at the schema's bucket bounds, at every size where a limit or rule changes its truth value, and where a
    /// dispatch table changes its answer.
    fn cut_axes(&mut self, registry: &Registry, solved: &LoadedTables) {
        let mut cuts: Vec<Option<Vec<i64>>> = Vec::new();
        let mut axis_of_field = vec![None; self.info.fields.len()];
        for (index, field) in self.info.fields.iter().enumerate() {
            match (field.kind.buckets(), field.store) {
                (Some(buckets), Store::Axis(axis)) => {
                    let axis = usize::from(axis) % MAX_AXES;
                    if cuts.len() <= axis {
                        cuts.resize(axis + 1, Some(Vec::new()));
                    }
                    axis_of_field[index] = Some(axis);
                    cuts[axis] = buckets
                        .map(|bounds| bounds.iter().filter_map(|bound| bound.checked_add(1)).collect());
                    if buckets.is_some() && index < MAX_VALUES {
                        self.varying |= 1 << index;
                    }
                }
                (_, Store::Scalar(_)) if index < MAX_VALUES => self.varying |= 1 << index,
                _ => {}
            }
        }
        for part in self.all_parts(registry).filter(|part| part.cuttable) {
            for (field, cut_points) in &part.cuts {
                let axis = axis_of_field.get(usize::from(*field)).copied().flatten();
                if let Some(Some(all)) = axis.and_then(|axis| cuts.get_mut(axis)) {
                    all.extend(cut_points);
                }
            }
        }
        solved.cuts(self.info, &mut |store, cut| {
            if let Store::Axis(axis) = store
                && let Some(Some(all)) = cuts.get_mut(usize::from(axis))
            {
                all.push(cut);
            }
        });
        self.axes = cuts
            .into_iter()
            .map(|cuts| match cuts {
                None => AxisCells::Exact,
                Some(mut cuts) => {
                    cuts.sort_unstable();
                    cuts.dedup();
                    AxisCells::Cut(cuts.into())
                }
            })
            .collect();
    }

    /// Whether alignment is part of the cache key: a kernel requires one, or cannot write into a given output.
    pub fn keyed_on_alignment(&self, registry: &Registry) -> bool {
        let kernels = self.candidates.iter().filter_map(|candidate| registry.compiled(candidate.kernel));
        kernels.map(CompiledKernel::spec).any(|spec| spec.alignment > 1 || !spec.writes_into_output)
    }

    /// All flags are part of the cache key, except digests and alignments that no kernel depends on.
    fn mask_flags(&mut self, registry: &Registry) {
        let aligned = self.keyed_on_alignment(registry);
        let judged = self
            .candidates
            .iter()
            .filter_map(|candidate| registry.compiled(candidate.kernel))
            .any(|kernel| kernel.entry.judge.is_some());
        for field in self.info.fields.iter() {
            let Store::Flag { word, shift, bits } = field.store else { continue };
            let bits = match field.kind {
                FieldKind::Digest if !judged => continue,
                FieldKind::Strides if !aligned => STRIDE_SPEED_BITS,
                _ => (1u64 << bits) - 1,
            };
            self.mask[usize::from(word) % FLAG_WORDS] |= bits << shift;
        }
    }

    /// The position of the candidate with this id, or with this id and version.
    pub fn position_of(&self, registry: &Registry, id: &str) -> Option<u16> {
        let found = |name: &str| {
            self.ids.of_hash(hash_text(name)).find(|position| {
                let candidate = self.candidates.get(usize::from(*position));
                candidate
                    .and_then(|candidate| registry.compiled(candidate.kernel))
                    .is_some_and(|kernel| kernel.entry.is_named(id))
            })
        };
        found(id).or_else(|| found(id.rsplit_once('@')?.0))
    }

    /// The group of versions that share the calls of a kernel.
    pub fn version_group(&self, kernel: u32) -> Option<&VersionGroup> {
        let is_stable = |group: &&VersionGroup| {
            self.candidates.get(usize::from(group.stable)).is_some_and(|one| one.kernel == kernel)
        };
        self.versions.iter().find(is_stable)
    }

    fn matching<'a>(
        &'a self,
        registry: &'a Registry,
        pattern: &'a Pattern,
    ) -> impl Iterator<Item = u16> + 'a {
        self.candidates.iter().enumerate().filter_map(move |(position, candidate)| {
            let kernel = registry.compiled(candidate.kernel)?;
            pattern.matches_kernel(&kernel.entry).then_some(position as u16)
        })
    }
}

/// The indices of the elements that satisfy a predicate.
fn numbers<T>(all: &[T], so: impl Fn(&T) -> bool) -> Vec<u16> {
    all.iter().zip(0u16..).filter(|(one, _)| so(one)).map(|(_, number)| number).collect()
}

fn candidates(info: &'static OperationInfo, registry: &Registry, policy: &Policy) -> Vec<Candidate> {
    let about = |list: &'static str, entries: &'_ [ListEntry]| -> Vec<(ListEntry, &'static str)> {
        let mine = entries.iter().filter(|listed| names_operation(&listed.operations, info, registry));
        mine.map(|listed| (listed.clone(), list)).collect()
    };
    let allow = about("allow", &policy.allow);
    let deny = about("deny", &policy.deny);
    let prefer = about("prefer", &policy.prefer);
    let avoid = about("avoid", &policy.avoid);
    let mut all: Vec<Candidate> = Vec::new();
    for &index in registry.compiled_of(info) {
        let Some(kernel) = registry.compiled(index) else { continue };
        let spec = kernel.spec();
        let mut candidate = Candidate {
            kernel: index,
            rank: 0,
            facts: kernel.facts,
            points: 0.0,
            rule_scores: (0, 0),
            notes: Vec::new(),
            excluded: Vec::new(),
            inactive: None,
            is_requested: prefer
                .iter()
                .any(|(listed, _)| listed.kernels.names_version() && matches(listed, &kernel.entry)),
        };
        if let Some(BackendState::Disabled(reason)) = registry.backend(&spec.backend).map(|b| &b.state) {
            candidate.excluded.push(reason.clone());
        }
        for (listed, list) in deny.iter().filter(|(listed, _)| matches(listed, &kernel.entry)) {
            candidate.excluded.push(
                Reason::new(ReasonCode::PolicyDenied)
                    .message(format!("{list}: {} ({})", listed.kernels, listed.source)),
            );
        }
        if !allow.is_empty() && !allow.iter().any(|(listed, _)| matches(listed, &kernel.entry)) {
            let names: Vec<String> = allow.iter().map(|(listed, _)| listed.kernels.to_string()).collect();
            let sources: Vec<String> = allow.iter().map(|(listed, _)| listed.source.to_string()).collect();
            candidate.excluded.push(
                Reason::new(ReasonCode::PolicyNotAllowed)
                    .required(format!("one of {} ({})", names.join(", "), sources.join(", ")))
                    .found(spec.id.clone()),
            );
        }
        let mut add_points = |entries: &[(ListEntry, &str)], points: f64| {
            // Several matching entries of a list count once.
            if let Some((listed, list)) = entries.iter().find(|(listed, _)| matches(listed, &kernel.entry)) {
                candidate.points += points;
                let what = format!("{list}: {}", listed.kernels);
                candidate.notes.push(PolicyNote { what, points, source: listed.source.clone() });
            }
        };
        add_points(&prefer, policy.prefer_points);
        add_points(&avoid, -policy.avoid_points);
        all.push(candidate);
    }
    let mut by_id: Vec<usize> = (0..all.len()).collect();
    by_id.sort_by_key(|position| registry.compiled(all[*position].kernel).map(|kernel| &kernel.spec().id));
    for (rank, position) in by_id.into_iter().enumerate() {
        all[position].rank = rank as u16;
    }
    all
}

fn matches(listed: &ListEntry, entry: &KernelEntry) -> bool {
    listed.kernels.matches_kernel(entry)
}

/// Marks the versions that are not in use, and returns the groups of versions that share calls.
fn versions(
    candidates: &mut [Candidate],
    registry: &Registry,
    policy: &Policy,
    rollouts: &Rollouts,
) -> Vec<VersionGroup> {
    let entry = |candidate: &Candidate| registry.compiled(candidate.kernel).map(|kernel| &kernel.entry);
    let is_version = |candidate: &Candidate| entry(candidate).is_some_and(|one| one.version_of.is_some());
    if !candidates.iter().any(is_version) {
        return Vec::new();
    }
    let mut groups = Vec::new();
    for stable in 0..candidates.len() {
        let Some(id) = entry(&candidates[stable]).filter(|one| one.version_of.is_none()) else { continue };
        let id = id.spec.id.clone();
        let all = candidates.iter().zip(0u16..);
        let versions: Vec<(u16, String)> = all
            .filter_map(|(one, position)| Some((entry(one)?, position)))
            .filter(|(one, _)| one.version_of.as_deref() == Some(id.as_str()))
            .map(|(one, position)| (position, one.spec.id.clone()))
            .collect();
        let mut shares = Vec::new();
        let mut whole = None;
        for (position, version) in &versions {
            let share = rollouts.share(policy, version);
            if share.percent >= 100 && !share.is_canary {
                whole = Some((*position, version.clone()));
            } else if share.percent > 0 {
                let canary = rollouts.record(version).filter(|_| share.is_canary);
                let canary = canary.map(|record| Arc::clone(&record.stats));
                shares.push(Share { position: *position, percent: share.percent, canary });
            }
        }
        let inactive = |in_use: &str| {
            Some(Box::new(Reason::new(ReasonCode::VersionInactive).message(format!("{in_use} is in use"))))
        };
        for (position, _) in &versions {
            candidates[usize::from(*position)].inactive = inactive(&id);
        }
        if let Some((position, version)) = whole {
            for (other, _) in &versions {
                candidates[usize::from(*other)].inactive = inactive(&version);
            }
            candidates[usize::from(position)].inactive = None;
            candidates[stable].inactive = inactive(&version);
        } else if !shares.is_empty() {
            groups.push(VersionGroup::new(stable as u16, shares));
        }
    }
    groups
}

/// Whether a pattern names the operation, by name or alias.
fn names_operation(pattern: &Pattern, info: &'static OperationInfo, registry: &Registry) -> bool {
    pattern.matches(&info.name)
        || pattern.is_exact()
            && registry.operation(pattern.as_str()).is_none()
            && registry.alias(pattern.as_str()).iter().any(|target| std::ptr::eq(target.operation, info))
}

/// Compiles a condition for one operation; `None` if it uses a name that the operation does not have.
fn condition(text: Option<&str>, names: &Names, info: &OperationInfo) -> Option<Condition> {
    let Some(text) = text else { return Some(Condition::default()) };
    let typed = expr::check_expecting(text, names, &Type::Bool).ok()?;
    Some(Condition { parts: parts(&typed, &info.fields) })
}

fn locks(table: &OperationTable, registry: &Registry, policy: &Policy, names: &Names) -> Vec<CompiledLock> {
    let info = table.info;
    let mut locks = Vec::new();
    for lock in &policy.locks {
        // The fixed params of an alias are part of the condition.
        let targets: Vec<Vec<(Store, u64)>> = if lock.operation.matches(&info.name) {
            vec![Vec::new()]
        } else if lock.operation.is_exact() && registry.operation(lock.operation.as_str()).is_none() {
            let all = registry.alias(lock.operation.as_str()).iter();
            all.filter(|target| std::ptr::eq(target.operation, info))
                .map(|target| target.fixes.clone())
                .collect()
        } else {
            Vec::new()
        };
        for fixes in targets {
            let Some(condition) = condition(lock.condition.as_deref(), names, info) else { continue };
            let candidate = table.position_of(registry, &lock.kernel);
            if candidate.is_none() && !lock.operation.is_exact() && registry.kernel(&lock.kernel).is_some() {
                // A pattern applies only to operations of its kernel; an exact name or alias applies as written.
                continue;
            }
            locks.push(CompiledLock {
                candidate,
                kernel: lock.kernel.clone(),
                fixes,
                condition,
                source: lock.source.clone(),
            });
        }
    }
    locks
}

fn rules(table: &OperationTable, registry: &Registry, policy: &Policy, names: &Names) -> Vec<CompiledRule> {
    let info = table.info;
    let kernel_names = Names::of_kernel();
    let mut rules = Vec::new();
    for rule in &policy.rules {
        if !names_operation(&rule.operations, info, registry) {
            continue;
        }
        let Some(condition) = condition(rule.condition.as_deref(), names, info) else { continue };
        let mut compiled = CompiledRule {
            what: describe_rule(rule),
            condition,
            points: Vec::new(),
            denied: Vec::new(),
            lock: None,
            versions: Vec::new(),
            source: rule.source.clone(),
        };
        for action in &rule.actions {
            let requested = match action {
                Action::Prefer(pattern) | Action::Boost(pattern, 0.0..) => Some(pattern.clone()),
                Action::Override(id) => Some(Pattern::new(id)),
                _ => None,
            };
            if let Some(pattern) = requested.filter(Pattern::names_version) {
                compiled.versions.extend(table.matching(registry, &pattern));
            }
            let mut add = |pattern: &Pattern, points: f64| {
                compiled.points.extend(table.matching(registry, pattern).map(|position| (position, points)));
            };
            match action {
                Action::Prefer(pattern) => add(pattern, policy.prefer_points),
                Action::Avoid(pattern) => add(pattern, -policy.avoid_points),
                Action::Boost(pattern, points) => add(pattern, *points),
                Action::Override(id) => add(&Pattern::new(id), OVERRIDE_POINTS),
                Action::Deny(pattern) => compiled.denied.extend(table.matching(registry, pattern)),
                Action::Allow(pattern) => {
                    let allowed: Vec<u16> = table.matching(registry, pattern).collect();
                    let all = 0..table.candidates.len() as u16;
                    compiled.denied.extend(all.filter(|position| !allowed.contains(position)));
                }
                Action::Lock(id) => {
                    let candidate = table.position_of(registry, id);
                    let elsewhere = candidate.is_none() && registry.kernel(id).is_some();
                    if !elsewhere || rule.operations.is_exact() {
                        compiled.lock = Some((candidate, id.clone()));
                    }
                }
                Action::Filter(text) => {
                    let Ok(typed) = expr::check_expecting(text, &kernel_names, &Type::Bool) else { continue };
                    let program = Program::compile(&typed);
                    for (position, candidate) in table.candidates.iter().enumerate() {
                        let Some(kernel) = registry.compiled(candidate.kernel) else { continue };
                        if program.eval_bool(&kernel_values(kernel.spec())) != Ok(true) {
                            compiled.denied.push(position as u16);
                        }
                    }
                }
            }
        }
        rules.push(compiled);
    }
    rules
}

fn describe_rule(rule: &crate::policy::Rule) -> String {
    let mut text = if rule.name.is_empty() { String::new() } else { format!("{}: ", rule.name) };
    for (position, action) in rule.actions.iter().enumerate() {
        if position > 0 {
            text.push_str(", ");
        }
        text.push_str(&match action {
            Action::Prefer(pattern) => format!("prefer {pattern}"),
            Action::Avoid(pattern) => format!("avoid {pattern}"),
            Action::Boost(pattern, points) => format!("{points:+} for {pattern}"),
            Action::Deny(pattern) => format!("deny {pattern}"),
            Action::Allow(pattern) => format!("allow {pattern} only"),
            Action::Override(id) => format!("{id} before all others"),
            Action::Lock(id) => format!("lock {id}"),
            Action::Filter(condition) => format!("only kernels with {condition}"),
        });
    }
    if let Some(condition) = &rule.condition {
        text.push_str(&format!(" when {condition}"));
    }
    text
}
