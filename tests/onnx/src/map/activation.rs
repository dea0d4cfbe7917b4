//! `Gelu`, `Swish` and `Relu`: element by element, so any shape goes in as it is.

use super::arguments::Arguments;
use super::tensors::{float, named};
use super::{MapError, Produced, Statement, unstatable};
use lz_ops::{ActivationGelu, ActivationGeluApproximate, ActivationRelu, ActivationSilu};

/// `Gelu` is `activation.gelu`.
pub fn gelu(arguments: &Arguments<'_>) -> Result<Vec<Statement>, MapError> {
    arguments.only(&["approximate"], 1)?;
    let (x, shape) = (float(arguments.input(0)?)?, arguments.input(0)?.shape.clone());
    let approximate = match arguments.text("approximate", "none")? {
        "none" => ActivationGeluApproximate::None,
        "tanh" => ActivationGeluApproximate::Tanh,
        other => return Err(unstatable(format!("the approximation `{other}`"))),
    };
    Ok(vec![Statement::new("activation.gelu", move |engine| {
        let call = ActivationGelu::new(x.view()).approximate(approximate);
        let result = lz_ops::activation_gelu(engine, call)?;
        Ok(vec![Produced { output: 0, tensor: named(&result.output, &shape)? }])
    })])
}

/// `Swish` is `activation.silu`.
pub fn swish(arguments: &Arguments<'_>) -> Result<Vec<Statement>, MapError> {
    arguments.only(&["alpha"], 1)?;
    let (x, shape) = (float(arguments.input(0)?)?, arguments.input(0)?.shape.clone());
    let alpha = arguments.float("alpha")?.unwrap_or(1.0);
    Ok(vec![Statement::new("activation.silu", move |engine| {
        let result = lz_ops::activation_silu(engine, ActivationSilu::new(x.view()).alpha(alpha))?;
        Ok(vec![Produced { output: 0, tensor: named(&result.output, &shape)? }])
    })])
}

/// `Relu` is `activation.relu`.
pub fn relu(arguments: &Arguments<'_>) -> Result<Vec<Statement>, MapError> {
    arguments.only(&[], 1)?;
    let (x, shape) = (float(arguments.input(0)?)?, arguments.input(0)?.shape.clone());
    Ok(vec![Statement::new("activation.relu", move |engine| {
        let result = lz_ops::activation_relu(engine, ActivationRelu::new(x.view()))?;
        Ok(vec![Produced { output: 0, tensor: named(&result.output, &shape)? }])
    })])
}
