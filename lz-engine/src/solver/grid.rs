//! The cells of a call and of a range of sizes around it.

use std::ops::RangeInclusive;

use super::workload;
use crate::registry::Registry;
use crate::selection::operation_table::{AxisCells, OperationTable};
use crate::table::Sizes;
use lz_core::context::{Context, FieldKind, Store};
use lz_core::error::Error;
use lz_core::expression_names::{self, MAX_VALUES};
use lz_core::operation::OperationInfo;
use lz_core::tensor::Device;

/// Larger than any size, and still exact in every JSON reader.
const ANY_SIZE: i64 = (1 << 53) - 1;

/// The value of a statistic that is unknown.
const UNKNOWN: i64 = -1;

/// Maximum number of combinations of exact sizes per `Work`.
const MAX_GRIDS: u64 = 4096;

/// A call and the range of sizes around it that are to be decided.
#[derive(Debug, Clone)]
pub struct Work {
    pub(super) operation: &'static OperationInfo,
    pub(super) context: Context,
    ranges: Vec<(String, RangeInclusive<i64>)>,
}

impl Work {
    /// All calls like this one: the same dtypes, flags and exact axes, and any size of the bucketed axes up to the last bucket bound of
    /// the schema, or to its own size if that is larger.
    pub fn new(operation: &'static OperationInfo, context: Context) -> Work {
        Work { operation, context, ranges: Vec::new() }
    }

    /// Sets the range of an axis. For an exact axis every size in the range is decided separately.
    #[must_use]
    pub fn range(mut self, axis: &str, sizes: RangeInclusive<i64>) -> Work {
        self.ranges.retain(|(name, _)| name != axis);
        self.ranges.push((axis.to_owned(), sizes));
        self
    }

    /// The workloads of an operation's schema, as calls on this device.
    pub fn of_workloads(operation: &'static OperationInfo, device: Device) -> Result<Vec<Work>, Error> {
        let contexts = workload::contexts(operation, device)?;
        Ok(contexts.into_iter().map(|context| Work::new(operation, context)).collect())
    }
}

/// The cells of a `Work` for one combination of exact sizes.
#[derive(Debug, Clone)]
pub(super) struct Grid {
    pub operation: &'static OperationInfo,
    pub context: Context,
    /// Fields with the same value in all cells, and that value.
    pub words: Vec<(String, String)>,
    /// Divided axes, in the order of the fields.
    pub sizes: Vec<Sizes>,
    axes: Vec<Axis>,
}

/// A divided axis.
#[derive(Debug, Clone)]
struct Axis {
    store: Store,
    /// Upper bounds of cells, each with the size that represents it.
    samples: Vec<(i64, i64)>,
}

impl Grid {
    pub fn cells(&self) -> u64 {
        self.axes.iter().fold(1u64, |product, axis| product.saturating_mul(axis.samples.len() as u64))
    }

    /// Grids with the same key have the same cells.
    pub fn key(&self) -> (String, Vec<(String, String)>, Vec<Sizes>) {
        (self.operation.name.to_string(), self.words.clone(), self.sizes.clone())
    }

    /// The call that represents the cell with these upper bounds.
    pub fn context_at(&self, at: &[i64]) -> Context {
        let mut context = self.context;
        for (axis, bound) in self.axes.iter().zip(at) {
            let sample = axis.samples.iter().find(|(upper, _)| upper == bound);
            let size = sample.map_or(*bound, |(_, size)| *size);
            // Axes accept any size.
            let _fits = context.replace(axis.store, size as u64);
        }
        context
    }

    /// The calls that represent all cells.
    pub fn contexts(&self) -> Vec<Context> {
        let mut all = vec![self.context];
        for axis in &self.axes {
            all = all
                .iter()
                .flat_map(|context| {
                    axis.samples.iter().map(|(_, size)| {
                        let mut next = *context;
                        let _fits = next.replace(axis.store, *size as u64);
                        next
                    })
                })
                .collect();
        }
        all
    }
}

/// The grids of a `Work`: one per combination of exact sizes. `Err` describes an invalid range.
///
/// Scalar params are distinguished exactly if anything reads them: a table must not answer for another value.
pub(super) fn of(work: &Work, table: &OperationTable, registry: &Registry) -> Result<Vec<Grid>, String> {
    let operation = work.operation;
    let read = table.scalars_read(registry);
    for (axis, sizes) in &work.ranges {
        let lowest = match operation.field(axis).map(|field| &field.kind) {
            Some(FieldKind::Axis { .. }) => 0,
            Some(FieldKind::Statistic { .. }) => UNKNOWN,
            _ => return Err(format!("{} has no axis `{axis}`", operation.name)),
        };
        if sizes.is_empty() || *sizes.start() < lowest {
            return Err(format!("{}: the range of `{axis}` is empty or negative", operation.name));
        }
    }
    let empty =
        Grid { operation, context: work.context, words: Vec::new(), sizes: Vec::new(), axes: Vec::new() };
    let mut grids = vec![empty];
    for (index, field) in operation.fields.iter().enumerate() {
        match (&field.kind, field.store) {
            (FieldKind::Int | FieldKind::Float, Store::Scalar(_))
                if index < MAX_VALUES && read & (1 << index) != 0 =>
            {
                let word = (field.name.to_string(), expression_names::show(field, &work.context));
                grids.iter_mut().for_each(|grid| grid.words.push(word.clone()));
            }
            (
                FieldKind::DType | FieldKind::Bool | FieldKind::Enum(_) | FieldKind::Given,
                Store::Flag { .. },
            ) => {
                let word = (field.name.to_string(), expression_names::show(field, &work.context));
                grids.iter_mut().for_each(|grid| grid.words.push(word.clone()));
            }
            // A table that is solved without a statistic answers for every value of it, unless a rule distinguishes them.
            (FieldKind::Statistic { .. }, Store::Axis(_))
                if index < MAX_VALUES
                    && work.context.raw(field.store) as i64 == UNKNOWN
                    && !work.ranges.iter().any(|(axis, _)| *axis == field.name)
                    && !table.all_parts(registry).any(|part| part.reads & (1 << index) != 0) => {}
            (kind, Store::Axis(number)) => {
                let buckets = kind.buckets().flatten();
                let is_statistic = matches!(kind, FieldKind::Statistic { .. });
                let own = work.context.raw(field.store) as i64;
                let range = work.ranges.iter().find(|(axis, _)| *axis == field.name).map(|(_, sizes)| sizes);
                let name = field.name.as_ref();
                match (buckets, table.axes.get(usize::from(number))) {
                    (Some(buckets), Some(AxisCells::Cut(cuts))) => {
                        let smallest = if is_statistic { UNKNOWN } else { 1.min(own) };
                        let cut = cut(cuts, buckets, own, smallest, range);
                        if let Some((lowest, samples)) = cut {
                            let bounds = samples.iter().map(|(bound, _)| *bound).collect();
                            let sizes = Sizes { axis: name.to_owned(), lowest, bounds };
                            for grid in &mut grids {
                                grid.sizes.push(sizes.clone());
                                grid.axes.push(Axis { store: field.store, samples: samples.clone() });
                            }
                        }
                    }
                    _ => grids = exactly(grids, name, field.store, range.cloned().unwrap_or(own..=own))?,
                }
            }
            _ => {}
        }
    }
    Ok(grids)
}

/// The cells of an axis: its lowest size, and an upper bound and a representative size of each. `None` if all sizes are alike.
type Cut = (Option<i64>, Vec<(i64, i64)>);

fn cut(
    cuts: &[i64],
    buckets: &[i64],
    own: i64,
    smallest: i64,
    range: Option<&RangeInclusive<i64>>,
) -> Option<Cut> {
    let (lowest, highest) = match (range, buckets.last()) {
        (Some(range), _) => (Some(*range.start()), *range.end()),
        (None, Some(last)) => (Some(smallest), own.max(*last)),
        // No buckets: all sizes are covered, and only limits divide them.
        (None, None) => (None, ANY_SIZE),
    };
    let first = lowest.unwrap_or(0);
    let mut bounds: Vec<i64> = cuts
        .iter()
        .filter_map(|cut| cut.checked_sub(1))
        .filter(|bound| (first..highest).contains(bound))
        .collect();
    bounds.push(highest);
    bounds.sort_unstable();
    bounds.dedup();
    if lowest.is_none() && bounds.len() == 1 {
        return None;
    }
    let mut samples = Vec::with_capacity(bounds.len());
    let mut low = first;
    for bound in bounds {
        // The size of the real call represents its cell best; in an unbounded cell the smallest size does.
        let size = match bound {
            _ if (low..=bound).contains(&own) => own,
            ANY_SIZE => low,
            _ => bound,
        };
        samples.push((bound, size));
        low = bound.saturating_add(1);
    }
    Some((lowest, samples))
}

/// Duplicates every grid for each size.
fn exactly(
    grids: Vec<Grid>,
    axis: &str,
    store: Store,
    sizes: RangeInclusive<i64>,
) -> Result<Vec<Grid>, String> {
    let span = sizes.end().saturating_sub(*sizes.start());
    let span = u64::try_from(span).unwrap_or(u64::MAX).saturating_add(1);
    let count = span.saturating_mul(grids.len() as u64);
    if count > MAX_GRIDS {
        let what = "each combination of exact sizes is decided separately: narrow the ranges";
        return Err(format!("`{axis}` makes {count} combinations, and {what}"));
    }
    let mut all = Vec::new();
    for grid in grids {
        for size in sizes.clone() {
            let mut next = grid.clone();
            let _fits = next.context.replace(store, size as u64);
            next.words.push((axis.to_owned(), size.to_string()));
            all.push(next);
        }
    }
    Ok(all)
}
