//! Sessions: one graph, any sizes, any number of threads.
//!
//! The first run with new sizes plans; later ones reuse the plan and its memory. Plans are kept for the sizes that were used last.

use std::collections::HashMap;
use std::sync::Arc;

use lz_core::args::{Arg, OutArg};
use lz_core::fork::{Mutex, MutexGuard};
use lz_core::{Tensor, TensorMut, TensorView};
use lz_engine::{Engine, dynamic};

use crate::error::GraphError;
use crate::execute::{Arena, Instance};
use crate::graph::{Graph, Origin};
use crate::plan::{self, Grouping, HostKernels, Parts, Plan};
use crate::prepared::PreparedConstants;
use crate::sizes::{self, InputShape};
use crate::validate::{self, Finding, Validation};

/// Plans that are kept per session.
const MAX_PLANS: usize = 64;

/// Instances without work that are kept per plan, and arenas per session: threads that ran at once before.
const MAX_IDLE: usize = 8;

/// An input of a run.
#[derive(Debug)]
pub enum RunInput<'a> {
    /// A tensor that is read.
    Read(TensorView<'a>),
    /// A tensor that the graph changes in place.
    Write(TensorMut<'a>),
}

impl RunInput<'_> {
    /// The tensor.
    pub fn view(&self) -> TensorView<'_> {
        match self {
            RunInput::Read(view) => *view,
            RunInput::Write(tensor) => tensor.as_view(),
        }
    }
}

/// What happens when the engine's state (policy, registry, health, measurements) changes after a plan was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnChange {
    /// The next run plans again.
    #[default]
    Replan,
    /// The next run plans again; it is refused if a step would have another kernel.
    Refuse,
}

impl OnChange {
    /// The policy with this name.
    pub fn from_name(name: &str) -> Option<OnChange> {
        match name {
            "replan" => Some(OnChange::Replan),
            "refuse" => Some(OnChange::Refuse),
            _ => None,
        }
    }
}

/// What a plan depends on besides the graph.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    values: Vec<i64>,
    /// Alignment of each input's address, up to the alignment of a buffer.
    alignment: Vec<usize>,
    /// Whether runs may use several threads.
    parallel: bool,
}

#[derive(Debug)]
struct Planned {
    plan: Arc<Plan>,
    idle: Vec<Instance>,
    /// The run that used it last.
    used: u64,
    /// The engine's generation for which it was made.
    generation: u64,
}

#[derive(Debug, Default)]
struct Plans {
    by_key: HashMap<Key, Planned>,
    runs: u64,
}

/// A compiled graph. Threads share it.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    graph: Arc<Graph>,
    plans: Mutex<Plans>,
    validation: Validation,
    on_change: OnChange,
    grouping: Grouping,
    parts: Parts,
    prepared: PreparedConstants,
    /// Arenas that no run uses.
    arenas: Mutex<Vec<Arena>>,
}

impl Session {
    /// A session for a normalized graph.
    pub fn new(engine: Engine, graph: Graph) -> Session {
        Session {
            engine,
            graph: Arc::new(graph),
            plans: Mutex::default(),
            validation: Validation::None,
            on_change: OnChange::default(),
            grouping: Grouping::default(),
            parts: Parts::default(),
            prepared: PreparedConstants::default(),
            arenas: Mutex::default(),
        }
    }

    /// The same session with validated plans, and with another reaction to changes of the engine's state.
    #[must_use]
    pub fn checked(self, validation: Validation, on_change: OnChange) -> Session {
        Session { validation, on_change, ..self }
    }

    /// The same session with other rules for which steps run at the same time.
    #[must_use]
    pub fn grouped(self, grouping: Grouping) -> Session {
        Session { grouping, ..self }
    }

    /// The same session with another rule for which fused operations are split into their parts.
    #[must_use]
    pub fn split(self, parts: Parts) -> Session {
        Session { parts, ..self }
    }

    /// The plans that are kept.
    pub fn plans(&self) -> Vec<Arc<Plan>> {
        self.lock().by_key.values().map(|planned| planned.plan.clone()).collect()
    }

    /// What validators find in a plan.
    pub fn plan_findings(&self, plan: &Plan) -> Vec<Finding> {
        let mut findings = validate::plan(plan);
        findings.extend(validate::execution(&self.engine, &self.graph, plan));
        findings
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Constants in the layouts of the kernels that read them.
    pub fn prepared(&self) -> &PreparedConstants {
        &self.prepared
    }

    /// The number of plans that are kept.
    pub fn cached_plans(&self) -> usize {
        self.lock().by_key.len()
    }

    /// Runs the graph; outputs are allocated.
    pub fn run(&self, inputs: Vec<RunInput<'_>>) -> Result<Vec<Tensor>, GraphError> {
        let (instance, inputs, key) = self.prepare(inputs)?;
        let mut outputs = Vec::with_capacity(instance.plan().outputs.len());
        for (shape, dtype) in &instance.plan().outputs {
            let output = Tensor::zeros(shape, *dtype);
            outputs.push(output.map_err(|reason| GraphError::input("", reason.to_string()))?);
        }
        let addresses = outputs.iter_mut().map(|output| output.view_mut().address() as *mut u8).collect();
        self.finish(instance, inputs, key, addresses)?;
        Ok(outputs)
    }

    /// Runs the graph into dense tensors of the caller.
    pub fn run_into(
        &self,
        inputs: Vec<RunInput<'_>>,
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), GraphError> {
        let (instance, inputs, key) = self.prepare(inputs)?;
        let expected = &instance.plan().outputs;
        if outputs.len() != expected.len() {
            let message = format!("{} outputs were given, expected {}", outputs.len(), expected.len());
            return Err(GraphError::input("", message));
        }
        for ((output, (shape, dtype)), about) in outputs.iter().zip(expected).zip(&self.graph.outputs) {
            let fits = output.shape() == shape.as_slice() && output.dtype() == *dtype;
            if !fits || !output.is_contiguous() || !output.is_sound() || !output.device().is_host() {
                let message = format!(
                    "must be a dense {} host tensor of shape {shape:?}, found {} of shape {:?}",
                    dtype.long_name(),
                    output.dtype().long_name(),
                    output.shape()
                );
                return Err(GraphError::input(format!("output {}", about.name), message));
            }
        }
        check_overlap(&inputs, outputs)?;
        let addresses = outputs.iter().map(|output| output.address() as *mut u8).collect();
        self.finish(instance, inputs, key, addresses)
    }

    /// Sizes and dtypes of the outputs for these inputs.
    pub fn output_types(&self, shapes: &[InputShape]) -> Result<Vec<(Vec<i64>, lz_core::DType)>, GraphError> {
        let values = sizes::bind(&self.graph, shapes)?;
        let outputs = self.graph.outputs.iter().map(|output| self.graph.node(output.node));
        outputs.map(|node| Ok((sizes::shape(&node.shape, &values)?, node.dtype))).collect()
    }

    /// The plan for these inputs, made if it is not cached.
    pub fn plan_for(&self, shapes: &[InputShape]) -> Result<Arc<Plan>, GraphError> {
        let values = sizes::bind(&self.graph, shapes)?;
        let key =
            Key { values, alignment: vec![crate::memory::ALIGNMENT; shapes.len()], parallel: is_parallel() };
        Ok(self.planned(&key)?.plan().clone())
    }

    fn lock(&self) -> MutexGuard<'_, Plans> {
        // A panic while planning leaves the map as it was before.
        self.plans.lock()
    }

    fn prepare<'a>(
        &self,
        inputs: Vec<RunInput<'a>>,
    ) -> Result<(Instance, Vec<Prepared<'a>>, Key), GraphError> {
        let shapes: Vec<InputShape> = inputs
            .iter()
            .map(|input| InputShape { shape: input.view().shape().to_vec(), dtype: input.view().dtype() })
            .collect();
        let values = sizes::bind(&self.graph, &shapes)?;
        let mut prepared = Vec::with_capacity(inputs.len());
        for (input, about) in inputs.into_iter().zip(&self.graph.inputs) {
            prepared.push(self.prepare_input(input, &about.name, about.mutable)?);
        }
        let alignment = prepared.iter().map(|input| 1 << input.address().trailing_zeros().min(6)).collect();
        let key = Key { values, alignment, parallel: is_parallel() };
        Ok((self.planned(&key)?, prepared, key))
    }

    fn prepare_input<'a>(
        &self,
        input: RunInput<'a>,
        name: &str,
        mutable: bool,
    ) -> Result<Prepared<'a>, GraphError> {
        let view = input.view();
        if !view.is_sound() {
            let problem =
                view.layout().problem().map_or_else(|| "is not aligned".to_owned(), |p| p.to_string());
            return Err(GraphError::input(name, problem));
        }
        if !view.device().is_host() {
            return Err(GraphError::input(name, format!("is on {}, expected host memory", view.device())));
        }
        match (input, mutable) {
            (RunInput::Write(tensor), true) if tensor.is_contiguous() => Ok(Prepared::Write(tensor)),
            (RunInput::Write(_), true) => {
                Err(GraphError::input(name, "is changed in place and must be dense"))
            }
            (RunInput::Read(_), true) => {
                Err(GraphError::input(name, "is changed in place: pass a writable tensor"))
            }
            (RunInput::Read(view), false) if view.is_contiguous() => Ok(Prepared::Read(view)),
            (input, false) => Ok(Prepared::Copied(self.dense_copy(&input.view())?)),
        }
    }

    fn dense_copy(&self, view: &TensorView<'_>) -> Result<Tensor, GraphError> {
        let refused = |reason: lz_core::Reason| GraphError::input("", reason.to_string());
        let mut copy = Tensor::zeros(view.shape(), view.dtype()).map_err(refused)?;
        let origin = Arc::new(Origin { operator: "copy of an input".to_owned(), ..Origin::default() });
        let mut outputs = [OutArg::Tensor(copy.view_mut())];
        dynamic::call_into(&self.engine, *lz_primitives::COPY, &mut [Arg::Tensor(*view)], &mut outputs)
            .map_err(|error| GraphError::run(&origin, error))?;
        Ok(copy)
    }

    /// An idle instance of the plan, or a new one.
    fn planned(&self, key: &Key) -> Result<Instance, GraphError> {
        let generation = self.engine.generation();
        let (known, stale) = {
            let mut plans = self.lock();
            plans.runs += 1;
            let runs = plans.runs;
            match plans.by_key.get_mut(key) {
                Some(planned) if planned.generation == generation => {
                    planned.used = runs;
                    (Some((planned.plan.clone(), planned.idle.pop())), None)
                }
                Some(planned) => (None, Some(planned.plan.clone())),
                None => (None, None),
            }
        };
        let plan = match known {
            Some((_, Some(instance))) => return Ok(instance),
            Some((plan, None)) => plan,
            None => self.make_plan(key, generation, stale)?,
        };
        Ok(Instance::new(plan, self.graph.clone()))
    }

    /// Memory of at least this size: the largest idle arena, or a new one.
    fn arena(&self, bytes: usize) -> Result<Arena, GraphError> {
        let idle = self.arenas.lock().pop();
        match idle.filter(|arena| arena.bytes() >= bytes) {
            Some(arena) => Ok(arena),
            // The smaller one was released: memory is that of the largest plan, not of all plans.
            None => Arena::new(bytes).ok_or_else(|| {
                GraphError::input("", format!("there is no memory for an arena of {bytes} bytes"))
            }),
        }
    }

    fn release(&self, arena: Arena) {
        let mut arenas = self.arenas.lock();
        let position = arenas.partition_point(|other| other.bytes() <= arena.bytes());
        arenas.insert(position, arena);
        if arenas.len() > MAX_IDLE {
            arenas.remove(0);
        }
    }

    /// The bytes of the arenas that are kept.
    pub fn arena_bytes(&self) -> usize {
        self.arenas.lock().iter().map(Arena::bytes).sum()
    }

    /// Plans and caches the plan, if it differs from a stale one only as the policy allows.
    fn make_plan(
        &self,
        key: &Key,
        generation: u64,
        stale: Option<Arc<Plan>>,
    ) -> Result<Arc<Plan>, GraphError> {
        let (values, alignment) = (&key.values, &key.alignment);
        let (engine, graph, prepared) = (&self.engine, &self.graph, &self.prepared);
        let kernels = HostKernels { engine };
        let mut made = plan::plan_split(&kernels, graph, values, alignment, prepared, self.parts)?;
        if key.parallel {
            made = plan::grouped(made, self.grouping);
        }
        let mut plan = Arc::new(made);
        if self.validation != Validation::None {
            self.validation.check(&self.plan_findings(&plan))?;
        }
        let changed = stale.as_ref().map_or_else(Vec::new, |stale| self.changed_kernels(stale, &plan));
        if let (Some(stale), true) = (stale, changed.is_empty()) {
            // The same kernels: the old plan keeps its memory.
            plan = stale;
        }
        if !changed.is_empty() && self.on_change == OnChange::Refuse {
            let findings = changed.into_iter().chain([
                "the engine's state changed after the model was planned: restore it, or compile the model again".to_owned(),
            ]);
            return Err(GraphError::Invalid { stage: "execution", findings: findings.collect() });
        }
        for change in changed {
            tracing::info!(%change, "a compiled model was planned again");
        }
        let mut plans = self.lock();
        let used = plans.runs;
        let idle = plans.by_key.remove(key).filter(|old| Arc::ptr_eq(&old.plan, &plan));
        let idle = idle.map_or_else(Vec::new, |old| old.idle);
        plans.by_key.insert(key.clone(), Planned { plan: plan.clone(), idle, used, generation });
        Ok(plan)
    }

    /// Steps that have another kernel, or none, in the new plan.
    fn changed_kernels(&self, old: &Plan, new: &Plan) -> Vec<String> {
        let id = |step: &plan::Step| step.pinned.entry().spec.id.clone();
        if old.steps.len() != new.steps.len() {
            return vec![format!("the plan has {} steps, it had {}", new.steps.len(), old.steps.len())];
        }
        let steps = old.steps.iter().zip(&new.steps).filter(|(old, new)| id(old) != id(new));
        steps
            .map(|(old, new)| {
                let origin = &self.graph.node(new.node).origin;
                format!("{} ({origin}): {} was selected, now {}", new.node, id(old), id(new))
            })
            .collect()
    }

    fn finish(
        &self,
        mut instance: Instance,
        inputs: Vec<Prepared<'_>>,
        key: Key,
        outputs: Vec<*mut u8>,
    ) -> Result<(), GraphError> {
        let addresses: Vec<*mut u8> = inputs.iter().map(|input| input.address() as *mut u8).collect();
        let mut arena = self.arena(instance.plan().placement.bytes)?;
        // SAFETY: every tensor was checked to be dense and of the plan's sizes, and is borrowed until the end of the call.
        let result = unsafe { instance.run(&self.engine, &mut arena, &addresses, &outputs) };
        self.release(arena);
        self.give_back(key, instance);
        result
    }

    fn give_back(&self, key: Key, instance: Instance) {
        let mut plans = self.lock();
        if let Some(planned) = plans.by_key.get_mut(&key)
            && Arc::ptr_eq(&planned.plan, instance.plan())
            && planned.idle.len() < MAX_IDLE
        {
            planned.idle.push(instance);
        }
        if plans.by_key.len() > MAX_PLANS
            && let Some(oldest) =
                plans.by_key.iter().min_by_key(|(_, planned)| planned.used).map(|(key, _)| key.clone())
        {
            plans.by_key.remove(&oldest);
        }
    }
}

/// Whether a run of this thread may use several threads.
fn is_parallel() -> bool {
    lz_pool::threads() > 1
}

/// An input in the form in which a plan takes it.
#[derive(Debug)]
enum Prepared<'a> {
    Read(TensorView<'a>),
    Write(TensorMut<'a>),
    Copied(Tensor),
}

impl Prepared<'_> {
    fn address(&self) -> usize {
        self.view().address()
    }

    fn view(&self) -> TensorView<'_> {
        match self {
            Prepared::Read(view) => *view,
            Prepared::Write(tensor) => tensor.as_view(),
            Prepared::Copied(tensor) => tensor.view(),
        }
    }
}

/// An output that shares memory with an input or another output would be overwritten while it is needed.
fn check_overlap(inputs: &[Prepared<'_>], outputs: &[TensorMut<'_>]) -> Result<(), GraphError> {
    for (index, output) in outputs.iter().enumerate() {
        let view = output.as_view();
        let inputs = inputs.iter().map(Prepared::view);
        let earlier = outputs[..index].iter().map(TensorMut::as_view);
        if inputs.chain(earlier).any(|other| lz_core::tensor::may_overlap(&view, &other)) {
            let message = format!("output {index} shares memory with an input or another output");
            return Err(GraphError::input("", message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lz_core::DType;
    use proptest::prelude::*;

    use super::*;
    use crate::build::Builder;
    use crate::dim::Dim;
    use crate::graph::NodeId;
    use crate::interpret;
    use crate::testing::engine;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|value| (value as f32 * 0.37).sin()).collect()
    }

    /// A random graph over x: [rows, 4] and y: [rows, 4]; every step appends a node made from earlier ones.
    fn random_graph(steps: &[(u8, usize, usize)]) -> Graph {
        let mut build = Builder::new();
        let rows = Dim::from(build.graph_mut().symbol("rows", 0, 64));
        let shape = vec![rows.clone(), Dim::from(4)];
        let mut nodes: Vec<NodeId> =
            vec![build.input("x", shape.clone(), DType::F32), build.input("y", shape.clone(), DType::F32)];
        let weight = build.owned(Tensor::from_slice(&numbers(16), &[4, 4]).unwrap());
        for &(kind, a, b) in steps {
            let (a, b) = (nodes[a % nodes.len()], nodes[b % nodes.len()]);
            let node = match kind % 9 {
                0 => build.binary("add", a, b),
                1 => build.binary("maximum", a, b),
                2 => build.unary("tanh", a),
                3 => build.matmul(a, weight),
                4 => build.softmax(a, 1, false),
                // Reversed along the features.
                5 => build.slice(a, 1, Dim::from(3), Dim::from(4), -1),
                // The halves exchanged.
                6 => {
                    let first = build.slice(a, 1, Dim::from(0), Dim::from(2), 1).unwrap();
                    let second = build.slice(b, 1, Dim::from(2), Dim::from(2), 1).unwrap();
                    build.concat(&[second, first], 1)
                }
                // Through a transposed reshape, which needs a copy.
                7 => {
                    let turned = build.transpose(a, 0, 1).unwrap();
                    let flat = build.reshape(turned, vec![rows.times(&Dim::from(4))]).unwrap();
                    build.reshape(flat, shape.clone())
                }
                // The mean of each row, broadcast back.
                _ => {
                    let mean = build.reduce("mean", a, &[1], true).unwrap();
                    build.binary("sub", b, mean)
                }
            };
            nodes.push(node.unwrap());
        }
        let last = *nodes.last().unwrap();
        build.output("last", last);
        build.output("middle", nodes[nodes.len() / 2]);
        build.finish().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
        #[test]
        fn compiled_equals_interpreted(
            steps in proptest::collection::vec((any::<u8>(), any::<usize>(), any::<usize>()), 1..14),
            lengths in proptest::collection::vec(0usize..6, 1..4),
        ) {
            let engine = engine();
            let session = Session::new(engine.clone(), random_graph(&steps));
            for rows in lengths {
                let data = numbers(rows * 8);
                let shape = [rows as i64, 4];
                let x = TensorView::from_slice(&data[..rows * 4], &shape).unwrap();
                let y = TensorView::from_slice(&data[rows * 4..], &shape).unwrap();
                let expected = interpret::run(&engine, session.graph(), &[x, y]).unwrap();
                for _ in 0..2 {
                    let found = session.run(vec![RunInput::Read(x), RunInput::Read(y)]).unwrap();
                    for (found, expected) in found.iter().zip(&expected) {
                        prop_assert_eq!(found.shape(), expected.shape());
                        prop_assert_eq!(found.bytes(), expected.bytes());
                    }
                }
                let aligned = [crate::memory::ALIGNMENT; 2];
                let plan = plan::plan(&engine, session.graph(), &[rows as i64], &aligned).unwrap();
                prop_assert_eq!(crate::memory::check(&plan.lifetimes, &plan.placement), Ok(()));
            }
        }
    }

    #[test]
    fn threads_share_a_session() {
        let steps = [(3, 0, 0), (0, 2, 1), (4, 3, 0), (8, 4, 2)];
        let session = Session::new(engine(), random_graph(&steps));
        let data = numbers(80);
        let view = |rows: usize| TensorView::from_slice(&data[..rows * 4], &[rows as i64, 4]).unwrap();
        let run = |rows: usize| {
            session.run(vec![RunInput::Read(view(rows)), RunInput::Read(view(rows))]).unwrap().remove(0)
        };
        let expected: Vec<Tensor> = (0..20).map(run).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for (rows, expected) in expected.iter().enumerate() {
                        assert_eq!(run(rows).bytes(), expected.bytes());
                    }
                });
            }
        });
        assert!(session.cached_plans() <= MAX_PLANS);
    }

    #[test]
    fn all_sizes_share_the_memory_of_the_largest() {
        let session = Session::new(engine(), random_graph(&[(3, 0, 0), (2, 2, 1), (0, 3, 2), (7, 4, 0)]));
        let data = numbers(160);
        let run = |rows: usize| {
            let view = TensorView::from_slice(&data[..rows * 4], &[rows as i64, 4]).unwrap();
            let result = session.run(vec![RunInput::Read(view), RunInput::Read(view)]).unwrap().remove(0);
            (result.bytes().to_vec(), session.arena_bytes())
        };
        let (small, _) = run(3);
        let (large, bytes) = run(40);
        assert!(bytes > 0);
        // The small plan now runs in the larger arena, at other addresses than before.
        assert_eq!([run(3), run(40), run(3)], [(small.clone(), bytes), (large, bytes), (small, bytes)]);
    }

    #[test]
    fn outputs_of_the_caller_are_checked() {
        let session = Session::new(engine(), random_graph(&[(2, 0, 0)]));
        let (x, mut small, mut good) = (numbers(8), [0f32; 4], [0f32; 8]);
        let inputs = || {
            let view = TensorView::from_slice(&x, &[2, 4]).unwrap();
            vec![RunInput::Read(view), RunInput::Read(view)]
        };
        let mut outputs = [
            TensorMut::from_slice(&mut good, &[2, 4]).unwrap(),
            TensorMut::from_slice(&mut small, &[1, 4]).unwrap(),
        ];
        let error = session.run_into(inputs(), &mut outputs).unwrap_err();
        assert_eq!(
            error.to_string(),
            "input `output middle`: must be a dense float32 host tensor of shape [2, 4], found float32 of shape [1, 4]"
        );
    }
}
