//! Outputs: inference, and validation of `out`.

use lz_schema::expr::{Program, Value};
use lz_schema::model::{Kind, Operation, Output};

use super::inputs::{memory_problem, overlap, self_overlap};
use super::{Bound, Checker, OutputSpec};
use crate::args::{Arg, OutArg};
use crate::error::Error;
use crate::reason::{Reason, ReasonCode};
use crate::tensor::{TensorView, may_overlap};

pub(super) fn infer(operation: &Operation, output: &Output, bound: &Bound) -> Result<OutputSpec, Reason> {
    if let Some(when) = &output.when
        && let Ok(Value::Bool(false)) = Program::compile(when).eval(&bound.values)
    {
        return Ok(OutputSpec::Absent);
    }
    if output.kind == Kind::Text {
        return Ok(OutputSpec::Text);
    }
    let unknown = |what: &str| {
        Reason::new(ReasonCode::ExpressionFailed).message(format!(
            "the {what} of output {} depends on an argument that was not given",
            output.name
        ))
    };
    let dtype = bound
        .pick(operation, &output.dtype)
        .and_then(|reference| bound.dtype(*reference))
        .ok_or_else(|| unknown("dtype"))?;
    if output.is_dynamic(operation) {
        return Ok(OutputSpec::Dynamic(dtype));
    }
    let dims = bound.pick(operation, &output.shape).ok_or_else(|| unknown("shape"))?;
    Ok(OutputSpec::Tensor(bound.sizes(dims)?, dtype))
}

/// Whether the only problem of outputs is that some are inputs: the same elements, in the same order. A result that is computed apart can
/// then be copied into them.
pub fn replace_inputs(error: &Error, args: &[Arg<'_>], outputs: &[TensorView<'_>]) -> bool {
    let reasons = error.reasons();
    let is_input = |output: &TensorView<'_>| {
        let is_same =
            |view: &TensorView<'_>| view.address() == output.address() && view.layout() == output.layout();
        args.iter().any(|arg| matches!(arg, Arg::Tensor(view) if is_same(view)))
    };
    let is_apart = |(index, output): (usize, &TensorView<'_>)| {
        let disjoint = |other: &TensorView<'_>| !may_overlap(output, other);
        let is_unwritten = |arg: &Arg<'_>| match arg {
            Arg::TensorMut(written) => disjoint(&written.as_view()),
            _ => true,
        };
        let is_unread = |arg: &Arg<'_>| arg.tensor().is_none_or(|other| disjoint(&other));
        !output.layout().overlaps_itself()
            && outputs.iter().take(index).all(disjoint)
            && args.iter().all(is_unwritten)
            && (is_input(output) || args.iter().all(is_unread))
    };
    !reasons.is_empty()
        && reasons.iter().all(|reason| reason.code == ReasonCode::OutputOverlap)
        && outputs.iter().enumerate().all(is_apart)
}

impl Checker<'_, '_> {
    pub(super) fn check_outputs(&mut self, outputs: &[OutArg<'_>]) {
        let operation = self.operation;
        if outputs.len() != operation.outputs.len() {
            self.problems.push(
                Reason::new(ReasonCode::OutputMissing)
                    .required(format!("{} outputs", operation.outputs.len()))
                    .found(outputs.len().to_string()),
            );
            return;
        }
        for (index, (output, out)) in operation.outputs.iter().zip(outputs).enumerate() {
            let spec = match infer(operation, output, &self.bound) {
                Ok(spec) => spec,
                Err(reason) => {
                    self.problems.push(reason);
                    continue;
                }
            };
            match (spec, out) {
                (OutputSpec::Absent, OutArg::Absent)
                | (OutputSpec::Text, OutArg::Text(_))
                | (OutputSpec::Dynamic(_), OutArg::Dynamic(_)) => {}
                (OutputSpec::Absent, _) => self.problems.push(
                    Reason::new(ReasonCode::OutputUnexpected)
                        .argument(&output.name)
                        .message(format!("{} was given, but this call does not produce it", output.name)),
                ),
                (OutputSpec::Tensor(sizes, dtype), OutArg::Tensor(tensor)) => {
                    let view = tensor.as_view();
                    self.check_output_tensor(&output.name, &sizes, dtype, &view);
                    for (other, earlier) in operation.outputs.iter().zip(outputs).take(index) {
                        if let OutArg::Tensor(earlier) = earlier
                            && may_overlap(&view, &earlier.as_view())
                        {
                            self.problems.push(overlap(&output.name, &other.name));
                        }
                    }
                }
                (_, OutArg::Absent) => self.problems.push(
                    Reason::new(ReasonCode::OutputMissing)
                        .argument(&output.name)
                        .message(format!("missing output tensor `{}`", output.name)),
                ),
                _ => self.problems.push(
                    Reason::new(ReasonCode::ArgumentKind)
                        .argument(&output.name)
                        .message(format!("the output given for `{}` has the wrong kind", output.name)),
                ),
            }
        }
    }

    fn check_output_tensor(
        &mut self,
        name: &str,
        sizes: &[i64],
        dtype: lz_schema::DType,
        view: &TensorView<'_>,
    ) {
        if let Some(reason) = memory_problem(view) {
            self.problems.push(reason.argument(name));
            return;
        }
        if view.shape() != sizes {
            self.problems.push(
                Reason::new(ReasonCode::ShapeMismatch)
                    .argument(name)
                    .required(format!("{sizes:?}"))
                    .found(format!("{:?}", view.shape()))
                    .message(format!("{name} has shape {:?}, but the result has {sizes:?}", view.shape())),
            );
        }
        if view.dtype() != dtype {
            self.problems.push(
                Reason::new(ReasonCode::DtypeMismatch)
                    .argument(name)
                    .required(dtype.long_name())
                    .found(view.dtype().long_name())
                    .message(format!(
                        "{name} is {}, but the result is {}",
                        view.dtype().long_name(),
                        dtype.long_name()
                    )),
            );
        }
        if view.layout().overlaps_itself() {
            self.problems.push(self_overlap(name, view));
        }
        let mut follows = false;
        for (input, arg) in self.operation.inputs.iter().zip(self.args) {
            let Some(other) = arg.tensor() else { continue };
            follows |= input.device == lz_schema::model::DeviceRule::Same;
            if input.device == lz_schema::model::DeviceRule::Same && other.device() != view.device() {
                self.problems.push(
                    Reason::new(ReasonCode::DeviceMismatch)
                        .argument(name)
                        .required(other.device().to_string())
                        .found(view.device().to_string())
                        .message(format!(
                            "{name} is on {}, but {} is on {}",
                            view.device(),
                            input.name,
                            other.device()
                        )),
                );
            }
            if may_overlap(view, &other) {
                self.problems.push(overlap(name, &input.name));
            }
        }
        if !follows && !view.device().is_host() {
            self.problems.push(
                Reason::new(ReasonCode::DeviceMismatch)
                    .argument(name)
                    .required("host memory")
                    .found(view.device().to_string())
                    .message(format!("{name} is on {}, but no input is on a device", view.device())),
            );
        }
    }
}
