//! LayerZero for Rust programs: an [`Engine`] with every kernel that is built in, every operation ([`ops`]), and a [`prelude`].
//!
//! ```
//! use layerzero::prelude::*;
//!
//! let engine = Engine::new();
//! let x = [3.0f32, 4.0, 0.0, 0.0];
//! let args = ops::NormRms::new(TensorView::from_slice(&x, &[1, 4])?);
//! let result = ops::norm_rms(&engine, args)?;
//! assert_eq!(result.output.view().shape(), [1, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A model runs as one graph: an ONNX file, a saved model, or a graph that [`graph::build`] builds.
//!
//! ```
//! use layerzero::graph::{CompiledModel, Dim, LoadOptions, Options, RunInput, build::Builder};
//! use layerzero::prelude::*;
//!
//! let mut build = Builder::new();
//! let rows = Dim::from(build.graph_mut().symbol("rows", 0, 1024));
//! let x = build.input("x", vec![rows, Dim::from(2)], DType::F32);
//! let y = build.activation("relu", x, None)?;
//! build.output("y", y);
//!
//! let engine = Engine::new();
//! let model = CompiledModel::new(&engine, build.finish()?, &Options::default())?;
//! let x = [1.0f32, -1.0, -2.0, 2.0];
//! let run = |model: &CompiledModel| model.run(vec![RunInput::Read(TensorView::from_slice(&x, &[2, 2]).unwrap())]);
//! assert_eq!(run(&model)?[0].view().as_slice::<f32>(), Some(&[1.0, 0.0, 0.0, 2.0][..]));
//!
//! // `CompiledModel::from_onnx(&engine, path, &options)` compiles an ONNX file.
//! let path = std::env::temp_dir().join(format!("model-{}.lz", std::process::id()));
//! model.save(&path)?;
//! let loaded = CompiledModel::load(&engine, &path, &LoadOptions::default())?;
//! assert_eq!(run(&loaded)?[0].bytes(), run(&model)?[0].bytes());
//! # std::fs::remove_file(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate adds nothing of its own: types are those of [`core`], selection is [`engine`], detection is [`device`]. The features
//! `cpu` and `tokenize`, both on by default, say whose kernels an engine starts with; the references are always there. The feature
//! `otel` adds a module of that name, which exports spans to an OpenTelemetry collector.

#[cfg(feature = "otel")]
pub mod otel;

use std::ops::Deref;

pub use lz_core as core;
pub use lz_device as device;
pub use lz_engine as engine;
pub use lz_graph as graph;
pub use lz_ops as ops;
pub use lz_primitives as primitives;
#[cfg(feature = "tokenize")]
pub use lz_tokenize as tokenize;

use lz_core::args::{Arg, OutArg};
use lz_core::{Context, Dispatch, Error, KernelEntry, KernelError, OperationInfo, Run};
use lz_engine::EngineBuilder;

/// What most programs import.
pub mod prelude {
    pub use lz_core::{
        Context, DType, Error, KernelError, OperationInfo, Reason, ReasonCode, Tensor, TensorMut, TensorView,
    };
    pub use lz_engine::{EngineBuilder, Explanation, Policy};

    pub use crate::{Engine, ops};
}

/// Every kernel that is built in, the references among them.
pub fn kernels() -> Vec<KernelEntry> {
    let mut kernels = lz_ops::reference_kernels::kernels();
    kernels.extend(lz_primitives::reference_kernels());
    #[cfg(feature = "cpu")]
    {
        kernels.extend(lz_cpu::kernels());
        kernels.extend(lz_cpu::primitive_kernels());
    }
    #[cfg(feature = "tokenize")]
    kernels.extend(lz_tokenize::kernels());
    kernels
}

/// An [engine](lz_engine::Engine) that has every kernel that is built in. A clone is the same engine.
#[derive(Debug, Clone)]
pub struct Engine(lz_engine::Engine);

impl Engine {
    /// An engine with default settings, on this machine's devices.
    ///
    /// # Panics
    /// When a kernel that is built in does not fit its operation, which the tests of this crate exclude.
    pub fn new() -> Engine {
        match Engine::with_kernels(lz_engine::Engine::new()) {
            Ok(engine) => engine,
            Err(error) => unreachable!("the kernels that are built in fit their operations: {error}"),
        }
    }

    /// An engine as this process's environment sets it up: `LAYERZERO_CONFIG`, then the other variables.
    pub fn open() -> Result<Engine, Error> {
        Engine::open_with(lz_engine::Engine::builder().from_environment())
    }

    /// An engine as a builder sets it up.
    pub fn open_with(builder: EngineBuilder) -> Result<Engine, Error> {
        Engine::with_kernels(
            builder.operations(lz_ops::OPERATIONS).operations(lz_primitives::all().iter().copied()).open()?,
        )
    }

    fn with_kernels(engine: lz_engine::Engine) -> Result<Engine, Error> {
        engine.register(kernels())?;
        lz_engine::tune::BackgroundTuner::install(&engine);
        lz_engine::verify::install(&engine);
        Ok(Engine(engine))
    }
}

impl Default for Engine {
    fn default() -> Self {
        Engine::new()
    }
}

impl Deref for Engine {
    type Target = lz_engine::Engine;

    #[inline]
    fn deref(&self) -> &lz_engine::Engine {
        &self.0
    }
}

impl Dispatch for Engine {
    #[inline(always)]
    fn dispatch<F>(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut F,
    ) -> Result<(), Error>
    where
        F: FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError>,
    {
        self.0.dispatch(operation, context, run_one)
    }

    fn run_split(
        &self,
        operation: &'static OperationInfo,
        error: Error,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
    ) -> Result<(), Error> {
        self.0.run_split(operation, error, args, outputs)
    }
}

impl From<Engine> for lz_engine::Engine {
    fn from(engine: Engine) -> lz_engine::Engine {
        engine.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_kernel_registers() {
        let engine = Engine::new();
        assert_eq!(engine.registry().kernels().count(), kernels().len());
    }
}
