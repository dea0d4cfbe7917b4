//! Mistakes in the places that a caller gives for results.

use lz_core::{DType, ReasonCode};
use lz_schema::model::DeviceRule;

use super::inputs::{is_empty, memory};
use super::{Break, Side};
use crate::assign::Prepared;
use crate::call::OwnedOut;
use crate::memory::OwnedTensor;
use crate::random::Random;
use crate::valid::Drawn;

/// Makes the mistake; `None` if this call leaves no room for it.
pub(super) fn apply(
    prepared: &Prepared,
    random: &mut Random,
    drawn: &mut Drawn,
    broken: Break,
) -> Option<ReasonCode> {
    match broken {
        Break::Memory(Side::Output, output, broken) => memory(random, tensor(drawn, output)?, broken),
        Break::OutputMissing(output) => {
            let place = drawn.call.outputs.get_mut(output)?;
            (!matches!(place, OwnedOut::Absent)).then_some(())?;
            *place = OwnedOut::Absent;
            Some(ReasonCode::OutputMissing)
        }
        Break::OutputUnexpected(output) => {
            let dynamic = prepared.operation.outputs[output].is_dynamic(prepared.operation);
            let place = drawn.call.outputs.get_mut(output)?;
            matches!(place, OwnedOut::Absent).then_some(())?;
            *place = if dynamic {
                OwnedOut::Dynamic(None)
            } else {
                OwnedOut::Tensor(OwnedTensor::dense(&[2], DType::F32))
            };
            Some(ReasonCode::OutputUnexpected)
        }
        Break::OutputShape(output) => {
            let place = tensor(drawn, output)?;
            let mut shape = place.layout().shape.to_vec();
            let dimension = random.below(shape.len());
            *shape.get_mut(dimension)? += 1;
            *place = OwnedTensor::dense(&shape, place.layout().dtype);
            Some(ReasonCode::ShapeMismatch)
        }
        Break::OutputRank(output) => {
            let place = tensor(drawn, output)?;
            let mut shape = place.layout().shape.to_vec();
            shape.insert(0, 1);
            (shape.len() <= lz_core::tensor::MAX_RANK).then_some(())?;
            *place = OwnedTensor::dense(&shape, place.layout().dtype);
            Some(ReasonCode::ShapeMismatch)
        }
        Break::OutputDtype(output) => {
            let place = tensor(drawn, output)?;
            let layout = *place.layout();
            let others: Vec<DType> = DType::ALL.into_iter().filter(|dtype| *dtype != layout.dtype).collect();
            *place = OwnedTensor::dense(&layout.shape, *random.pick(&others)?);
            Some(ReasonCode::DtypeMismatch)
        }
        Break::OutputOverInput(output, input) => {
            let other = drawn.call.args[input].tensor().filter(|tensor| !is_empty(tensor))?.address();
            over(tensor(drawn, output)?, other)
        }
        Break::OutputOverOutput(output, earlier) => {
            let other = tensor(drawn, earlier).filter(|tensor| !is_empty(tensor))?.address();
            over(tensor(drawn, output)?, other)
        }
        Break::OutputDevice(output) => {
            let inputs = prepared.operation.inputs.iter().zip(&drawn.call.args);
            let follows = inputs
                .filter(|(input, _)| input.device == DeviceRule::Same)
                .any(|(_, arg)| arg.tensor().is_some());
            let tensor = tensor(drawn, output)?;
            // Where no input says otherwise, results belong on the host; either way another device is wrong.
            tensor.put_on_device(if follows { 1 } else { 0 });
            Some(ReasonCode::DeviceMismatch)
        }
        Break::OutputKind(output) => {
            let place = drawn.call.outputs.get_mut(output)?;
            *place = match place {
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

/// Lays an output over memory that somebody else has.
fn over(place: &mut OwnedTensor, address: usize) -> Option<ReasonCode> {
    (!is_empty(place) && address.is_multiple_of(place.layout().dtype.size())).then_some(())?;
    place.readdress(address);
    Some(ReasonCode::OutputOverlap)
}
