//! Names in the expressions of kernels and policy: an operation's fields, the device and mode, and a kernel's properties.
//!
//! A variable's index is the index of its field; device and mode follow after the fields.

use std::collections::BTreeMap;

use lz_schema::DType;
use lz_schema::expr::{Scope, Slots, Type, Value, Variable};

use crate::context::{Context, Field, FieldKind};
use crate::device::{CudaSpec, DeviceSpec, Platform, Vendor};
use crate::mode::{Mode, ModeFlag};
use crate::operation::OperationInfo;
use crate::spec::KernelSpec;

/// Maximum number of values of an expression.
pub const MAX_VALUES: usize = 128;

/// Names that policy conditions may use besides an operation's own, in order.
pub const DEVICE_NAMES: [&str; DEVICE.len()] = {
    let mut names = [""; DEVICE.len()];
    let mut position = 0;
    while position < DEVICE.len() {
        names[position] = DEVICE[position].0;
        position += 1;
    }
    names
};

/// Their values: properties of the device (-1 or the first case if there is none), and mode flags.
const DEVICE: [(&str, Read); 11] = [
    ("sm", |call| int(call.device.and_then(DeviceSpec::sm))),
    ("platform", |call| Value::Enum(call.device.map_or(0, |device| device.platform() as u32))),
    ("vendor", |call| {
        let of = |device: &DeviceSpec| VENDORS.iter().position(|vendor| *vendor == device.vendor);
        Value::Enum(call.device.and_then(of).unwrap_or_default() as u32)
    }),
    ("tensor_core_generation", |call| int(call.cuda().map(|cuda| cuda.tensor_core_generation))),
    ("has_tensor_cores", |call| Value::Bool(call.cuda().is_some_and(|cuda| cuda.tensor_core_generation > 0))),
    ("memory_gib", |call| {
        let bytes = call.device.and_then(DeviceSpec::memory_bytes);
        Value::Int(bytes.map_or(-1, |bytes| (bytes >> 30) as i64))
    }),
    ("device_index", |call| int(call.device.map(|device| device.index))),
    ("deterministic", |call| Value::Bool(call.mode.has(ModeFlag::Deterministic))),
    ("capturing", |call| Value::Bool(call.mode.has(ModeFlag::Capturing))),
    ("tp_invariant", |call| Value::Bool(call.mode.has(ModeFlag::TensorParallelInvariant))),
    ("batch_invariant", |call| Value::Bool(call.mode.has(ModeFlag::BatchInvariant))),
];

type Read = fn(&Values<'_>) -> Value;

fn int(fact: Option<impl Into<i64>>) -> Value {
    Value::Int(fact.map_or(-1, Into::into))
}

/// Names that a kernel filter may use, in order.
pub const KERNEL_NAMES: [&str; 9] = [
    "deterministic",
    "cuda_graph_safe",
    "tp_invariant",
    "batch_invariant",
    "reduced_precision",
    "jit",
    "prepacked_weights",
    "writes_into_output",
    "priority",
];

/// Synonyms for the first of these names that an operation has.
const SYNONYMS: [(&str, &[&str]); 8] = [
    ("batch_size", &["batch", "tokens", "rows", "total_q", "outer"]),
    ("seq_len", &["seq_q", "seq_k", "kv_len", "seq", "total_q"]),
    ("seq_len_q", &["seq_q", "total_q"]),
    ("seq_len_k", &["seq_k", "kv_len", "total_k"]),
    ("num_heads", &["heads"]),
    ("num_kv_heads", &["kv_heads"]),
    ("hidden_size", &["hidden", "dims"]),
    ("dtype", &["T"]),
];

/// A set of fields by index.
pub type FieldSet = u128;

/// Names and their variables.
#[derive(Debug, Clone, Default)]
pub struct Names {
    variables: BTreeMap<String, Variable>,
    given: BTreeMap<String, Variable>,
}

impl Names {
    /// Names for the limits of an operation's kernels: axes, params, `given(…)`, dtype variables. Not statistics: nothing that a
    /// kernel requires may depend on a number that callers may omit.
    pub fn of_operation(info: &OperationInfo) -> Names {
        let mut names = Names::of_fields(info);
        for field in info.fields.iter().filter(|field| matches!(field.kind, FieldKind::Statistic { .. })) {
            names.variables.remove(&*field.name);
        }
        names
    }

    fn of_fields(info: &OperationInfo) -> Names {
        let mut names = Names::default();
        for (index, field) in info.fields.iter().enumerate().take(MAX_VALUES) {
            let index = index as u16;
            let ty = match &field.kind {
                FieldKind::Axis { .. } | FieldKind::Statistic { .. } | FieldKind::Int => Type::Int,
                FieldKind::Float => Type::Float,
                FieldKind::Bool => Type::Bool,
                FieldKind::Enum(cases) => Type::enumeration(cases.iter().map(|case| case.to_string())),
                FieldKind::DType => dtype_type(),
                FieldKind::Given => {
                    let input = field.name.strip_prefix("given(").and_then(|name| name.strip_suffix(')'));
                    if let Some(input) = input {
                        names.given.insert(input.to_owned(), Variable { index, ty: Type::Bool });
                    }
                    continue;
                }
                FieldKind::Strides | FieldKind::Device | FieldKind::Digest => continue,
            };
            names.variables.insert(field.name.to_string(), Variable { index, ty });
        }
        names
    }

    /// Names for policy conditions: those of the operation, statistics, synonyms, device and mode.
    pub fn of_policy(info: &OperationInfo) -> Names {
        let mut names = Names::of_fields(info);
        for (synonym, targets) in SYNONYMS {
            let found = targets.iter().find_map(|target| names.variables.get(*target).cloned());
            if let (Some(variable), None) = (found, names.variables.get(synonym)) {
                names.variables.insert(synonym.to_owned(), variable);
            }
        }
        let first = info.fields.len();
        for (offset, name) in DEVICE_NAMES.into_iter().enumerate() {
            let ty = match name {
                "platform" => Type::enumeration(Platform::ALL.map(Platform::name)),
                "vendor" => Type::enumeration(VENDORS.map(Vendor::name)),
                "has_tensor_cores" | "deterministic" | "capturing" | "tp_invariant" | "batch_invariant" => {
                    Type::Bool
                }
                _ => Type::Int,
            };
            let Ok(index) = u16::try_from(first + offset) else { continue };
            names.variables.entry(name.to_owned()).or_insert(Variable { index, ty });
        }
        names
    }

    /// Names for a kernel filter.
    pub fn of_kernel() -> Names {
        let mut names = Names::default();
        for (index, name) in KERNEL_NAMES.into_iter().enumerate() {
            let ty = if name == "priority" { Type::Int } else { Type::Bool };
            names.variables.insert(name.to_owned(), Variable { index: index as u16, ty });
        }
        names
    }
}

impl Scope for Names {
    fn variable(&self, name: &str) -> Option<Variable> {
        self.variables.get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.variables.keys().cloned().collect()
    }

    fn is_given_name(&self, input: &str) -> Option<Variable> {
        self.given.get(input).cloned()
    }

    fn given_names(&self) -> Vec<String> {
        self.given.keys().cloned().collect()
    }
}

const VENDORS: [Vendor; 6] =
    [Vendor::Nvidia, Vendor::Amd, Vendor::Intel, Vendor::Apple, Vendor::Arm, Vendor::Other];

/// Cases in the order of dtype numbers, so that a field's bits are the case; 0 is an unbound variable.
fn dtype_type() -> Type {
    Type::enumeration(std::iter::once("none".to_owned()).chain(DType::ALL.map(|dtype| dtype.to_string())))
}

/// The values of a call, in the order of variables, read lazily.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    fields: &'a [Field],
    context: &'a Context,
    device: Option<&'a DeviceSpec>,
    mode: Mode,
}

impl<'a> Values<'a> {
    /// Values of the fields only, for limits.
    #[inline]
    pub fn of_fields(fields: &'a [Field], context: &'a Context) -> Values<'a> {
        Values::of_call(fields, context, None, Mode::PLAIN)
    }

    /// Values of the fields, the device and the mode, for policy conditions.
    #[inline]
    pub fn of_call(
        fields: &'a [Field],
        context: &'a Context,
        device: Option<&'a DeviceSpec>,
        mode: Mode,
    ) -> Values<'a> {
        Values { fields, context, device, mode }
    }

    fn cuda(&self) -> Option<&'a CudaSpec> {
        self.device.and_then(DeviceSpec::cuda)
    }
}

impl Slots for Values<'_> {
    #[inline]
    fn slot(&self, index: usize) -> Option<Value> {
        match self.fields.get(index) {
            Some(field) => Some(self.context.value(field)),
            None => DEVICE.get(index - self.fields.len()).map(|(_, read)| read(self)),
        }
    }
}

/// The values of a kernel's properties.
pub fn kernel_values(spec: &KernelSpec) -> [Value; KERNEL_NAMES.len()] {
    [
        Value::Bool(spec.deterministic),
        Value::Bool(spec.cuda_graph_safe),
        Value::Bool(spec.tp_invariant),
        Value::Bool(spec.batch_invariant),
        Value::Bool(spec.reduced_precision),
        Value::Bool(spec.jit),
        Value::Bool(spec.prepacked_weights),
        Value::Bool(spec.writes_into_output),
        Value::Int(i64::from(spec.priority)),
    ]
}

/// Formats the values that an expression reads: `head_dim = 100, causal = true`.
pub fn describe(fields: &[Field], reads: FieldSet, context: &Context) -> String {
    let mut text = String::new();
    for (index, field) in fields.iter().enumerate().take(MAX_VALUES) {
        if reads & (1 << index) == 0 {
            continue;
        }
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&format!("{} = {}", field.name, show(field, context)));
    }
    text
}

/// Formats the value of a field.
pub fn show(field: &Field, context: &Context) -> String {
    let raw = context.raw(field.store);
    match &field.kind {
        FieldKind::Enum(cases) => {
            cases.get(raw as usize).map_or_else(|| raw.to_string(), |case| case.to_string())
        }
        FieldKind::DType => {
            crate::context::dtype_of(raw).map_or_else(|| "none".to_owned(), |dtype| dtype.to_string())
        }
        FieldKind::Float => {
            let wide = f64::from_bits(raw);
            let narrow = wide as f32;
            // Most params are f32, whose shortest form is what the caller wrote; as f64 it would have seventeen digits.
            if f64::from(narrow) == wide { format!("{narrow:?}") } else { format!("{wide:?}") }
        }
        _ => context.value(field).to_string(),
    }
}
