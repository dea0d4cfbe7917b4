//! A call that is known only by its context, with arguments made up for it: dense tensors in host memory whose values obey the
//! schema. Kernels are measured with it when the caller's own arguments are gone.

use lz_schema::DType;
use lz_schema::expr::{Program, Typed, Value};
use lz_schema::model::{Input, Kind, Measure, Operation, ValueRule};

use crate::args::{Arg, OutArg};
use crate::check::{Bound, OutputSpec, infer_outputs};
use crate::context::{Context, FieldKind, device_bits};
use crate::operation::OperationInfo;
use crate::tensor::{Device, Dims, Indices, Tensor, TensorMut};

/// Elements that are written one by one; the rest of a tensor repeats them.
const PATTERN: usize = 4096;

/// The arguments of one call.
#[derive(Debug)]
pub struct SyntheticCall {
    inputs: Vec<Option<(Tensor, bool)>>,
    params: Vec<Value>,
    outputs: Vec<Option<Tensor>>,
}

impl SyntheticCall {
    /// The call of a context. `None` if its tensors are not in host memory or need more than `max_bytes`, if it takes text or
    /// a handle, or if it produces an output whose size only the kernel determines.
    pub fn new(operation: &OperationInfo, context: &Context, max_bytes: u64) -> Option<SyntheticCall> {
        let schema = operation.schema();
        let host = device_bits(Device::HOST);
        let is_host = |kind: &FieldKind, raw| *kind != FieldKind::Device || raw == host;
        if !operation.fields.iter().all(|field| is_host(&field.kind, context.raw(field.store))) {
            return None;
        }
        let bound = bound(operation, schema, context)?;
        let mut left = max_bytes;
        let mut allocate = |sizes: &Dims, dtype: DType| {
            let bytes = u64::try_from(sizes.product()?).ok()?.checked_mul(dtype.size() as u64)?;
            left = left.checked_sub(bytes)?;
            Tensor::zeros(sizes, dtype).ok()
        };
        let mut inputs = Vec::with_capacity(schema.inputs.len());
        for input in &schema.inputs {
            let absent = input
                .optional
                .is_some_and(|slot| bound.values.get(usize::from(slot)) == Some(&Value::Bool(false)));
            if absent {
                inputs.push(None);
                continue;
            }
            if input.kind != Kind::Tensor {
                return None;
            }
            let dtype = bound.dtype(*bound.pick(schema, &input.dtype)?)?;
            let sizes = bound.sizes(bound.pick(schema, &input.shape)?).ok()?;
            let mut tensor = allocate(&sizes, dtype)?;
            if !fill_by_statistic(&mut tensor, schema, inputs.len(), &bound.values)? {
                fill(&mut tensor, input, &bound.values)?;
            }
            inputs.push(Some((tensor, input.read_write)));
        }
        let mut outputs = Vec::with_capacity(schema.outputs.len());
        for spec in infer_outputs(schema, &bound).ok()? {
            outputs.push(match spec {
                OutputSpec::Absent => None,
                OutputSpec::Tensor(sizes, dtype) => Some(allocate(&sizes, dtype)?),
                OutputSpec::Dynamic(_) | OutputSpec::Text => return None,
            });
        }
        let params = bound.values.iter().skip(schema.axes.len()).take(schema.params.len()).copied().collect();
        Some(SyntheticCall { inputs, params, outputs })
    }

    /// The arguments (inputs, then params) and the outputs.
    pub fn with_arguments<R>(&mut self, run: impl FnOnce(&mut [Arg<'_>], &mut [OutArg<'_>]) -> R) -> R {
        let mut arguments: Vec<Arg<'_>> = Vec::with_capacity(self.inputs.len() + self.params.len());
        for input in &mut self.inputs {
            arguments.push(match input {
                None => Arg::Absent,
                Some((tensor, true)) => Arg::TensorMut(tensor.view_mut()),
                Some((tensor, false)) => Arg::Tensor(tensor.view()),
            });
        }
        arguments.extend(self.params.iter().map(|value| Arg::Value(*value)));
        let mut outputs: Vec<OutArg<'_>> = Vec::with_capacity(self.outputs.len());
        for output in &mut self.outputs {
            outputs.push(match output {
                None => OutArg::Absent,
                Some(tensor) => OutArg::Tensor(tensor.view_mut()),
            });
        }
        run(&mut arguments, &mut outputs)
    }
}

/// Integers that obey the value rule of an input of a call, and have its statistics. `None` if the input has no rule or no
/// integers obey it.
pub fn valid_integers(
    schema: &Operation,
    input: usize,
    bound: &Bound,
    shape: &[i64],
    dtype: DType,
) -> Option<Tensor> {
    let about = schema.inputs.get(input)?;
    about.values.as_ref().filter(|_| dtype.is_int())?;
    let mut tensor = Tensor::zeros(shape, dtype).ok()?;
    if !fill_by_statistic(&mut tensor, schema, input, &bound.values)? {
        fill(&mut tensor, about, &bound.values)?;
    }
    Some(tensor)
}

/// The axes, dtypes and params that a context stores. A pack counts as one dimension.
fn bound(operation: &OperationInfo, schema: &Operation, context: &Context) -> Option<Bound> {
    let is_slot = |kind: &FieldKind| {
        !matches!(kind, FieldKind::DType | FieldKind::Strides | FieldKind::Device | FieldKind::Digest)
    };
    let slots = operation.fields.iter().take_while(|field| is_slot(&field.kind));
    let values: Vec<Value> = slots.map(|field| context.value(field)).collect();
    let axes: Vec<Option<i64>> = values
        .iter()
        .take(schema.axes.len())
        .map(|value| if let Value::Int(size) = value { Some(*size) } else { None })
        .collect();
    let packs = axes.iter().map(|size| Dims::new(&[(*size)?])).collect();
    let dtype = |name: &str| {
        let field = operation.fields.iter().find(|one| one.kind == FieldKind::DType && one.name == name)?;
        DType::from_number(u8::try_from(context.raw(field.store)).ok()?)
    };
    let types = schema.types.iter().map(|variable| dtype(&variable.name)).collect();
    (axes.len() == schema.axes.len()).then_some(Bound { axes, packs, types, values })
}

/// Fills a tensor that a known statistic describes, so that the statistic of its values is the stated one, or the nearest that
/// values can have. Returns whether there is such a statistic; `None` if no values obey the rule of the input.
fn fill_by_statistic(
    tensor: &mut Tensor,
    schema: &Operation,
    input: usize,
    values: &[Value],
) -> Option<bool> {
    let params = schema.params.iter().zip(values.iter().skip(schema.axes.len()));
    let mut known = params.filter_map(|(param, value)| match (&param.statistic, value) {
        (Some(statistic), Value::Int(value)) if statistic.of == input && *value >= 0 => {
            Some((statistic.measure, *value))
        }
        _ => None,
    });
    let Some((measure, stated)) = known.next() else { return Some(false) };
    let int = |expression: &Typed| Program::compile(expression).eval_int(values).ok();
    let rule = schema.inputs.get(input)?.values.as_ref();
    let shape = Dims::new(tensor.shape())?;
    match (measure, rule) {
        (Measure::MaxCount, Some(ValueRule::Between(_, highest))) => {
            let (different, count) = (int(highest)?.checked_add(1)?, shape.product()?);
            (different >= 1 || count == 0).then_some(())?;
            let (others, columns) = ((different - 1).max(1), shape.last().copied().unwrap_or(1).max(1));
            // The frequent value stands in the first column as long as there are rows, as a value of each row that is not repeated.
            let is_frequent =
                |number: i64, column: i64| column * (count / columns) + number / columns < stated;
            each(tensor, |number, column| match number {
                _ if is_frequent(number, column) || different <= 1 => 0,
                number => 1 + number % others,
            });
        }
        (Measure::MaxStep, Some(ValueRule::IndptrOf(total) | ValueRule::IndptrWithin(total))) => {
            let (total, parts) = (int(total)?, shape.first()? - 1);
            (parts >= 1 || parts == 0 && total == 0).then_some(())?;
            let even =
                |rest: i64, parts: i64, number: i64| if parts == 0 { 0 } else { rest * number / parts };
            let longest = stated.min(total).max(even(total + parts - 1, parts.max(1), 1).min(total));
            let longest = if parts <= 1 { total } else { longest };
            each(tensor, |number, _| match number {
                0 => 0,
                number => longest + even(total - longest, parts - 1, number - 1),
            });
        }
        _ => return Some(false),
    }
    Some(true)
}

/// Fills a tensor by its value rule, otherwise with small numbers. `None` if no values obey the rule.
fn fill(tensor: &mut Tensor, input: &Input, values: &[Value]) -> Option<()> {
    let int = |expression: &Typed| Program::compile(expression).eval_int(values).ok();
    let (shape, is_float) = (Dims::new(tensor.shape())?, tensor.dtype().is_float());
    match &input.values {
        None if is_float => repeat(tensor, |number| ((number * 37) % 64) as f64 / 64.0 - 0.5),
        None => repeat(tensor, |number| (number % 2) as f64),
        // Different indices, so that a gather does not read one row only.
        Some(ValueRule::IndexInto(end)) => {
            let end = int(end)?.max(1);
            each(tensor, |number, _| number % end);
        }
        Some(ValueRule::Between(low, high)) => {
            let value = |expression| Program::compile(expression).eval(values).ok();
            match (value(low)?, value(high)?) {
                (Value::Int(low), Value::Int(high)) if low <= high => each(tensor, |_, _| high),
                (Value::Float(low), Value::Float(high)) if low <= high => {
                    repeat(tensor, |number| low + (high - low) * ((number * 37) % 64) as f64 / 64.0);
                }
                _ => return None,
            }
        }
        Some(ValueRule::IndptrOf(total) | ValueRule::IndptrWithin(total)) => {
            let (total, parts) = (int(total)?, shape.first()? - 1);
            if parts < 0 || parts == 0 && total != 0 {
                return None;
            }
            let cut = |number: i64| if parts == 0 { 0 } else { total * number / parts };
            each(tensor, |number, _| cut(number));
        }
        Some(ValueRule::PartitionOf(total)) => {
            let (total, parts) = (int(total)?, *shape.last()?);
            each(tensor, |_, last| total * (last + 1) / parts.max(1) - total * last / parts.max(1));
        }
        // The score itself; spaces fill the rest.
        Some(ValueRule::ScoreMod(_)) => {
            (*shape.first()? >= 5).then_some(())?;
            each(tensor, |number, _| i64::from(b"score".get(number as usize).copied().unwrap_or(b' ')));
        }
    }
    Some(())
}

/// Writes integers, each from the number of its element and its index in the last dimension.
fn each(tensor: &mut Tensor, value: impl Fn(i64, i64) -> i64) {
    let Some(shape) = Dims::new(tensor.shape()) else { return };
    let mut view: TensorMut<'_> = tensor.view_mut();
    for (number, index) in (0..).zip(Indices::new(&shape)) {
        view.set_int(&index, value(number, index.last().copied().unwrap_or(0)));
    }
}

/// Writes numbers that repeat after [`PATTERN`] elements.
fn repeat(tensor: &mut Tensor, value: impl Fn(usize) -> f64) {
    let (size, Some(shape)) = (tensor.dtype().size(), Dims::new(tensor.shape())) else { return };
    let mut view = tensor.view_mut();
    for (number, index) in Indices::new(&shape).take(PATTERN).enumerate() {
        view.set(&index, value(number));
    }
    let bytes = tensor.bytes_mut();
    let mut filled = (PATTERN * size).min(bytes.len());
    while 0 < filled && filled < bytes.len() {
        let count = filled.min(bytes.len() - filled);
        bytes.copy_within(..count, filled);
        filled += count;
    }
}
