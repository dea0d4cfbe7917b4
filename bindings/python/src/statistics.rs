//! Statistics of the values of arguments, which callers pass to calls so that selection can depend on them.

use lz_core::{Reason, ReasonCode, statistic};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::{BorrowedArgument, borrow_arguments, match_arguments};
use crate::call::Frame;
use crate::error::validation_error;
use crate::inspect::operation;
use crate::selection::Selection;

/// The statistics of the given arguments, by the name of the parameter that takes them.
#[pyfunction]
#[pyo3(signature = (operation_name, /, *args, **keywords))]
fn statistics<'py>(
    py: Python<'py>,
    operation_name: &str,
    args: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let info = operation(operation_name)?;
    let schema = info.schema();
    let (mut objects, _) = match_arguments(py, info, args, keywords)?;
    // Tensors without a statistic are not read.
    for (at, object) in objects.iter_mut().enumerate() {
        let mut statistics = schema.params.iter().filter_map(|param| param.statistic.as_ref());
        if !statistics.any(|statistic| statistic.of == at) {
            *object = None;
        }
    }
    let mut frame = Frame::new(py, info, Selection::Select);
    let borrowed = borrow_arguments(&mut frame, &objects)?;
    let found = PyDict::new(py);
    for (input, argument) in schema.inputs.iter().zip(&borrowed) {
        let BorrowedArgument::Tensor(tensor) = argument else { continue };
        let measured = statistic::of_input(schema, &input.name, &tensor.view())
            .map_err(|reason| validation_error(py, &info.name, reason))?;
        for (param, value) in measured {
            found.set_item(param, value)?;
        }
    }
    if found.is_empty() {
        return Err(validation_error(py, &info.name, nothing_to_measure(schema)));
    }
    Ok(found)
}

fn nothing_to_measure(schema: &lz_schema::model::Operation) -> Reason {
    let inputs = schema.params.iter().filter_map(|param| {
        let input = schema.inputs.get(param.statistic.as_ref()?.of)?;
        Some(format!("`{}` ({})", input.name, param.name))
    });
    let inputs: Vec<String> = inputs.collect();
    let message = if inputs.is_empty() {
        format!("{} has no statistics", schema.name)
    } else {
        format!("pass {}: its values determine a statistic", inputs.join(" or "))
    };
    Reason::new(ReasonCode::MissingArgument).message(message)
}

/// Adds the function.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(statistics, module)?)
}
