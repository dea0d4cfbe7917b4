//! A block as a graph: every kernel in every layout and element type that it could run in.

use lz_schema::DType;
use lz_schema::model::{Cases, DTypeRef, Kind};

use super::path::{ConversionCosts, DTypeOrd, Edge, Flow, Graph, Path, follow, shortest};
use super::plan_cache::Form;
use super::{DequantizedStep, FUSION_POINTS, Step};
use crate::compiled::CompiledKernel;
use crate::selection::call::Call;
use crate::selection::decide::{self, Ranked};
use crate::selection::filter;
use crate::selection::operation_table::OperationTable;
use crate::selection::score::PerfTerms;
use crate::selection::snapshot::Snapshot;
use lz_core::context::{Context, Field, FieldKind};
use lz_core::error::Error;
use lz_core::mode::{Mode, ModeFlag};
use lz_core::operation::OperationInfo;
use lz_core::plan::TransformKind;
use lz_core::reason::Reason;
use lz_core::spec::{COPY_COST, KernelSpec};

/// Which kernels a plan may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FusionPolicy {
    /// All: the plan is only displayed.
    Described,
    /// The plan is run: fused kernels have a fused implementation, between operations that do not mutate their inputs, in the declared
    /// layout and dtype; kernels that need the caller's own objects only if an operation has no others.
    Runnable,
}

/// The kernel of an edge.
#[derive(Debug, Clone)]
pub(super) struct EdgeKernel {
    pub kernel: String,
    /// The step of the kernel's own operation.
    own: usize,
    pub score: f64,
    pub workspace: u64,
    /// Whether it is a kernel of another operation, for dequantized inputs.
    pub is_dequantized: bool,
}

/// A block and its graph.
#[derive(Debug)]
pub(super) struct Block {
    pub operations: Vec<String>,
    /// Whether each operation has a layout param.
    has_layout: Vec<bool>,
    /// Whether each operation mutates its inputs.
    mutates: Vec<bool>,
    pub graph: Graph,
    /// The kernel of each edge.
    pub options: Vec<Vec<EdgeKernel>>,
    /// The kernel that each step would get by itself, and its score.
    pub alone: Vec<(String, f64)>,
    /// The call of each step on dequantized inputs, if there is one.
    pub dequantized: Vec<Option<DequantizedStep>>,
}

/// A candidate in one layout and element type.
struct Variant {
    kernel: String,
    takes: Flow,
    makes: Flow,
    incoming: ConversionCosts,
    outgoing: f64,
    score: f64,
    workspace: u64,
    fuses: Vec<String>,
    /// Whether it has a fused implementation.
    runs_fused: bool,
    /// Whether it needs the caller's own objects, which a block does not have.
    needs_caller: bool,
    /// Whether it is a kernel of another operation, for dequantized inputs.
    is_dequantized: bool,
}

impl Variant {
    /// Lets the engine convert its input, which is a copy, also if its adapter cannot.
    fn allow_widening(&mut self) {
        self.incoming.dtype = true;
        self.incoming.each = self.incoming.each.max(f64::from(COPY_COST));
        self.outgoing = self.outgoing.max(f64::from(COPY_COST));
    }

    /// Makes it a kernel for dequantized inputs, at the cost of making them. It runs by itself.
    fn dequantizing(&mut self, inputs: usize) {
        self.is_dequantized = true;
        self.score -= dequantization_cost(inputs);
        self.fuses.clear();
    }
}

/// The cost of dequantizing so many inputs.
pub(super) fn dequantization_cost(inputs: usize) -> f64 {
    f64::from(COPY_COST) * inputs as f64
}

impl Block {
    /// Builds the graph of a block.
    pub fn of(snapshot: &Snapshot, mode: Mode, steps: &[Step], fusing: FusionPolicy) -> Result<Block, Error> {
        let mut block = Block {
            operations: steps.iter().map(|step| step.operation.name.to_string()).collect(),
            has_layout: steps.iter().map(|step| layout_of(step.operation).is_some()).collect(),
            mutates: steps.iter().map(|step| mutates(step.operation)).collect(),
            graph: Graph { edges: vec![Vec::new(); steps.len()], declared: declared(steps) },
            options: vec![Vec::new(); steps.len()],
            alone: Vec::new(),
            dequantized: steps.iter().map(|step| step.dequantized.clone()).collect(),
        };
        let mut variants = Vec::new();
        let mut locked = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let operation = step.operation;
            let Some(table) = snapshot.table(operation) else {
                let operation = operation.name.to_string();
                return Err(Error::NoKernel { operation, candidates: Vec::new() });
            };
            let call = Call::new(snapshot, table, &step.context, mode);
            locked.push(call.lock.is_some());
            let eligible = decide::eligible(&call);
            let can_run = |ranked: &&Ranked| {
                let kernel = compiled(snapshot, table, ranked);
                kernel.is_some_and(|kernel| !kernel.entry.kernel.needs_caller())
            };
            let runnable = eligible.iter().find(can_run).filter(|_| fusing == FusionPolicy::Runnable);
            let Some(best) = runnable.or(eligible.first()) else { return Err(decide::refusal(&call)) };
            block.alone.push((id(snapshot, table, best), best.total));
            let layout = block.graph.declared.get(number).map(|flow| flow.layout.clone()).unwrap_or_default();
            let mut own = variants_of(snapshot, table, step, mode, &layout);
            let is_reference =
                |ranked: &Ranked| compiled(snapshot, table, ranked).is_some_and(|one| one.spec().reference);
            // Scores of different operations say little about each other, but every kernel beats a reference.
            if call.lock.is_none() && eligible.iter().all(is_reference) {
                own.extend(dequantized_variants(snapshot, step, mode, block.graph.declared.get(number)));
            }
            if runnable.is_some() {
                own.retain(|variant| !variant.needs_caller);
            }
            variants.push(own);
        }
        for (own, variants) in variants.into_iter().enumerate() {
            let best = variants.iter().map(|variant| variant.score).fold(f64::NEG_INFINITY, f64::max);
            for variant in variants {
                block.add(own, 0, 1, best, &variant);
                for first in block.windows(own, &variant, &locked, fusing) {
                    block.add(own, own - first, variant.fuses.len() + 1, best, &variant);
                }
            }
        }
        Ok(block)
    }

    /// First steps of a fused kernel: the steps around its own are exactly those that it fuses, and none is locked.
    fn windows(&self, own: usize, variant: &Variant, locked: &[bool], fusing: FusionPolicy) -> Vec<usize> {
        let length = variant.fuses.len() + 1;
        let runnable = variant.runs_fused && self.graph.declared.get(own) == Some(&variant.takes);
        if length == 1 || fusing == FusionPolicy::Runnable && !runnable {
            return Vec::new();
        }
        let mut wanted: Vec<&str> = variant.fuses.iter().map(String::as_str).collect();
        wanted.sort_unstable();
        let fits = |first: &usize| {
            let mut others = (*first..*first + length).filter(|step| *step != own);
            if fusing == FusionPolicy::Runnable
                && others.clone().any(|step| self.mutates.get(step).is_none_or(|mutates| *mutates))
            {
                return false;
            }
            let others = others.by_ref();
            let Some(mut found) = others
                .map(|step| self.operations.get(step).filter(|_| locked.get(step) == Some(&false)))
                .map(|name| name.map(String::as_str))
                .collect::<Option<Vec<&str>>>()
            else {
                return false;
            };
            found.sort_unstable();
            found == wanted
        };
        (own.saturating_sub(length - 1)..=own).filter(fits).collect()
    }

    fn add(&mut self, own: usize, before: usize, covers: usize, best: f64, variant: &Variant) {
        let first = own - before;
        let after = first + covers;
        let (mut takes, mut makes) = (variant.takes.clone(), variant.makes.clone());
        if covers > 1 {
            // The output dtype is the one that the last operation declares.
            makes.dtype = self.graph.declared.get(after).and_then(|flow| flow.dtype);
            // If it takes its own operation's input as declared, it takes the first operation's input as declared too.
            if let (Some(own), Some(first)) = (self.graph.declared.get(own), self.graph.declared.get(first))
                && *own == takes
            {
                takes = first.clone();
            }
        }
        let edge = Edge {
            covers,
            cost: best - variant.score - FUSION_POINTS * (covers - 1) as f64,
            takes,
            makes,
            incoming: variant.incoming,
            outgoing: variant.outgoing,
            rank: variant.kernel.clone(),
        };
        if let (Some(edges), Some(options)) = (self.graph.edges.get_mut(first), self.options.get_mut(first)) {
            edges.push(edge);
            options.push(EdgeKernel {
                kernel: variant.kernel.clone(),
                own,
                score: variant.score,
                workspace: variant.workspace,
                is_dequantized: variant.is_dequantized,
            });
        }
    }

    /// How each kernel of a path is run, indexed by its first operation.
    pub fn forms(&self, path: &Path) -> Vec<Option<Form>> {
        let mut forms = vec![None; self.operations.len()];
        for (step, position, _) in &path.edges {
            let edge = self.graph.edges.get(*step).and_then(|edges| edges.get(*position));
            let option = self.options.get(*step).and_then(|options| options.get(*position));
            let (Some(edge), Some(option), Some(form)) = (edge, option, forms.get_mut(*step)) else {
                continue;
            };
            let stated = self.has_layout.get(*step).is_some_and(|has| *has);
            *form = Some(Form {
                kernel: option.kernel.clone(),
                covers: edge.covers,
                own: option.own - step,
                layout: stated.then(|| edge.takes.layout.clone()),
                dtype: edge.takes.dtype.and_then(|dtype| dtype.dtype()),
                is_dequantized: option.is_dequantized,
            });
        }
        forms
    }

    pub fn joint(&self) -> Option<Path> {
        shortest(&self.graph)
    }

    /// The path of kernels that are each the best of their step by itself.
    pub fn greedy(&self) -> Option<Path> {
        let mut chosen = Vec::new();
        for (step, (kernel, _)) in self.alone.iter().enumerate() {
            let edges = self.graph.edges.get(step)?;
            let options = self.options.get(step)?;
            let declared = self.graph.declared.get(step)?;
            let mut own = (0..edges.len()).filter(|position| {
                let option = options.get(*position);
                let single = edges.get(*position).is_some_and(|edge| edge.covers == 1);
                single && option.is_some_and(|option| option.kernel == *kernel)
            });
            let native =
                own.clone().find(|position| edges.get(*position).is_some_and(|edge| edge.takes == *declared));
            chosen.push((step, native.or_else(|| own.next())?));
        }
        follow(&self.graph, &chosen)
    }
}

fn compiled<'a>(
    snapshot: &'a Snapshot,
    table: &OperationTable,
    ranked: &Ranked,
) -> Option<&'a CompiledKernel> {
    let candidate = table.candidates.get(usize::from(ranked.position))?;
    snapshot.registry.compiled(candidate.kernel)
}

fn id(snapshot: &Snapshot, table: &OperationTable, ranked: &Ranked) -> String {
    compiled(snapshot, table, ranked).map(|kernel| kernel.spec().id.clone()).unwrap_or_default()
}

/// All variants of a step's candidates that need no internal layout conversion: one per layout and element type.
fn variants_of(
    snapshot: &Snapshot,
    table: &OperationTable,
    step: &Step,
    mode: Mode,
    declared: &str,
) -> Vec<Variant> {
    let operation = step.operation;
    let layout = layout_of(operation);
    let dtype = input_dtype(operation);
    let mut layouts: Vec<(Option<u64>, String)> = vec![(None, declared.to_owned())];
    if let Some(FieldKind::Enum(cases)) = layout.map(|field| &field.kind) {
        let numbered = cases.iter().enumerate();
        layouts = numbered.map(|(case, name)| (Some(case as u64), name.to_string())).collect();
    }
    let own = dtype.map(|field| step.context.raw(field.store));
    let mut dtypes: Vec<Option<u64>> = vec![own];
    if dtype.is_some() {
        dtypes.extend(step.dtypes.iter().map(|dtype| Some(*dtype as u64)));
        dtypes.dedup();
    }
    let is_half = [DType::F16, DType::BF16].iter().any(|half| own == Some(*half as u64));
    // The conversion of inputs is exact, so results are at least as accurate.
    let wider = Some(DType::F32 as u64).filter(|wider| {
        let policy = &snapshot.policy;
        let allowed = policy.plan_wider_dtypes.value && policy.allow_adaptation.value;
        is_half && allowed && !mode.has(ModeFlag::Strict) && !dtypes.contains(&Some(*wider))
    });
    dtypes.extend(wider.map(Some));
    let mut variants = Vec::new();
    for (case, name) in &layouts {
        for raw in &dtypes {
            let mut context = step.context;
            let fits = put(&mut context, layout, *case) && put(&mut context, dtype, *raw);
            if !fits {
                continue;
            }
            let takes = Flow { layout: name.clone(), dtype: raw.map(|raw| DTypeOrd(raw as u8)) };
            let is_wider = raw.is_some() && *raw == wider;
            let first = variants.len();
            add_variants(snapshot, table, operation, &context, mode, &takes, &mut variants);
            if is_wider {
                variants.iter_mut().skip(first).for_each(Variant::allow_widening);
            }
        }
    }
    variants
}

fn put(context: &mut Context, field: Option<&Field>, raw: Option<u64>) -> bool {
    match (field, raw) {
        (Some(field), Some(raw)) => context.replace(field.store, raw),
        _ => true,
    }
}

fn add_variants(
    snapshot: &Snapshot,
    table: &OperationTable,
    operation: &OperationInfo,
    context: &Context,
    mode: Mode,
    takes: &Flow,
    variants: &mut Vec<Variant>,
) {
    let call = Call::new(snapshot, table, context, mode);
    for ranked in decide::rank(&call, &PerfTerms::of(&call)) {
        let mut reasons: Vec<Reason> = Vec::new();
        filter::examine(&call, ranked.position, &mut reasons);
        let Some(kernel) = compiled(snapshot, table, &ranked) else { continue };
        if !reasons.is_empty() || ranked.transforms.contains(TransformKind::Layout) {
            continue;
        }
        let spec = kernel.spec();
        let makes =
            Flow { layout: output_layout(operation, spec, takes), dtype: output_dtype(operation, context) };
        let able = |kind| !mode.has(ModeFlag::Strict) && spec.adapts.contains(&kind);
        let each = f64::from(spec.transform_cost);
        variants.push(Variant {
            kernel: spec.id.clone(),
            takes: takes.clone(),
            makes,
            incoming: ConversionCosts {
                layout: able(TransformKind::Layout),
                dtype: able(TransformKind::Dtype),
                each,
            },
            outgoing: each,
            score: ranked.total,
            workspace: filter::workspace(kernel, &call.values).unwrap_or(0),
            fuses: spec.fuses.clone(),
            runs_fused: kernel.entry.fused.is_some(),
            needs_caller: kernel.entry.kernel.needs_caller(),
            is_dequantized: false,
        });
    }
}

/// The kernels that compute a step on dequantized inputs. They take and make what the step declares.
fn dequantized_variants(
    snapshot: &Snapshot,
    step: &Step,
    mode: Mode,
    declared: Option<&Flow>,
) -> Vec<Variant> {
    let mut variants = Vec::new();
    let (Some(dequantized), Some(declared)) = (&step.dequantized, declared) else { return variants };
    let Some(table) = snapshot.table(dequantized.operation) else { return variants };
    let (operation, context) = (dequantized.operation, &dequantized.context);
    add_variants(snapshot, table, operation, context, mode, declared, &mut variants);
    for variant in &mut variants {
        variant.dequantizing(dequantized.inputs.len());
        variant.makes.dtype = output_dtype(step.operation, &step.context);
    }
    variants
}

/// The declared flow into each step, and out of the last. An operation without a layout keeps it.
fn declared(steps: &[Step]) -> Vec<Flow> {
    let mut flows = Vec::with_capacity(steps.len() + 1);
    let stated = |step: &Step| {
        layout_of(step.operation).map(|field| lz_core::expression_names::show(field, &step.context))
    };
    // Steps before the first operation with a layout have its layout.
    let mut layout = steps.iter().find_map(stated).unwrap_or_default();
    let mut made = None;
    for step in steps {
        if let Some(stated) = stated(step) {
            layout = stated;
        }
        let dtype = input_dtype(step.operation).map(|field| DTypeOrd(step.context.raw(field.store) as u8));
        flows.push(Flow { layout: layout.clone(), dtype });
        made = output_dtype(step.operation, &step.context);
    }
    flows.push(Flow { layout, dtype: made });
    flows
}

/// Whether an operation mutates its inputs.
pub(super) fn mutates(operation: &OperationInfo) -> bool {
    operation.schema().inputs.iter().any(|input| input.read_write)
}

fn layout_of(operation: &OperationInfo) -> Option<&Field> {
    operation.field("layout").filter(|field| matches!(field.kind, FieldKind::Enum(_)))
}

/// The dtype variable of the incoming tensor: that of the first tensor input.
fn input_dtype(operation: &OperationInfo) -> Option<&Field> {
    let schema = operation.schema();
    let first = schema.inputs.iter().find(|input| input.kind == Kind::Tensor)?;
    match &first.dtype {
        Cases::One(DTypeRef::Variable(variable)) => operation.field(&schema.types.get(*variable)?.name),
        _ => None,
    }
}

/// The dtype of the outgoing tensor: that of the first output.
fn output_dtype(operation: &OperationInfo, context: &Context) -> Option<DTypeOrd> {
    let schema = operation.schema();
    match &schema.outputs.first()?.dtype {
        Cases::One(DTypeRef::Fixed(dtype)) => Some(DTypeOrd(*dtype as u8)),
        Cases::One(DTypeRef::Variable(variable)) => {
            let field = operation.field(&schema.types.get(*variable)?.name)?;
            Some(DTypeOrd(context.raw(field.store) as u8))
        }
        Cases::By(..) => None,
    }
}

/// The output layout of a kernel. Descriptors may spell layouts in any case; contexts use the schema's spelling.
fn output_layout(operation: &OperationInfo, spec: &KernelSpec, takes: &Flow) -> String {
    let cases = layout_of(operation).map(|field| &field.kind);
    match (&spec.produces_layout, cases) {
        (Some(made), Some(FieldKind::Enum(cases))) => {
            let known = cases.iter().find(|case| case.eq_ignore_ascii_case(made));
            known.map_or_else(|| made.clone(), |case| case.to_string())
        }
        _ => takes.layout.clone(),
    }
}
