//! An operation, kernels and contexts for selection tests.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::sync::Arc;
use std::sync::OnceLock;

use lz_core::context::{FieldKind, device_bits};
use lz_core::device::Platform;
use lz_core::tensor::Device;
use lz_core::{
    Arg, Context, DType, Error, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, Run,
    dynamic,
};
use lz_engine::Engine;

const SCHEMA: &str = r#"
operation: demo.attend
version: 1
summary: Something with axes of every kind.
doc: "output = q"
aliases:
  demo.attend_causal: { causal: true }
axes:
  batch:    { role: batch,   select: { bucket: [1, 4, 16, 64] }, fuzz: 1..9 }
  seq:      { role: length,  select: { bucket: [128, 2048] },    fuzz: 1..9 }
  heads:    { role: heads,   select: exact,                      fuzz: [1, 2] }
  head_dim: { role: feature, select: exact,                      fuzz: [8, 16] }
  pages:    { role: count,   select: ignored,                    fuzz: 1..4 }
types:
  T: [f32, f16, bf16]
inputs:
  q:    { shape: [batch, seq, heads, head_dim], dtype: T, doc: "Queries." }
  mask: { shape: [pages, seq], dtype: bool, optional: true, doc: "Mask." }
params:
  causal: { type: bool, default: false, doc: "Causality." }
  layout: { type: enum, values: [BSHD, BHSD], default: BSHD, doc: "Order." }
  window: { type: int, default: 0, range: ">= 0", doc: "Window." }
  scale:  { type: f32, default: 1, doc: "Scale." }
outputs:
  output: { shape: [batch, seq, heads, head_dim], dtype: T }
semantics: { nan: propagate }
equivalence:
  close: { f32: [1e-5, 1e-5], f16: [1e-3, 1e-3], bf16: [1e-2, 1e-2] }
workloads:
  small: { batch: 1, seq: 16, heads: 2, head_dim: 8, T: f32 }
"#;

/// The operation of all tests.
pub fn attend() -> &'static OperationInfo {
    static OPERATION: OnceLock<&'static OperationInfo> = OnceLock::new();
    OPERATION.get_or_init(|| match dynamic::read_operation("demo/attend.yaml", SCHEMA) {
        Ok(operation) => operation,
        Err(error) => panic!("{error}"),
    })
}

/// A call, described by its differences to a default one.
#[derive(Debug, Clone)]
pub struct Shape {
    pub batch: i64,
    pub seq: i64,
    pub heads: i64,
    pub head_dim: i64,
    pub pages: i64,
    pub dtype: DType,
    pub causal: bool,
    pub layout: u64,
    pub window: i64,
    pub scale: f64,
    /// Dense row-major, dense last dimension, alignment as a power of two.
    pub strides: (bool, bool, u64),
    pub device: Device,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            batch: 2,
            seq: 256,
            heads: 8,
            head_dim: 64,
            pages: 0,
            dtype: DType::BF16,
            causal: false,
            layout: 0,
            window: 0,
            scale: 1.0,
            strides: (true, true, 6),
            device: Device::HOST,
        }
    }
}

impl Shape {
    pub fn context(&self) -> Context {
        let mut context = Context::of(&attend().fields);
        for field in attend().fields.iter() {
            let (contiguous, last, alignment) = self.strides;
            let bits = match (field.name.as_ref(), &field.kind) {
                ("batch", _) => self.batch as u64,
                ("seq", _) => self.seq as u64,
                ("heads", _) => self.heads as u64,
                ("head_dim", _) => self.head_dim as u64,
                ("pages", _) => self.pages as u64,
                ("causal", _) => u64::from(self.causal),
                ("layout", _) => self.layout,
                ("window", _) => self.window as u64,
                ("scale", _) => self.scale.to_bits(),
                (_, FieldKind::DType) => self.dtype as u64,
                ("strides(q)", _) => 1 | u64::from(contiguous) << 1 | u64::from(last) << 2 | alignment << 3,
                (_, FieldKind::Device) => device_bits(self.device),
                _ => 0,
            };
            context.set(field.store, bits);
        }
        context
    }
}

/// A kernel that runs a closure.
pub struct Does(pub Box<dyn Fn() -> Result<(), KernelError> + Send + Sync>);

impl Kernel for Does {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(&self, _: &mut [Arg<'_>], _: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        (self.0)()
    }
}

pub fn spec(id: &str) -> KernelSpec {
    let backend = id.split('.').next().unwrap_or(id).to_owned();
    let mut spec = KernelSpec::new(id, "demo.attend", &backend, "1", Platform::Cpu);
    spec.reference = backend == "reference";
    spec
}

pub fn entry(spec: KernelSpec) -> KernelEntry {
    KernelEntry::new(spec, Does(Box::new(|| Ok(())))).of(attend())
}

pub fn failing(
    spec: KernelSpec,
    does: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static,
) -> KernelEntry {
    KernelEntry::new(spec, Does(Box::new(does))).of(attend())
}

pub fn engine(specs: impl IntoIterator<Item = KernelSpec>) -> Engine {
    let engine = Engine::new();
    match engine.register(specs.into_iter().map(entry)) {
        Ok(()) => engine,
        Err(error) => panic!("{error}"),
    }
}

/// Runs a call and returns the kernel that ran it.
pub fn run(engine: &Engine, shape: &Shape) -> Result<String, Error> {
    let mut who = String::new();
    engine.dispatch(attend(), &shape.context(), &mut |entry, run| {
        who.clone_from(&entry.spec.id);
        entry.kernel.run(&mut [], &mut [], run)
    })?;
    Ok(who)
}

/// A value behind an Arc, for closures.
pub fn shared<T>(value: T) -> Arc<T> {
    Arc::new(value)
}
