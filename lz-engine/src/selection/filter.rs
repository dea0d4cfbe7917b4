//! Whether a kernel can run a call, and every reason why not.
//!
//! One traversal serves two visitors: the decision, which stops at the first exclusion and collects guards, and the explanation,
//! which collects all reasons. So the two cannot disagree.

use lz_schema::expr::Slots;

use crate::compiled::{CompiledKernel, Facts};
use crate::health::{CircuitStatus, RefusalScope};
use crate::policy::{JitPolicy, TpFallback};
use crate::selection::call::Call;
use crate::selection::guard::Guard;
use crate::selection::operation_table::Candidate;
use lz_core::device::{DeviceSpec, Platform};
use lz_core::expression_names::describe;
use lz_core::mode::{KvStrategy, ModeFlag, ReductionOrder};
use lz_core::plan::{TransformKind, Transforms};
use lz_core::reason::{Reason, ReasonCode};
use lz_core::spec::{KernelSpec, StrideNeeds};

/// Receives the results of [`examine`].
pub(crate) trait FilterVisitor {
    /// The kernel is excluded for the whole cell of the call. Returning true stops the traversal.
    fn excluded(&mut self, reason: impl FnOnce() -> Reason) -> bool;

    /// A condition that varies within the cell, and its value for this call.
    fn guarded(&mut self, guard: Guard, holds: bool, reason: impl FnOnce() -> Reason);
}

/// Collects all reasons.
impl FilterVisitor for Vec<Reason> {
    fn excluded(&mut self, reason: impl FnOnce() -> Reason) -> bool {
        self.push(reason());
        false
    }

    fn guarded(&mut self, _: Guard, holds: bool, reason: impl FnOnce() -> Reason) {
        if !holds {
            self.push(reason());
        }
    }
}

/// Checks all requirements of a kernel.
pub(crate) fn examine(call: &Call<'_>, position: u16, visitor: &mut impl FilterVisitor) {
    let Some(candidate) = call.table.candidates.get(usize::from(position)) else { return };
    let Some(kernel) = call.snapshot.registry.compiled(candidate.kernel) else { return };
    let _ = policy(call, position, candidate, kernel, visitor)
        || device(call.device, kernel, visitor)
        || arguments(call, kernel, visitor)
        || mode(call, kernel, visitor)
        || limits(call, position, kernel, visitor)
        || circuit_status(call, kernel, visitor);
}

type Stop = bool;

fn policy(
    call: &Call<'_>,
    position: u16,
    candidate: &Candidate,
    kernel: &CompiledKernel,
    visitor: &mut impl FilterVisitor,
) -> Stop {
    for reason in &candidate.excluded {
        if visitor.excluded(|| reason.clone()) {
            return true;
        }
    }
    if let Some(reason) = &candidate.inactive
        && !call.requests_version(position, candidate)
        && visitor.excluded(|| (**reason).clone())
    {
        return true;
    }
    if let Some(rule) = call.denied_by(position)
        && visitor.excluded(|| {
            Reason::new(ReasonCode::PolicyDenied).message(format!("{} ({})", rule.what, rule.source))
        })
    {
        return true;
    }
    if let Some((locked, id, source)) = call.lock
        && locked != Some(position)
        && visitor.excluded(|| {
            let unknown = if locked.is_none() { ", which is not a kernel of this operation" } else { "" };
            Reason::new(ReasonCode::PolicyLockedOther).message(format!("locked to {id} ({source}){unknown}"))
        })
    {
        return true;
    }
    if let Some(reason) = call.hint.forbids()
        && visitor.excluded(|| reason.clone())
    {
        return true;
    }
    if kernel.is_reference() {
        return false;
    }
    (call.mode.has(ModeFlag::Disabled)
        && visitor.excluded(|| {
            Reason::new(ReasonCode::ModeExcluded).required("a reference").found("optimization is disabled")
        }))
        || (!call.snapshot.level.allows_kernels()
            && visitor.excluded(|| {
                Reason::new(ReasonCode::Degraded).required("a reference").found(call.snapshot.level.name())
            }))
}

fn device(device: Option<&DeviceSpec>, kernel: &CompiledKernel, visitor: &mut impl FilterVisitor) -> Stop {
    let Some(device) = device else {
        return visitor.excluded(|| Reason::new(ReasonCode::DeviceAbsent));
    };
    let spec = kernel.spec();
    if device.platform() != spec.platform {
        // Other device properties are meaningless on a different platform.
        return visitor.excluded(|| {
            Reason::new(ReasonCode::PlatformMismatch)
                .required(spec.platform.name())
                .found(device.platform().name())
        });
    }
    if spec.runs_in.is_some()
        && device.platform() != Platform::Cpu
        && visitor.excluded(|| {
            Reason::new(ReasonCode::PlatformMismatch)
                .required("host tensors: device tensors cannot be passed to another process")
                .found(device.platform().name())
        })
    {
        return true;
    }
    if kernel.facts.runs_on_any_device {
        return false;
    }
    let needs = &spec.device;
    let sm = device.sm().unwrap_or_default();
    let shown = |sm: u32| format!("sm{sm}");
    if let Some(min) = needs.min_sm.filter(|min| sm < *min)
        && visitor.excluded(|| match device.sm() {
            Some(sm) => {
                let required = format!("{} or later", shown(min));
                Reason::new(ReasonCode::SmTooOld).required(required).found(shown(sm))
            }
            None => Reason::new(ReasonCode::DeviceCapabilityUnsupported)
                .required(format!("compute capability {} or later", shown(min)))
                .found(format!("{}, which has none", device.platform().name())),
        })
    {
        return true;
    }
    if let Some(max) = needs.max_sm.filter(|max| sm > *max)
        && visitor.excluded(|| {
            Reason::new(ReasonCode::SmTooNew).required(format!("{} or earlier", shown(max))).found(shown(sm))
        })
    {
        return true;
    }
    let generation = device.generation();
    let known = |name| kernel.generations.contains(name);
    if !kernel.generations.is_empty()
        && !generation.is_some_and(known)
        && visitor.excluded(|| {
            Reason::new(ReasonCode::GpuGenerationUnsupported)
                .required(needs.generations.join(" or "))
                .found(generation.map_or("an unknown generation", |generation| generation.name()))
        })
    {
        return true;
    }
    let cuda = device.cuda();
    let cores = cuda.map_or(0, |cuda| cuda.tensor_core_generation);
    if let Some(min) = needs.min_tensor_core_generation.filter(|min| cores < *min)
        && visitor.excluded(|| {
            Reason::new(ReasonCode::TensorCoreGenUnsupported)
                .required(format!("tensor cores of generation {min} or later"))
                .found(format!("generation {cores}"))
        })
    {
        return true;
    }
    if let Some(set) = kernel.instruction_set
        && !cuda.is_some_and(|cuda| cuda.instruction_sets.contains(&set))
        && visitor.excluded(|| {
            let found = cuda.map(|cuda| cuda.instruction_sets.iter().map(|set| set.name()));
            let found = found.map(|names| names.collect::<Vec<_>>().join(", ")).unwrap_or_default();
            Reason::new(ReasonCode::InstructionSetMismatch).required(set.name()).found(found)
        })
    {
        return true;
    }
    let missing = device.isa().missing(kernel.isa);
    if !missing.is_empty()
        && visitor.excluded(|| {
            let name = |isa: lz_core::device::Isa| isa.name();
            let required: Vec<&str> = kernel.isa.iter().map(name).collect();
            let lacking: Vec<&str> = missing.iter().map(name).collect();
            Reason::new(ReasonCode::IsaUnsupported)
                .required(required.join(", "))
                .found(format!("no {}", lacking.join(", ")))
        })
    {
        return true;
    }
    let driver = device.driver_version();
    match &needs.min_driver {
        Some(min) if !version_reaches(driver, min) => visitor.excluded(|| {
            Reason::new(ReasonCode::DriverVersionUnsupported)
                .required(format!("{min} or later"))
                .found(if driver.is_empty() { "no driver".to_owned() } else { driver.to_owned() })
        }),
        _ => false,
    }
}

/// Whether a dotted version is at least `required`, compared component by component.
fn version_reaches(found: &str, required: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>();
        text.split('.').map(|part| digits(part).parse().unwrap_or(0)).collect()
    };
    let (found, required) = (numbers(found), numbers(required));
    let length = found.len().max(required.len());
    let at = |list: &[u64], position: usize| list.get(position).copied().unwrap_or(0);
    (0..length).map(|position| at(&found, position)).ge((0..length).map(|position| at(&required, position)))
}

fn arguments(call: &Call<'_>, kernel: &CompiledKernel, visitor: &mut impl FilterVisitor) -> Stop {
    for need in &kernel.dtypes {
        let raw = call.context.raw(need.store);
        if !need.holds(raw)
            && visitor.excluded(|| {
                let found = if need.code == ReasonCode::OutputDtypeUnsupported {
                    shown_case(call, &need.name)
                } else {
                    lz_core::context::dtype_of(raw).map_or("none", |dtype| dtype.name()).to_owned()
                };
                Reason::new(need.code)
                    .argument(need.name.clone())
                    .required(need.required.clone())
                    .found(found)
            })
        {
            return true;
        }
    }
    if let Some(need) = &kernel.quant_format
        && !need.holds(call.context.raw(need.store))
        && visitor.excluded(|| {
            Reason::new(ReasonCode::QuantFormatUnsupported)
                .required(need.required.clone())
                .found(shown_case(call, &need.name))
        })
    {
        return true;
    }
    if let Some(judge) = &kernel.entry.judge {
        if call.settles_judgments {
            judge.settle(call.table.info, call.context);
        }
        if let Some(reason) = judge.objection(call.table.info, call.context)
            && visitor.excluded(|| reason)
        {
            return true;
        }
    }
    let needed = transforms(call, &kernel.facts, || Some(kernel));
    needed.iter().any(|kind| {
        // Copying the output is not a conversion of values: every adapter can do it, and strict mode allows it.
        if kind == TransformKind::Output {
            return false;
        }
        let adapts = adapts(call, kernel, kind);
        let excluded = !adapts || call.mode.has(ModeFlag::Strict) || call.mode.has(ModeFlag::NotAdapting);
        excluded
            && visitor.excluded(|| {
                let reason = unmet_requirement(call, kernel, kind);
                if adapts {
                    let text = format!("{} would have to be converted: {}", kind.name(), reason.sentence());
                    Reason::new(ReasonCode::StrictModeTransform).message(text)
                } else {
                    reason
                }
            })
    })
}

/// Whether a conversion is possible: by the kernel's adapter, or by the engine, which copies strided tensors.
fn adapts(call: &Call<'_>, kernel: &CompiledKernel, kind: TransformKind) -> bool {
    let bit = u64::from(kernel.facts.stride_bit);
    kernel.spec().adapts.contains(&kind)
        || kind == TransformKind::Contiguous
            && kernel.copying().is_some()
            && call.strides.uncopied & bit == bit
}

fn shown_case(call: &Call<'_>, field: &str) -> String {
    call.table
        .info
        .field(field)
        .map_or_else(String::new, |field| lz_core::expression_names::show(field, call.context))
}

/// The conversions that an adapter would have to do. `kernel` is only called if `facts` are not sufficient.
#[inline]
pub(crate) fn transforms<'k>(
    call: &Call<'_>,
    facts: &Facts,
    kernel: impl FnOnce() -> Option<&'k CompiledKernel>,
) -> Transforms {
    let mut needed = Transforms::NONE;
    if facts.has_layouts {
        let layout = kernel().and_then(|kernel| kernel.layout.as_ref());
        if layout.is_some_and(|need| !need.holds(call.context.raw(need.store))) {
            needed = needed.with(TransformKind::Layout);
        }
    }
    let stride_bit = u64::from(facts.stride_bit);
    if call.strides.common & stride_bit != stride_bit {
        needed = needed.with(TransformKind::Contiguous);
    }
    if call.strides.alignment < u64::from(facts.alignment) {
        needed = needed.with(TransformKind::Align);
    }
    if facts.copies_output && call.strides.has_out {
        needed = needed.with(TransformKind::Output);
    }
    needed
}

fn unmet_requirement(call: &Call<'_>, kernel: &CompiledKernel, kind: TransformKind) -> Reason {
    let spec = kernel.spec();
    let (stride_bit, alignment) = (u64::from(kernel.facts.stride_bit), u64::from(kernel.facts.alignment));
    let culprit = |wrong: &dyn Fn(u64) -> bool| {
        let mut all = call.table.strides.iter();
        let found = all.find(|(store, _)| {
            let class = call.context.raw(*store);
            class & 1 != 0 && wrong(class)
        });
        found.map(|(store, name)| {
            let input = name.strip_prefix("strides(").and_then(|name| name.strip_suffix(')'));
            (input.unwrap_or(name).to_owned(), call.context.raw(*store))
        })
    };
    match kind {
        TransformKind::Layout => {
            let need = kernel.layout.as_ref();
            Reason::new(need.map_or(ReasonCode::LayoutUnsupported, |need| need.code))
                .required(need.map_or("", |need| &need.required))
                .found(shown_case(call, "layout"))
        }
        TransformKind::Contiguous => {
            let (name, _) = culprit(&|class| class & stride_bit != stride_bit).unwrap_or_default();
            let (code, required) = if spec.strides == StrideNeeds::Contiguous {
                (ReasonCode::NotContiguous, "dense row-major memory")
            } else {
                (ReasonCode::StrideLastDim, "a last dimension of stride 1")
            };
            Reason::new(code).argument(name).required(required).found("other strides")
        }
        TransformKind::Align => {
            let (name, class) = culprit(&|class| class >> 3 < alignment).unwrap_or_default();
            Reason::new(ReasonCode::AlignmentRequired)
                .argument(name)
                .required(format!("an address that is a multiple of {} bytes", spec.alignment))
                .found(format!("a multiple of {}", 1u64 << (class >> 3)))
        }
        TransformKind::Dtype => Reason::new(ReasonCode::DtypeUnsupported),
        TransformKind::Output => Reason::new(ReasonCode::OutputWriteUnsupported),
    }
}

/// The maximum tensor-parallel size for which a kernel is invariant, if the call exceeds it.
fn tp_exceeded(call: &Call<'_>, spec: &KernelSpec) -> Option<u32> {
    spec.max_tp_size.filter(|most| call.mode.tp_size() > *most)
}

/// The reduction order for which a kernel is invariant, if policy sets a different one.
fn other_order(call: &Call<'_>, spec: &KernelSpec) -> Option<ReductionOrder> {
    spec.reduction_order.filter(|order| *order != call.snapshot.policy.reduction_order.value)
}

/// Whether a kernel's result is independent of the tensor-parallel size, on this call.
pub(crate) fn is_tp_invariant(call: &Call<'_>, spec: &KernelSpec) -> bool {
    spec.tp_invariant && tp_exceeded(call, spec).is_none() && other_order(call, spec).is_none()
}

/// Checks calls that require tensor-parallel invariance.
fn tp_invariance(call: &Call<'_>, kernel: &CompiledKernel, visitor: &mut impl FilterVisitor) -> Stop {
    let spec = kernel.spec();
    let fallback = call.snapshot.policy.tp_fallback.value;
    if !call.mode.has(ModeFlag::TensorParallelInvariant) || fallback == TpFallback::BestEffort {
        return false;
    }
    if !spec.tp_invariant || fallback == TpFallback::Error && kernel.is_reference() {
        return visitor.excluded(|| Reason::new(ReasonCode::TpInvarianceRequired));
    }
    if let Some(most) = tp_exceeded(call, spec)
        && visitor.excluded(|| {
            Reason::new(ReasonCode::TpSizeExceeded)
                .required(format!("at most {most} ranks"))
                .found(format!("{} ranks", call.mode.tp_size()))
        })
    {
        return true;
    }
    other_order(call, spec).is_some_and(|order| {
        let asked = &call.snapshot.policy.reduction_order;
        visitor.excluded(|| {
            Reason::new(ReasonCode::ReductionOrderMismatch)
                .required(format!("{} ({})", asked.value.name(), asked.source))
                .found(order.name())
        })
    })
}

/// Checks calls that require batch invariance: the kernel promises it, and does not give way to another one at some size of the batch.
fn batch_invariance(call: &Call<'_>, kernel: &CompiledKernel, visitor: &mut impl FilterVisitor) -> Stop {
    if !call.mode.has(ModeFlag::BatchInvariant) {
        return false;
    }
    if !kernel.spec().batch_invariant {
        return visitor.excluded(|| Reason::new(ReasonCode::BatchInvarianceRequired));
    }
    kernel.batch_limit.as_ref().is_some_and(|limit| {
        visitor.excluded(|| {
            Reason::new(ReasonCode::BatchInvarianceRequired).required("batches of every size").found(limit)
        })
    })
}

fn has_defined_randomness(call: &Call<'_>) -> bool {
    call.table.info.schema().semantics.iter().any(|(key, _)| key == "random")
}

fn mode(call: &Call<'_>, kernel: &CompiledKernel, visitor: &mut impl FilterVisitor) -> Stop {
    let spec = kernel.spec();
    let asked = |ask| call.mode.has(ask);
    let assumed = !spec.cuda_graph_unsafe && call.snapshot.policy.default_graph_safe.value;
    let capturable = spec.cuda_graph_safe || assumed;
    let checks = [
        (asked(ModeFlag::Deterministic) && !spec.deterministic, ReasonCode::NonDeterministic),
        (asked(ModeFlag::Capturing) && !capturable, ReasonCode::CudaGraphUnsafe),
        (spec.reduced_precision && !asked(ModeFlag::ReducedPrecision), ReasonCode::MathModeUnsupported),
        (spec.prepacked_weights && !asked(ModeFlag::PackedWeights), ReasonCode::PackedWeightsRequired),
    ];
    for (wrong, code) in checks {
        if wrong
            && visitor.excluded(|| match code {
                // The schema defines the random numbers, so a kernel that is not reproducible uses others.
                ReasonCode::NonDeterministic if has_defined_randomness(call) => {
                    Reason::new(ReasonCode::RandomnessDiffers)
                }
                code => Reason::new(code),
            })
        {
            return true;
        }
    }
    if tp_invariance(call, kernel, visitor) || batch_invariance(call, kernel, visitor) {
        return true;
    }
    let strict = &call.snapshot.policy.graph_strict_mode;
    if asked(ModeFlag::Capturing)
        && capturable
        && strict.value
        && !call.snapshot.warm.can_be_captured(call.table.info, &spec.id, call.bucket.words())
        && visitor.excluded(|| {
            let message = format!(
                "{} has not passed a trial capture of such a call, which graph_strict_mode requires ({})",
                spec.id, strict.source
            );
            Reason::new(ReasonCode::CudaGraphUnsafe).message(message)
        })
    {
        return true;
    }
    if let (Some(strategies), Some(strategy)) = (&kernel.kv_strategies, call.mode.kv_strategy())
        && !strategies.contains(&strategy)
        && visitor.excluded(|| {
            Reason::new(ReasonCode::KvStrategyUnsupported)
                .required(spec.kv_strategies.join(" or "))
                .found(strategy.name())
        })
    {
        return true;
    }
    let driver = call.device.map_or("", DeviceSpec::driver_version);
    let oldest = &call.snapshot.policy.kv_min_driver;
    if kernel.kv_strategies.is_some()
        && call.mode.kv_strategy() == Some(KvStrategy::Virtual)
        && spec.platform == Platform::Cuda
        && !version_reaches(driver, &oldest.value)
        && visitor.excluded(|| {
            Reason::new(ReasonCode::DriverVersionUnsupported)
                .required(format!("{} or later for virtual memory ({})", oldest.value, oldest.source))
                .found(if driver.is_empty() { "no driver" } else { driver })
        })
    {
        return true;
    }
    if !spec.jit {
        return false;
    }
    match call.snapshot.policy.jit.value {
        JitPolicy::Never => visitor.excluded(|| Reason::new(ReasonCode::JitDisabled)),
        JitPolicy::WhenWarm if !call.allow_cold && call.is_cold(spec) => {
            visitor.excluded(|| Reason::new(ReasonCode::JitCold))
        }
        _ => false,
    }
}

fn limits(call: &Call<'_>, position: u16, kernel: &CompiledKernel, visitor: &mut impl FilterVisitor) -> Stop {
    let values = &call.values;
    for (number, limit) in kernel.limits.iter().enumerate() {
        let mut was_reported = false;
        for (index, part) in limit.parts.iter().enumerate() {
            let holds = part.holds(values);
            let reason = || {
                Reason::new(limit.code).required(part.text.clone()).found(describe(
                    &call.table.info.fields,
                    part.reads,
                    call.context,
                ))
            };
            if call.table.is_cell_constant(part) {
                if !holds && !was_reported {
                    was_reported = true;
                    if visitor.excluded(reason) {
                        return true;
                    }
                }
            } else {
                let plain = Guard::Part { position, limit: number as u16, part: index as u16, expect: holds };
                let short = part.modulus.and_then(|modulus| Guard::modulus(modulus, holds));
                let guard = short.unwrap_or(plain);
                visitor.guarded(guard, holds || was_reported, reason);
                was_reported |= !holds;
            }
        }
    }
    launch(call, position, kernel, visitor) || memory(call, position, kernel, visitor)
}

/// Whether the launch grid is within the device limits. A formula without a value does not fit.
pub(crate) fn launch_fits(
    kernel: &CompiledKernel,
    values: &(impl Slots + ?Sized),
    device: &DeviceSpec,
) -> bool {
    launch_problem(kernel, values, device).is_none()
}

fn launch_problem(
    kernel: &CompiledKernel,
    values: &(impl Slots + ?Sized),
    device: &DeviceSpec,
) -> Option<Reason> {
    if let (Some(grid), Some(limits)) = (&kernel.grid, device.max_grid()) {
        for ((formula, limit), axis) in grid.iter().zip(limits).zip(["x", "y", "z"]) {
            let size = formula.program.eval_int_of(values);
            if !size.is_ok_and(|size| u64::try_from(size).is_ok_and(|size| size <= limit)) {
                let found = size.map_or_else(|error| error.to_string(), |size| size.to_string());
                return Some(
                    Reason::new(ReasonCode::CudaGridDimExceeded)
                        .axis(axis)
                        .required(format!("{} at most {limit} in {axis}", formula.text))
                        .found(found),
                );
            }
        }
    }
    if let (Some(block), Some(limit)) = (&kernel.block, device.max_threads_per_block()) {
        let size = block.program.eval_int_of(values);
        if !size.is_ok_and(|size| (1..=i64::from(limit)).contains(&size)) {
            let found = size.map_or_else(|error| error.to_string(), |size| size.to_string());
            return Some(
                Reason::new(ReasonCode::CudaBlockLimitExceeded)
                    .required(format!("{} from 1 to {limit}", block.text))
                    .found(found),
            );
        }
    }
    None
}

fn launch(call: &Call<'_>, position: u16, kernel: &CompiledKernel, visitor: &mut impl FilterVisitor) -> Stop {
    if kernel.grid.is_none() && kernel.block.is_none() {
        return false;
    }
    let Some(device) = call.device else { return false };
    let reads = kernel.grid.iter().flatten().chain(&kernel.block).fold(0, |set, formula| set | formula.reads);
    let problem = launch_problem(kernel, &call.values, device);
    if call.is_cell_constant(reads) {
        problem.is_some_and(|reason| visitor.excluded(|| reason))
    } else {
        let holds = problem.is_none();
        visitor.guarded(Guard::Launch { position, expect: holds }, holds, || {
            problem.unwrap_or_else(|| Reason::new(ReasonCode::CudaGridDimExceeded))
        });
        false
    }
}

/// Workspace size in bytes; `None` if the formula has no value.
pub(crate) fn workspace(kernel: &CompiledKernel, values: &(impl Slots + ?Sized)) -> Option<u64> {
    match &kernel.workspace {
        None => Some(0),
        Some(formula) => formula.program.eval_int_of(values).ok().and_then(|bytes| u64::try_from(bytes).ok()),
    }
}

fn memory(call: &Call<'_>, position: u16, kernel: &CompiledKernel, visitor: &mut impl FilterVisitor) -> Stop {
    let Some(formula) = &kernel.workspace else { return false };
    let bytes = workspace(kernel, &call.values);
    let holds = bytes.is_some_and(|bytes| call.memory().is_none_or(|limit| bytes <= limit));
    let reason = || {
        let limit =
            call.memory().map_or_else(|| "a size".to_owned(), |limit| format!("at most {limit} bytes"));
        Reason::new(ReasonCode::MemoryHeadroomExceeded)
            .required(format!("{limit} of scratch memory"))
            .found(bytes.map_or_else(|| "no size".to_owned(), |bytes| format!("{bytes} bytes")))
    };
    if call.is_cell_constant(formula.reads) && !call.snapshot.memory_changes() {
        !holds && visitor.excluded(reason)
    } else {
        visitor.guarded(Guard::Memory { position, expect: holds }, holds, reason);
        false
    }
}

fn circuit_status(call: &Call<'_>, kernel: &CompiledKernel, visitor: &mut impl FilterVisitor) -> Stop {
    match call.snapshot.health.circuit_status(&call.subject(kernel)) {
        CircuitStatus::Closed | CircuitStatus::Probing => false,
        CircuitStatus::Refused(refusal)
            if call.allow_open_circuit && refusal.yields_to_last_resort(kernel.is_reference()) =>
        {
            false
        }
        CircuitStatus::Refused(refusal) => visitor.excluded(|| {
            let code = if refusal.scope == RefusalScope::Device {
                ReasonCode::DeviceLost
            } else {
                ReasonCode::CircuitOpen
            };
            Reason::new(code).message(refusal.to_string())
        }),
    }
}
