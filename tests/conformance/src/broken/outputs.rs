//! Faults in the outputs that a caller provides.

use lz_core::{DType, ReasonCode};
use lz_schema::model::DeviceRule;

use super::inputs::{is_empty, memory};
use super::{Break, Side};
use crate::assign::Prepared;
use crate::call::OwnedOut;
use crate::memory::OwnedTensor;
use crate::random::Random;
use crate::valid::Drawn;

/// Applies the fault; `None` if it does not apply to this call.
pub(super) fn apply(
    prepared: &Prepared,
    random: &mut Random,
    drawn: &mut Drawn,
    broken: Break,
) -> Option<ReasonCode> {
    match broken {
        Break::Memory(Side::Output, output, broken) => memory(random, tensor(drawn, output)?, broken),
        Break::OutputMissing(output) => {
            let output_slot = drawn.call.outputs.get_mut(output)?;
            (!matches!(output_slot, OwnedOut::Absent)).then_some(())?;
            *output_slot = OwnedOut::Absent;
            Some(ReasonCode::OutputMissing)
        }
        Break::OutputUnexpected(output) => {
            let dynamic = prepared.operation.outputs[output].is_dynamic(prepared.operation);
            let output_slot = drawn.call.outputs.get_mut(output)?;
            matches!(output_slot, OwnedOut::Absent).then_some(())?;
            *output_slot = if dynamic {
                OwnedOut::Dynamic(None)
            } else {
                OwnedOut::Tensor(OwnedTensor::dense(&[2], DType::F32))
            };
            Some(ReasonCode::OutputUnexpected)
        }
        Break::OutputShape(output) => {
            let output_slot = tensor(drawn, output)?;
            let mut shape = output_slot.layout().shape.to_vec();
            let dimension = random.below(shape.len());
            *shape.get_mut(dimension)? += 1;
            *output_slot = OwnedTensor::dense(&shape, output_slot.layout().dtype);
            Some(ReasonCode::ShapeMismatch)
        }
        Break::OutputRank(output) => {
            let output_slot = tensor(drawn, output)?;
            let mut shape = output_slot.layout().shape.to_vec();
            shape.insert(0, 1);
            (shape.len() <= lz_core::tensor::MAX_RANK).then_some(())?;
            *output_slot = OwnedTensor::dense(&shape, output_slot.layout().dtype);
            Some(ReasonCode::ShapeMismatch)
        }
        Break::OutputDtype(output) => {
            let output_slot = tensor(drawn, output)?;
            let layout = *output_slot.layout();
            let others: Vec<DType> = DType::ALL.into_iter().filter(|dtype| *dtype != layout.dtype).collect();
            *output_slot = OwnedTensor::dense(&layout.shape, *random.pick(&others)?);
            Some(ReasonCode::DtypeMismatch)
        }
        Break::OutputOverInput(output, input) => {
            let other = drawn.call.args[input].tensor().filter(|tensor| !is_empty(tensor))?.address();
            overlap(tensor(drawn, output)?, other)
        }
        Break::OutputOverOutput(output, earlier) => {
            let other = tensor(drawn, earlier).filter(|tensor| !is_empty(tensor))?.address();
            overlap(tensor(drawn, output)?, other)
        }
        Break::OutputDevice(output) => {
            let inputs = prepared.operation.inputs.iter().zip(&drawn.call.args);
            let follows = inputs
                .filter(|(input, _)| input.device == DeviceRule::Same)
                .any(|(_, arg)| arg.tensor().is_some());
            let tensor = tensor(drawn, output)?;
            // If no input determines the device, outputs belong on the host; in both cases another device is
            // wrong.
            tensor.put_on_device(if follows { 1 } else { 0 });
            Some(ReasonCode::DeviceMismatch)
        }
        Break::OutputKind(output) => {
            let output_slot = drawn.call.outputs.get_mut(output)?;
            *output_slot = match output_slot {
                OwnedOut::Absent => return None,
                OwnedOut::Tensor(_) => OwnedOut::Dynamic(None),
                OwnedOut::Dynamic(_) => OwnedOut::Text(None),
                OwnedOut::Text(_) => OwnedOut::Dynamic(None),
            };
            Some(ReasonCode::ArgumentKind)
        }
        Break::OutputCount => {
            drawn.call.outputs.pop()?;
            Some(ReasonCode::OutputMissing)
        }
        _ => None,
    }
}

fn tensor(drawn: &mut Drawn, output: usize) -> Option<&mut OwnedTensor> {
    match drawn.call.outputs.get_mut(output)? {
        OwnedOut::Tensor(tensor) => Some(tensor),
        _ => None,
    }
}

/// Makes an output overlap memory of another tensor.
fn overlap(output_slot: &mut OwnedTensor, address: usize) -> Option<ReasonCode> {
    (!is_empty(output_slot) && address.is_multiple_of(output_slot.layout().dtype.size())).then_some(())?;
    output_slot.readdress(address);
    Some(ReasonCode::OutputOverlap)
}
