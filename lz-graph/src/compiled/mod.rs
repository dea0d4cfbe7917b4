//! Compiled models: import, passes, validation and a session in one value. What every binding and the command line use.

mod explain;
#[cfg(test)]
mod tests;
mod tune;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use lz_core::context::Context;
use lz_core::{DType, OperationInfo, Tensor, TensorMut, TensorView};
use lz_engine::Engine;
use lz_engine::table::Lockfile;

use crate::artifact::{self, Artifact};
use crate::error::GraphError;
use crate::graph::{Constant, ConstantData, Graph};
use crate::import::onnx;
use crate::passes;
use crate::plan::Plan;
use crate::quantize::{self, Layer};
use crate::session::{OnChange, RunInput, Session};
use crate::sizes::InputShape;
use crate::validate::{self, Finding, Phase, Severity, Validation};
pub use tune::TunedStep;

/// A call of a plan.
pub type PlannedCall = (&'static OperationInfo, Context);

/// What happens to NaN in the inputs and outputs of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NanPolicy {
    /// Nothing is checked.
    #[default]
    Allow,
    /// A run whose inputs contain NaN is refused before it starts; outputs that contain NaN are an error.
    Refuse,
}

impl NanPolicy {
    /// The policy with this name.
    pub fn from_name(name: &str) -> Option<NanPolicy> {
        match name {
            "allow" => Some(NanPolicy::Allow),
            "refuse" => Some(NanPolicy::Refuse),
            _ => None,
        }
    }
}

/// What happens when an artifact names kernels that do not exist here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingKernels {
    /// Other kernels are selected; a finding names the missing ones.
    #[default]
    Replan,
    /// The artifact is refused.
    Refuse,
}

impl MissingKernels {
    /// The policy with this name.
    pub fn from_name(name: &str) -> Option<MissingKernels> {
        match name {
            "replan" => Some(MissingKernels::Replan),
            "refuse" => Some(MissingKernels::Refuse),
            _ => None,
        }
    }
}

/// How a model is compiled.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether passes run.
    pub optimize: bool,
    /// Names of passes that do not run.
    pub disabled_passes: Vec<String>,
    /// Which findings stop the compilation.
    pub validation: Validation,
    /// What happens to NaN.
    pub nan: NanPolicy,
    /// What happens when the engine's state changes after a plan was made.
    pub on_change: OnChange,
    /// How weights of linear layers are quantized, if at all.
    pub quantization: Option<quantize::Options>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            optimize: true,
            disabled_passes: Vec::new(),
            validation: Validation::default(),
            nan: NanPolicy::default(),
            on_change: OnChange::default(),
            quantization: None,
        }
    }
}

/// How an artifact is loaded.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Whether the elements of all constants are compared with their hashes, which reads the whole file.
    pub verify: bool,
    /// What happens when it names kernels that do not exist here.
    pub missing_kernels: MissingKernels,
    /// What happens to NaN.
    pub nan: NanPolicy,
    /// What happens when the engine's state changes after a plan was made.
    pub on_change: OnChange,
}

/// A stage and the time that it took.
#[derive(Debug, Clone, Copy)]
pub struct Stage {
    /// `import`, `passes`, `validation`, `quantization` or `load`.
    pub name: &'static str,
    /// How long it took.
    pub time: Duration,
}

/// A model that runs. Threads share it.
#[derive(Debug)]
pub struct CompiledModel {
    session: Session,
    imported_nodes: usize,
    rewrites: Vec<String>,
    quantized_layers: Vec<Layer>,
    findings: Vec<Finding>,
    stages: Vec<Stage>,
    nan: NanPolicy,
    validation: Validation,
    /// The decisions of the artifact that it was loaded from.
    decisions: Option<Lockfile>,
}

impl CompiledModel {
    /// Compiles an imported graph.
    pub fn new(engine: &Engine, mut graph: Graph, options: &Options) -> Result<CompiledModel, GraphError> {
        let (validation, imported_nodes) = (options.validation, graph.nodes.len());
        let mut findings = Vec::new();
        let mut stages = Vec::new();
        let check = |graph: &Graph, phase: Phase, findings: &mut Vec<Finding>| {
            if validation != Validation::None {
                findings.extend(validate::graph(graph, phase));
            }
            validation.check(findings)
        };
        check(&graph, Phase::Import, &mut findings)?;
        let mut rewrites = Vec::new();
        if options.optimize {
            let start = Instant::now();
            let readable = graph.constants.iter().all(|constant| constant.view().device().is_host());
            let compares = validation == Validation::Strict && readable;
            let references = compares.then(reference_engine).transpose()?;
            let mut disabled = options.disabled_passes.clone();
            if options.quantization.is_some() {
                // There is no gated block with quantized weights: its layers stay layers.
                disabled.push("gated".to_owned());
            }
            let options = passes::Options { disabled, engine: Some(engine) };
            let report = passes::optimize_verified(&mut graph, &options, references.as_ref())?;
            stages.push(Stage { name: "passes", time: start.elapsed() });
            rewrites = report.rewrites.iter().map(ToString::to_string).collect();
            let found =
                |severity, validator, message| Finding { phase: Phase::Passes, severity, validator, message };
            if report.stopped {
                let message = format!("passes still changed the graph after {} rounds", report.rounds);
                findings.push(found(Severity::Warning, "passes", message));
            }
            if validation == Validation::Strict && !readable {
                let message =
                    "passes were not compared with the reference: constants are on a device".to_owned();
                findings.push(found(Severity::Info, "verification", message));
            }
            for message in report.unverified {
                findings.push(found(Severity::Info, "verification", message));
            }
            let start = Instant::now();
            check(&graph, Phase::Passes, &mut findings)?;
            stages.push(Stage { name: "validation", time: start.elapsed() });
        }
        let mut quantized_layers = Vec::new();
        if let Some(options) = &options.quantization {
            let start = Instant::now();
            quantized_layers = quantize::quantize_weights(&mut graph, engine, options)?;
            stages.push(Stage { name: "quantization", time: start.elapsed() });
        }
        // Passes repeat what was already found after the import.
        let mut seen = std::collections::HashSet::new();
        findings.retain(|finding| seen.insert((finding.validator, finding.message.clone())));
        let session = Session::new(engine.clone(), graph).checked(validation, options.on_change);
        let nan = options.nan;
        Ok(CompiledModel {
            session,
            imported_nodes,
            rewrites,
            quantized_layers,
            findings,
            stages,
            nan,
            validation,
            decisions: None,
        })
    }

    /// Compiles an ONNX file. External data is mapped and must be in the file's folder.
    pub fn from_onnx(engine: &Engine, path: &Path, options: &Options) -> Result<CompiledModel, GraphError> {
        CompiledModel::imported(engine, options, || onnx::from_path(path, &onnx::Options::default()))
    }

    /// Compiles an ONNX model in memory, which cannot have external data.
    pub fn from_onnx_bytes(
        engine: &Engine,
        bytes: &[u8],
        options: &Options,
    ) -> Result<CompiledModel, GraphError> {
        CompiledModel::imported(engine, options, || onnx::from_bytes(bytes, &onnx::Options::default()))
    }

    fn imported(
        engine: &Engine,
        options: &Options,
        import: impl FnOnce() -> Result<Graph, GraphError>,
    ) -> Result<CompiledModel, GraphError> {
        let start = Instant::now();
        let graph = import()?;
        let stage = Stage { name: "import", time: start.elapsed() };
        let mut compiled = CompiledModel::new(engine, graph, options)?;
        compiled.stages.insert(0, stage);
        Ok(compiled)
    }

    /// Loads a model that [`CompiledModel::save`] wrote.
    pub fn load(engine: &Engine, path: &Path, options: &LoadOptions) -> Result<CompiledModel, GraphError> {
        let start = Instant::now();
        let artifact = artifact::load(path, options.verify)?;
        let findings = missing_kernels(engine, &artifact);
        if options.missing_kernels == MissingKernels::Refuse && !findings.is_empty() {
            let missing: Vec<&str> = findings.iter().map(|finding| finding.message.as_str()).collect();
            let message = format!(
                "{}: {}; load it with missing kernels replanned, or compile the model here",
                path.display(),
                missing.join("; ")
            );
            return Err(GraphError::Artifact { message });
        }
        let stages = vec![Stage { name: "load", time: start.elapsed() }];
        let session =
            Session::new(engine.clone(), artifact.graph).checked(Validation::Normal, options.on_change);
        Ok(CompiledModel {
            session,
            imported_nodes: artifact.imported_nodes,
            rewrites: artifact.rewrites,
            quantized_layers: Vec::new(),
            findings,
            stages,
            nan: options.nan,
            validation: Validation::Normal,
            decisions: artifact.decisions,
        })
    }

    /// Writes the graph, its constants and the decisions of the plans that were made so far into one file.
    pub fn save(&self, path: &Path) -> Result<(), GraphError> {
        self.save_with(path, HashMap::new(), &self.calls())
    }

    /// As [`CompiledModel::save`], for a model whose steps run on a device: `host` has its constants of the device in host memory, by
    /// index, and `calls` are those of its plans there.
    pub fn save_with(
        &self,
        path: &Path,
        host: HashMap<usize, ConstantData>,
        calls: &[PlannedCall],
    ) -> Result<(), GraphError> {
        let mut graph = self.graph().clone();
        for (index, data) in host {
            let Some(constant) = graph.constants.get_mut(index) else {
                return Err(GraphError::Artifact { message: format!("there is no constant {index}") });
            };
            let copied = Constant { name: constant.name.clone(), data };
            let types = [&*constant, &copied].map(|one| (one.view().shape().to_vec(), one.view().dtype()));
            if types[0] != types[1] {
                let [(shape, dtype), (found, found_dtype)] = types;
                let message = format!(
                    "`{}` is {}{found:?} on the host, expected {}{shape:?}",
                    constant.name,
                    found_dtype.long_name(),
                    dtype.long_name()
                );
                return Err(GraphError::Artifact { message });
            }
            *constant = copied;
        }
        if let Some(constant) = graph.constants.iter().find(|one| !one.view().device().is_host()) {
            let message = format!(
                "`{}` is on {}: only constants in host memory can be written",
                constant.name,
                constant.view().device()
            );
            return Err(GraphError::Artifact { message });
        }
        let decisions = self.freeze_calls(calls)?;
        let decisions = if decisions.decisions().next().is_none() { None } else { Some(decisions) };
        let artifact = Artifact {
            graph,
            imported_nodes: self.imported_nodes,
            rewrites: self.rewrites.clone(),
            decisions: decisions.or_else(|| self.decisions.clone()),
            layerzero: env!("CARGO_PKG_VERSION").to_owned(),
        };
        artifact::save(path, &artifact)
    }

    /// The decisions of all plans that are cached, as a lockfile.
    pub fn freeze(&self) -> Result<Lockfile, GraphError> {
        self.freeze_calls(&self.calls())
    }

    /// The decisions of these calls of the graph's plans, as a lockfile.
    pub fn freeze_calls(&self, calls: &[PlannedCall]) -> Result<Lockfile, GraphError> {
        let frozen = self.session.engine().freeze_calls(calls);
        frozen.map_err(|error| GraphError::run(&Default::default(), error))
    }

    /// How the decisions of all cached plans differ from a lockfile.
    pub fn verify_decisions(&self, expected: &Lockfile) -> Result<Vec<String>, GraphError> {
        self.verify_calls(expected, &self.calls())
    }

    /// How the decisions of these calls of the graph's plans differ from a lockfile.
    pub fn verify_calls(
        &self,
        expected: &Lockfile,
        calls: &[PlannedCall],
    ) -> Result<Vec<String>, GraphError> {
        let verification = self.session.engine().verify_calls(expected, calls);
        let verification = verification.map_err(|error| GraphError::run(&Default::default(), error))?;
        Ok(verification.differing.iter().map(ToString::to_string).collect())
    }

    /// The calls of all cached plans.
    fn calls(&self) -> Vec<PlannedCall> {
        let plans = self.session.plans();
        plans.iter().flat_map(|plan| plan.steps.iter().map(|step| (step.operation, step.context))).collect()
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The graph after passes.
    pub fn graph(&self) -> &Graph {
        self.session.graph()
    }

    /// The number of nodes before passes.
    pub fn imported_nodes(&self) -> usize {
        self.imported_nodes
    }

    /// What passes replaced, in order.
    pub fn rewrites(&self) -> &[String] {
        &self.rewrites
    }

    /// Linear layers and the error of their weights, if weights were quantized.
    pub fn quantized_layers(&self) -> &[Layer] {
        &self.quantized_layers
    }

    /// What validators found when the model was compiled or loaded.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// What validators find in a plan.
    pub fn plan_findings(&self, plan: &Plan) -> Vec<Finding> {
        match self.validation {
            Validation::None => Vec::new(),
            _ => self.session.plan_findings(plan),
        }
    }

    /// Everything about the model for inputs of these shapes, as text.
    pub fn explain(&self, shapes: &[InputShape]) -> Result<String, GraphError> {
        explain::explain(self, shapes)
    }

    /// The stages of the compilation and their time.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The decisions of the artifact that it was loaded from.
    pub fn decisions(&self) -> Option<&Lockfile> {
        self.decisions.as_ref()
    }

    /// Runs the model; outputs are allocated.
    pub fn run(&self, inputs: Vec<RunInput<'_>>) -> Result<Vec<Tensor>, GraphError> {
        self.check_inputs(&inputs)?;
        let outputs = self.session.run(inputs)?;
        self.check_outputs(outputs.iter().map(Tensor::view))?;
        Ok(outputs)
    }

    /// Runs the model into dense tensors of the caller.
    pub fn run_into(
        &self,
        inputs: Vec<RunInput<'_>>,
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), GraphError> {
        self.check_inputs(&inputs)?;
        self.session.run_into(inputs, outputs)?;
        self.check_outputs(outputs.iter().map(TensorMut::as_view))
    }

    fn check_inputs(&self, inputs: &[RunInput<'_>]) -> Result<(), GraphError> {
        if self.nan == NanPolicy::Allow {
            return Ok(());
        }
        for (input, about) in inputs.iter().zip(&self.graph().inputs) {
            let view = input.view();
            // The session refuses the rest.
            if view.is_sound() && view.device().is_host() && has_nan(&view) {
                return Err(GraphError::input(&about.name, "contains NaN, which the NaN policy refuses"));
            }
        }
        Ok(())
    }

    fn check_outputs<'v>(&self, outputs: impl Iterator<Item = TensorView<'v>>) -> Result<(), GraphError> {
        if self.nan == NanPolicy::Allow {
            return Ok(());
        }
        for (output, about) in outputs.zip(&self.graph().outputs) {
            if has_nan(&output) {
                let name = format!("output {}", about.name);
                return Err(GraphError::input(name, "contains NaN although no input does"));
            }
        }
        Ok(())
    }
}

/// Kernels of an artifact's decisions that this process does not have.
fn missing_kernels(engine: &Engine, artifact: &Artifact) -> Vec<Finding> {
    let Some(decisions) = &artifact.decisions else { return Vec::new() };
    let registry = engine.registry();
    let known: std::collections::HashSet<&str> =
        registry.kernels().map(|entry| entry.spec.id.as_str()).collect();
    let mut missing: Vec<(&str, &str)> = decisions
        .decisions()
        .filter(|decision| !known.contains(decision.kernel.as_str()))
        .map(|decision| (decision.kernel.as_str(), decision.operation.as_str()))
        .collect();
    missing.sort_unstable();
    missing.dedup();
    let finding = |(kernel, operation): (&str, &str)| Finding {
        phase: Phase::Import,
        severity: Severity::Warning,
        validator: "decisions",
        message: format!("the kernel {kernel} of {operation} does not exist here"),
    };
    missing.into_iter().map(finding).collect()
}

/// An engine with the references only, which rewrites are compared with.
fn reference_engine() -> Result<Engine, GraphError> {
    let mut kernels = lz_ops::reference_kernels::kernels();
    kernels.extend(lz_primitives::reference_kernels());
    Engine::with_kernels(kernels).map_err(|error| GraphError::run(&Default::default(), error))
}

fn has_nan(view: &TensorView<'_>) -> bool {
    if let (DType::F32, Some(elements)) = (view.dtype(), view.as_slice::<f32>()) {
        return elements.iter().any(|value| value.is_nan());
    }
    view.dtype().is_float()
        && lz_core::tensor::Indices::new(view.shape()).any(|index| view.at(&index).is_nan())
}
