//! Arbitrary metadata, as from a broken caller, a fuzzer or corrupted memory. The only requirement is that
//! both checks agree, and that neither panics or reads invalid memory.

use lz_core::DType;
use lz_core::device::Platform;
use lz_core::expr::Value;
use lz_core::tensor::{Device, Dims, MAX_RANK};
use lz_schema::model::{Kind, ParamType};

use crate::assign::Prepared;
use crate::call::{OwnedArg, OwnedCall, OwnedOut};
use crate::fill::Numbers;
use crate::memory::OwnedTensor;
use crate::random::Random;
use crate::valid::{Drawing, draw_valid};

const SIZES: [i64; 16] = [0, 1, 1, 2, 2, 3, 4, 8, -1, 5, 1 << 31, 1 << 32, 1 << 62, i64::MAX, i64::MIN, 0];
const STRIDES: [i64; 12] = [0, 1, 1, 2, -1, 3, 8, -7, 1 << 33, i64::MAX, i64::MIN, i64::MIN + 1];

/// A valid call in which a few things are replaced by arbitrary ones.
pub fn draw_wild(prepared: &Prepared, random: &mut Random, size: u8) -> Result<OwnedCall, String> {
    let focus: Vec<_> = random.pick(&prepared.focuses).copied().into_iter().collect();
    let drawing = Drawing { size, focus: &focus, numbers: Numbers::None, devices: true };
    let mut call = draw_valid(prepared, random, &drawing)?.call;
    let changes = 1 + random.below(4);
    let operation = prepared.operation;
    for _ in 0..changes {
        let index = random.below(call.args.len() + call.outputs.len());
        if let Some(output) = index.checked_sub(call.args.len()) {
            match call.outputs.get_mut(output) {
                Some(OwnedOut::Tensor(tensor)) => disturb(random, tensor),
                Some(index) => *index = OwnedOut::Absent,
                None => {}
            }
        } else if let Some(param) = index.checked_sub(operation.inputs.len()) {
            call.args[index] = match &operation.params[param].ty {
                _ if operation.params[param].default.is_some() && random.one_in(4) => OwnedArg::Absent,
                ParamType::Int => OwnedArg::Value(Value::Int(any_int(random))),
                ParamType::F32 | ParamType::F64 => OwnedArg::Value(Value::Float(any_float(random))),
                ParamType::Bool => OwnedArg::Value(Value::Bool(random.one_in(2))),
                ParamType::Enum(cases) => OwnedArg::Value(Value::Enum(random.below(cases.len()) as u32)),
            };
        } else if operation.inputs[index].kind == Kind::Tensor {
            if operation.inputs[index].optional.is_some() && random.one_in(6) {
                call.args[index] = OwnedArg::Absent;
            } else if let Some(tensor) = call.args[index].tensor_mut() {
                disturb(random, tensor);
            }
        }
    }
    Ok(call)
}

fn any_int(random: &mut Random) -> i64 {
    if random.one_in(2) { SIZES[random.below(SIZES.len())] } else { random.bits() as i64 }
}

fn any_float(random: &mut Random) -> f64 {
    if random.one_in(2) { f64::from_bits(random.bits()) } else { random.normal() }
}

fn disturb(random: &mut Random, tensor: &mut OwnedTensor) {
    match random.below(6) {
        0 => {
            let rank = random.below(MAX_RANK + 1);
            let sizes: Vec<i64> = (0..rank).map(|_| SIZES[random.below(SIZES.len())]).collect();
            let strides: Vec<i64> = (0..rank).map(|_| STRIDES[random.below(STRIDES.len())]).collect();
            tensor.relabel(|layout| {
                layout.shape = Dims::new(&sizes).unwrap_or(Dims::empty());
                layout.strides = Dims::new(&strides).unwrap_or(Dims::empty());
            });
        }
        1 => {
            let mut sizes = tensor.layout().shape.to_vec();
            let dimension = random.below(sizes.len());
            if let Some(size) = sizes.get_mut(dimension) {
                *size = SIZES[random.below(SIZES.len())];
            }
            tensor.relabel(|layout| layout.shape = Dims::new(&sizes).unwrap_or(Dims::empty()));
        }
        2 => {
            let mut strides = tensor.layout().strides.to_vec();
            let dimension = random.below(strides.len());
            if let Some(stride) = strides.get_mut(dimension) {
                *stride = STRIDES[random.below(STRIDES.len())];
            }
            tensor.relabel(|layout| layout.strides = Dims::new(&strides).unwrap_or(Dims::empty()));
        }
        3 => {
            let dtype = DType::ALL[random.below(DType::ALL.len())];
            tensor.relabel(|layout| layout.dtype = dtype);
        }
        4 => {
            let platform = if random.one_in(2) { Platform::Cuda } else { Platform::Rocm };
            let index = random.below(3) as u16;
            tensor.relabel(|layout| layout.device = Device { platform, index });
        }
        _ => tensor.readdress(match random.below(3) {
            0 => 0,
            1 => 1,
            _ => random.bits() as usize,
        }),
    }
    // Sound metadata is trusted, so it must not claim host memory that does not exist, nor so many elements
    // (stride 0 makes them cheap) that reading them takes hours.
    if !tensor.is_backed() || tensor.layout().elements().is_some_and(|elements| elements > 100_000) {
        tensor.relabel(|layout| layout.device = Device { platform: Platform::Cuda, index: 0 });
    }
}
