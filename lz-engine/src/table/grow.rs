//! Builds dispatch tables: a tree is grown by making a decision for every cell; equal neighbors are merged into one branch.

use lz_core::contracts::dispatch_table_v1 as v1;

/// The decision of one cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The kernel.
    pub kernel: String,
    /// Fallbacks, in order.
    pub fallbacks: Vec<String>,
    /// Keys of compiled artifacts.
    pub jit_artifacts: Vec<String>,
}

/// An axis that a tree is grown over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// The axis.
    pub axis: String,
    /// The smallest size that is decided; `None` means that the first cell starts at 0.
    pub lowest: Option<i64>,
    /// Ascending upper bounds of the cells.
    pub bounds: Vec<i64>,
}

/// Grows a tree: `decide` is called once per cell with the cell's upper bounds, in the order of `axes`.
///
/// An error is stored in the table as the reason why the cell is undecided.
pub fn grow(axes: &[Sizes], decide: &mut dyn FnMut(&[i64]) -> Result<Leaf, String>) -> v1::TreeNode {
    branch(axes, &mut Vec::with_capacity(axes.len()), decide)
}

fn branch(
    axes: &[Sizes],
    at: &mut Vec<i64>,
    decide: &mut dyn FnMut(&[i64]) -> Result<Leaf, String>,
) -> v1::TreeNode {
    let mut node = v1::TreeNode::default();
    let Some((sizes, rest)) = axes.split_first() else {
        match decide(at) {
            Ok(leaf) => {
                node.kernel_id = Some(leaf.kernel);
                (node.fallbacks, node.jit_artifacts) = (leaf.fallbacks, leaf.jit_artifacts);
            }
            Err(why) => node.undecided = Some(why),
        }
        return node;
    };
    node.axis = Some(sizes.axis.clone());
    node.lowest = sizes.lowest;
    for bound in &sizes.bounds {
        at.push(*bound);
        let inner = branch(rest, at, decide);
        at.pop();
        // Equal neighbors are merged into one branch up to the higher bound.
        if node.branches.last() == Some(&inner) {
            node.bounds.pop();
        } else {
            node.branches.push(inner);
        }
        node.bounds.push(*bound);
    }
    node
}

/// Restricts a tree to fields with these values, by name.
pub fn under(words: &[(String, String)], tree: v1::TreeNode) -> v1::TreeNode {
    words.iter().rev().fold(tree, |tree, (field, value)| {
        let cases = std::iter::once((value.clone(), tree)).collect();
        v1::TreeNode { field: Some(field.clone()), cases, ..v1::TreeNode::default() }
    })
}

/// A table under construction.
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

    /// Adds a tree for an operation or alias. Trees of one operation are tried in the order in which they were added.
    pub fn operation(&mut self, operation: &str, axes: &[Sizes], root: v1::TreeNode) {
        for sizes in axes {
            let all = self.table.shape_buckets.entry(sizes.axis.clone()).or_default();
            all.extend(&sizes.bounds);
            all.sort_unstable();
            all.dedup();
        }
        self.table.trees.push(v1::OperationTree { op: operation.to_owned(), root });
    }

    /// The file's text.
    pub fn text(&self) -> String {
        // All keys are strings, so serialization cannot fail.
        let mut text = serde_json::to_string_pretty(&self.table).unwrap_or_default();
        text.push('\n');
        text
    }
}
