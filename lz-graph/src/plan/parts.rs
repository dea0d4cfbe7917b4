//! The choice between one call of a fused operation and calls of its parts, by the time of the whole.
//!
//! Passes fuse wherever they can; here a plan may undo that for its sizes. Only measurements (`lz.tune`) of the fused kernel and of all parts
//! decide. Without them the fused call stays, and nothing else is planned.

#[cfg(test)]
mod tests;

use lz_core::OperationInfo;
use lz_core::expr::Value;
use lz_schema::model::ParamType;

use super::{Location, Planner, Rejected, Selector, Step, StepArg};
use crate::catalog;
use crate::error::GraphError;
use crate::graph::NodeId;

/// Which fused operations a plan splits into their parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parts {
    /// Those whose parts take less time together, as far as all of them were measured.
    #[default]
    Faster,
    /// None.
    Never,
    /// Every one that has parts.
    Always,
}

/// An input of a part.
#[derive(Debug, Clone, Copy)]
enum Operand {
    /// An input of the fused call.
    Input(usize),
    /// The result of an earlier part.
    Part(usize),
}

/// One call of several that together compute what a fused one does.
#[derive(Debug)]
struct Part {
    operation: &'static OperationInfo,
    inputs: Vec<Option<Operand>>,
    /// One per param of the operation; `None` for its default.
    params: Vec<Option<Value>>,
}

impl Part {
    /// A call with these inputs, and default params.
    fn new(name: &str, inputs: &[Operand]) -> Option<Part> {
        let operation = catalog::find(name)?;
        let mut inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        inputs.resize(operation.schema().inputs.len(), None);
        Some(Part { operation, inputs, params: vec![None; operation.schema().params.len()] })
    }

    /// The same call with a case of an enum.
    fn case(mut self, param: &str, case: &str) -> Option<Part> {
        let params = &self.operation.schema().params;
        let index = params.iter().position(|one| one.name == param)?;
        let ParamType::Enum(cases) = &params[index].ty else { return None };
        let case = cases.iter().position(|known| known == case)?;
        self.params[index] = Some(Value::Enum(case as u32));
        Some(self)
    }
}

/// The parts of a fused call, in order; the last one computes its only output. `None` if it has none.
fn parts(operation: &OperationInfo, args: &[StepArg]) -> Option<Vec<Part>> {
    use Operand::{Input, Part as Result};
    let schema = operation.schema();
    let given = |input: usize| matches!(args.get(input), Some(StepArg::Read(_)));
    let case = |name: &str| {
        let index = schema.params.iter().position(|param| param.name == name)?;
        let ParamType::Enum(cases) = &schema.params[index].ty else { return None };
        match args.get(schema.inputs.len() + index)? {
            StepArg::Param(Some(Value::Enum(case))) => cases.get(*case as usize).map(String::as_str),
            _ => None,
        }
    };
    match &*operation.name {
        "mlp.fused" => Some(vec![
            Part::new("mlp.linear", &[Input(0), Input(1)])?.case("activation", case("activation")?)?,
            Part::new("mlp.linear", &[Input(0), Input(2)])?,
            Part::new("primitive.binary", &[Result(0), Result(1)])?.case("function", "mul")?,
            Part::new("mlp.linear", &[Result(2), Input(3)])?,
        ]),
        "mlp.linear" if case("activation")? != "none" => {
            let inputs: Vec<Operand> = (0..3).filter(|input| given(*input)).map(Input).collect();
            Some(vec![
                Part::new("mlp.linear", &inputs)?,
                Part::new("primitive.activation", &[Result(0)])?.case("function", case("activation")?)?,
            ])
        }
        "activation.silu_mul" => Some(vec![
            Part::new("activation.silu", &[Input(0)])?,
            Part::new("primitive.binary", &[Result(0), Input(1)])?.case("function", "mul")?,
        ]),
        "activation.gelu_mul" => Some(vec![
            Part::new("activation.gelu", &[Input(0)])?.case("approximate", case("approximate")?)?,
            Part::new("primitive.binary", &[Result(0), Input(1)])?.case("function", "mul")?,
        ]),
        "primitive.conv2d" => convolution(operation, args, given(RESIDUAL), case("activation")?),
        _ => None,
    }
}

/// Index of the residual among the inputs of a convolution.
const RESIDUAL: usize = 3;

/// A convolution, then its residual and its activation.
fn convolution(
    operation: &OperationInfo,
    args: &[StepArg],
    residual: bool,
    activation: &str,
) -> Option<Vec<Part>> {
    let schema = operation.schema();
    let inputs: Vec<Operand> = (0..RESIDUAL)
        .filter(|input| matches!(args.get(*input), Some(StepArg::Read(_))))
        .map(Operand::Input)
        .collect();
    let mut plain = Part::new("primitive.conv2d", &inputs)?;
    for (to, arg) in plain.params.iter_mut().zip(args.get(schema.inputs.len()..)?) {
        *to = if let StepArg::Param(value) = arg { *value } else { None };
    }
    let mut all = vec![plain.case("activation", "none")?];
    if residual {
        let inputs = [Operand::Part(0), Operand::Input(RESIDUAL)];
        all.push(Part::new("primitive.binary", &inputs)?.case("function", "add")?);
    }
    if activation != "none" {
        let last = Operand::Part(all.len() - 1);
        all.push(Part::new("primitive.activation", &[last])?.case("function", activation)?);
    }
    (all.len() > 1).then_some(all)
}

impl<S: Selector> Planner<'_, S> {
    /// Plans the parts of a fused call instead of it, if that is faster or asked for. `args` are the call's own; the steps from `copies` on
    /// are copies for `fused`. Returns whether it did; if not, `fused` says what was rejected.
    pub(super) fn split(
        &mut self,
        id: NodeId,
        fused: &mut Step<S::Kernel>,
        args: &[StepArg],
        copies: usize,
    ) -> Result<bool, GraphError> {
        if self.parts == Parts::Never || self.selector.is_locked(fused.operation) {
            return Ok(false);
        }
        let whole = self.measured_sum(&self.steps[copies..], fused);
        if self.parts == Parts::Faster && whole.is_none() {
            return Ok(false);
        }
        // The step's params are complete, the call's own are not.
        let inputs = fused.operation.schema().inputs.len();
        let complete: Vec<StepArg> =
            args.iter().take(inputs).chain(fused.args.iter().skip(inputs)).copied().collect();
        let (Some(parts), [Some(output)]) = (parts(fused.operation, &complete), &*fused.outputs) else {
            return Ok(false);
        };
        let (steps, buffers) = (self.steps.len(), self.buffers.len());
        let sum = match self.plan_parts(id, &parts, &complete, *output) {
            Ok(last) => {
                let sum = self.measured_sum(&self.steps[steps..], &last);
                let kernels = self.steps[steps..].iter().chain([&last]);
                let names: Vec<&str> = kernels.map(|step| self.selector.name(&step.pinned)).collect();
                let names = names.join(" + ");
                self.steps.push(last);
                sum.map(|sum| (sum, names))
            }
            // A part that no kernel can compute: the fused call stays.
            Err(_) => {
                self.forget(steps, buffers);
                return Ok(false);
            }
        };
        let is_faster = matches!((&sum, whole), (Some((sum, _)), Some(whole)) if *sum < whole);
        if self.parts == Parts::Faster && !is_faster {
            self.forget(steps, buffers);
            if let (Some((cost_ns, kernel)), Some(chosen_ns)) = (sum, whole) {
                fused.rejected.push(Rejected {
                    what: "its parts",
                    kernel,
                    cost_ns,
                    chosen_ns,
                    measured: true,
                });
            }
            return Ok(false);
        }
        for index in steps..self.steps.len() {
            if self.steps[index].copy.is_none() {
                self.steps[index].prepared = self.prepare(&self.steps[index])?;
            }
        }
        if let (Some((chosen_ns, _)), Some(cost_ns), Some(last)) = (sum, whole, self.steps.last_mut()) {
            let kernel = self.selector.name(&fused.pinned).to_owned();
            last.rejected.push(Rejected {
                what: "one fused call",
                kernel,
                cost_ns,
                chosen_ns,
                measured: true,
            });
        }
        self.steps.drain(copies..steps);
        Ok(true)
    }

    /// Plans the parts; returns the last one, the others are steps of the plan.
    fn plan_parts(
        &mut self,
        id: NodeId,
        parts: &[Part],
        args: &[StepArg],
        output: Location,
    ) -> Result<Step<S::Kernel>, GraphError> {
        let node = self.graph.node(id);
        let mut results: Vec<Location> = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let operand = |operand: &Option<Operand>| match operand {
                Some(Operand::Input(input)) => args[*input],
                Some(Operand::Part(part)) => StepArg::Read(results[*part]),
                None => StepArg::Param(None),
            };
            let own = part.inputs.iter().map(operand).chain(part.params.iter().copied().map(StepArg::Param));
            let own: Vec<StepArg> = own.collect();
            let types = self.output_types(node, part.operation, &own)?;
            let is_last = index + 1 == parts.len();
            let [Some(view), absent @ ..] = &*types else {
                return Err(self.invalid(node, "a part has no result"));
            };
            let location = if is_last { output } else { self.allocate(*view, None) };
            if location.view != *view {
                return Err(self.invalid(node, "the parts have a result of another size"));
            }
            let outputs = std::iter::once(Some(location)).chain(absent.iter().map(|_| None)).collect();
            let step = self.select_with_copies(id, part.operation, own, outputs)?;
            if is_last {
                return Ok(step);
            }
            self.steps.push(step);
            results.push(location);
        }
        Err(self.invalid(node, "there are no parts"))
    }

    /// The measured time of a step and of those before it; `None` if one of them was not measured.
    fn measured_sum(&self, before: &[Step<S::Kernel>], step: &Step<S::Kernel>) -> Option<f64> {
        let one =
            |step: &Step<S::Kernel>| self.selector.measured(step.operation, &step.context, &step.pinned);
        before.iter().chain([step]).map(one).sum()
    }
}
