//! A kernel's spec, checked and compiled against its operation: names resolved, expressions compiled to programs.
//!
//! A compiled kernel is well formed, so the filter needs no further checks. Nothing here selects.

use std::sync::{Arc, OnceLock};

use lz_schema::DType;
use lz_schema::expr::{self, Program, Type, Typed};
use lz_schema::model::{Cases, DTypeRef, Role};

use crate::condition_parts::{Part, parts, reads};
use lz_core::context::{FieldKind, Store};
use lz_core::descriptor::is_cache;
use lz_core::device::{Generation, InstructionSet, Isa, IsaSet};
use lz_core::expression_names::{FieldSet, MAX_VALUES, Names};
use lz_core::kernel::KernelEntry;
use lz_core::mode::KvStrategy;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::spec::{DeviceNeeds, KernelSpec, StrideNeeds};

/// A kernel that fits its operation.
#[derive(Debug)]
pub(crate) struct CompiledKernel {
    pub entry: KernelEntry,
    pub info: &'static OperationInfo,
    pub facts: Facts,
    pub dtypes: Vec<CaseNeed>,
    pub layout: Option<CaseNeed>,
    pub quant_format: Option<CaseNeed>,
    pub kv_strategies: Option<Vec<KvStrategy>>,
    pub limits: Vec<CompiledLimit>,
    /// A limit that depends on the size of the batch.
    pub batch_limit: Option<String>,
    pub workspace: Option<Formula>,
    pub grid: Option<[Formula; 3]>,
    pub block: Option<Formula>,
    pub isa: IsaSet,
    pub generations: Vec<Generation>,
    pub instruction_set: Option<InstructionSet>,
    /// Its form for calls whose strided tensors are copied; made on first use.
    copying: OnceLock<Option<Arc<CompiledKernel>>>,
}

impl CompiledKernel {
    /// Its form for calls whose strided tensors are copied, if the engine copies them for this kernel.
    pub fn copying(&self) -> Option<&Arc<CompiledKernel>> {
        let make = || {
            let spec = self.spec();
            let copies = spec.copies_strided && !self.entry.kernel.needs_caller();
            let form = copies.then(|| compile(self.entry.with_dense_copies(), self.info));
            // Its spec is that of this kernel, which is valid.
            form.and_then(Result::ok).map(Arc::new)
        };
        self.copying.get_or_init(make).as_ref()
    }

    /// Whether `form` is this kernel, or its form that copies.
    pub fn has_form(self: &Arc<Self>, form: &Arc<CompiledKernel>) -> bool {
        let copying = || self.copying.get().and_then(Option::as_ref);
        Arc::ptr_eq(self, form) || copying().is_some_and(|copying| Arc::ptr_eq(copying, form))
    }

    /// Its spec.
    pub fn spec(&self) -> &KernelSpec {
        &self.entry.spec
    }

    /// Whether it is the reference of its platform.
    pub fn is_reference(&self) -> bool {
        self.spec().reference
    }
}

/// The properties of a kernel that ranking reads, kept together for locality: ranking visits every kernel of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub priority: f64,
    pub transform_cost: f64,
    /// The stride-class bit that every tensor must have.
    pub stride_bit: u8,
    /// Required alignment of every address, as a power of two.
    pub alignment: u8,
    pub jit: bool,
    pub tp_invariant: bool,
    /// Whether it accepts some layouts only.
    pub has_layouts: bool,
    /// Whether it has no requirements on the device besides the platform.
    pub runs_on_any_device: bool,
    /// Whether its result is copied into `out`.
    pub copies_output: bool,
}

impl Facts {
    fn of(spec: &KernelSpec, layout: Option<&CaseNeed>) -> Facts {
        Facts {
            priority: f64::from(spec.priority),
            transform_cost: f64::from(spec.transform_cost),
            stride_bit: match spec.strides {
                StrideNeeds::Any => 0,
                StrideNeeds::Contiguous => 1 << 1,
                StrideNeeds::LastDense => 1 << 2,
            },
            alignment: spec.alignment.max(1).trailing_zeros() as u8,
            jit: spec.jit,
            tp_invariant: spec.tp_invariant,
            has_layouts: layout.is_some(),
            runs_on_any_device: spec.device == DeviceNeeds::default(),
            copies_output: !spec.writes_into_output,
        }
    }
}

/// A field that must have one of some values.
#[derive(Debug)]
pub(crate) struct CaseNeed {
    pub name: String,
    pub store: Store,
    /// The reason if it has another one.
    pub code: ReasonCode,
    /// One bit per value.
    pub allowed: u64,
    /// The allowed values, for display.
    pub required: String,
}

impl CaseNeed {
    pub fn holds(&self, raw: u64) -> bool {
        raw < 64 && self.allowed & (1 << raw) != 0
    }
}

/// A condition of a kernel.
#[derive(Debug)]
pub(crate) struct CompiledLimit {
    pub code: ReasonCode,
    /// All parts must hold; a part that cannot be evaluated does not hold.
    pub parts: Vec<Part>,
}

/// An int expression.
#[derive(Debug)]
pub(crate) struct Formula {
    pub text: String,
    pub program: Program,
    pub reads: FieldSet,
}

/// Compiles a kernel; `Err` contains all problems of its spec.
pub(crate) fn compile(
    entry: KernelEntry,
    info: &'static OperationInfo,
) -> Result<CompiledKernel, Vec<Reason>> {
    let mut compiler =
        Compiler { names: Names::of_operation(info), info, spec: &entry.spec, problems: Vec::new() };
    compiler.identity();
    let dtypes = compiler.dtypes();
    let layout = compiler.cases("layout", &compiler.spec.layouts, code_of_layout(info));
    let quant_format =
        compiler.cases("format", &compiler.spec.quant_formats, ReasonCode::QuantFormatUnsupported);
    let kv_strategies = compiler.kv_strategies();
    let limits = compiler.limits();
    let batch_limit = batch_limit(info, &limits);
    let workspace = compiler.spec.workspace.as_deref().and_then(|text| compiler.formula("workspace", text));
    let grid = match &compiler.spec.grid {
        None => None,
        Some([x, y, z]) => {
            let all = (compiler.formula("grid", x), compiler.formula("grid", y), compiler.formula("grid", z));
            match all {
                (Some(x), Some(y), Some(z)) => Some([x, y, z]),
                _ => None,
            }
        }
    };
    let block = compiler.spec.block.as_deref().and_then(|text| compiler.formula("block", text));
    let isa = compiler.isa();
    let generations = compiler.spec.device.generations.iter().map(|name| Generation::named(name)).collect();
    let instruction_set = compiler.instruction_set();
    if !compiler.problems.is_empty() {
        return Err(compiler.problems);
    }
    Ok(CompiledKernel {
        facts: Facts::of(&entry.spec, layout.as_ref()),
        entry,
        info,
        dtypes,
        layout,
        quant_format,
        kv_strategies,
        limits,
        batch_limit,
        workspace,
        grid,
        block,
        isa,
        generations,
        instruction_set,
        copying: OnceLock::new(),
    })
}

/// The first limit that reads the size of a batch.
fn batch_limit(info: &OperationInfo, limits: &[CompiledLimit]) -> Option<String> {
    let schema = info.schema();
    let is_batch = |name: &str| schema.axes.iter().any(|axis| axis.role == Role::Batch && axis.name == name);
    let fields = info.fields.iter().enumerate().filter(|(_, field)| is_batch(&field.name));
    let batch: FieldSet = fields.fold(0, |set, (index, _)| set | 1 << index);
    let mut parts = limits.iter().flat_map(|limit| &limit.parts);
    parts.find(|part| part.reads & batch != 0).map(|part| part.text.to_string())
}

/// A layout param that only orders KV caches refers to the cache.
fn code_of_layout(info: &OperationInfo) -> ReasonCode {
    let schema = info.schema();
    let mut ordered = (0..schema.inputs.len())
        .filter(
            |input| matches!(schema.inputs.get(*input), Some(input) if matches!(input.shape, Cases::By(..))),
        )
        .peekable();
    if ordered.peek().is_some() && ordered.all(|input| is_cache(schema, input)) {
        ReasonCode::KvCacheLayoutMismatch
    } else {
        ReasonCode::LayoutUnsupported
    }
}

struct Compiler<'a> {
    names: Names,
    info: &'static OperationInfo,
    spec: &'a KernelSpec,
    problems: Vec<Reason>,
}

impl Compiler<'_> {
    fn problem(&mut self, code: ReasonCode, message: String) {
        self.problems.push(Reason::new(code).message(format!("{}: {message}", self.spec.id)));
    }

    fn identity(&mut self) {
        if self.spec.id.trim().is_empty() {
            self.problem(ReasonCode::CapabilitiesSchemaMismatch, "the id is empty".to_owned());
        }
        if self.spec.operation != self.info.name {
            let message = format!(
                "the spec names operation {}, but the entry names {}",
                self.spec.operation, self.info.name
            );
            self.problem(ReasonCode::OperationUnknown, message);
        }
        if self.spec.priority > 100 {
            let message = format!("priority is {}; expected 0 to 100", self.spec.priority);
            self.problem(ReasonCode::PriorityInvalid, message);
        }
        if !self.spec.alignment.is_power_of_two() || self.spec.alignment > 64 {
            let message =
                format!("alignment is {} bytes; expected a power of two from 1 to 64", self.spec.alignment);
            self.problem(ReasonCode::CapabilitiesSchemaMismatch, message);
        }
        if self.info.fields.len() + lz_core::expression_names::DEVICE_NAMES.len() > MAX_VALUES {
            let message = format!("{} has too many fields for expressions", self.info.name);
            self.problem(ReasonCode::CapabilitiesSchemaMismatch, message);
        }
    }

    fn dtypes(&mut self) -> Vec<CaseNeed> {
        let mut needs: Vec<CaseNeed> = Vec::new();
        for (variable, dtypes) in &self.spec.dtypes {
            if let Some(need) = self.output_dtypes(variable, dtypes) {
                needs.push(need);
                continue;
            }
            let Some(field) = self.info.field(variable).filter(|field| field.kind == FieldKind::DType) else {
                let known = self.info.fields.iter().filter(|field| field.kind == FieldKind::DType);
                let known: Vec<&str> = known.map(|field| field.name.as_ref()).collect();
                let message = format!(
                    "{} has no dtype variable `{variable}`; it has {}",
                    self.info.name,
                    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                );
                self.problem(ReasonCode::CapabilitiesSchemaMismatch, message);
                continue;
            };
            if needs.iter().any(|need| need.name == *variable) {
                let message = format!("dtype variable {variable} is listed twice");
                self.problem(ReasonCode::CapabilitiesSchemaMismatch, message);
            }
            // A variable that no argument binds restricts nothing.
            let allowed = dtypes.iter().fold(1, |bits, dtype| bits | 1 << *dtype as u8);
            let names: Vec<&str> = dtypes.iter().copied().map(DType::name).collect();
            let required = names.join(" or ");
            let code = self.code_of_dtype(variable);
            needs.push(CaseNeed { name: variable.clone(), store: field.store, code, allowed, required });
        }
        needs
    }

    /// The allowed cases of an enum param that selects the dtype of an output, if `param` is one.
    fn output_dtypes(&self, param: &str, dtypes: &[DType]) -> Option<CaseNeed> {
        let schema = self.info.schema();
        let index = schema.params.iter().position(|known| known.name == param)?;
        let by_case = schema.outputs.iter().find_map(|output| match &output.dtype {
            Cases::By(by, cases) if *by == index => Some(cases),
            _ => None,
        })?;
        let allowed_dtype =
            |dtype: &DTypeRef| matches!(dtype, DTypeRef::Fixed(dtype) if dtypes.contains(dtype));
        let cases = by_case.iter().enumerate().take(u64::BITS as usize);
        let names: Vec<&str> = dtypes.iter().copied().map(DType::name).collect();
        Some(CaseNeed {
            name: param.to_owned(),
            store: self.info.field(param)?.store,
            code: ReasonCode::OutputDtypeUnsupported,
            allowed: cases
                .filter(|(_, dtype)| allowed_dtype(dtype))
                .fold(0, |bits, (case, _)| bits | 1 << case),
            required: names.join(" or "),
        })
    }

    /// A variable that only KV caches use refers to the cache, one that only a mask uses to the mask.
    fn code_of_dtype(&self, variable: &str) -> ReasonCode {
        let schema = self.info.schema();
        let Some(index) = schema.types.iter().position(|known| known.name == variable) else {
            return ReasonCode::DtypeUnsupported;
        };
        let mut users = (0..schema.inputs.len())
            .filter(|input| {
                schema
                    .inputs
                    .get(*input)
                    .is_some_and(|input| input.dtype.all().contains(&DTypeRef::Variable(index)))
            })
            .peekable();
        let is_mask = |input: usize| schema.inputs.get(input).is_some_and(|input| input.name == "mask");
        if users.peek().is_none() {
            ReasonCode::DtypeUnsupported
        } else if users.clone().all(is_mask) {
            ReasonCode::AttnMaskInvalid
        } else if users.all(|input| is_cache(schema, input)) {
            ReasonCode::KvCacheDtypeMismatch
        } else {
            ReasonCode::DtypeUnsupported
        }
    }

    /// The allowed cases of an enum param.
    fn cases(&mut self, param: &str, allowed_cases: &[String], code: ReasonCode) -> Option<CaseNeed> {
        if allowed_cases.is_empty() {
            return None;
        }
        let field = self.info.field(param);
        let Some((field, FieldKind::Enum(cases))) = field.map(|field| (field, &field.kind)) else {
            // An operation without the param has a single case; the list is ignored.
            return None;
        };
        let mut allowed = 0;
        for name in allowed_cases {
            match cases.iter().position(|case| case.eq_ignore_ascii_case(name)) {
                Some(position) => allowed |= 1 << position,
                None => {
                    let known: Vec<&str> = cases.iter().map(AsRef::as_ref).collect();
                    let message = format!("`{param}` has no case {name}; it has {}", known.join(", "));
                    self.problem(code, message);
                }
            }
        }
        let required = allowed_cases.join(" or ");
        Some(CaseNeed { name: param.to_owned(), store: field.store, code, allowed, required })
    }

    fn kv_strategies(&mut self) -> Option<Vec<KvStrategy>> {
        if self.spec.kv_strategies.is_empty() {
            return None;
        }
        let mut strategies = Vec::new();
        for name in &self.spec.kv_strategies {
            match KvStrategy::from_name(name) {
                Some(strategy) => strategies.push(strategy),
                None => self.problem(
                    ReasonCode::KvStrategyUnsupported,
                    format!("unknown KV-cache strategy `{name}`; expected one of contiguous, paged, virtual, unified"),
                ),
            }
        }
        Some(strategies)
    }

    fn limits(&mut self) -> Vec<CompiledLimit> {
        let mut limits = Vec::new();
        for limit in &self.spec.limits {
            let Some(typed) = self.typed("limit", &limit.check, &Type::Bool) else { continue };
            limits.push(CompiledLimit { code: limit.code, parts: parts(&typed, &self.info.fields) });
        }
        limits
    }

    fn formula(&mut self, what: &str, text: &str) -> Option<Formula> {
        let typed = self.typed(what, text, &Type::Int)?;
        Some(Formula { text: text.to_owned(), program: Program::compile(&typed), reads: reads(&typed) })
    }

    fn typed(&mut self, what: &str, text: &str, ty: &Type) -> Option<Typed> {
        match expr::check_expecting(text, &self.names, ty) {
            Ok(typed) => Some(typed),
            Err(errors) => {
                for error in errors {
                    self.problem(ReasonCode::CapabilitiesSchemaMismatch, format!("{what} `{text}`: {error}"));
                }
                None
            }
        }
    }

    fn isa(&mut self) -> IsaSet {
        let mut set = IsaSet::EMPTY;
        for name in &self.spec.device.isa {
            match Isa::from_name(name) {
                Some(isa) => set = set.with(isa),
                None => {
                    self.problem(ReasonCode::IsaUnsupported, format!("unknown instruction set `{name}`"));
                }
            }
        }
        set
    }

    fn instruction_set(&mut self) -> Option<InstructionSet> {
        let name = self.spec.device.instruction_set.as_deref()?;
        let found = InstructionSet::from_name(name);
        if found.is_none() {
            let message = format!("unknown tensor-core instructions `{name}`");
            self.problem(ReasonCode::InstructionSetMismatch, message);
        }
        found
    }
}
