//! Runs one kernel for several operations of a block: intermediate tensors are not materialized.

use super::plan_cache::Form;
use super::run::{BlockCall, BoundCall, FlowTensor, StepOutput, allocated, out_args};
use crate::engine::Engine;
use lz_core::args::Arg;
use lz_core::error::Error;
use lz_core::kernel::{FusedPart, KernelError};

impl Engine {
    /// Runs a call and the following ones as planned, with one kernel. `None` if that is not possible: the incoming tensor is unchanged, and
    /// each call runs by itself.
    pub(super) fn run_fused<'a>(
        &self,
        first: &mut BlockCall<'a>,
        later: &mut [BlockCall<'a>],
        form: &Form,
        bound: &[BoundCall],
        before: &mut Option<FlowTensor>,
    ) -> Result<Option<Vec<StepOutput>>, Error> {
        if later.len() + 1 != form.covers {
            return Ok(None);
        }
        if let Some(flow_tensor) = before.take() {
            *before = Some(FlowTensor::as_declared(flow_tensor.into_declared(first.operation)?));
        }
        let last = later.last().map_or(first.operation, |call| call.operation);
        let own = form.own.checked_sub(1).and_then(|index| later.get(index));
        let own = own.map_or(first.operation, |call| call.operation);
        let (Some(own_bound), Some(last_bound)) = (bound.get(form.own), bound.get(form.covers - 1)) else {
            return Ok(None);
        };
        let Some(mut tensors) = allocated(last, &last_bound.outputs)? else { return Ok(None) };
        let mut parts = Vec::with_capacity(form.covers);
        let calls = std::iter::once(first).chain(later).zip(bound).enumerate();
        for (number, (call, bound)) in calls {
            let mut args: Vec<Arg<'_>> = call.args.iter_mut().map(Arg::reborrow).collect();
            let inputs = call.operation.schema().inputs.len();
            for (arg, value) in args.iter_mut().skip(inputs).zip(&bound.params) {
                *arg = Arg::Value(*value);
            }
            if let Some(index) = args.get_mut(call.takes) {
                match (number, before.as_ref()) {
                    (0, Some(flow_tensor)) => *index = Arg::Tensor(flow_tensor.tensor.view()),
                    (0, None) => {}
                    _ => *index = Arg::Absent,
                }
            }
            parts.push(FusedPart { operation: call.operation, args });
        }
        let mut out_args = out_args(&mut tensors);
        let ran =
            self.run_planned(&form.kernel, own, &own_bound.context, &mut |entry, run| match &entry.fused {
                Some(fused) => fused.run_fused(&mut parts, &mut out_args, run),
                None => Err(KernelError::declined("it has no fused implementation")),
            })?;
        drop((parts, out_args));
        let outputs = |tensor: Option<_>| {
            tensor.map_or(StepOutput::Absent, |tensor| StepOutput::Tensor(FlowTensor::as_declared(tensor)))
        };
        Ok(ran.then(|| tensors.into_iter().map(outputs).collect()))
    }
}
