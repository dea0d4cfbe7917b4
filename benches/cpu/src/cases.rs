//! Benchmark cases: the workloads of an operation with the selected kernel, and the minimum memory traffic
//! and FLOPs of each.

use lz_conformance::assign::Prepared;
use lz_conformance::call::{OwnedArg, OwnedCall, OwnedOut};
use lz_conformance::memory::OwnedTensor;
use lz_conformance::suite::{Checked, Subject};
use lz_conformance::workload::{call, filled};
use lz_core::KernelEntry;
use lz_core::run::Scratch;
use lz_engine::Engine;
use lz_schema::model::{Constant, Operation, ParamType, Workload};
use serde_json::{Map, Value, json};

use crate::sweep;

/// Minimum work of a call.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Bytes that must be read.
    pub read: usize,
    /// Bytes that must be written.
    pub written: usize,
    /// f32 multiplications and additions.
    pub flops: f64,
}

/// One workload, ready to run.
pub struct Case {
    /// The operation.
    pub operation: &'static str,
    /// The workload's name.
    pub workload: String,
    /// The kernel.
    pub kernel: KernelEntry,
    /// Bytes of scratch memory that it may use.
    pub workspace: u64,
    /// Its scratch memory.
    pub scratch: Scratch,
    /// The call.
    pub call: OwnedCall,
    /// Minimum work.
    pub work: Work,
    /// The workload as sent to the peer.
    pub description: Value,
}

/// Which cases to run.
#[derive(Debug, Clone, Copy)]
pub struct Filter<'w> {
    /// Substring of a kernel id.
    pub kernel: Option<&'w str>,
    /// Substrings of a row's name, one of which must match; empty for all.
    pub rows: &'w [&'w str],
    /// Workloads with more bytes of tensors are skipped.
    pub max_bytes: usize,
}

/// Every workload of an operation that a CPU kernel runs. Lazy: each case has its memory only while it is
/// measured.
pub fn of<'w>(
    subject: &'static dyn Subject,
    filter: Filter<'w>,
) -> Result<impl Iterator<Item = Case> + use<'w>, String> {
    let operation = subject.info().schema();
    let kernels: Vec<KernelEntry> = lz_test_kernels::runnable()
        .iter()
        .filter(|entry| entry.spec.operation == operation.name && entry.spec.backend != "reference")
        .filter(|entry| filter.kernel.is_none_or(|kernel| entry.spec.id.contains(kernel)))
        .cloned()
        .collect();
    let engine = Engine::new();
    engine.register(kernels.iter().cloned()).map_err(|error| error.to_string())?;
    let mut workloads = operation.workloads.clone();
    workloads.extend(sweep::of(operation));
    workloads.retain(|workload| {
        let name = format!("{} {}", operation.name, workload.name);
        let named = filter.rows.is_empty() || filter.rows.iter().any(|row| name.contains(row));
        named && !kernels.is_empty() && bytes_of(operation, workload) <= filter.max_bytes
    });
    Ok(workloads.into_iter().filter_map(move |workload| {
        let mut call = filled(&Prepared::new(operation), &workload).ok()?;
        spread_slots(operation, &mut call);
        keep_residual(operation, &mut call);
        fill_lengths(operation, &mut call);
        let checked = call.with_args(|args, outputs| subject.check(args, Some(outputs)));
        let Some(Checked::Right { context, outputs: Some(Ok(())) }) = checked else { return None };
        let plan = engine.which(subject.info(), &context).ok()?;
        let kernel = lz_test_kernels::runnable().iter().find(|entry| entry.spec.id == plan.kernel)?;
        let description = description(operation, &workload);
        Some(Case {
            operation: &operation.name,
            workload: workload.name,
            kernel: kernel.clone(),
            workspace: plan.workspace_bytes,
            scratch: Scratch::default(),
            work: Work { flops: flops(&operation.name, &description), ..minimum_work(operation, &call) },
            description,
            call,
        })
    }))
}

/// Bytes of all tensors of a workload.
fn bytes_of(operation: &'static Operation, workload: &Workload) -> usize {
    let bytes = |tensor: &OwnedTensor| {
        tensor.layout().elements().unwrap_or(0) as usize * tensor.layout().dtype.size()
    };
    call(&Prepared::new(operation), workload)
        .map_or(usize::MAX, |call| call.args.iter().filter_map(OwnedArg::tensor).map(bytes).sum())
}

/// Gives every sequence the maximum number of keys, and distributes pages evenly, so that the minimum traffic
/// is known.
fn fill_lengths(operation: &Operation, call: &mut OwnedCall) {
    let shape = |call: &OwnedCall, name: &str| {
        let index = operation.inputs.iter().position(|input| input.name == name)?;
        call.args.get(index).and_then(OwnedArg::tensor).map(|tensor| tensor.layout().shape.to_vec())
    };
    let heads_first =
        call.args.iter().any(|arg| matches!(arg, OwnedArg::Value(lz_core::expr::Value::Enum(1))));
    let at =
        |dims: Option<Vec<i64>>, index: usize| dims.and_then(|dims| dims.get(index).copied()).unwrap_or(0);
    let keys = at(shape(call, "k"), if heads_first { 2 } else { 1 });
    let listed = at(shape(call, "kv_indices"), 0);
    let caches = shape(call, "k_cache").map(|dims| at(Some(dims), if heads_first { 2 } else { 1 }));
    let page = caches.unwrap_or_else(|| at(shape(call, "ckv_cache"), 1));
    let paged = operation.name.ends_with(".paged");
    for (input, arg) in operation.inputs.iter().zip(&mut call.args) {
        let Some(tensor) = arg.tensor_mut() else { continue };
        let count = tensor.layout().elements().unwrap_or(0);
        let mut view = tensor.view_mut();
        for index in 0..count {
            match input.name.as_str() {
                "kv_lens" => view.set_int(&[index], keys),
                "kv_indptr" if paged => view.set_int(&[index], index * listed / (count - 1).max(1)),
                "kv_last_page_len" => view.set_int(&[index], page),
                _ => break,
            };
        }
    }
}

/// Gives tokens distinct slots, as a server would: random slots would hit a few again and again.
fn spread_slots(operation: &Operation, call: &mut OwnedCall) {
    let Some(index) = operation.inputs.iter().position(|input| input.name == "slots") else { return };
    let Some(slots) = call.args.get_mut(index).and_then(OwnedArg::tensor_mut) else { return };
    let count = slots.layout().elements().unwrap_or(0);
    let mut view = slots.view_mut();
    for token in 0..count {
        // An odd stride visits all of a power of two before it repeats.
        view.set_int(&[token], token * 5 % (count as u64).next_power_of_two() as i64);
    }
}

/// Zeroes the tensor that is added to a residual: with repeated runs the sum would overflow.
fn keep_residual(operation: &Operation, call: &mut OwnedCall) {
    if operation.inputs.iter().any(|input| input.name == "residual")
        && let Some(index) = operation.inputs.iter().position(|input| input.name == "x")
        && let Some(tensor) = call.args.get_mut(index).and_then(OwnedArg::tensor_mut)
    {
        tensor.bytes_mut().fill(0);
    }
}

/// Minimum bytes read and written, and FLOPs, of a call.
fn minimum_work(operation: &Operation, call: &OwnedCall) -> Work {
    let bytes = |tensor: &OwnedTensor| {
        tensor.layout().elements().unwrap_or(0) as usize * tensor.layout().dtype.size()
    };
    let named = |name: &str| {
        let index = operation.inputs.iter().position(|input| input.name == name)?;
        call.args.get(index).and_then(OwnedArg::tensor)
    };
    let size = |name: &str| named(name).map_or(0, bytes);
    let written: usize = call
        .outputs
        .iter()
        .map(|output| match output {
            OwnedOut::Tensor(tensor) => bytes(tensor),
            _ => 0,
        })
        .sum();
    let inputs: usize = call.args.iter().filter_map(OwnedArg::tensor).map(bytes).sum();
    let in_place: usize = call
        .args
        .iter()
        .map(|arg| match arg {
            OwnedArg::Written(tensor) => bytes(tensor),
            _ => 0,
        })
        .sum();
    match operation.name.as_str() {
        // Only the addressed rows of tables and caches are accessed.
        "embedding.lookup" => Work { read: written + size("ids"), written, flops: 0.0 },
        "posenc.rope" => Work { read: size("x") + size("positions"), written, flops: 0.0 },
        "kv.append" => {
            let width = |name: &str| named(name).map_or(1, |tensor| tensor.layout().dtype.size());
            let inserted = size("k") + size("v");
            Work { read: inserted, written: inserted / width("k") * width("k_cache"), flops: 0.0 }
        }
        "kv.compact" => {
            let pages = named("k_cache")
                .and_then(|tensor| tensor.layout().shape.first().copied())
                .unwrap_or(1)
                .max(1);
            let moved = in_place / pages as usize * (size("source") / 4);
            Work { read: moved, written: moved, flops: 0.0 }
        }
        name if name.ends_with(".paged") => {
            let first = |name: &str| named(name).and_then(|tensor| tensor.layout().shape.first().copied());
            let pages = first("k_cache").or_else(|| first("ckv_cache")).unwrap_or(1).max(1) as usize;
            let caches: usize = ["k_cache", "v_cache", "ckv_cache", "kpe_cache"].into_iter().map(size).sum();
            let listed = first("kv_indices").unwrap_or(0) as usize;
            Work { read: inputs - caches + caches / pages * listed, written, flops: 0.0 }
        }
        _ => Work { read: inputs, written: written + in_place, flops: 0.0 },
    }
}

/// FLOPs of a described workload; 0 if memory is the limit at every size.
fn flops(operation: &str, description: &Value) -> f64 {
    let axes = &description["axes"];
    let axis = |name: &str| match &axes[name] {
        Value::Array(sizes) => sizes.iter().filter_map(Value::as_f64).product(),
        size => size.as_f64().unwrap_or(1.0),
    };
    let causal = if description["params"]["causal"].as_bool() == Some(true) { 0.5 } else { 1.0 };
    let latent =
        |queries: f64| queries * axis("heads") * axis("kv_len") * (2.0 * axis("dim_ckv") + axis("dim_kpe"));
    2.0 * match operation {
        "attention.standard.prefill" | "attention.gqa.prefill" | "attention.cross.prefill" => {
            let scores = axis("batch") * axis("heads") * axis("seq_q") * axis("seq_k");
            scores * (axis("head_dim") + axis("head_dim_v")) * causal
        }
        "attention.mla.prefill" => latent(axis("seq_q")) * causal,
        "attention.mla.decode" => latent(axis("tokens")),
        "mlp.linear" | "mlp.linear.int8" | "mlp.linear.weight_only" => {
            axis("rows") * axis("in_features") * axis("out_features")
        }
        "mlp.fused" => {
            axis("rows") * axis("intermediate") * (2.0 * axis("in_features") + axis("out_features"))
        }
        _ => 0.0,
    }
}

/// The workload as sent to the peer: sizes, dtypes and params by name.
fn description(operation: &Operation, workload: &Workload) -> Value {
    let axes: Map<String, Value> = operation
        .axes
        .iter()
        .zip(&workload.axes)
        .filter_map(|(axis, sizes)| {
            let sizes = sizes.as_ref()?;
            let value = if axis.pack { json!(sizes) } else { json!(sizes.first()?) };
            Some((axis.name.clone(), value))
        })
        .collect();
    let types: Map<String, Value> = operation
        .types
        .iter()
        .zip(&workload.types)
        .filter_map(|(variable, dtype)| Some((variable.name.clone(), json!(dtype.as_ref()?.to_string()))))
        .collect();
    let params: Map<String, Value> = operation
        .params
        .iter()
        .zip(&workload.params)
        .filter_map(|(param, constant)| {
            let value = match constant.as_ref()? {
                Constant::Int(value) => json!(value),
                Constant::Float(value) => json!(value),
                Constant::Bool(value) => json!(value),
                Constant::Enum(case) => match &param.ty {
                    ParamType::Enum(cases) => json!(cases.get(*case as usize)?),
                    _ => return None,
                },
            };
            Some((param.name.clone(), value))
        })
        .collect();
    let given: Vec<&str> = operation
        .inputs
        .iter()
        .zip(&workload.given)
        .filter(|(_, given)| **given)
        .map(|(input, _)| input.name.as_str())
        .collect();
    json!({ "operation": operation.name, "axes": axes, "types": types, "params": params, "given": given })
}
