//! Draws calls with exactly one fault, and the reason code that must be reported.
//!
//! First lists every kind of fault that a schema permits ([`breaks`]); a draw then applies one fault to a
//! valid call. Metadata that does not match the memory is only used where validation must reject it before
//! reading.

mod inputs;
mod outputs;

use lz_core::ReasonCode;
use lz_core::expr::{Program, Value};
use lz_schema::model::{Contiguous, DTypeRef, DeviceRule, Dim, Kind, Operation, ParamType, ValueRule};

use crate::assign::{Focus, Prepared};
use crate::call::{OwnedArg, OwnedCall};
use crate::fill::Numbers;
use crate::random::Random;
use crate::valid::{Drawing, arguments, draw_valid};

/// One kind of fault, and where it is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Break {
    /// A size that differs from the one bound by another input. Input and dimension of the schema's shape.
    AxisSize(usize, usize),
    /// A size that differs from a constant or an expression. Input and dimension of the schema's shape.
    ComputedSize(usize, usize),
    /// A broadcast dimension that is neither full nor 1.
    Broadcast(usize),
    /// Too many or too few dimensions.
    Rank(usize),
    /// A dtype that the input does not support.
    Dtype(usize),
    /// A supported dtype that differs from the one bound to the variable.
    DtypeVariable(usize),
    /// A fault of a single tensor, input or output.
    Memory(Side, usize, MemoryBreak),
    /// Strides that the operation does not support.
    Contiguity(usize),
    /// A tensor on the wrong device.
    Device(usize),
    /// A missing required input.
    MissingInput(usize),
    /// An argument that is not a tensor.
    InputKind(usize),
    /// A read-write tensor passed as read-only.
    NotWritable(usize),
    /// A value that violates the input's rule; the number selects how.
    Value(usize, u8),
    /// A read-write tensor that shares memory with another input.
    WrittenOverlap(usize, usize),
    /// A param outside its range.
    ParamRange(usize),
    /// A missing required param.
    MissingParam(usize),
    /// A param of another type, or an invalid enum case.
    ParamType(usize),
    /// An argument that is not a param.
    ParamKind(usize),
    /// Missing trailing arguments.
    ArgumentCount,
    /// Only this constraint is violated.
    Constraint(usize),
    /// A missing output tensor that the call produces.
    OutputMissing(usize),
    /// An output tensor that the call does not produce.
    OutputUnexpected(usize),
    /// A wrong size of an output.
    OutputShape(usize),
    /// A wrong rank of an output.
    OutputRank(usize),
    /// A wrong dtype of an output.
    OutputDtype(usize),
    /// An output shares memory with an input.
    OutputOverInput(usize, usize),
    /// An output shares memory with another output.
    OutputOverOutput(usize, usize),
    /// An output on the wrong device.
    OutputDevice(usize),
    /// An output of another kind.
    OutputKind(usize),
    /// Fewer outputs than the operation has.
    OutputCount,
}

/// Whether an argument is an input or an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// An input.
    Input,
    /// An output.
    Output,
}

/// Faults of a single tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryBreak {
    /// A negative size.
    Negative,
    /// Sizes whose product overflows.
    Overflow,
    /// A stride that leaves the address space.
    StrideReach,
    /// The number of strides differs from the rank.
    StrideCount,
    /// An address that is misaligned for the dtype.
    Misaligned,
    /// A null pointer with elements.
    Null,
    /// A written tensor with overlapping elements.
    SelfOverlap,
}

impl MemoryBreak {
    const READ: [MemoryBreak; 6] = [
        MemoryBreak::Negative,
        MemoryBreak::Overflow,
        MemoryBreak::StrideReach,
        MemoryBreak::StrideCount,
        MemoryBreak::Misaligned,
        MemoryBreak::Null,
    ];
}

/// A call with a fault.
#[derive(Debug, Clone)]
pub struct Broken {
    /// The call.
    pub call: OwnedCall,
    /// The fault.
    pub broken: Break,
    /// The reason code that must be reported.
    pub expected: ReasonCode,
}

impl Break {
    /// Whether the types of generated arguments rule out the fault.
    pub fn is_untyped(self) -> bool {
        matches!(
            self,
            Break::MissingInput(_)
                | Break::InputKind(_)
                | Break::NotWritable(_)
                | Break::MissingParam(_)
                | Break::ParamType(_)
                | Break::ParamKind(_)
                | Break::ArgumentCount
                | Break::OutputKind(_)
                | Break::OutputCount
        )
    }

    /// Whether the inputs are valid and an output is not.
    pub fn is_of_outputs(self) -> bool {
        matches!(
            self,
            Break::Memory(Side::Output, ..)
                | Break::OutputMissing(_)
                | Break::OutputUnexpected(_)
                | Break::OutputShape(_)
                | Break::OutputRank(_)
                | Break::OutputDtype(_)
                | Break::OutputOverInput(..)
                | Break::OutputOverOutput(..)
                | Break::OutputDevice(_)
                | Break::OutputKind(_)
                | Break::OutputCount
        )
    }

    /// The inputs that must be given for the fault to apply.
    fn needs(self) -> Vec<usize> {
        match self {
            Break::AxisSize(input, _)
            | Break::ComputedSize(input, _)
            | Break::Broadcast(input)
            | Break::Rank(input)
            | Break::Dtype(input)
            | Break::DtypeVariable(input)
            | Break::Memory(Side::Input, input, _)
            | Break::Contiguity(input)
            | Break::Device(input)
            | Break::Value(input, _)
            | Break::OutputOverInput(_, input) => vec![input],
            Break::WrittenOverlap(input, other) => vec![input, other],
            _ => Vec::new(),
        }
    }
}

/// Every fault that calls of an operation permit.
pub fn breaks(prepared: &Prepared) -> Vec<Break> {
    let mut found = schema_breaks(prepared.operation);
    found.retain(|broken| match *broken {
        Break::OutputOverInput(output, input) => can_coexist(prepared, output, input),
        _ => true,
    });
    found
}

/// Whether an output and an input can occur in the same call: an output may exist only if an input is absent.
fn can_coexist(prepared: &Prepared, output: usize, input: usize) -> bool {
    let operation = prepared.operation;
    let Some(when) = operation.outputs[output].when.as_ref().map(Program::compile) else { return true };
    let mut random = Random::new(0);
    (0..200).any(|_| {
        let assignment = prepared.assign(&mut random, 100, &[Focus::Given(input, true)], None);
        assignment.is_some_and(|drawn| when.eval_bool(&prepared.values(&drawn)) == Ok(true))
    })
}

/// Every fault that the schema permits.
fn schema_breaks(operation: &Operation) -> Vec<Break> {
    let mut found = vec![Break::ArgumentCount];
    for (index, input) in operation.inputs.iter().enumerate() {
        found.push(Break::InputKind(index));
        if input.optional.is_none() {
            found.push(Break::MissingInput(index));
        }
        if input.kind == Kind::Tensor {
            input_breaks(operation, index, &mut found);
        }
    }
    for (index, param) in operation.params.iter().enumerate() {
        found.extend([Break::ParamType(index), Break::ParamKind(index)]);
        if param.default.is_none() {
            found.push(Break::MissingParam(index));
        }
        if param.range.is_some() && !matches!(param.ty, ParamType::Bool | ParamType::Enum(_)) {
            found.push(Break::ParamRange(index));
        }
    }
    found.extend((0..operation.constraints.len()).map(Break::Constraint));
    if !operation.outputs.is_empty() {
        found.push(Break::OutputCount);
    }
    for (index, output) in operation.outputs.iter().enumerate() {
        found.extend([Break::OutputMissing(index), Break::OutputKind(index)]);
        if output.when.is_some() {
            found.push(Break::OutputUnexpected(index));
        }
        if output.is_dynamic(operation) {
            continue;
        }
        let has_dimensions = output.shape.all().iter().any(|dims| !dims.is_empty());
        found.extend([Break::OutputRank(index), Break::OutputDtype(index)]);
        if has_dimensions {
            found.push(Break::OutputShape(index));
        }
        let sized = output.dtype.all().iter().any(|dtype| widest(operation, *dtype) > 1);
        let overflows = can_overflow(output.shape.all(), sized);
        memory_breaks(Side::Output, index, (has_dimensions, overflows), sized, true, &mut found);
        found.push(Break::OutputDevice(index));
        for (other, input) in operation.inputs.iter().enumerate() {
            if input.kind == Kind::Tensor {
                found.push(Break::OutputOverInput(index, other));
            }
        }
        for (earlier, other) in operation.outputs.iter().enumerate().take(index) {
            if !other.is_dynamic(operation) {
                found.push(Break::OutputOverOutput(index, earlier));
            }
        }
    }
    found
}

fn input_breaks(operation: &Operation, index: usize, found: &mut Vec<Break>) {
    let input = &operation.inputs[index];
    let others = || operation.inputs.iter().enumerate().filter(move |(other, _)| *other != index);
    let dims = input.shape.all();
    let has_dimensions = dims.iter().any(|dims| !dims.is_empty());
    if input.broadcast {
        found.extend([Break::Broadcast(index), Break::Rank(index)]);
    } else {
        if dims.iter().any(|dims| !matches!(dims[..], [Dim::Pack(_)])) {
            found.push(Break::Rank(index));
        }
        let max_rank = dims.iter().map(Vec::len).max().unwrap_or(0);
        for dim in 0..max_rank {
            let kinds = || dims.iter().filter_map(move |dims| dims.get(dim));
            if kinds().any(|dim| matches!(dim, Dim::Fixed(_) | Dim::Expr(_))) {
                found.push(Break::ComputedSize(index, dim));
            }
            let shared = kinds().filter_map(axis_of).any(|axis| {
                operation.axes[axis].value.is_some()
                    || others().filter(|(_, other)| !other.broadcast).any(|(_, other)| {
                        other.shape.all().iter().flatten().filter_map(axis_of).any(|seen| seen == axis)
                    })
            });
            if shared {
                found.push(Break::AxisSize(index, dim));
            }
        }
    }
    found.push(Break::Dtype(index));
    let shared_variable = input.dtype.all().iter().any(|reference| {
        matches!(reference, DTypeRef::Variable(variable) if operation.types[*variable].dtypes.len() > 1)
            && others().any(|(_, other)| other.kind == Kind::Tensor && other.dtype.all().contains(reference))
    });
    if shared_variable {
        found.push(Break::DtypeVariable(index));
    }
    let sized = input.dtype.all().iter().any(|dtype| widest(operation, *dtype) > 1);
    let overflows = can_overflow(input.shape.all(), sized);
    memory_breaks(Side::Input, index, (has_dimensions, overflows), sized, input.read_write, found);
    if input.contiguous != Contiguous::None {
        found.push(Break::Contiguity(index));
    }
    let same = others().any(|(_, other)| other.kind == Kind::Tensor && other.device == DeviceRule::Same);
    if input.device == DeviceRule::Host || (input.device == DeviceRule::Same && same) {
        found.push(Break::Device(index));
    }
    if input.read_write {
        found.push(Break::NotWritable(index));
        for (other, definition) in others() {
            if definition.kind == Kind::Tensor {
                found.push(Break::WrittenOverlap(index, other));
            }
        }
    }
    let variants = match &input.values {
        None => 0,
        Some(ValueRule::IndptrOf(_) | ValueRule::IndptrWithin(_)) => 3,
        Some(_) => 2,
    };
    found.extend((0..variants).map(|variant| Break::Value(index, variant)));
}

/// Whether the number of bytes can overflow: not if there is one dimension, of bytes.
fn can_overflow(shapes: &[Vec<Dim>], sized: bool) -> bool {
    shapes.iter().flatten().any(|dim| sized || matches!(dim, Dim::Pack(_)))
        || shapes.iter().any(|dims| dims.len() > 1)
}

fn memory_breaks(
    side: Side,
    index: usize,
    (dimensions, overflows): (bool, bool),
    sized: bool,
    written: bool,
    found: &mut Vec<Break>,
) {
    for broken in MemoryBreak::READ {
        let possible = match broken {
            MemoryBreak::Misaligned => sized,
            MemoryBreak::Null => true,
            MemoryBreak::Overflow => overflows,
            _ => dimensions,
        };
        if possible {
            found.push(Break::Memory(side, index, broken));
        }
    }
    if written && dimensions {
        found.push(Break::Memory(side, index, MemoryBreak::SelfOverlap));
    }
}

fn widest(operation: &Operation, reference: DTypeRef) -> usize {
    match reference {
        DTypeRef::Fixed(dtype) => dtype.size(),
        DTypeRef::Variable(variable) => {
            operation.types[variable].dtypes.iter().map(|dtype| dtype.size()).max().unwrap_or(1)
        }
    }
}

/// The axis that a dimension binds.
pub(crate) fn axis_of(dim: &Dim) -> Option<usize> {
    match dim {
        Dim::Axis(axis) | Dim::Pack(axis) | Dim::Offset(axis, _) => Some(*axis),
        Dim::Fixed(_) | Dim::Expr(_) => None,
    }
}

/// Draws a call with this fault; `None` if it did not apply to any drawn call.
pub fn draw_broken(prepared: &Prepared, random: &mut Random, broken: Break, size: u8) -> Option<Broken> {
    for attempt in 0..60 {
        let mut focus: Vec<Focus> =
            broken.needs().into_iter().map(|input| Focus::Given(input, true)).collect();
        // Bool params determine which outputs exist, so another focus is rotated through.
        focus.extend(random.pick(&prepared.focuses));
        let size = if attempt < 30 { size } else { 100 };
        let drawing = Drawing { size, focus: &focus, numbers: Numbers::None, devices: false };
        if let Break::Constraint(index) = broken {
            let Some(assignment) = prepared.assign(random, size, &[], Some(index)) else { continue };
            let args = arguments(prepared, random, &assignment, &drawing, false)?;
            let code = &prepared.operation.constraints[index].code;
            let expected = ReasonCode::parse(code)?;
            return Some(Broken { call: OwnedCall { args, outputs: Vec::new() }, broken, expected });
        }
        let Ok(mut drawn) = draw_valid(prepared, random, &drawing) else { continue };
        let expected = if broken.is_of_outputs() {
            outputs::apply(prepared, random, &mut drawn, broken)
        } else {
            inputs::apply(prepared, random, &mut drawn, broken)
        };
        if let Some(expected) = expected {
            return Some(Broken { call: drawn.call, broken, expected });
        }
    }
    None
}

/// A value that no param of this type accepts.
fn other_type(ty: &ParamType) -> Value {
    match ty {
        ParamType::Int | ParamType::F32 | ParamType::F64 => Value::Bool(true),
        ParamType::Bool => Value::Int(1),
        ParamType::Enum(cases) => Value::Enum(cases.len() as u32),
    }
}

/// An argument of a wrong kind.
fn other_kind(arg: &OwnedArg) -> OwnedArg {
    match arg {
        OwnedArg::Text(_) => OwnedArg::Value(Value::Int(3)),
        _ => OwnedArg::Text(vec!["a text".to_owned()]),
    }
}
