//! Workloads of the schemas as calls: shapes, dtypes and params of real models, with or without memory.

use lz_core::check::{OutputSpec, infer_outputs};
use lz_core::expr::Value;
use lz_schema::model::{Constant, DeviceRule, Kind, Workload};

use crate::assign::{Assignment, Prepared};
use crate::call::{OwnedArg, OwnedCall, OwnedOut};
use crate::fill::{Numbers, Rule, fill_by_rule, fill_freely, rule};
use crate::memory::OwnedTensor;
use crate::random::Random;
use crate::text;

/// The call of a workload. Tensors are marked as device memory, which is never read; only host-only tensors
/// have memory.
pub fn call(prepared: &Prepared, workload: &Workload) -> Result<OwnedCall, String> {
    build_call(prepared, workload, false)
}

/// The call of a workload on the host, with filled tensors: it can be run.
pub fn filled(prepared: &Prepared, workload: &Workload) -> Result<OwnedCall, String> {
    build_call(prepared, workload, true)
}

fn build_call(prepared: &Prepared, workload: &Workload, filled: bool) -> Result<OwnedCall, String> {
    let operation = prepared.operation;
    let mut random = Random::new(0);
    let assignment = assignment(prepared, workload);
    let values = prepared.values(&assignment);
    let mut args = Vec::new();
    for (input, &given) in operation.inputs.iter().zip(&assignment.given) {
        if !given {
            args.push(OwnedArg::Absent);
            continue;
        }
        let shape = prepared
            .shape(&assignment, &values, input)
            .ok_or_else(|| format!("the shape of {} cannot be computed", input.name))?;
        args.push(match input.kind {
            Kind::Text => OwnedArg::Text(text::texts(&mut random, shape.first().copied().unwrap_or(0))),
            Kind::Tokenizer => OwnedArg::Handle(text::default_tokenizer()),
            Kind::Tensor => {
                let dtype = assignment
                    .dtype(operation, input)
                    .ok_or_else(|| format!("the dtype of {} is not known", input.name))?;
                let tensor = if filled || input.device == DeviceRule::Host {
                    let mut tensor = OwnedTensor::dense(&shape, dtype);
                    match rule(input, &values) {
                        Some(rule) if !fill_by_rule(&mut random, &mut tensor, rule) => {
                            return Err(format!("no values can fill {}", input.name));
                        }
                        None if filled => fill_repeatedly(&mut random, &input.name, &mut tensor),
                        _ => {}
                    }
                    tensor
                } else {
                    OwnedTensor::described(&shape, dtype)
                        .ok_or_else(|| format!("{} is too large: {shape:?}", input.name))?
                };
                if input.read_write { OwnedArg::Written(tensor) } else { OwnedArg::Tensor(tensor) }
            }
        });
    }
    // Tensors without memory must not overlap written ones.
    let mut next = 1usize << 20;
    for arg in &mut args {
        if let Some(tensor) = arg.tensor_mut()
            && !tensor.layout().device.is_host()
        {
            tensor.readdress(next);
            next += bytes(tensor).next_multiple_of(64);
        }
    }
    args.extend(assignment.params.iter().map(|param| param.map_or(OwnedArg::Absent, OwnedArg::Value)));
    let mut call = OwnedCall { args, outputs: Vec::new() };
    let bound = call.interpret(operation, false).map_err(|error| error.to_string())?;
    let on_device =
        call.args.iter().filter_map(OwnedArg::tensor).any(|tensor| !tensor.layout().device.is_host());
    for spec in infer_outputs(operation, &bound).map_err(|reason| reason.to_string())? {
        call.outputs.push(match spec {
            OutputSpec::Absent => OwnedOut::Absent,
            OutputSpec::Dynamic(_) => OwnedOut::Dynamic(None),
            OutputSpec::Text => OwnedOut::Text(None),
            OutputSpec::Tensor(shape, dtype) if on_device => {
                let mut tensor = OwnedTensor::described(&shape, dtype)
                    .ok_or_else(|| format!("an output is too large: {shape:?}"))?;
                tensor.readdress(next);
                next += bytes(&tensor).next_multiple_of(64);
                OwnedOut::Tensor(tensor)
            }
            OutputSpec::Tensor(shape, dtype) => OwnedOut::Tensor(OwnedTensor::dense(&shape, dtype)),
        });
    }
    Ok(call)
}

/// Every workload of an operation as a call, by name.
pub fn calls(prepared: &Prepared) -> Result<Vec<(&'static str, OwnedCall)>, String> {
    let workloads = prepared.operation.workloads.iter();
    workloads.map(|workload| Ok((workload.name.as_str(), call(prepared, workload)?))).collect()
}

/// Decays and step sizes of recurrences, with the range of their values in models. Normal values would let the state overflow.
const RECURRENCE_INPUTS: [(&str, f64, f64); 3] = [("a", -4.0, 0.0), ("beta", 0.0, 1.0), ("g", -2.0, 0.0)];

/// Fills with values as in models.
fn fill_typically(random: &mut Random, name: &str, tensor: &mut OwnedTensor) {
    match RECURRENCE_INPUTS.iter().find(|(input, ..)| *input == name) {
        Some(&(_, low, high)) => {
            fill_by_rule(random, tensor, Rule::Range(low, high));
        }
        None => fill_freely(random, name, tensor, Numbers::Normal),
    }
}

/// Fills a large tensor by repeating a block of random values: drawing each would take longer than the test.
fn fill_repeatedly(random: &mut Random, name: &str, tensor: &mut OwnedTensor) {
    const DRAWN: i64 = 1 << 16;
    if tensor.layout().elements().unwrap_or(0) <= DRAWN {
        return fill_typically(random, name, tensor);
    }
    let mut drawn = OwnedTensor::dense(&[DRAWN], tensor.layout().dtype);
    fill_typically(random, name, &mut drawn);
    let (from, whole) = (bytes(&drawn), bytes(tensor));
    let mut to = tensor.view_mut();
    for start in (0..whole).step_by(from) {
        // SAFETY: both tensors are dense, and no more is copied than either has.
        unsafe {
            let target = to.as_mut_ptr().add(start);
            std::ptr::copy_nonoverlapping(drawn.view().as_ptr(), target, from.min(whole - start));
        }
    }
}

/// Bytes of all tensors that a workload passes, which is known without filling them.
pub fn input_bytes(prepared: &Prepared, workload: &Workload) -> Result<usize, String> {
    let call = call(prepared, workload)?;
    Ok(call.args.iter().filter_map(OwnedArg::tensor).map(bytes).sum())
}

fn bytes(tensor: &OwnedTensor) -> usize {
    let elements = tensor.layout().elements().unwrap_or(0) as usize;
    elements * tensor.layout().dtype.size()
}

fn assignment(prepared: &Prepared, workload: &Workload) -> Assignment {
    let operation = prepared.operation;
    let sizes = |axis: usize| workload.axes[axis].clone().unwrap_or_default();
    let count = operation.axes.len();
    Assignment {
        axes: (0..count)
            .map(|axis| match workload.axes[axis] {
                None => 0,
                Some(ref sizes) => sizes.iter().product(),
            })
            .collect(),
        packs: (0..count)
            .map(|axis| if operation.axes[axis].pack { sizes(axis) } else { Vec::new() })
            .collect(),
        params: workload
            .params
            .iter()
            .map(|param| {
                param.as_ref().map(|constant| match constant {
                    Constant::Int(value) => Value::Int(*value),
                    Constant::Float(value) => Value::Float(*value),
                    Constant::Bool(value) => Value::Bool(*value),
                    Constant::Enum(case) => Value::Enum(*case),
                })
            })
            .collect(),
        given: workload.given.clone(),
        types: operation
            .types
            .iter()
            .zip(&workload.types)
            .filter_map(|(variable, dtype)| dtype.or(variable.dtypes.first().copied()))
            .collect(),
    }
}
