//! A third-party crate: an operation that is not in the catalog, and kernels for it and for a catalog
//! operation.
//!
//! It uses only public API, and nothing here was written by `cargo xtask codegen`.

use lz_core::{KernelError, Run};
use lz_ops::{NormRmsCall, NormRmsKernel, NormRmsOut};

/// `demo.scale_add`, from its schema.
pub mod scale_add {
    lz_macros::operation!("ops/scale_add.yaml");
}

use scale_add::{DemoScaleAddCall, DemoScaleAddKernel, DemoScaleAddOut};

/// Supports every call that the schema allows.
#[derive(Debug)]
pub struct Plain;

#[lz_macros::kernel(id = "demo.scale_add.plain", schema = "ops/scale_add.yaml", deterministic)]
impl DemoScaleAddKernel for Plain {
    fn run(
        &self,
        call: &DemoScaleAddCall<'_>,
        mut out: DemoScaleAddOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        for row in 0..call.axes.rows {
            for i in 0..call.axes.width {
                let added = call.y.map_or(0.0, |y| y.at(&[row, i]));
                out.output.set(&[row, i], call.x.at(&[row, i]) * f64::from(call.scale) + added);
            }
        }
        Ok(())
    }
}

/// A kernel for a catalog operation. It copies, so that a test can distinguish it from the reference.
#[derive(Debug)]
pub struct Copies;

#[lz_macros::kernel(
    id = "demo.norm.rms.copy",
    operation = "norm.rms",
    priority = 60,
    limits("hidden % 8 == 0 and not given(weight)" => HEAD_DIM_ALIGNMENT),
    dtypes(T = [f32])
)]
impl NormRmsKernel for Copies {
    fn run(
        &self,
        call: &NormRmsCall<'_>,
        mut out: NormRmsOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let (Some(from), Some(to)) = (call.x.as_slice::<f32>(), out.output.as_slice_mut::<f32>()) else {
            return Err(KernelError::failed("only dense f32"));
        };
        to.copy_from_slice(from);
        Ok(())
    }
}

/// Uses everything that the attribute supports.
#[derive(Debug)]
pub struct EveryAttribute;

#[lz_macros::kernel(
    id = "demo.norm.rms.talkative",
    operation = "norm.rms",
    backend = "talkative",
    version = "7.1",
    platform = cuda,
    priority = 60,
    limits("hidden % 8 == 0" => HEAD_DIM_ALIGNMENT, "rows <= 4096 or T == f32" => AXIS_LIMIT),
    dtypes(T = [f32, f16]),
    strides = contiguous,
    alignment = 16,
    isa("avx2"),
    min_sm = 80,
    max_sm = 90,
    generations("hopper"),
    min_tensor_core_generation = 4,
    instruction_set = "wgmma",
    min_driver = "550.54",
    fuses("norm.rms.add"),
    workspace = "4 * hidden",
    grid("rows", "1", "1"),
    block = "min(hidden, 1024)",
    deterministic,
    tp_invariant = true,
    max_tp_size = 8,
    reduction_order = tree,
    reduced_precision,
    jit,
    prepacked_weights,
    cuda_graph_safe = false,
    writes_into_output = false,
    kv_strategies("paged"),
    quant_formats("int8"),
    speculative_algorithms("eagle", "medusa"),
    adapts("contiguous", "align"),
    transform_cost = 3
)]
impl NormRmsKernel for EveryAttribute {
    fn run(&self, _: &NormRmsCall<'_>, _: NormRmsOut<'_>, _: &mut Run<'_>) -> Result<(), KernelError> {
        Err(KernelError::failed("only talks"))
    }
}

/// A kernel may be generic, and the trait may be given by its path.
#[derive(Debug)]
pub struct Blocked<const N: usize>;

#[lz_macros::kernel(id = "demo.norm.rms.blocked", operation = "norm.rms", limits("hidden >= 1" => ZERO_SIZE))]
impl<const N: usize> lz_ops::NormRmsKernel for Blocked<N> {
    fn run(&self, _: &NormRmsCall<'_>, _: NormRmsOut<'_>, _: &mut Run<'_>) -> Result<(), KernelError> {
        Err(KernelError::failed(format!("there are no blocks of {N}")))
    }
}

/// The examples of the crates' README files, as tests.
#[cfg(doctest)]
mod readmes {
    macro_rules! readmes {
        ($($name:ident: $folder:literal,)*) => {
            $(#[doc = include_str!(concat!("../../../", $folder, "/README.md"))] struct $name;)*
        };
    }
    readmes! {
        Core: "lz-core",
        Schema: "lz-schema",
        Codegen: "lz-codegen",
        Interchange: "lz-interchange",
        Device: "lz-device",
        Files: "lz-files",
        Perfdb: "lz-perfdb",
        Engine: "lz-engine",
        Ops: "lz-ops",
        Primitives: "lz-primitives",
        Graph: "lz-graph",
        Macros: "lz-macros",
        Pool: "runtime/pool",
        Plugin: "runtime/plugin",
        Onnxruntime: "runtime/onnxruntime",
        Serve: "runtime/serve",
        Worker: "runtime/worker",
        Cpu: "backends/cpu",
        Tokenize: "backends/tokenize",
        Layerzero: "layerzero",
    }
}
