//! Decision trees over the packed context of a call.

use lz_schema::DType;
use lz_schema::expr::Scope;
use lz_schema::model::{Constant, ParamType};

use lz_core::context::{Context, FieldKind, Store};
use lz_core::expression_names::Names;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The kernel.
    pub kernel: String,
    /// Fallbacks, in order.
    pub fallbacks: Vec<String>,
    /// Keys of compiled artifacts.
    pub jit_artifacts: Vec<String>,
}

/// A node of a tree.
#[derive(Debug)]
pub(super) enum Node {
    Leaf(Decision),
    /// By size: branch i covers sizes above bound i - 1 up to bound i, and not below `lowest`.
    Split {
        name: String,
        store: Store,
        lowest: Option<i64>,
        bounds: Vec<i64>,
        branches: Vec<Node>,
    },
    /// By a dtype, a bool, an enum, an exact size or an exact scalar.
    Cases {
        name: String,
        cases: Vec<(Word, Node)>,
    },
    /// Undecided, and why.
    Undecided(String),
}

/// A field with a required value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Word {
    pub store: Store,
    pub raw: u64,
    pub name: String,
    pub text: String,
}

/// An entry of a flat list of plans.
#[derive(Debug)]
pub(super) struct Cell {
    pub words: Vec<Word>,
    pub sizes: Vec<(String, i64)>,
    pub decision: Decision,
}

impl Word {
    /// A dtype variable with this dtype.
    pub fn dtype(info: &OperationInfo, variable: &str, dtype: &str) -> Option<Word> {
        let field = info.field(variable).filter(|field| field.kind == FieldKind::DType)?;
        let dtype = DType::parse(dtype)?;
        Some(Word {
            store: field.store,
            raw: dtype as u64,
            name: variable.to_owned(),
            text: dtype.name().to_owned(),
        })
    }

    /// A dtype variable, bool, enum, size or scalar with this value.
    pub fn named(info: &OperationInfo, name: &str, value: &str) -> Option<Word> {
        let field = info.field(name)?;
        let raw = match (&field.kind, value) {
            // Only used by absent inputs.
            (FieldKind::DType, "none") => 0,
            (FieldKind::Axis { .. } | FieldKind::Statistic { .. }, _) => value.parse::<i64>().ok()? as u64,
            (FieldKind::DType, _) => return Word::dtype(info, name, value),
            (FieldKind::Bool | FieldKind::Given, "true") => 1,
            (FieldKind::Bool | FieldKind::Given, "false") => 0,
            (FieldKind::Enum(cases), _) => cases.iter().position(|case| case == value)? as u64,
            (FieldKind::Int, _) => value.parse::<i64>().ok()? as u64,
            (FieldKind::Float, _) => float(info, name, value)?.to_bits(),
            _ => return None,
        };
        Some(Word { store: field.store, raw, name: name.to_owned(), text: value.to_owned() })
    }

    /// A param that an alias fixes.
    pub fn fixed(info: &OperationInfo, name: &str, value: &Constant) -> Option<Word> {
        let field = info.field(name)?;
        let (raw, text) = match value {
            Constant::Bool(value) => (u64::from(*value), value.to_string()),
            Constant::Enum(case) => (u64::from(*case), case.to_string()),
            Constant::Int(value) if field.kind == FieldKind::Float => {
                return Word::named(info, name, &value.to_string());
            }
            Constant::Int(value) => (*value as u64, value.to_string()),
            Constant::Float(value) => return Word::named(info, name, &format!("{value:?}")),
        };
        Some(Word { store: field.store, raw, name: name.to_owned(), text })
    }

    fn holds(&self, context: &Context) -> bool {
        context.raw(self.store) == self.raw
    }
}

/// A scalar as contexts store it: an f32 param is rounded before it is widened.
fn float(info: &OperationInfo, name: &str, value: &str) -> Option<f64> {
    let param = info.schema().params.iter().find(|param| param.name == name)?;
    match param.ty {
        ParamType::F32 => value.parse::<f32>().ok().map(f64::from),
        _ => value.parse::<f64>().ok(),
    }
}

/// The store of a size: an axis of the operation, or a synonym.
pub(super) fn size(info: &OperationInfo, name: &str) -> Option<Store> {
    let names = Names::of_policy(info);
    let common = if name == "batch" { "batch_size" } else { name };
    let variable = names.variable(name).or_else(|| names.variable(common))?;
    let field = info.fields.get(usize::from(variable.index))?;
    field.kind.buckets().map(|_| field.store)
}

/// Restricts a tree to calls for which all words hold.
pub(super) fn under(words: Vec<Word>, tree: Node) -> Node {
    words
        .into_iter()
        .rev()
        .fold(tree, |tree, word| Node::Cases { name: word.name.clone(), cases: vec![(word, tree)] })
}

/// Converts a flat list to trees: one per set of words, with one split per size.
pub(super) fn of_cells(info: &OperationInfo, buckets: &[(String, Vec<i64>)], cells: &[Cell]) -> Vec<Node> {
    let mut sets: Vec<&[Word]> = Vec::new();
    for cell in cells {
        if !sets.contains(&cell.words.as_slice()) {
            sets.push(&cell.words);
        }
    }
    // More specific sets first, so that a plan for one dtype takes precedence over a plan for any.
    sets.sort_by_key(|words| std::cmp::Reverse(words.len()));
    sets.into_iter()
        .map(|words| {
            let ours: Vec<&Cell> = cells.iter().filter(|cell| cell.words == words).collect();
            under(words.to_vec(), split(info, buckets, &ours, &mut Vec::new()))
        })
        .collect()
}

fn split(
    info: &OperationInfo,
    buckets: &[(String, Vec<i64>)],
    cells: &[&Cell],
    at: &mut Vec<(String, i64)>,
) -> Node {
    let Some(((name, bounds), rest)) = buckets.split_first() else {
        let chosen = cells
            .iter()
            .find(|cell| cell.sizes.len() == at.len() && cell.sizes.iter().all(|size| at.contains(size)));
        let missing = || Node::Undecided("the table has no plan for this combination of buckets".to_owned());
        return chosen.map_or_else(missing, |cell| Node::Leaf(cell.decision.clone()));
    };
    let Some(store) = size(info, name) else { return split(info, rest, cells, at) };
    let mut branches = Vec::with_capacity(bounds.len());
    for bound in bounds {
        at.push((name.clone(), *bound));
        branches.push(split(info, rest, cells, at));
        at.pop();
    }
    Node::Split { name: name.clone(), store, lowest: None, bounds: bounds.clone(), branches }
}

impl Node {
    /// The decision for a call, or why there is none.
    pub fn find(&self, context: &Context) -> Result<&Decision, Reason> {
        let mut node = self;
        loop {
            node = match node {
                Node::Leaf(decision) => return Ok(decision),
                Node::Undecided(why) => {
                    return Err(Reason::new(ReasonCode::PlanBucketMiss).message(why));
                }
                Node::Split { name, store, lowest, bounds, branches } => {
                    let size = context.raw(*store) as i64;
                    if let Some(lowest) = lowest.filter(|lowest| size < *lowest) {
                        return Err(Reason::new(ReasonCode::PlanBucketMiss)
                            .axis(name)
                            .required(format!("{name} from {lowest}"))
                            .found(size.to_string()));
                    }
                    let at = bounds.partition_point(|bound| *bound < size);
                    match branches.get(at) {
                        Some(branch) => branch,
                        None => {
                            let last = bounds.last().copied().unwrap_or_default();
                            return Err(Reason::new(ReasonCode::PlanBucketMiss)
                                .axis(name)
                                .required(format!("{name} up to {last}"))
                                .found(size.to_string()));
                        }
                    }
                }
                Node::Cases { name, cases } => match cases.iter().find(|(word, _)| word.holds(context)) {
                    Some((_, inner)) => inner,
                    None => {
                        let known: Vec<&str> = cases.iter().map(|(word, _)| word.text.as_str()).collect();
                        return Err(Reason::new(ReasonCode::PlanBucketMiss)
                            .argument(name)
                            .required(format!("{name} to be {}", known.join(" or ")))
                            .found("another value"));
                    }
                },
            };
        }
    }

    /// Whether the answer depends on a scalar, which is not part of a cell.
    pub fn reads_scalars(&self) -> bool {
        match self {
            Node::Leaf(_) | Node::Undecided(_) => false,
            Node::Split { branches, .. } => branches.iter().any(Node::reads_scalars),
            Node::Cases { cases, .. } => cases
                .iter()
                .any(|(word, inner)| matches!(word.store, Store::Scalar(_)) || inner.reads_scalars()),
        }
    }

    /// Sizes where the answer changes: a cell must start at each of these.
    pub fn cuts(&self, visit: &mut dyn FnMut(Store, i64)) {
        match self {
            Node::Leaf(_) | Node::Undecided(_) => {}
            Node::Split { store, lowest, bounds, branches, .. } => {
                if let Some(lowest) = lowest {
                    visit(*store, *lowest);
                }
                bounds.iter().filter_map(|bound| bound.checked_add(1)).for_each(|cut| visit(*store, cut));
                branches.iter().for_each(|branch| branch.cuts(visit));
            }
            Node::Cases { cases, .. } => {
                for (word, inner) in cases {
                    if matches!(word.store, Store::Axis(_)) {
                        let size = word.raw as i64;
                        visit(word.store, size);
                        visit(word.store, size.saturating_add(1));
                    }
                    inner.cuts(visit);
                }
            }
        }
    }
}
