//! The cell of a decision as text: the same text for every call of the cell, in every process.

use crate::compiled::CompiledKernel;
use crate::selection::call::Call;
use crate::selection::decide;
use crate::selection::filter::{self, FilterVisitor};
use crate::selection::operation_table::AxisCells;
use crate::selection::score::PerfTerms;
use lz_core::context::{Context, FRESH_ALIGNMENT, Field, FieldKind, Store, dtype_of};
use lz_core::device::Platform;
use lz_core::expression_names;
use lz_core::mode::ModeFlag;
use lz_core::reason::Reason;

/// `T=bf16 batch=2..4 seq>=2049 …`, then the rules and the kernel's conditions that vary within the cell.
///
/// Together with the kernel this distinguishes the decisions of one cell: a better-ranked kernel that is not eligible fails a condition
/// that the text of the selected one does not contain.
pub(super) fn cell(call: &Call<'_>, kernel: &CompiledKernel) -> String {
    let table = call.table;
    let mut words: Vec<String> = Vec::new();
    for field in table.info.fields.iter() {
        words.extend(match (field.store, &field.kind) {
            (Store::Axis(axis), _) => range(field, table.axes.get(usize::from(axis)), call.context),
            (Store::Scalar(_), _) | (_, FieldKind::Digest) => None,
            (_, FieldKind::Strides) => {
                strides(field, call.context, table.keyed_on_alignment(&call.snapshot.registry))
            }
            (_, FieldKind::Device) => platform(field, call.context),
            _ => Some(format!("{}={}", field.name, expression_names::show(field, call.context))),
        });
    }
    let mode = call.mode.to_string();
    if !mode.is_empty() {
        words.push(format!("({mode})"));
    }
    let mut text = words.join(" ");
    for condition in conditions(call, kernel) {
        text.push_str("; ");
        text.push_str(&condition);
    }
    text
}

fn range(field: &Field, cells: Option<&AxisCells>, context: &Context) -> Option<String> {
    let size = context.raw(field.store) as i64;
    let name = &field.name;
    match bounds(cells, size) {
        (None, None) => None,
        (None, Some(high)) => Some(format!("{name}<={high}")),
        (Some(low), None) => Some(format!("{name}>={low}")),
        (Some(low), Some(high)) if low == high => Some(format!("{name}={low}")),
        (Some(low), Some(high)) => Some(format!("{name}={low}..{high}")),
    }
}

/// The cell as a policy condition: axes, dtypes, params, optional inputs, platform and mode. Strides and scalar params have no form in
/// conditions, so several decisions may have the same one.
pub(super) fn condition(call: &Call<'_>) -> String {
    let table = call.table;
    let mut parts: Vec<String> = Vec::new();
    let flag = |name: &str, is_set: bool| if is_set { name.to_owned() } else { format!("not {name}") };
    for field in table.info.fields.iter() {
        let (name, raw) = (&field.name, call.context.raw(field.store));
        match (field.store, &field.kind) {
            (Store::Axis(axis), _) => {
                let bounds = bounds(table.axes.get(usize::from(axis)), raw as i64);
                parts.extend(bounds.0.map(|low| format!("{name} >= {low}")));
                parts.extend(bounds.1.map(|high| format!("{name} <= {high}")));
            }
            (Store::Scalar(_), _) | (_, FieldKind::Digest | FieldKind::Strides) => {}
            (_, FieldKind::Device) => {
                let platform = Platform::ALL.into_iter().find(|known| *known as u64 == raw & 0b111);
                parts.extend(platform.map(|platform| format!("platform == \"{}\"", platform.name())));
            }
            (_, FieldKind::Bool | FieldKind::Given) => parts.push(flag(name, raw == 1)),
            (_, FieldKind::DType) => {
                let dtype = dtype_of(raw);
                parts.extend(dtype.map(|dtype| format!("{name} == \"{dtype}\"")));
            }
            (_, FieldKind::Int) => {
                parts.push(format!("{name} == {}", expression_names::show(field, call.context)))
            }
            (_, FieldKind::Enum(_)) => {
                parts.push(format!("{name} == \"{}\"", expression_names::show(field, call.context)));
            }
            _ => {}
        }
    }
    let modes = [
        ("deterministic", ModeFlag::Deterministic),
        ("capturing", ModeFlag::Capturing),
        ("tp_invariant", ModeFlag::TensorParallelInvariant),
        ("batch_invariant", ModeFlag::BatchInvariant),
    ];
    parts.extend(modes.map(|(name, mode)| flag(name, call.mode.has(mode))));
    parts.join(" and ")
}

/// The smallest and the largest size of the cell of a size.
fn bounds(cells: Option<&AxisCells>, size: i64) -> (Option<i64>, Option<i64>) {
    let Some(AxisCells::Cut(cuts)) = cells else { return (Some(size), Some(size)) };
    let position = cuts.partition_point(|cut| *cut <= size);
    let low = position.checked_sub(1).and_then(|before| cuts.get(before)).copied();
    (low, cuts.get(position).map(|next| next - 1))
}

fn strides(field: &Field, context: &Context, aligned: bool) -> Option<String> {
    let class = context.raw(field.store);
    if class & 1 == 0 {
        return None;
    }
    let kind = match (class & 0b10 != 0, class & 0b100 != 0) {
        (true, true) => "dense",
        (true, false) => "row-major",
        (false, true) => "rows",
        (false, false) => "strided",
    };
    let alignment = if aligned && class >> 3 != FRESH_ALIGNMENT {
        format!("@{}", 1u64 << (class >> 3))
    } else {
        String::new()
    };
    Some(format!("{}={kind}{alignment}", field.name))
}

/// The platform, not the device: ranks on several devices of one machine must decide alike.
fn platform(field: &Field, context: &Context) -> Option<String> {
    let number = context.raw(field.store) & 0b111;
    let platform = Platform::ALL.into_iter().find(|known| *known as u64 == number)?;
    Some(format!("on={}", platform.name()))
}

/// Rules, locks and conditions of the kernel that vary within the cell.
fn conditions(call: &Call<'_>, kernel: &CompiledKernel) -> Vec<String> {
    let table = call.table;
    let mut all = Vec::new();
    for number in &table.varying_rules {
        let Some(rule) = table.rules.get(usize::from(*number)) else { continue };
        all.push(format!(
            "rule {}: {}",
            rule.what,
            if call.applies(*number) { "acts" } else { "does not act" }
        ));
    }
    for lock in table.varying_locks.iter().filter_map(|number| table.locks.get(usize::from(*number))) {
        let acts = lock.applies(call.context, &call.values);
        all.push(format!("lock {}: {}", lock.kernel, if acts { "acts" } else { "does not act" }));
    }
    let parts = kernel.limits.iter().flat_map(|limit| &limit.parts);
    all.extend(parts.filter(|part| !table.is_cell_constant(part)).map(|part| part.text.clone()));
    if kernel.workspace.as_ref().is_some_and(|formula| !call.is_cell_constant(formula.reads)) {
        all.push("scratch memory fits".to_owned());
    }
    let launch = kernel.grid.iter().flatten().chain(&kernel.block);
    if launch.fold(0, |reads, formula| reads | formula.reads) & table.varying != 0 {
        all.push("launch fits".to_owned());
    }
    all
}

/// Whether a kernel is excluded for the whole cell.
#[derive(Default)]
struct Never(bool);

impl FilterVisitor for Never {
    fn excluded(&mut self, _: impl FnOnce() -> Reason) -> bool {
        self.0 = true;
        true
    }

    fn guarded(&mut self, _: crate::selection::guard::Guard, _: bool, _: impl FnOnce() -> Reason) {}
}

/// The fallbacks of this cell, in order. Conditions that vary within the cell are ignored, so that every call of the cell gives the same
/// list.
pub(super) fn fallbacks(call: &Call<'_>, chosen: u16) -> Vec<String> {
    if !call.snapshot.policy.fallback_enabled.value {
        return Vec::new();
    }
    let ranked = decide::rank(call, &PerfTerms::of(call));
    let after = ranked.iter().skip_while(|one| one.position != chosen).skip(1);
    after
        .filter(|one| {
            let mut never = Never::default();
            filter::examine(call, one.position, &mut never);
            !never.0
        })
        .filter_map(|one| {
            let candidate = call.table.candidates.get(usize::from(one.position))?;
            Some(call.snapshot.registry.compiled(candidate.kernel)?.spec().id.clone())
        })
        .collect()
}
