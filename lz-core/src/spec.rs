//! What a kernel says of itself, as data. What is not said is not supported.

use lz_schema::DType;

use crate::device::Platform;
use crate::mode::ReductionOrder;
use crate::plan::TransformKind;
use crate::reason::ReasonCode;

/// The spec of one kernel.
///
/// Limits are texts of the expression language over the operation's axes and params; the registry compiles them against the
/// schema and refuses what does not fit, so a spec in a registry is known to be well formed.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelSpec {
    /// `cpu.norm.rms.avx512`, unique among the kernels of its operation.
    pub id: String,
    /// The operation.
    pub operation: String,
    /// The backend, which loads or fails as a unit.
    pub backend: String,
    /// The backend's version.
    pub version: String,
    /// Where it runs.
    pub platform: Platform,
    /// Whether it is the reference of its operation on its platform: what runs where optimization is disabled or the engine is
    /// degraded. It takes every valid call of the platform and is deterministic. Whoever registers a kernel says so; a descriptor
    /// cannot, so that no plugin declares itself the reference.
    pub reference: bool,
    /// Dtypes by variable of the schema; a variable that is not listed takes whatever the schema allows.
    pub dtypes: Vec<(String, Vec<DType>)>,
    /// Conditions over axes, params and `given(…)`.
    pub limits: Vec<Limit>,
    /// What the device must have.
    pub device: DeviceNeeds,
    /// Layouts it takes, by their names in the `layout` param; empty means every one.
    pub layouts: Vec<String>,
    /// Layout of what it produces, when it differs from the input's.
    pub produces_layout: Option<String>,
    /// What it needs of strides.
    pub strides: StrideNeeds,
    /// Alignment in bytes that every tensor must have.
    pub alignment: u32,
    /// KV-cache strategies it works with; empty where the operation has no cache.
    pub kv_strategies: Vec<String>,
    /// Quantised formats it takes; empty where the operation has none.
    pub quant_formats: Vec<String>,
    /// Algorithms of speculative decoding that it can serve besides the generic one (`eagle`, `eagle3`, `medusa`).
    pub speculative_algorithms: Vec<String>,
    /// Safe inside a CUDA graph capture.
    pub cuda_graph_safe: bool,
    /// Says of itself that it is not. One that says neither is taken as `graph_safety.default_graph_safe` says.
    pub cuda_graph_unsafe: bool,
    /// The same inputs give the same bits.
    pub deterministic: bool,
    /// The same bits for every tensor-parallel size.
    pub tp_invariant: bool,
    /// The largest tensor-parallel size for which that holds; none means every one.
    pub max_tp_size: Option<u32>,
    /// The order of reduction for which that holds; none means that its result does not depend on it.
    pub reduction_order: Option<ReductionOrder>,
    /// Uses TF32 or another shortened arithmetic; only chosen when policy allows it.
    pub reduced_precision: bool,
    /// Compiles on first use of a shape.
    pub jit: bool,
    /// Needs weights that were packed beforehand.
    pub prepacked_weights: bool,
    /// Can write into an output that the caller gives; otherwise the result is copied once.
    pub writes_into_output: bool,
    /// 0–100, higher is preferred.
    pub priority: u8,
    /// Neighbouring operations that it does as well.
    pub fuses: Vec<String>,
    /// Bytes of scratch memory, an int expression; none means no scratch memory.
    pub workspace: Option<String>,
    /// Launch grid (x, y, z), int expressions.
    pub grid: Option<[String; 3]>,
    /// Threads a block, an int expression.
    pub block: Option<String>,
    /// What its adapter converts by itself before the kernel proper runs; what is not listed is declined.
    pub adapts: Vec<TransformKind>,
    /// What each such conversion costs, in points of score.
    pub transform_cost: u32,
    /// Digest of the capability descriptor that it came from; empty for kernels that are compiled in.
    pub capabilities_hash: String,
    /// Where it runs when that is not this process, and who said so; for explanations.
    pub runs_in: Option<String>,
}

/// One condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Bool expression that must hold.
    pub check: String,
    /// The reason when it does not.
    pub code: ReasonCode,
}

/// What the device must have.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceNeeds {
    /// Lowest SM version (80 for 8.0).
    pub min_sm: Option<u32>,
    /// Highest SM version, inclusive.
    pub max_sm: Option<u32>,
    /// GPU generations; empty means any.
    pub generations: Vec<String>,
    /// Lowest tensor-core generation.
    pub min_tensor_core_generation: Option<u32>,
    /// An instruction set that a generation brings (`wgmma`, `tcgen05.mma`).
    pub instruction_set: Option<String>,
    /// CPU features by name (`avx512f`); all are needed.
    pub isa: Vec<String>,
    /// Lowest driver version.
    pub min_driver: Option<String>,
}

/// What a kernel needs of strides.
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
    /// A spec that supports nothing special: any dtype of the schema, any strides, priority 0.
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
            capabilities_hash: String::new(),
            runs_in: None,
        }
    }

    /// Restricts a dtype variable, or a param that says of which dtype an output is.
    pub fn dtype(mut self, variable: &str, dtypes: &[DType]) -> KernelSpec {
        self.dtypes.push((variable.to_owned(), dtypes.to_vec()));
        self
    }

    /// Adds a condition.
    pub fn limit(mut self, check: &str, code: ReasonCode) -> KernelSpec {
        self.limits.push(Limit { check: check.to_owned(), code });
        self
    }

    /// Sets the priority.
    pub fn priority(mut self, priority: u8) -> KernelSpec {
        self.priority = priority;
        self
    }
}
