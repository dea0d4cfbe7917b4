//! Explanations: all candidates with reasons, score terms, policy effects and measurements, as data.
//!
//! An explanation uses the same filter and score as a decision, so the two cannot disagree. It renders as a table
//! ([`std::fmt::Display`]) and as JSON (serde).

mod render;

use std::time::Instant;

use serde::{Serialize, Serializer};

use crate::compiled::CompiledKernel;
use crate::engine::Engine;
use crate::evidence::Measured;
use crate::rollout::Verdict;
use crate::selection::cache::CellKey;
use crate::selection::call::Call;
use crate::selection::decide::{self, Ranked};
use crate::selection::filter;
use crate::selection::guard;
use crate::selection::loaded_tables::{Hint, LoadedTable};
use crate::selection::score::{self, PerfTerms, Score};
use crate::selection::snapshot::Snapshot;
use crate::selection::split;
use lz_core::context::{Context, FieldKind};
use lz_core::expression_names;
use lz_core::kernel::KernelEntry;
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;
use lz_core::plan::{Plan, Transforms};
use lz_core::reason::{Reason, ReasonCode};

/// Why a kernel would be selected for a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The operation.
    pub operation: String,
    /// The version of its contract.
    pub version: u32,
    /// Sizes, params and dtypes of the call, by name.
    pub call: Vec<CallField>,
    /// The device of the call.
    pub device: Option<Device>,
    /// Mode flags of policy and thread; empty without any.
    pub mode: String,
    /// The generation of the snapshot.
    pub generation: u64,
    /// Whether the decision is cached.
    pub cache: CacheState,
    /// Latency of making the decision without a cache.
    pub decided_in_ns: u64,
    /// Active rules and locks.
    pub policy: Vec<PolicyLine>,
    /// The answer of a dispatch table.
    pub table: Option<TableLine>,
    /// Kernel versions that share the calls of another version, or have taken them over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<VersionLine>,
    /// Why candidates are omitted, if policy disables explanations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// Why there are no measurements, if the database is not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perfdb: Option<ReasonLine>,
    /// The selected kernel.
    pub plan: Option<Plan>,
    /// All kernels of the operation: eligible ones by score, then the others by id.
    pub candidates: Vec<Candidate>,
}

/// A field of the call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallField {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The kind of field: `axis`, `param`, `given` or `dtype`.
    pub kind: &'static str,
}

/// The device of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Platform and index, `cuda:0`.
    pub place: String,
    /// Architecture, `sm90`; empty if there is no such name.
    pub architecture: String,
    /// Whether it is a simulated device.
    pub imagined: bool,
}

/// Whether the decision for a call is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// Cached.
    Cached,
    /// Not cached yet.
    NotCached,
    /// Not cacheable: the cache is disabled, or an axis is too large for its keys.
    Uncacheable,
}

/// An effect of the policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyLine {
    /// A description.
    pub what: String,
    /// The source.
    pub source: String,
    /// The score contribution.
    pub points: f64,
}

/// The answer of a dispatch table for a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableLine {
    /// The model that the table was built for.
    pub model_id: String,
    /// The file.
    pub source: String,
    /// Whether its choice takes precedence.
    pub acts: bool,
    /// What it chose, why it does not apply, or what overrules it.
    pub what: String,
    /// Why it does not apply.
    pub reason: Option<ReasonLine>,
}

/// The share of a kernel version in the calls of its operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VersionLine {
    /// The version, `<id>@<version>`.
    pub kernel: String,
    /// The stable version.
    pub stable: String,
    /// The percentage of calls that it gets.
    pub percent: u8,
    /// `share`, `canary`, `promoted` or `rolled_back`.
    pub state: &'static str,
    /// The progress of a canary, or the reason of its verdict.
    pub detail: String,
}

/// A candidate kernel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// Its id.
    pub kernel: String,
    /// Its backend.
    pub backend: String,
    /// Its version.
    pub version: String,
    /// Whether it is selected.
    pub chosen: bool,
    /// Whether it is the reference kernel of its platform.
    pub reference: bool,
    /// The terms of its score, also if it cannot run.
    pub score: Score,
    /// Their sum.
    pub total: f64,
    /// Why it cannot run; empty if it can.
    pub reasons: Vec<ReasonLine>,
    /// Its measurements.
    #[serde(serialize_with = "measured")]
    pub evidence: Option<Measured>,
    /// Conversions by its adapter.
    pub transforms: Transforms,
    /// Workspace in bytes; `None` if the formula has no value.
    pub workspace_bytes: Option<u64>,
    /// Effects of the policy on its score.
    pub policy: Vec<PolicyLine>,
    /// The worker process it runs in, if any, and the setting that requires it.
    pub runs_in: Option<String>,
    /// Its last recorded error: in this bucket, of its backend, or in other buckets.
    pub last_failure: Option<String>,
}

/// A reason as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReasonLine {
    /// The code.
    pub code: &'static str,
    /// The argument that it refers to.
    pub argument: Option<String>,
    /// The axis that it refers to.
    pub axis: Option<String>,
    /// What was required.
    pub required: Option<String>,
    /// What was found.
    pub found: Option<String>,
    /// The whole sentence.
    pub sentence: String,
    /// How to fix it.
    pub help: Option<&'static str>,
}

impl From<&Reason> for ReasonLine {
    fn from(reason: &Reason) -> Self {
        ReasonLine {
            code: reason.code.as_str(),
            argument: reason.argument.clone(),
            axis: reason.axis.clone(),
            required: reason.required.clone(),
            found: reason.found.clone(),
            sentence: reason.sentence(),
            help: reason.code.help(),
        }
    }
}

#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn measured<S: Serializer>(measured: &Option<Measured>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Shown {
        median_ns: f64,
        samples: u64,
        age_seconds: u64,
        confidence: f64,
    }
    let shown = measured.map(|measured| Shown {
        median_ns: measured.median_ns,
        samples: measured.samples,
        age_seconds: measured.age_seconds,
        confidence: measured.confidence,
    });
    shown.serialize(serializer)
}

impl Explanation {
    /// The id of the selected kernel.
    pub fn chosen(&self) -> Option<&str> {
        self.plan.as_ref().map(|plan| plan.kernel.as_str())
    }

    /// Fills in the last resort if no kernel is eligible.
    fn last_resort(&mut self, call: &Call<'_>) {
        let name = |best: &Ranked| {
            let entry = call.table.candidates.get(usize::from(best.position))?;
            Some(call.snapshot.registry.compiled(entry.kernel)?.spec().id.clone())
        };
        let last_resort = decide::last_resort(call);
        let names: Vec<String> = last_resort.iter().filter_map(name).collect();
        if let Some(best) =
            names.first().and_then(|best| self.candidates.iter_mut().find(|one| one.kernel == *best))
        {
            // It keeps its reason (cold, or circuit open), which is why it is the last resort.
            best.chosen = true;
            self.plan = Some(planned(best, names.iter().skip(1).cloned(), call));
            return;
        }
        let Some((split, best)) = split::plan(call) else { return };
        let entry = call.table.candidates.get(usize::from(best.position));
        let Some(kernel) = entry.and_then(|entry| call.snapshot.registry.compiled(entry.kernel)) else {
            return;
        };
        self.plan = Some(Plan {
            kernel: kernel.spec().id.clone(),
            transforms: best.transforms,
            transform_cost: -best.score.transform,
            workspace_bytes: split::workspace(call, kernel, &split),
            score: best.total,
            fallbacks: Vec::new(),
            split: Some(split.clone()),
        });
        if let Some(chosen) = self.candidates.iter_mut().find(|one| one.kernel == kernel.spec().id) {
            chosen.chosen = true;
            let reason = Reason::new(ReasonCode::BatchSplitRequired)
                .axis(&split.axis)
                .required(format!("at most {}", split.part))
                .found(split.size.to_string());
            chosen.reasons.push(ReasonLine::from(&reason));
        }
    }

    /// The candidate with this id.
    pub fn candidate(&self, kernel: &str) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.kernel == kernel)
    }
}

/// Explains a call under a snapshot.
pub(crate) fn explain(
    snapshot: &Snapshot,
    operation: &'static OperationInfo,
    context: &Context,
    mode: Mode,
) -> Explanation {
    let device = snapshot.devices.of_call(crate::selection::devices::device_store(operation), context);
    let mut explanation = Explanation {
        operation: operation.name.to_string(),
        version: operation.version,
        call: call_fields(operation, context),
        device: device.map(|device| Device {
            name: device.name.clone(),
            place: format!("{}:{}", device.platform(), device.index),
            architecture: device.sm().map(|sm| format!("sm{sm}")).unwrap_or_default(),
            imagined: !snapshot.devices.are_real(),
        }),
        mode: mode.to_string(),
        generation: snapshot.generation,
        cache: CacheState::Uncacheable,
        decided_in_ns: 0,
        policy: Vec::new(),
        table: None,
        versions: Vec::new(),
        withheld: None,
        perfdb: None,
        plan: None,
        candidates: Vec::new(),
    };
    let Some(table) = snapshot.table(operation) else { return explanation };
    let start = Instant::now();
    let call = Call::new(snapshot, table, context, mode);
    let decision = decide::decide(&call);
    explanation.decided_in_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    // As a call does.
    if decision.is_none() {
        decide::settle_judgments(&call);
    }
    explanation.cache = cache_state(&call);
    explanation.policy = active_rules(&call);
    explanation.table = tabled(&call);
    explanation.versions = versions(&call);
    let measured = score::measured(&call);
    for ranked in decide::rank(&call, &PerfTerms::of(&call)) {
        let entry = table.candidates.get(usize::from(ranked.position));
        let Some(kernel) = entry.and_then(|entry| snapshot.registry.compiled(entry.kernel)) else { continue };
        let measured = measured.get(usize::from(ranked.position)).copied().flatten();
        explanation.candidates.push(candidate(&call, ranked, kernel, measured));
    }
    // Eligible candidates stay ordered by score; the others are ordered by id.
    explanation.candidates.sort_by(|a, b| {
        let impossible = |one: &Candidate| !one.reasons.is_empty();
        let by_id =
            if impossible(a) && impossible(b) { a.kernel.cmp(&b.kernel) } else { std::cmp::Ordering::Equal };
        impossible(a).cmp(&impossible(b)).then(by_id)
    });
    let eligible = explanation.candidates.iter().filter(|one| one.reasons.is_empty());
    let names: Vec<String> = eligible.map(|one| one.kernel.clone()).collect();
    if let Some(best) = explanation.candidates.first_mut().filter(|best| best.reasons.is_empty()) {
        best.chosen = true;
        explanation.plan = Some(planned(best, names.into_iter().skip(1), &call));
    } else {
        explanation.last_resort(&call);
    }
    let enabled = &snapshot.policy.explain_enabled;
    if !enabled.value {
        explanation.candidates.clear();
        explanation.policy.clear();
        explanation.withheld = Some(format!("explain_enabled is false ({})", enabled.source));
    }
    explanation
}

/// The plan for this candidate.
fn planned(best: &Candidate, others: impl Iterator<Item = String>, call: &Call<'_>) -> Plan {
    let allowed = call.snapshot.policy.fallback_enabled.value;
    Plan {
        kernel: best.kernel.clone(),
        transforms: best.transforms,
        transform_cost: -best.score.transform,
        workspace_bytes: best.workspace_bytes.unwrap_or(0),
        score: best.total,
        fallbacks: if allowed { others.collect() } else { Vec::new() },
        split: None,
    }
}

fn call_fields(operation: &OperationInfo, context: &Context) -> Vec<CallField> {
    let mut all = Vec::new();
    for field in operation.fields.iter() {
        let kind = match field.kind {
            FieldKind::Axis { .. } => "axis",
            FieldKind::Statistic { .. } => "statistic",
            FieldKind::Int | FieldKind::Float | FieldKind::Bool | FieldKind::Enum(_) => "param",
            FieldKind::Given => "given",
            FieldKind::DType => "dtype",
            FieldKind::Strides | FieldKind::Device | FieldKind::Digest => continue,
        };
        all.push(CallField {
            name: field.name.to_string(),
            value: expression_names::show(field, context),
            kind,
        });
    }
    all
}

fn cache_state(call: &Call<'_>) -> CacheState {
    let mut key = CellKey::EMPTY;
    if !(call.snapshot.caching_enabled && key.fill(call.table, call.context, call.mode)) {
        return CacheState::Uncacheable;
    }
    let kept = call.snapshot.decisions.get(&key, |entry| {
        guard::all_hold(entry.guards(), call.snapshot, call.table, call.context, call.mode)
    });
    if kept.is_some() { CacheState::Cached } else { CacheState::NotCached }
}

fn active_rules(call: &Call<'_>) -> Vec<PolicyLine> {
    let mut lines = Vec::new();
    if let Some((_, id, source)) = call.lock {
        lines.push(PolicyLine { what: format!("lock: {id}"), source: source.to_string(), points: 0.0 });
    }
    for rule in call.active_rules() {
        if rule.lock.is_none() {
            let points = rule.points.first().map_or(0.0, |(_, points)| *points);
            lines.push(PolicyLine { what: rule.what.clone(), source: rule.source.to_string(), points });
        }
    }
    for note in call.table.candidates.iter().flat_map(|candidate| &candidate.notes) {
        let line =
            PolicyLine { what: note.what.clone(), source: note.source.to_string(), points: note.points };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

fn versions(call: &Call<'_>) -> Vec<VersionLine> {
    let (snapshot, policy) = (call.snapshot, &call.snapshot.policy);
    let line = |entry: &KernelEntry| {
        let stable = entry.version_of.as_deref()?;
        let version = &entry.spec.id;
        let share = snapshot.rollouts.share(policy, version);
        let record = snapshot.rollouts.record(version);
        let (state, detail) = match record.and_then(|record| record.verdict.as_ref()) {
            Some((Verdict::Promoted, why)) => ("promoted", why.clone()),
            Some((Verdict::RolledBack, why)) => ("rolled_back", why.clone()),
            None if share.is_canary => {
                let totals = record.map(|record| record.stats.totals()).unwrap_or_default();
                let (calls, wanted) = (totals.calls, policy.canary.calls);
                (
                    "canary",
                    format!(
                        "{calls} of {wanted} calls, {} mismatches, {} errors",
                        totals.mismatches, totals.errors
                    ),
                )
            }
            None => ("share", String::new()),
        };
        Some(VersionLine {
            kernel: version.clone(),
            stable: stable.to_owned(),
            percent: share.percent,
            state,
            detail,
        })
    };
    snapshot.registry.kernels_of(call.table.info).filter_map(line).collect()
}

fn tabled(call: &Call<'_>) -> Option<TableLine> {
    let line = |loaded: &LoadedTable, acts, what, reason: Option<&Reason>| TableLine {
        model_id: loaded.table.model_id.clone(),
        source: loaded.path.clone(),
        acts,
        what,
        reason: reason.map(ReasonLine::from),
    };
    Some(match &call.hint {
        Hint::None => return None,
        Hint::Decided { loaded, positions, overruled } => {
            let id = |position: &u16| {
                let candidate = call.table.candidates.get(usize::from(*position))?;
                Some(call.snapshot.registry.compiled(candidate.kernel)?.spec().id.as_str())
            };
            let chosen = positions.first().and_then(id).unwrap_or("a kernel that is not registered");
            match overruled {
                None => line(loaded, true, format!("chose {chosen}"), None),
                Some(by) => line(loaded, false, format!("chose {chosen}, overruled by {by}"), None),
            }
        }
        Hint::Outside { loaded, reason } => line(loaded, false, reason.to_string(), Some(reason)),
        Hint::Stale { loaded, reason } => line(loaded, false, reason.to_string(), Some(reason)),
    })
}

fn candidate(
    call: &Call<'_>,
    ranked: Ranked,
    kernel: &CompiledKernel,
    measured: Option<Measured>,
) -> Candidate {
    let mut reasons: Vec<Reason> = Vec::new();
    filter::examine(call, ranked.position, &mut reasons);
    let spec = kernel.spec();
    let position = usize::from(ranked.position);
    let mut policy: Vec<PolicyLine> = Vec::new();
    for note in call.table.candidates.get(position).map_or(&[][..], |candidate| &candidate.notes) {
        policy.push(PolicyLine {
            what: note.what.clone(),
            source: note.source.to_string(),
            points: note.points,
        });
    }
    for rule in call.active_rules() {
        for (_, points) in rule.points.iter().filter(|(who, _)| *who == ranked.position) {
            let source = rule.source.to_string();
            policy.push(PolicyLine { what: rule.what.clone(), source, points: *points });
        }
    }
    Candidate {
        kernel: spec.id.clone(),
        backend: spec.backend.clone(),
        version: spec.version.clone(),
        chosen: false,
        reference: kernel.is_reference(),
        score: ranked.score,
        total: ranked.score.total(),
        reasons: reasons.iter().map(ReasonLine::from).collect(),
        evidence: measured,
        transforms: ranked.transforms,
        workspace_bytes: filter::workspace(kernel, &call.values),
        policy,
        runs_in: spec.runs_in.clone(),
        last_failure: call.snapshot.health.last_failure(&call.subject(kernel)),
    }
}

impl Engine {
    /// Why a kernel would be selected: every candidate with its reasons and score terms.
    pub fn explain(&self, operation: &'static OperationInfo, context: &Context) -> Explanation {
        let (snapshot, mode) = self.thread_snapshot();
        let mut explanation = explain(&snapshot, operation, context, mode);
        explanation.perfdb = self.perfdb().and_then(|db| match db.status().mode {
            lz_perfdb::Mode::Closed(why) => Some(ReasonLine::from(&Reason::from(&why))),
            lz_perfdb::Mode::Writable | lz_perfdb::Mode::ReadOnly => None,
        });
        explanation
    }
}
