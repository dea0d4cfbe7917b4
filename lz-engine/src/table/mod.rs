//! Precomputed decisions: dispatch tables for bucketed shapes, and the lockfile of a run.
//!
//! A table belongs to one hardware signature and one set of capabilities; elsewhere it is rejected, and outside its buckets it decides
//! nothing. Nothing here checks that a decided kernel can run a call: the engine does.

mod capabilities;
mod grow;
mod lockfile;
mod node;

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use lz_schema::diagnostics::{Code, Report, Sink};
use lz_schema::source::{Node as SourceNode, Span};

pub(crate) use capabilities::{capabilities_hash, hex};
pub use grow::{Leaf, Sizes, TableWriter, grow, under};
pub use lockfile::{LockedDecision, Lockfile, LockfileError, Mismatch};
pub use node::Decision;

/// The types of the file, generated from its contract.
pub use lz_core::contracts::dispatch_table_v1 as format;
use node::Node;

use lz_core::context::{Context, Store};
use lz_core::contract::{self, get, items, text};
use lz_core::contracts::dispatch_table_v1 as v1;
use lz_core::descriptor::Catalog;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// The contract, `schemas/contracts/dispatch_table.v1.schema.json`.
pub(crate) const CONTRACT: &str = include_str!("../../schemas/contracts/dispatch_table.v1.schema.json");

/// A valid table.
#[derive(Debug)]
pub struct DispatchTable {
    /// The model that it was built for.
    pub model_id: String,
    /// The hardware that it was built on.
    pub hardware_signature: String,
    /// The capabilities that it was built with.
    pub capabilities_hash: Option<String>,
    /// Whether a call outside the buckets is an error instead of being selected at run time.
    pub outside_is_error: bool,
    /// Trees by operation, tried in order.
    trees: BTreeMap<String, Vec<Node>>,
}

/// The answer of a table for a call.
#[derive(Debug, Clone, PartialEq)]
pub enum TableAnswer<'a> {
    /// A decision.
    Decision(&'a Decision),
    /// The operation is in the table, but this call is not.
    Outside(Reason),
    /// The operation is not in the table.
    Unknown,
}

/// Why a table was rejected.
#[derive(Debug, Clone)]
pub struct TableError {
    /// The file.
    pub path: String,
    /// All problems, with spans; `None` if the file is valid but for another machine.
    pub report: Option<Report>,
    /// The reasons.
    pub reasons: Vec<Reason>,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the dispatch table was rejected", self.path)?;
        match &self.report {
            Some(report) => write!(f, "\n{report}"),
            None => self.reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}")),
        }
    }
}

impl std::error::Error for TableError {}

impl From<TableError> for Error {
    fn from(error: TableError) -> Error {
        Error::Configuration {
            subject: error.path.clone(),
            message: error.to_string(),
            reasons: error.reasons,
        }
    }
}

/// Maximum number of flat plans of one operation; each is compared with the earlier ones.
const MAX_CELLS: usize = 10_000;

/// Maximum number of lookups to convert the flat plans of one operation to a tree: combinations of buckets times plans. A file of a few
/// lines can have more combinations than fit into memory.
const MAX_LOOKUPS: usize = 1 << 20;

impl DispatchTable {
    /// Reads a table; `path` is its name in messages.
    pub fn read(
        path: &str,
        text: &str,
        operations: &[&'static OperationInfo],
    ) -> Result<DispatchTable, TableError> {
        let (mut sink, checked) = contract::read(CONTRACT, path, text);
        let Some(checked) = checked else { return Err(reject(path, sink)) };
        if !sink.diagnostics.is_empty() {
            return Err(reject(path, sink));
        }
        let table: v1::DispatchTable = match serde_json::from_value(checked.json) {
            Ok(table) => table,
            Err(error) => {
                let span = contract::first_line(&checked.source, checked.root.span);
                sink.error(Code::WrongForm, span, error.to_string());
                return Err(reject(path, sink));
            }
        };
        let catalog = Catalog::new(operations.iter().map(|info| info.schema()));
        let mut builder = Builder { operations, catalog, sink: &mut sink, trees: BTreeMap::new() };
        builder.buckets(&checked.root);
        builder.plans(&table, &checked.root);
        builder.trees(&table, &checked.root);
        let trees = builder.trees;
        // A problem of an alias is found once per operation behind it; report it once.
        let mut seen: HashSet<(Code, Span)> = HashSet::new();
        sink.diagnostics.retain(|diagnostic| {
            let key =
                (diagnostic.code, diagnostic.labels.first().map(|label| label.span).unwrap_or_default());
            seen.insert(key)
        });
        if !sink.diagnostics.is_empty() {
            return Err(reject(path, sink));
        }
        Ok(DispatchTable {
            model_id: table.model_id,
            hardware_signature: table.hardware_signature,
            capabilities_hash: table.capabilities_hash,
            outside_is_error: table.fallback.mode == v1::FallbackMode::Error,
            trees,
        })
    }

    /// Whether this machine may use it; `Err` lists all differences.
    pub fn verify(
        &self,
        path: &str,
        hardware_signature: &str,
        capabilities_hash: &str,
    ) -> Result<(), TableError> {
        let mut reasons = Vec::new();
        if self.hardware_signature != hardware_signature {
            reasons.push(
                Reason::new(ReasonCode::TableHardwareMismatch)
                    .required(&self.hardware_signature)
                    .found(hardware_signature),
            );
        }
        if self.capabilities_hash.as_deref() != Some(capabilities_hash) {
            let required =
                self.capabilities_hash.as_deref().unwrap_or("a capabilities hash, which the table lacks");
            reasons.push(
                Reason::new(ReasonCode::TableCapabilitiesMismatch)
                    .required(required)
                    .found(capabilities_hash),
            );
        }
        if reasons.is_empty() {
            return Ok(());
        }
        Err(TableError { path: path.to_owned(), report: None, reasons })
    }

    /// The answer for a call.
    pub fn lookup(&self, operation: &OperationInfo, context: &Context) -> TableAnswer<'_> {
        let Some(trees) = self.trees.get(operation.name.as_ref()) else { return TableAnswer::Unknown };
        let mut outside = None;
        for tree in trees {
            match tree.find(context) {
                Ok(decision) => return TableAnswer::Decision(decision),
                Err(reason) => outside = outside.or(Some(reason)),
            }
        }
        TableAnswer::Outside(outside.unwrap_or_else(|| Reason::new(ReasonCode::PlanBucketMiss)))
    }

    /// Whether its answers for an operation depend on scalars.
    pub(crate) fn reads_scalars(&self, operation: &OperationInfo) -> bool {
        let trees = self.trees.get(operation.name.as_ref()).map_or(&[][..], Vec::as_slice);
        trees.iter().any(node::Node::reads_scalars)
    }

    /// Sizes where its answers for an operation change.
    pub(crate) fn cuts(&self, operation: &OperationInfo, visit: &mut dyn FnMut(Store, i64)) {
        let trees = self.trees.get(operation.name.as_ref()).map_or(&[][..], Vec::as_slice);
        trees.iter().for_each(|tree| tree.cuts(visit));
    }

    /// The operations that it decides.
    pub fn operations(&self) -> impl Iterator<Item = &str> {
        self.trees.keys().map(String::as_str)
    }
}

fn reject(path: &str, sink: Sink) -> TableError {
    let report = contract::report(sink);
    let reasons = report.diagnostics.iter().map(|diagnostic| {
        let code = match diagnostic.code {
            Code::ContractVersion => ReasonCode::TableVersionMismatch,
            _ => ReasonCode::TableInvalid,
        };
        Reason::new(code).message(diagnostic.message.clone())
    });
    let reasons = reasons.collect();
    TableError { path: path.to_owned(), report: Some(report), reasons }
}

struct Builder<'a> {
    operations: &'a [&'static OperationInfo],
    catalog: Catalog<'static>,
    sink: &'a mut Sink,
    trees: BTreeMap<String, Vec<Node>>,
}

impl Builder<'_> {
    /// The operations with this name or alias, each with the params that the alias fixes as conditions.
    fn targets(&mut self, name: &str, span: Span) -> Vec<(&'static OperationInfo, Vec<node::Word>)> {
        let targets = self.catalog.resolve(name);
        if targets.is_empty() {
            let near = self.sink.nearest(name, self.catalog.names());
            self.sink
                .error(Code::UnknownOperation, span, format!("unknown operation or alias `{name}`"))
                .suggest(near);
        }
        let find = |name: &str| self.operations.iter().copied().find(|info| info.name == name);
        let mut found = Vec::new();
        for target in &targets {
            let Some(info) = find(&target.operation.name) else { continue };
            let mut words = Vec::new();
            for (param, value) in target.alias.map_or(&[][..], |alias| &alias.fixes) {
                let Some(param) = target.operation.params.get(*param) else { continue };
                match node::Word::fixed(info, &param.name, value) {
                    Some(word) => words.push(word),
                    None => {
                        let message =
                            format!("`{name}` fixes the scalar `{}`, which a table cannot match", param.name);
                        self.sink.error(Code::BadTree, span, message);
                    }
                }
            }
            found.push((info, words));
        }
        found
    }

    fn buckets(&mut self, root: &SourceNode) {
        for (name, _, list) in get(root, "shape_buckets").map(contract::entries).into_iter().flatten() {
            self.ascending(name, list);
        }
    }

    fn ascending(&mut self, name: &str, list: &SourceNode) {
        let bounds: Vec<i64> = items(list).iter().filter_map(|item| text(item)?.parse().ok()).collect();
        if !bounds.is_sorted() {
            self.sink.error(
                Code::BucketOrder,
                list.span,
                format!("the bounds of `{name}` are not in ascending order"),
            );
        }
    }

    /// Converts flat plans to one tree per operation: one split per size, missing cells undecided.
    fn plans(&mut self, table: &v1::DispatchTable, root: &SourceNode) {
        let nodes = get(root, "plans").map_or(&[][..], items);
        let mut cells: BTreeMap<String, (&'static OperationInfo, Vec<node::Cell>)> = BTreeMap::new();
        for (plan, node) in table.plans.iter().zip(nodes) {
            self.bucket(table, plan, node);
            let ops = get(node, "ops").map_or(&[][..], items);
            for (planned, node) in plan.ops.iter().zip(ops) {
                let span = get(node, "op").map_or(node.span, |node| node.span);
                let kernel = get(node, "kernel_id").map_or(node.span, |node| node.span);
                for (info, mut words) in self.targets(&planned.op, span) {
                    for (variable, dtype) in &planned.dtypes {
                        match node::Word::dtype(info, variable, dtype) {
                            Some(word) => words.push(word),
                            None => {
                                let message = format!("`{variable}` of `{}` cannot be `{dtype}`", info.name);
                                self.sink.error(Code::UnknownWord, span, message);
                            }
                        }
                    }
                    let sizes: Vec<(String, i64)> = plan
                        .bucket
                        .iter()
                        .filter(|(size, _)| node::size(info, size).is_some())
                        .map(|(size, bound)| (size.clone(), *bound))
                        .collect();
                    let decision = Decision {
                        kernel: planned.kernel_id.clone(),
                        fallbacks: planned.fallbacks.clone(),
                        jit_artifacts: plan.jit_artifacts.clone(),
                    };
                    let entry = cells.entry(info.name.to_string()).or_insert_with(|| (info, Vec::new()));
                    let cell = node::Cell { words, sizes, decision };
                    match entry.1.iter().find(|other| other.words == cell.words && other.sizes == cell.sizes)
                    {
                        Some(other) if other.decision.kernel != cell.decision.kernel => {
                            let message = format!(
                                "`{}` is already decided as `{}` for the same bucket",
                                info.name, other.decision.kernel
                            );
                            self.sink.error(Code::NotABucket, kernel, message).note(
                                "a size that the operation does not have does not distinguish its buckets",
                            );
                        }
                        Some(_) => {}
                        None if entry.1.len() == MAX_CELLS => {
                            let message = format!("`{}` has more than {MAX_CELLS} plans", info.name);
                            self.sink.error(Code::BadNumber, span, message);
                            return;
                        }
                        None => entry.1.push(cell),
                    }
                }
            }
        }
        for (name, (info, cells)) in cells {
            let buckets: Vec<(String, Vec<i64>)> = table
                .shape_buckets
                .iter()
                .filter(|(size, _)| node::size(info, size).is_some())
                .map(|(size, bounds)| (size.clone(), bounds.clone()))
                .collect();
            let combinations =
                buckets.iter().fold(1usize, |product, (_, bounds)| product.saturating_mul(bounds.len()));
            if combinations.saturating_mul(cells.len()) > MAX_LOOKUPS {
                let span = get(root, "shape_buckets").map_or(root.span, |node| node.span);
                let message = format!("`{name}` has too many combinations of buckets: {combinations}");
                self.sink
                    .error(Code::BadNumber, contract::first_line(&self.sink.source, span), message)
                    .note("use a tree, which need not list every combination");
                continue;
            }
            self.trees.entry(name).or_default().extend(node::of_cells(info, &buckets, &cells));
        }
    }

    /// Checks that a plan names one bound of every size, and nothing else.
    fn bucket(&mut self, table: &v1::DispatchTable, plan: &v1::BucketPlan, node: &SourceNode) {
        let Some(bucket) = get(node, "bucket") else { return };
        for (name, span, value) in contract::entries(bucket) {
            let Some(bounds) = table.shape_buckets.get(name) else {
                let known = table.shape_buckets.keys().map(String::as_str);
                let near = self.sink.nearest(name, known);
                self.sink
                    .error(Code::NotABucket, span, format!("`{name}` is not one of `shape_buckets`"))
                    .suggest(near);
                continue;
            };
            if !plan.bucket.get(name).is_some_and(|bound| bounds.contains(bound)) {
                let message = format!("{} is not a bound of `{name}`", text(value).unwrap_or_default());
                let bounds: Vec<String> = bounds.iter().map(i64::to_string).collect();
                self.sink
                    .error(Code::NotABucket, value.span, message)
                    .note(format!("the bounds are {}", bounds.join(", ")));
            }
        }
        for name in table.shape_buckets.keys().filter(|name| !plan.bucket.contains_key(*name)) {
            self.sink.error(Code::NotABucket, bucket.span, format!("the bucket has no bound for `{name}`"));
        }
    }

    fn trees(&mut self, table: &v1::DispatchTable, root: &SourceNode) {
        let nodes = get(root, "trees").map_or(&[][..], items);
        for (tree, node) in table.trees.iter().zip(nodes) {
            let span = get(node, "op").map_or(node.span, |node| node.span);
            let Some(root) = get(node, "root") else { continue };
            for (info, words) in self.targets(&tree.op, span) {
                if let Some(built) = self.tree(info, &tree.root, root) {
                    self.trees.entry(info.name.to_string()).or_default().push(node::under(words, built));
                }
            }
        }
    }

    fn tree(&mut self, info: &'static OperationInfo, tree: &v1::TreeNode, span: &SourceNode) -> Option<Node> {
        let head = contract::first_line(&self.sink.source, span.span);
        match (&tree.kernel_id, &tree.axis, &tree.field, &tree.undecided) {
            (None, None, None, Some(why)) => Some(Node::Undecided(why.to_string())),
            (Some(kernel), None, None, None) => Some(Node::Leaf(Decision {
                kernel: kernel.clone(),
                fallbacks: tree.fallbacks.clone(),
                jit_artifacts: tree.jit_artifacts.clone(),
            })),
            (None, Some(axis), None, None) => self.split(info, tree, axis, span),
            (None, None, Some(field), None) => {
                let mut cases = Vec::new();
                for (name, span, node) in get(span, "cases").map(contract::entries).into_iter().flatten() {
                    let Some(inner) = tree.cases.get(name) else { continue };
                    match node::Word::named(info, field, name) {
                        Some(word) => cases.extend(self.tree(info, inner, node).map(|built| (word, built))),
                        None => {
                            let message = format!("`{field}` of `{}` cannot be `{name}`", info.name);
                            self.sink.error(Code::UnknownWord, span, message);
                        }
                    }
                }
                Some(Node::Cases { name: field.clone(), cases })
            }
            _ => {
                self.sink.error(Code::BadTree, head, "this node must be exactly one of four kinds").note(
                    "it has `kernel_id`, `undecided`, `axis` with `bounds` and `branches`, or `field` with `cases`",
                );
                None
            }
        }
    }

    fn split(
        &mut self,
        info: &'static OperationInfo,
        tree: &v1::TreeNode,
        axis: &str,
        span: &SourceNode,
    ) -> Option<Node> {
        let branches = get(span, "branches").map_or(&[][..], items);
        if tree.bounds.len() != tree.branches.len() || tree.bounds.is_empty() {
            let head = contract::first_line(&self.sink.source, span.span);
            let message = format!(
                "the number of bounds ({}) and of branches ({}) must be equal",
                tree.bounds.len(),
                tree.branches.len()
            );
            self.sink.error(Code::BadTree, head, message);
            return None;
        }
        if let Some(bounds) = get(span, "bounds") {
            self.ascending(axis, bounds);
        }
        let Some(store) = node::size(info, axis) else {
            let span = get(span, "axis").map_or(span.span, |node| node.span);
            self.sink.error(Code::UndefinedAxis, span, format!("`{}` has no size `{axis}`", info.name));
            return None;
        };
        let mut built = Vec::with_capacity(branches.len());
        for (inner, node) in tree.branches.iter().zip(branches) {
            built.push(self.tree(info, inner, node)?);
        }
        let (lowest, bounds) = (tree.lowest, tree.bounds.clone());
        Some(Node::Split { name: axis.to_owned(), store, lowest, bounds, branches: built })
    }
}
