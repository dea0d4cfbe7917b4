//! The declared properties of a kernel, as data. Undeclared capabilities are unsupported.

use lz_schema::DType;

use crate::device::Platform;
use crate::mode::ReductionOrder;
use crate::plan::TransformKind;
use crate::reason::ReasonCode;

/// The spec of one kernel.
///
/// Limits are expressions over the operation's axes and params; the registry compiles them against the schema and rejects invalid
/// ones, so a registered spec is well formed.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelSpec {
    /// `cpu.norm.rms.avx512`, unique within its operation.
    pub id: String,
    /// The operation.
    pub operation: String,
    /// The backend, which loads or fails as a unit.
    pub backend: String,
    /// The backend's version.
    pub version: String,
    /// The platform it runs on.
    pub platform: Platform,
    /// Whether it is the reference of its operation on its platform, which runs if optimization is disabled or the engine is
    /// degraded. It accepts every valid call of the platform and is deterministic. Set by the code that registers the kernel; a
    /// descriptor cannot set it, so that no plugin can declare itself the reference.
    pub reference: bool,
    /// Dtypes by variable of the schema; an unlisted variable accepts whatever the schema allows.
    pub dtypes: Vec<(String, Vec<DType>)>,
    /// Conditions over axes, params and `given(…)`.
    pub limits: Vec<Limit>,
    /// Requirements on the device.
    pub device: DeviceNeeds,
    /// Accepted layouts, by their names in the `layout` param; empty means all.
    pub layouts: Vec<String>,
    /// Layout of the output, if it differs from the input's.
    pub produces_layout: Option<String>,
    /// Requirements on strides.
    pub strides: StrideNeeds,
    /// Required alignment of every tensor in bytes.
    pub alignment: u32,
    /// Supported KV-cache strategies; empty if the operation has no cache.
    pub kv_strategies: Vec<String>,
    /// Supported quantization formats; empty if the operation has none.
    pub quant_formats: Vec<String>,
    /// Supported algorithms of speculative decoding besides the generic one (`eagle`, `eagle3`, `medusa`).
    pub speculative_algorithms: Vec<String>,
    /// Safe inside a CUDA graph capture.
    pub cuda_graph_safe: bool,
    /// Declared unsafe. A kernel that declares neither follows `graph_safety.default_graph_safe`.
    pub cuda_graph_unsafe: bool,
    /// Bitwise equal results for the same inputs.
    pub deterministic: bool,
    /// Bitwise equal results for every tensor-parallel size.
    pub tp_invariant: bool,
    /// The maximum tensor-parallel size for which that holds; `None` means no limit.
    pub max_tp_size: Option<u32>,
    /// The reduction order for which that holds; `None` means any.
    pub reduction_order: Option<ReductionOrder>,
    /// Bitwise equal results of an item in a batch of any size and at any position.
    pub batch_invariant: bool,
    /// Uses TF32 or another reduced precision; only selected if policy allows it.
    pub reduced_precision: bool,
    /// Compiles on first use of a shape.
    pub jit: bool,
    /// Requires prepacked weights.
    pub prepacked_weights: bool,
    /// Can write into `out`; otherwise the result is copied.
    pub writes_into_output: bool,
    /// 0–100, higher is preferred.
    pub priority: u8,
    /// Neighboring operations that it fuses.
    pub fuses: Vec<String>,
    /// Workspace in bytes, an int expression; `None` means no workspace.
    pub workspace: Option<String>,
    /// Launch grid (x, y, z), int expressions.
    pub grid: Option<[String; 3]>,
    /// Threads per block, an int expression.
    pub block: Option<String>,
    /// Conversions that its adapter performs before the kernel runs; calls that need others are declined.
    pub adapts: Vec<TransformKind>,
    /// Score penalty of each conversion.
    pub transform_cost: u32,
    /// Whether the engine runs it on dense copies of tensors whose strides it does not take; see
    /// [`copy_strided`](KernelSpec::copy_strided).
    pub copies_strided: bool,
    /// Digest of its capability descriptor; empty for compiled-in kernels.
    pub capabilities_hash: String,
    /// The worker process it runs in, if any, and the setting that requires it; for explanations.
    pub runs_in: Option<String>,
}

/// A condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Bool expression that must hold.
    pub check: String,
    /// The reason if it does not hold.
    pub code: ReasonCode,
}

/// Requirements on the device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceNeeds {
    /// Minimum SM version (80 for 8.0).
    pub min_sm: Option<u32>,
    /// Maximum SM version, inclusive.
    pub max_sm: Option<u32>,
    /// GPU generations; empty means any.
    pub generations: Vec<String>,
    /// Minimum tensor-core generation.
    pub min_tensor_core_generation: Option<u32>,
    /// A tensor-core instruction set (`wgmma`, `tcgen05.mma`).
    pub instruction_set: Option<String>,
    /// CPU features by name (`avx512f`); all are required.
    pub isa: Vec<String>,
    /// Minimum driver version.
    pub min_driver: Option<String>,
}

/// Score penalty of dense copies, of conversions to a wider dtype and of dequantizing an input: more than usual differences in priority
/// between native kernels, less than that between a native kernel and a reference.
pub const COPY_COST: u32 = 30;

/// Requirements on strides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StrideNeeds {
    /// Any strides.
    #[default]
    Any,
    /// The last dimension is dense in every tensor.
    LastDense,
    /// Every tensor is dense row-major.
    Contiguous,
}

impl KernelSpec {
    /// A spec with defaults: any dtype of the schema, any strides, priority 0.
    pub fn new(id: &str, operation: &str, backend: &str, version: &str, platform: Platform) -> KernelSpec {
        KernelSpec {
            id: id.to_owned(),
            operation: operation.to_owned(),
            backend: backend.to_owned(),
            version: version.to_owned(),
            platform,
            reference: false,
            dtypes: Vec::new(),
            limits: Vec::new(),
            device: DeviceNeeds::default(),
            layouts: Vec::new(),
            produces_layout: None,
            strides: StrideNeeds::Any,
            alignment: 1,
            kv_strategies: Vec::new(),
            quant_formats: Vec::new(),
            speculative_algorithms: Vec::new(),
            cuda_graph_safe: false,
            cuda_graph_unsafe: false,
            deterministic: false,
            tp_invariant: false,
            batch_invariant: false,
            max_tp_size: None,
            reduction_order: None,
            reduced_precision: false,
            jit: false,
            prepacked_weights: false,
            writes_into_output: true,
            priority: 0,
            fuses: Vec::new(),
            workspace: None,
            grid: None,
            block: None,
            adapts: Vec::new(),
            transform_cost: 0,
            copies_strided: false,
            capabilities_hash: String::new(),
            runs_in: None,
        }
    }

    /// Restricts a dtype variable, or a param that selects the dtype of an output.
    pub fn dtype(mut self, variable: &str, dtypes: &[DType]) -> KernelSpec {
        self.dtypes.push((variable.to_owned(), dtypes.to_vec()));
        self
    }

    /// Adds a condition.
    pub fn limit(mut self, check: &str, code: ReasonCode) -> KernelSpec {
        self.limits.push(Limit { check: check.to_owned(), code });
        self
    }

    /// Calls with strides that the kernel does not take are run on dense copies, at a score penalty that leaves native kernels
    /// for any strides ahead. Inputs that are changed in place or indexed by another input are never copied: only a part of
    /// them is used. For kernels of the host.
    pub fn copy_strided(&mut self) {
        self.copies_strided = self.strides != StrideNeeds::Any && self.platform == Platform::Cpu;
        if self.copies_strided {
            self.transform_cost = self.transform_cost.max(COPY_COST);
        }
    }

    /// Sets the priority.
    pub fn priority(mut self, priority: u8) -> KernelSpec {
        self.priority = priority;
        self
    }
}
