//! Writes dispatch tables: a tree is grown by asking for the decision in every cell, and equal neighbours become one branch.

use crate::generated::contracts::dispatch_table_v1 as v1;

/// What was decided in one cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The kernel.
    pub kernel: String,
    /// What to try when it fails, in order.
    pub fallbacks: Vec<String>,
    /// Keys of what was compiled for it.
    pub jit_artifacts: Vec<String>,
}

/// Grows a tree over sizes: `decide` is asked once a cell with the cell's upper bounds, in the order of `axes`.
///
/// `None` where `decide` knows no answer for some cell: a table with holes would hide that something could not be decided.
pub fn grow(
    axes: &[(String, Vec<i64>)],
    decide: &mut dyn FnMut(&[i64]) -> Option<Leaf>,
) -> Option<v1::TreeNode> {
    branch(axes, &mut Vec::with_capacity(axes.len()), decide)
}

fn branch(
    axes: &[(String, Vec<i64>)],
    at: &mut Vec<i64>,
    decide: &mut dyn FnMut(&[i64]) -> Option<Leaf>,
) -> Option<v1::TreeNode> {
    let Some(((axis, all), rest)) = axes.split_first() else {
        let leaf = decide(at)?;
        let mut node = empty();
        node.kernel_id = Some(leaf.kernel);
        node.fallbacks = leaf.fallbacks;
        node.jit_artifacts = leaf.jit_artifacts;
        return Some(node);
    };
    let mut node = empty();
    node.axis = Some(axis.clone());
    for bound in all {
        at.push(*bound);
        let inner = branch(rest, at, decide);
        at.pop();
        let inner = inner?;
        // Equal neighbours are one branch that reaches to the higher bound.
        if node.branches.last() == Some(&inner) {
            node.bounds.pop();
        } else {
            node.branches.push(inner);
        }
        node.bounds.push(*bound);
    }
    Some(node)
}

fn empty() -> v1::TreeNode {
    v1::TreeNode {
        axis: None,
        bounds: Vec::new(),
        branches: Vec::new(),
        cases: Default::default(),
        fallbacks: Vec::new(),
        field: None,
        jit_artifacts: Vec::new(),
        kernel_id: None,
    }
}

/// A table that is being written.
#[derive(Debug, Clone)]
pub struct TableWriter {
    table: v1::DispatchTable,
}

impl TableWriter {
    /// A table without decisions for this hardware and these capabilities.
    pub fn new(model_id: &str, hardware_signature: &str, capabilities_hash: &str) -> TableWriter {
        TableWriter {
            table: v1::DispatchTable {
                capabilities_hash: Some(capabilities_hash.to_owned()),
                fallback: v1::Fallback { mode: v1::FallbackMode::RuntimeSelect },
                hardware_signature: hardware_signature.to_owned(),
                layerzero_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                model_id: model_id.to_owned(),
                plans: Vec::new(),
                schema: None,
                schema_version: v1::DispatchTableSchemaVersion::X10,
                shape_buckets: Default::default(),
                trees: Vec::new(),
            },
        }
    }

    /// Makes calls outside the buckets an error.
    pub fn outside_is_error(mut self) -> TableWriter {
        self.table.fallback.mode = v1::FallbackMode::Error;
        self
    }

    /// Adds the tree of an operation or alias, grown over these sizes.
    pub fn operation(&mut self, operation: &str, axes: &[(String, Vec<i64>)], root: v1::TreeNode) {
        for (axis, bounds) in axes {
            self.table.shape_buckets.entry(axis.clone()).or_insert_with(|| bounds.clone());
        }
        self.table.trees.push(v1::OperationTree { op: operation.to_owned(), root });
    }

    /// The file's text.
    pub fn text(&self) -> String {
        // The type has string keys only, so that writing it cannot fail.
        let mut text = serde_json::to_string_pretty(&self.table).unwrap_or_default();
        text.push('\n');
        text
    }
}
