//! Evaluates workloads: each must satisfy all defaults, ranges, constraints and computed dimensions.

use super::Checker;
use super::params::value_of;
use crate::diagnostics::{Code, listed};
use crate::expr::{EvalError, Program, Typed, Value};
use crate::model::{Cases, Dim, Operation, Slot, Workload};
use crate::raw::language::RawOperation;
use crate::source::Span;

/// The value of each slot; `None` if the workload does not define it, for instance an axis bound by an absent input.
struct Slots(Vec<Option<Value>>);

impl Slots {
    /// Evaluates an expression, unless it uses a slot that the workload does not define.
    fn eval(&self, typed: &Typed) -> Option<Result<Value, EvalError>> {
        let open = |index: u16| self.0.get(usize::from(index)).is_none_or(Option::is_none);
        if typed.variables().iter().any(|variable| open(variable.index)) {
            return None;
        }
        let values: Vec<Value> = self.0.iter().map(|value| value.unwrap_or(Value::Int(0))).collect();
        Some(Program::compile(typed).eval(&values))
    }
}

impl Checker<'_> {
    /// Evaluates all workloads of an operation that is otherwise valid.
    pub(super) fn evaluate_workloads(&mut self, raw: &RawOperation, operation: &Operation) {
        let entries: Vec<Span> =
            raw.workloads.iter().flat_map(|named| &named.entries).map(|entry| entry.name.span).collect();
        for (workload, span) in operation.workloads.iter().zip(entries) {
            self.evaluate(raw, operation, workload, span);
        }
    }

    fn evaluate(&mut self, raw: &RawOperation, operation: &Operation, workload: &Workload, span: Span) {
        let mut slots = Slots(vec![None; operation.slots().len()]);
        for (at, slot) in operation.slots().into_iter().enumerate() {
            slots.0[at] = match slot {
                Slot::Axis(axis) => match product(workload.axes[axis].as_deref()) {
                    Ok(value) => value.map(Value::Int),
                    Err(()) => return self.fails(workload, span, "the product of a pack", "overflow", None),
                },
                Slot::Param(param) => workload.params[param].as_ref().map(value_of),
                Slot::Given(input) => Some(Value::Bool(workload.given[input])),
            };
        }
        if self.defaults(operation, workload, span, &mut slots) {
            self.check_constraints(raw, operation, workload, span, &slots);
            self.check_shapes(operation, workload, span, &slots);
        }
    }

    /// Fills in the defaults of parameters that the workload does not set.
    fn defaults(
        &mut self,
        operation: &Operation,
        workload: &Workload,
        span: Span,
        slots: &mut Slots,
    ) -> bool {
        for (index, param) in operation.params.iter().enumerate() {
            let at = self.param_slot(index);
            let (None, Some(default)) = (slots.0[at], &param.default) else { continue };
            match slots.eval(default) {
                None => {}
                Some(Ok(value)) => {
                    if let Some(problem) = self.value_problem(index, &param.ty, param.range.as_ref(), value) {
                        let what = format!("the default of `{}`", param.name);
                        self.fails(workload, span, &what, &problem, None);
                        return false;
                    }
                    slots.0[at] = Some(value);
                }
                Some(Err(error)) => {
                    let what = format!("the default of `{}`", param.name);
                    self.fails(workload, span, &what, &error.to_string(), None);
                    return false;
                }
            }
        }
        true
    }

    fn check_constraints(
        &mut self,
        raw: &RawOperation,
        operation: &Operation,
        workload: &Workload,
        span: Span,
        slots: &Slots,
    ) {
        let written =
            raw.constraints.iter().flat_map(|list| &list.value).filter_map(|raw| raw.check.as_ref());
        for (constraint, written) in operation.constraints.iter().zip(written) {
            match slots.eval(&constraint.check) {
                None | Some(Ok(Value::Bool(true))) => {}
                Some(Ok(_)) => {
                    let values: Vec<String> = constraint
                        .check
                        .variables()
                        .iter()
                        .filter_map(|variable| {
                            let value = slots.0.get(usize::from(variable.index)).copied().flatten()?;
                            Some(format!("{} = {value}", variable.name))
                        })
                        .collect();
                    let message =
                        format!("workload `{}` violates a constraint of its operation", workload.name);
                    self.sink
                        .error(Code::WorkloadViolates, span, message)
                        .label(listed(values.iter().map(String::as_str)))
                        .also(written.span, constraint.message.clone());
                }
                Some(Err(error)) => {
                    self.fails(workload, span, "a constraint", &error.to_string(), Some(written.span));
                }
            }
        }
    }

    fn check_shapes(&mut self, operation: &Operation, workload: &Workload, span: Span, slots: &Slots) {
        let inputs =
            operation.inputs.iter().zip(&workload.given).filter(|(_, given)| **given).map(|(input, _)| input);
        let arguments = inputs.map(|input| (&input.name, &input.shape));
        let exists = |when: &Option<Typed>| {
            when.as_ref().is_none_or(|when| !matches!(slots.eval(when), Some(Ok(Value::Bool(false)))))
        };
        let results = operation.outputs.iter().filter(|output| exists(&output.when));
        for (name, shape) in arguments.chain(results.map(|output| (&output.name, &output.shape))) {
            for dim in self.chosen(shape, slots) {
                let size = match dim {
                    Dim::Axis(_) | Dim::Pack(_) | Dim::Fixed(_) => continue,
                    Dim::Offset(axis, by) => match slots.0.get(*axis).copied().flatten() {
                        Some(Value::Int(size)) => size.checked_add(*by).ok_or_else(|| "overflow".to_owned()),
                        _ => continue,
                    },
                    Dim::Expr(typed) => match slots.eval(typed) {
                        Some(Ok(Value::Int(size))) => Ok(size),
                        Some(Err(error)) => Err(error.to_string()),
                        _ => continue,
                    },
                };
                let what = format!("a dimension of `{name}`");
                match size {
                    Ok(size) if size >= 0 => {}
                    Ok(size) => self.fails(workload, span, &what, &format!("it is {size}"), None),
                    Err(error) => self.fails(workload, span, &what, &error, None),
                }
            }
        }
    }

    /// The dimensions of the case selected by the workload's parameters.
    fn chosen<'a>(&self, shape: &'a Cases<Vec<Dim>>, slots: &Slots) -> &'a [Dim] {
        match shape {
            Cases::One(dims) => dims,
            Cases::By(param, cases) => match slots.0.get(self.param_slot(*param)).copied().flatten() {
                Some(Value::Enum(case)) => cases.get(case as usize).map_or(&[], Vec::as_slice),
                _ => &[],
            },
        }
    }

    fn fails(&mut self, workload: &Workload, span: Span, what: &str, error: &str, also: Option<Span>) {
        let message = format!("{what} cannot be evaluated for workload `{}`: {error}", workload.name);
        let diagnostic = self.sink.error(Code::WorkloadFails, span, message);
        if let Some(also) = also {
            diagnostic.also(also, "this");
        }
    }
}

/// The value of an axis in an expression: its size, or the product of the sizes of a pack.
fn product(sizes: Option<&[i64]>) -> Result<Option<i64>, ()> {
    let Some(sizes) = sizes else { return Ok(None) };
    sizes.iter().try_fold(1_i64, |product, size| product.checked_mul(*size)).map(Some).ok_or(())
}
