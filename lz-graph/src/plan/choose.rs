//! The choice between a kernel that reads strided inputs in place, and dense copies of them for a faster kernel: by the time of the whole
//! alternative, copies included.
//!
//! Times are measured (`lz.tune`) or, if one of them is not, both are estimated from the bytes that steps move. The estimates say that a
//! native kernel in place is always faster, so copies are planned only where the reference would run or where measurements exist.

use lz_core::OperationInfo;

use super::{CopyReason, Location, Planner, Rejected, Selector, Step, StepArg};
use crate::error::GraphError;
use crate::graph::NodeId;

/// Estimated nanoseconds per byte that a native kernel moves, and how many times slower references are.
const NS_PER_BYTE: f64 = 0.1;
const REFERENCE_FACTOR: f64 = 100.0;

/// The time of an alternative.
#[derive(Debug, Clone, Copy)]
struct Cost {
    estimated: f64,
    measured: Option<f64>,
}

impl<S: Selector> Planner<'_, S> {
    /// Selects a kernel, and makes dense copies of strided inputs first if that is faster.
    pub(super) fn select_with_copies(
        &mut self,
        id: NodeId,
        operation: &'static OperationInfo,
        args: Vec<StepArg>,
        outputs: Vec<Option<Location>>,
    ) -> Result<Step<S::Kernel>, GraphError> {
        let strided =
            |arg: &StepArg| matches!(arg, StepArg::Read(location) if !location.view.layout.is_contiguous());
        if !args.iter().any(strided) {
            return self.select(id, operation, args, outputs);
        }
        let direct = self.select(id, operation, args.clone(), outputs.clone());
        let cost = direct.as_ref().ok().map(|step| self.cost(step));
        let is_fast = direct.as_ref().is_ok_and(|step| !self.selector.is_reference(&step.pinned));
        if is_fast && cost.is_some_and(|cost| cost.measured.is_none()) {
            return direct;
        }
        // Copies are planned tentatively: they stay only if they are faster.
        let (steps, buffers) = (self.steps.len(), self.buffers.len());
        let mut dense = Vec::with_capacity(args.len());
        for arg in &args {
            dense.push(match arg {
                StepArg::Read(location) if strided(arg) => {
                    StepArg::Read(self.materialize(id, *location, CopyReason::DenseInput)?)
                }
                _ => *arg,
            });
        }
        let copied = self.select(id, operation, dense, outputs);
        let copied_cost = copied.as_ref().ok().map(|step| {
            let copies = self.steps[steps..].iter().map(|step| self.cost(step));
            copies.fold(self.cost(step), |sum, cost| Cost {
                estimated: sum.estimated + cost.estimated,
                measured: sum.measured.zip(cost.measured).map(|(sum, cost)| sum + cost),
            })
        });
        let (mut chosen, rejected, costs) = match (direct, copied, cost, copied_cost) {
            (Ok(direct), Ok(copied), Some(cost), Some(copied_cost)) => {
                let (cost, copied_cost, measured) = comparable(cost, copied_cost);
                if copied_cost < cost {
                    (copied, Some(("strided inputs in place", direct)), (cost, copied_cost, measured))
                } else {
                    self.forget(steps, buffers);
                    (direct, Some(("dense copies first", copied)), (copied_cost, cost, measured))
                }
            }
            (Err(_), Ok(copied), ..) => (copied, None, (0.0, 0.0, false)),
            (direct, ..) => {
                self.forget(steps, buffers);
                return direct;
            }
        };
        chosen.rejected.extend(rejected.map(|(what, step)| Rejected {
            what,
            kernel: self.selector.name(&step.pinned).to_owned(),
            cost_ns: costs.0,
            chosen_ns: costs.1,
            measured: costs.2,
        }));
        Ok(chosen)
    }

    /// Drops steps and buffers that were planned tentatively.
    pub(super) fn forget(&mut self, steps: usize, buffers: usize) {
        self.steps.truncate(steps);
        self.buffers.truncate(buffers);
    }

    fn cost(&self, step: &Step<S::Kernel>) -> Cost {
        let factor = if self.selector.is_reference(&step.pinned) { REFERENCE_FACTOR } else { 1.0 };
        Cost {
            estimated: step.bytes() as f64 * NS_PER_BYTE * factor,
            measured: self.selector.measured(step.operation, &step.context, &step.pinned),
        }
    }
}

/// Both costs as measured, or both as estimated.
fn comparable(a: Cost, b: Cost) -> (f64, f64, bool) {
    match (a.measured, b.measured) {
        (Some(a), Some(b)) => (a, b, true),
        _ => (a.estimated, b.estimated, false),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use lz_core::context::Context;
    use lz_core::kernel::Prepare;
    use lz_core::tensor::Device;
    use lz_core::{DType, Error, OperationInfo};
    use lz_engine::{Engine, Pinned};

    use crate::build::Builder;
    use crate::dim::Dim;
    use crate::graph::Graph;
    use crate::plan::{CopyReason, HostKernels, Plan, Rejected, Selector, plan_by};
    use crate::testing::engine;

    /// Kernels with these times: of a norm that reads its input in place, of one that reads a dense copy, and of a copy.
    struct Timed<'a> {
        inner: HostKernels<'a>,
        times: Option<[f64; 3]>,
        in_place: Cell<Option<Context>>,
    }

    impl Selector for Timed<'_> {
        type Kernel = Pinned;

        fn device(&self) -> Device {
            self.inner.device()
        }

        fn select(&self, operation: &'static OperationInfo, context: &Context) -> Result<Pinned, Error> {
            // The norm is first selected with its input in place.
            if &*operation.name == "norm.rms" && self.in_place.get().is_none() {
                self.in_place.set(Some(*context));
            }
            self.inner.select(operation, context)
        }

        fn is_reference(&self, kernel: &Pinned) -> bool {
            self.times.is_none() && self.inner.is_reference(kernel)
        }

        fn name<'k>(&self, kernel: &'k Pinned) -> &'k str {
            self.inner.name(kernel)
        }

        fn is_locked(&self, _: &OperationInfo) -> bool {
            false
        }

        fn measured(&self, operation: &'static OperationInfo, context: &Context, _: &Pinned) -> Option<f64> {
            let [in_place, dense, copy] = self.times?;
            Some(match &*operation.name {
                "norm.rms" if self.in_place.get() == Some(*context) => in_place,
                "norm.rms" => dense,
                _ => copy,
            })
        }

        fn prepare<'k>(&self, _: &'k Pinned) -> Option<&'k dyn Prepare> {
            None
        }
    }

    /// A norm of a transposed input.
    fn graph() -> Graph {
        let mut build = Builder::new();
        let x = build.input("x", vec![Dim::from(8), Dim::from(16)], DType::F32);
        let turned = build.transpose(x, 0, 1).unwrap();
        let y = build.call("norm.rms", &[Some(turned), None], &[]).unwrap();
        build.output("y", y);
        build.finish().unwrap()
    }

    fn plan(engine: &Engine, times: Option<[f64; 3]>) -> Plan {
        let timed = Timed { inner: HostKernels { engine }, times, in_place: Cell::new(None) };
        plan_by(&timed, &graph(), &[], &[64], &Default::default()).unwrap()
    }

    fn rejected(plan: &Plan) -> &Rejected {
        plan.steps.last().and_then(|step| step.rejected.first()).expect("an alternative")
    }

    #[test]
    fn measured_copies_are_made_where_the_sum_is_smaller() {
        let engine = engine();
        let made = plan(&engine, Some([9000.0, 2000.0, 5000.0]));
        assert_eq!(made.steps[0].copy, Some(CopyReason::DenseInput));
        let Rejected { what, cost_ns, chosen_ns, measured, .. } = *rejected(&made);
        assert_eq!((what, cost_ns, chosen_ns, measured), ("strided inputs in place", 9000.0, 7000.0, true));
        let made = plan(&engine, Some([6000.0, 2000.0, 5000.0]));
        assert_eq!((made.steps.len(), made.lifetimes.len()), (1, 0));
        let Rejected { what, cost_ns, chosen_ns, measured, .. } = *rejected(&made);
        assert_eq!((what, cost_ns, chosen_ns, measured), ("dense copies first", 7000.0, 6000.0, true));
    }

    #[test]
    fn without_measurements_bytes_are_compared() {
        let engine = engine();
        // References on both sides: copies only add to the time.
        let made = plan(&engine, None);
        assert_eq!(made.steps.len(), 1);
        let found = rejected(&made);
        assert!(found.what == "dense copies first" && !found.measured && found.cost_ns > found.chosen_ns);
        let compiled = crate::CompiledModel::new(&engine, graph(), &Default::default()).unwrap();
        let shapes = [crate::sizes::InputShape { shape: vec![8, 16], dtype: DType::F32 }];
        let text = compiled.explain(&shapes).unwrap();
        assert!(text.contains("; rejected: dense copies first ("), "{text}");
    }
}
