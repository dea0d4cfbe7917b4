//! Determines the input from which each axis takes its size.
//!
//! An axis is bound by the first required input whose shape contains the axis, or the axis plus a constant, in every case. An
//! optional input binds it only if no required input does. A broadcast input never binds, because its dimension may be 1.

use super::Checker;
use crate::diagnostics::Code;
use crate::model::{Axis, Binding, Dim, Input};

impl Checker<'_> {
    pub(super) fn bind_axes(&mut self, axes: &mut [Axis], inputs: &[Option<Input>]) {
        for (index, axis) in axes.iter_mut().enumerate() {
            if axis.value.is_none() && !axis.dynamic {
                axis.bound_by = binding(index, inputs, false).or_else(|| binding(index, inputs, true));
            }
        }
        // An input with errors may bind any axis.
        let all_read = inputs.iter().all(Option::is_some);
        for (symbol, axis) in self.symbols.axes.iter().zip(axes.iter()) {
            let unbound = axis.bound_by.is_none() && !symbol.fixed && !symbol.dynamic;
            match symbol.used {
                None => {
                    self.sink.error(
                        Code::UnusedAxis,
                        symbol.span,
                        format!("axis `{}` is not used", symbol.name),
                    );
                }
                Some(used) if unbound && all_read => {
                    let message =
                        format!("no input binds axis `{}`, so its size is unknown in a call", symbol.name);
                    self.sink.error(Code::UnboundAxis, used, message).also(symbol.span, "defined here").note(
                        "an input binds an axis by a dimension that is the axis itself, or the axis plus a constant; \
                         a broadcast input does not bind",
                    );
                }
                Some(_) => {}
            }
        }
    }
}

fn binding(axis: usize, inputs: &[Option<Input>], optional: bool) -> Option<Binding> {
    inputs
        .iter()
        .enumerate()
        .filter_map(|(index, input)| Some((index, input.as_ref()?)))
        .filter(|(_, input)| input.optional.is_some() == optional && !input.broadcast)
        .find_map(|(index, input)| Some(Binding { input: index, offset: offset_in_every_case(axis, input)? }))
}

fn offset_in_every_case(axis: usize, input: &Input) -> Option<i64> {
    let mut offsets = input.shape.all().iter().map(|dims| {
        dims.iter().find_map(|dim| match dim {
            Dim::Axis(found) | Dim::Pack(found) if *found == axis => Some(0),
            Dim::Offset(found, by) if *found == axis => Some(*by),
            _ => None,
        })
    });
    let first = offsets.next()??;
    offsets.all(|offset| offset == Some(first)).then_some(first)
}
