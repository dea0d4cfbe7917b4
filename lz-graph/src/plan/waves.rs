//! Waves: steps that do not depend on each other run at the same time.
//!
//! A kernel uses all threads by itself where its call is large enough. Between the calls for which it does not and those that take less
//! time than waking a thread, several steps at once are faster. Lifetimes are counted in waves: buffers of steps in one wave are in use at
//! the same time. Branches then need memory at the same time, so waves are dropped if the arena would grow too much.
//! *Invariant:* waves change when a step runs, never what it computes.

use std::collections::HashMap;

use lz_core::OperationInfo;

use super::{Location, Plan, Source, Step, StepArg, lifetimes};
use crate::memory;

/// Steps of fewer multiply-adds, or moving fewer bytes, take less time than it costs to give them to another thread (some microseconds).
const MIN_MACS: u64 = 1 << 17;
const MIN_BYTES: u64 = 1 << 16;

/// Native kernels use all threads themselves from these sizes on.
const MAX_MACS: u64 = 1 << 19;
const MAX_BYTES: u64 = 1 << 19;

/// Waves are not worth an arena that is larger than this many times that of the plan without them.
const MAX_GROWTH: usize = 2;

/// Which steps may share a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grouping {
    /// Those for which it is expected to be faster, if memory does not grow too much.
    #[default]
    WhereItPays,
    /// All that do not depend on each other: to measure what waves cost, and to test them.
    Always,
}

/// The same plan with steps in waves, if there are any that may share one.
pub(super) fn group<K>(mut plan: Plan<K>, grouping: Grouping) -> Plan<K> {
    let Some(waves) = assign(&plan.steps, grouping) else { return plan };
    let buffers: Vec<usize> = plan.lifetimes.iter().map(|one| one.bytes).collect();
    let alive = lifetimes(&plan.steps, &buffers, |step| waves[step]);
    let placement = memory::place(&alive);
    let too_large = placement.bytes > plan.placement.bytes.saturating_mul(MAX_GROWTH);
    if too_large && grouping == Grouping::WhereItPays {
        return plan;
    }
    let count = waves.iter().max().map_or(0, |last| last + 1);
    let mut ordered: Vec<(usize, Step<K>)> = waves.into_iter().zip(plan.steps).collect();
    // Stable: steps of a wave keep their order.
    ordered.sort_by_key(|(wave, _)| *wave);
    let mut ends = vec![0; count];
    for (position, (wave, _)) in ordered.iter().enumerate() {
        ends[*wave] = position + 1;
    }
    plan.steps = ordered.into_iter().map(|(_, step)| step).collect();
    plan.waves = ends;
    plan.lifetimes = alive;
    plan.placement = placement;
    plan
}

/// The wave of every step; `None` if no wave has several. A step's level is one more than the highest of those that it depends on, so
/// steps of one level are independent: those that may share a wave do, after the others of their level.
fn assign<K>(steps: &[Step<K>], grouping: Grouping) -> Option<Vec<usize>> {
    let mut uses: HashMap<Source, Uses> = HashMap::new();
    // Level, whether it may share a wave, and index.
    let mut order: Vec<(usize, bool, usize)> = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        // After the last write of what it uses, and after the last read of what it writes.
        let used = |source| uses.get(&memory_of(source)).copied().unwrap_or_default();
        let after_writes = reads(step).map(|source| used(source).written);
        let after_uses = writes(step).map(|source| used(source).written.max(used(source).read));
        let level = after_writes.chain(after_uses).max().unwrap_or(0);
        for source in reads(step) {
            let uses = uses.entry(memory_of(source)).or_default();
            uses.read = uses.read.max(level + 1);
        }
        for source in writes(step) {
            uses.entry(memory_of(source)).or_default().written = level + 1;
        }
        order.push((level, grouping == Grouping::Always || pays_off(step), index));
    }
    order.sort_unstable();
    let mut waves = vec![0; steps.len()];
    let (mut next, mut grouped) = (0, false);
    for (position, &(level, shares, index)) in order.iter().enumerate() {
        let before = position.checked_sub(1).map(|position| order[position]);
        let joins = shares && before.is_some_and(|(other, shares, _)| other == level && shares);
        grouped |= joins;
        next += usize::from(!joins);
        waves[index] = next - 1;
    }
    grouped.then_some(waves)
}

/// The levels after the last write and after the last read of some memory.
#[derive(Debug, Clone, Copy, Default)]
struct Uses {
    written: usize,
    read: usize,
}

/// The memory of a tensor. A caller may pass views of one tensor as several inputs.
fn memory_of(source: Source) -> Source {
    if matches!(source, Source::Input(_)) { Source::Input(0) } else { source }
}

fn reads<K>(step: &Step<K>) -> impl Iterator<Item = Source> {
    step.args.iter().filter_map(|arg| match arg {
        StepArg::Read(location) => Some(location.source),
        StepArg::Write(_) | StepArg::Param(_) => None,
    })
}

fn writes<K>(step: &Step<K>) -> impl Iterator<Item = Source> {
    let changed = step.args.iter().filter_map(|arg| match arg {
        StepArg::Write(location) => Some(location.source),
        StepArg::Read(_) | StepArg::Param(_) => None,
    });
    changed.chain(step.outputs.iter().flatten().map(|location| location.source))
}

/// Whether a step is large enough for a thread of its own, and too small for all threads.
fn pays_off<K>(step: &Step<K>) -> bool {
    let bytes = step.bytes();
    let macs =
        if is_product(step.operation) { multiply_adds(step.tensors().map(Location::elements)) } else { 0 };
    (macs >= MIN_MACS || bytes >= MIN_BYTES) && macs < MAX_MACS && bytes < MAX_BYTES
}

/// Whether the time of an operation is that of matrix products.
fn is_product(operation: &OperationInfo) -> bool {
    let families = ["mlp.", "moe.", "attention.", "primitive.matmul", "primitive.conv2d"];
    families.iter().any(|family| operation.name.starts_with(family))
}

/// Multiply-adds of a product from the sizes of its three largest tensors: exact for a matrix product, whose operands and result have
/// M·K, K·N and M·N elements, and close enough for others.
fn multiply_adds(sizes: impl Iterator<Item = u64>) -> u64 {
    let mut sizes: Vec<u64> = sizes.collect();
    sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
    let product: f64 = sizes.iter().take(3).map(|size| *size as f64).product();
    product.sqrt() as u64
}

#[cfg(test)]
mod tests {
    use lz_core::{DType, Tensor, TensorView};

    use crate::build::Builder;
    use crate::dim::Dim;
    use crate::graph::{Graph, NodeId};
    use crate::memory;
    use crate::plan::{Grouping, Plan, grouped, plan};
    use crate::session::{RunInput, Session};
    use crate::testing::engine;

    const FEATURES: i64 = 128;

    fn input(build: &mut Builder, name: &str) -> NodeId {
        let rows = build.graph_mut().symbols.len();
        let rows = match rows {
            0 => Dim::from(build.graph_mut().symbol("rows", 0, 4096)),
            _ => build.graph_mut().nodes[0].shape[0].clone(),
        };
        build.input(name, vec![rows, Dim::from(FEATURES)], DType::F32)
    }

    /// Branches of some functions each, which are added.
    fn branches(count: usize) -> Graph {
        let mut build = Builder::new();
        let x = input(&mut build, "x");
        let functions = ["tanh", "exp", "neg", "square"];
        let mut ends = Vec::new();
        for branch in 0..count {
            let first = build.unary(functions[branch % 4], x).unwrap();
            ends.push(build.unary(functions[(branch + 1) % 4], first).unwrap());
        }
        let sum = ends.into_iter().reduce(|a, b| build.binary("add", a, b).unwrap()).unwrap();
        build.output("sum", sum);
        build.finish().unwrap()
    }

    fn plan_parallel(engine: &lz_engine::Engine, graph: &Graph, rows: i64) -> Plan {
        grouped(plan(engine, graph, &[rows], &[64]).unwrap(), Grouping::WhereItPays)
    }

    fn sizes(plan: &Plan) -> Vec<usize> {
        let starts = std::iter::once(0).chain(plan.waves.iter().copied());
        starts.zip(&plan.waves).map(|(start, end)| end - start).collect()
    }

    #[test]
    fn branches_are_waves() {
        let made = plan_parallel(&engine(), &branches(3), 256);
        assert_eq!(sizes(&made), [3, 3, 1, 1]);
        memory::check(&made.lifetimes, &made.placement).unwrap();
        assert!(made.lifetimes.iter().all(|one| one.last < made.waves.len()));
    }

    #[test]
    fn steps_that_use_all_threads_come_before_the_wave_of_their_level() {
        let mut build = Builder::new();
        let x = input(&mut build, "x");
        let mut ends = Vec::new();
        for _ in 0..2 {
            let weight = Tensor::zeros(&[FEATURES, FEATURES], DType::F32).unwrap();
            let weight = build.owned(weight);
            let before = build.unary("tanh", x).unwrap();
            let layer = build.linear(before, weight, None).unwrap();
            ends.push(build.unary("exp", layer).unwrap());
        }
        for (index, end) in ends.into_iter().enumerate() {
            build.output(&format!("result{index}"), end);
        }
        let made = plan_parallel(&engine(), &build.finish().unwrap(), 256);
        assert_eq!(sizes(&made), [2, 1, 1, 2]);
        let names: Vec<&str> = made.steps.iter().map(|step| &*step.operation.name).collect();
        assert_eq!(&names[2..4], ["mlp.linear", "mlp.linear"]);
    }

    #[test]
    fn chains_and_steps_of_other_sizes_stay_in_order() {
        let engine = engine();
        for (graph, rows) in [(branches(1), 256), (branches(3), 4), (branches(3), 4096)] {
            let sequential = plan(&engine, &graph, &[rows], &[64]).unwrap();
            let made = plan_parallel(&engine, &graph, rows);
            assert_eq!((made.waves.len(), made.placement), (0, sequential.placement), "{rows}");
        }
    }

    #[test]
    fn a_change_in_place_keeps_its_place() {
        let mut build = Builder::new();
        let x = input(&mut build, "x");
        let residual = build.unary("neg", x).unwrap();
        let before = build.unary("tanh", residual).unwrap();
        let norm = build.call("norm.rms.add", &[Some(x), Some(residual), None], &[]).unwrap();
        let after = build.written(norm, 1).unwrap();
        let after = build.unary("tanh", after).unwrap();
        for (name, node) in [("before", before), ("norm", norm), ("after", after)] {
            build.output(name, node);
        }
        let graph = build.finish().unwrap();
        let made = plan_parallel(&engine(), &graph, 256);
        // `norm.rms.add` overwrites what the first `tanh` reads, and the second one reads what it writes.
        assert_eq!(made.waves.len(), 0);
    }

    #[test]
    fn a_run_in_waves_gives_the_same_bits() {
        let session = Session::new(engine(), branches(4));
        let data: Vec<f32> = (0..256 * FEATURES).map(|index| (index % 97) as f32 / 97.0).collect();
        let view = TensorView::from_slice(&data, &[256, FEATURES]).unwrap();
        let run = |threads| {
            let run = || session.run(vec![RunInput::Read(view)]).unwrap().remove(0).bytes().to_vec();
            lz_pool::with_threads(threads, run)
        };
        let one = run(1);
        for _ in 0..20 {
            assert_eq!(one, run(3));
        }
        assert_eq!(session.cached_plans(), 2);
    }

    /// A kernel that fails on every call.
    struct Broken;

    impl lz_core::Kernel for Broken {
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }

        fn run(
            &self,
            _args: &mut [lz_core::Arg<'_>],
            _outputs: &mut [lz_core::OutArg<'_>],
            _run: &mut lz_core::Run<'_>,
        ) -> Result<(), lz_core::KernelError> {
            Err(lz_core::KernelError::failed("broken"))
        }
    }

    /// An engine that prefers a broken kernel for `primitive.unary`, with or without the reference to fall back to.
    fn broken_engine(falls_back: bool) -> lz_engine::Engine {
        let is_unary = |entry: &lz_core::KernelEntry| entry.spec.operation == "primitive.unary";
        let (unary, others): (Vec<_>, Vec<_>) =
            lz_primitives::reference_kernels().into_iter().partition(is_unary);
        let mut spec = (*unary[0].spec).clone();
        (spec.id, spec.backend, spec.reference) = ("broken.unary".to_owned(), "broken".to_owned(), false);
        let broken = lz_core::KernelEntry {
            spec: spec.into(),
            kernel: std::sync::Arc::new(Broken),
            ..unary[0].clone()
        };
        let engine = lz_engine::Engine::new();
        engine.register(others).unwrap();
        engine.register(vec![broken]).unwrap();
        if falls_back {
            engine.register(unary).unwrap();
        }
        engine
    }

    #[test]
    fn a_step_that_fails_in_a_wave_falls_back_or_is_named() {
        let data: Vec<f32> = (0..256 * FEATURES).map(|index| (index % 97) as f32 / 97.0).collect();
        let view = TensorView::from_slice(&data, &[256, FEATURES]).unwrap();
        let run = |engine| {
            let session = Session::new(engine, branches(3));
            lz_pool::with_threads(3, || session.run(vec![RunInput::Read(view)]))
        };
        let (expected, found) = (run(engine()).unwrap(), run(broken_engine(true)).unwrap());
        assert_eq!(expected[0].bytes(), found[0].bytes());
        let error = run(broken_engine(false)).unwrap_err().to_string();
        assert!(error.contains("broken"), "{error}");
    }
}
