//! Runs one kernel for several operations of a block: what would flow between them is never made.

use super::plan_cache::Form;
use super::run::{BlockCall, BoundCall, Flowing, Made, allocated, places};
use crate::engine::Engine;
use lz_core::args::Arg;
use lz_core::error::Error;
use lz_core::kernel::{FusedPart, KernelError};

impl Engine {
    /// Runs a call and those after it as planned, with one kernel. `None` when that is not possible: then what flows in is as it
    /// was, and each is a call of its own.
    pub(super) fn run_fused<'a>(
        &self,
        first: &mut BlockCall<'a>,
        later: &mut [BlockCall<'a>],
        form: &Form,
        bound: &[BoundCall],
        before: &mut Option<Flowing>,
    ) -> Result<Option<Vec<Made>>, Error> {
        if later.len() + 1 != form.covers {
            return Ok(None);
        }
        if let Some(flowing) = before.take() {
            *before = Some(Flowing::as_declared(flowing.settled(first.operation)?));
        }
        let last = later.last().map_or(first.operation, |call| call.operation);
        let own = form.own.checked_sub(1).and_then(|place| later.get(place));
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
            if let Some(place) = args.get_mut(call.takes) {
                match (number, before.as_ref()) {
                    (0, Some(flowing)) => *place = Arg::Tensor(flowing.tensor.view()),
                    (0, None) => {}
                    _ => *place = Arg::Absent,
                }
            }
            parts.push(FusedPart { operation: call.operation, args });
        }
        let mut places = places(&mut tensors);
        let ran =
            self.run_planned(&form.kernel, own, &own_bound.context, &mut |entry, run| match &entry.fused {
                Some(fused) => fused.run_fused(&mut parts, &mut places, run),
                None => Err(KernelError::declined("it does not say how it runs with its neighbours")),
            })?;
        drop((parts, places));
        let made = |tensor: Option<_>| {
            tensor.map_or(Made::Absent, |tensor| Made::Tensor(Flowing::as_declared(tensor)))
        };
        Ok(ran.then(|| tensors.into_iter().map(made).collect()))
    }
}
