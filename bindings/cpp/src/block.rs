//! Calls that are considered together, for C++: blocks of operations, calls in several quantization formats, and the calls of a
//! draft model and its target.

use lz_core::args::Arg;
use lz_core::{Context, Error, OperationInfo, Reason, ReasonCode, TensorMut, TensorView, check, dynamic};
use lz_engine::dynamic::Output as Produced;
use lz_engine::planner::{BlockCall, BlockPlan};
use lz_engine::quant::{FormatCall, QuantConfig};
use lz_engine::speculative::{ModelCall, SpeculativeConfig};
use lz_plugin::abi::Output;

use crate::call::{Failure, Outcome, guarded, refuse};
use crate::data;
use crate::engine::Engine;
use crate::output::hand_over_tensor;

/// Calls with arguments that C++ owns: they are valid until the C++ function that collected them returns.
#[derive(Default)]
pub struct Calls(Vec<(&'static OperationInfo, Vec<Arg<'static>>)>);

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(operation, _)| &operation.name)).finish()
    }
}

impl Calls {
    fn blocks(&mut self) -> Vec<BlockCall<'_>> {
        let mut blocks = Vec::with_capacity(self.0.len());
        for (operation, args) in &mut self.0 {
            blocks.push(BlockCall::new(operation, args.iter_mut().map(Arg::reborrow).collect()));
        }
        blocks
    }

    fn contexts(&self) -> Result<Vec<(&'static OperationInfo, Context)>, Error> {
        let one = |(operation, args): &(&'static OperationInfo, Vec<Arg<'static>>)| {
            let bound = check::check_call(operation.schema(), args, None)?;
            Ok((*operation, dynamic::context(operation.schema(), &bound, args, None)?))
        };
        self.0.iter().map(one).collect()
    }
}

/// An empty list of calls.
pub fn calls_new() -> Box<Calls> {
    Box::default()
}

/// The maximum number of outputs of the last call.
pub fn calls_outputs(calls: &Calls) -> usize {
    calls.0.last().map_or(0, |(operation, _)| operation.schema().outputs.len())
}

/// Adds a call to the [`Calls`] at an address.
///
/// # Safety
/// The address is that of a [`Calls`] that nothing else uses now, and the memory of the tensors is valid as long as it is used.
pub unsafe fn collect(calls: usize, operation: &'static OperationInfo, args: &[Arg<'_>]) -> Outcome {
    // SAFETY: guaranteed by the caller.
    let calls = unsafe { &mut *(calls as *mut Calls) };
    let mut collected = Vec::with_capacity(args.len());
    for arg in args {
        collected.push(match arg {
            Arg::Absent => Arg::Absent,
            Arg::Value(value) => Arg::Value(*value),
            // SAFETY: the memory is valid as long as the calls are used.
            Arg::Tensor(view) => Arg::Tensor(unsafe { TensorView::from_raw(view.as_ptr(), *view.layout()) }),
            Arg::TensorMut(tensor) => {
                let memory = tensor.as_view().as_ptr().cast_mut();
                // SAFETY: as above; the operation alone writes it.
                Arg::TensorMut(unsafe { TensorMut::from_raw(memory, *tensor.layout()) })
            }
            Arg::Text(_) | Arg::Handle(_) => {
                let reason = Reason::new(ReasonCode::TransformUnavailable)
                    .required("operations on tensors")
                    .found(format!("{}, which takes texts or a tokenizer", operation.name));
                return Err(refuse(operation, reason).into());
            }
        });
    }
    calls.0.push((operation, collected));
    Ok(())
}

fn describe(plan: &BlockPlan, answer: &mut data::BlockInfo) {
    let steps = plan.joint.steps.iter();
    let kernels = steps.flat_map(|step| std::iter::repeat_n(step.kernel.clone(), step.operations.len()));
    answer.kernels = kernels.collect();
    answer.cost = plan.joint.total;
    answer.saved = plan.saves();
    answer.text = plan.to_string();
    answer.json = serde_json::to_string(plan).unwrap_or_default();
}

/// Plans a block: the kernels of all calls, selected jointly.
///
/// # Safety
/// The memory of the tensors is valid during the call.
pub unsafe fn engine_plan_block(
    engine: &Engine,
    calls: &mut Calls,
    answer: &mut data::BlockInfo,
) -> *mut Failure {
    guarded(|| {
        let last = calls.0.last().map(|(operation, _)| *operation);
        let plan = engine.inner.plan_calls(&mut calls.blocks())?;
        match (plan, last) {
            (Some(plan), _) => describe(&plan, answer),
            (None, Some(operation)) => {
                let message =
                    "the size of a tensor inside this block is known only when it runs, so it has no plan";
                return Err(refuse(
                    operation,
                    Reason::new(ReasonCode::TransformUnavailable).message(message),
                ));
            }
            (None, None) => {}
        }
        Ok(())
    })
}

/// Runs a block; the outputs own their memory. Outputs that the last call does not produce are left out.
///
/// # Safety
/// As for [`engine_plan_block`]; `outputs` has [`calls_outputs`] slots.
pub unsafe fn engine_run_block(
    engine: &Engine,
    calls: &mut Calls,
    outputs: *mut Output,
    answer: &mut data::BlockInfo,
) -> *mut Failure {
    guarded(|| {
        let run = engine.inner.run_block(&mut calls.blocks())?;
        if let Some(plan) = &run.plan {
            describe(plan, answer);
        }
        answer.kernels = run.kernels.into_iter().map(Option::unwrap_or_default).collect();
        for output in run.outputs {
            let Produced::Tensor(tensor) = output else { continue };
            // SAFETY: there is one slot per output of the last operation.
            hand_over_tensor(unsafe { &mut *outputs.add(answer.outputs as usize) }, tensor);
            answer.outputs += 1;
        }
        Ok(())
    })
}

/// Selects among calls in several quantization formats. An empty `stored` means data that is not quantized.
///
/// # Safety
/// As for [`engine_plan_block`].
pub unsafe fn engine_choose_format(
    engine: &Engine,
    calls: &mut Calls,
    formats: &[&str],
    stored: &str,
    answer: &mut data::FormatInfo,
) -> *mut Failure {
    guarded(|| {
        let contexts = calls.contexts()?;
        let calls: Vec<FormatCall<'_>> = contexts
            .iter()
            .zip(formats)
            .map(|((operation, context), format)| FormatCall { format, operation, context })
            .collect();
        let stored = (!stored.is_empty()).then_some(stored);
        let choice = engine.inner.choose_format(&QuantConfig::of(&engine.inner), stored, &calls)?;
        *answer = data::FormatInfo {
            format: choice.format,
            kernel: choice.kernel,
            requantize: choice.requantize,
            points: choice.points,
        };
        Ok(())
    })
}

/// Selects the kernels of a draft model's call and its target's together.
///
/// # Safety
/// As for [`engine_plan_block`].
pub unsafe fn engine_speculative_pair(
    engine: &Engine,
    calls: &mut Calls,
    draft_stages: u32,
    target_stages: u32,
    answer: &mut data::PairInfo,
) -> *mut Failure {
    guarded(|| {
        let contexts = calls.contexts()?;
        let [draft, target] = contexts.as_slice() else { return Ok(()) };
        let pair = engine.inner.speculative_pair(
            ModelCall { operation: draft.0, context: &draft.1, pipeline_stages: draft_stages },
            ModelCall { operation: target.0, context: &target.1, pipeline_stages: target_stages },
        )?;
        *answer = data::PairInfo { draft: pair.draft, target: pair.target, score: pair.score };
        Ok(())
    })
}

/// The number of tokens to draft for a batch.
pub fn engine_speculative_tokens(engine: &Engine, batch: u32) -> u32 {
    SpeculativeConfig::of(&engine.inner).tokens_for(batch)
}
