//! `Gelu`, `Swish` and `Relu`: elementwise, for any shape.

use super::arguments::Arguments;
use super::tensors::{float, named};
use super::{MapError, MappedCall, MappedOutput, unsupported};
use lz_ops::{ActivationGelu, ActivationGeluApproximate, ActivationRelu, ActivationSilu};

/// `Gelu` maps to `activation.gelu`.
pub fn gelu(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["approximate"], 1)?;
    let (x, shape) = (float(arguments.input(0)?)?, arguments.input(0)?.shape.clone());
    let approximate = match arguments.text("approximate", "none")? {
        "none" => ActivationGeluApproximate::None,
        "tanh" => ActivationGeluApproximate::Tanh,
        other => return Err(unsupported(format!("the approximation `{other}`"))),
    };
    Ok(vec![MappedCall::new("activation.gelu", move |engine| {
        let call = ActivationGelu::new(x.view()).approximate(approximate);
        let result = lz_ops::activation_gelu(engine, call)?;
        Ok(vec![MappedOutput { output: 0, tensor: named(&result.output, &shape)? }])
    })])
}

/// `Swish` maps to `activation.silu`.
pub fn swish(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["alpha"], 1)?;
    let (x, shape) = (float(arguments.input(0)?)?, arguments.input(0)?.shape.clone());
    let alpha = arguments.float("alpha")?.unwrap_or(1.0);
    Ok(vec![MappedCall::new("activation.silu", move |engine| {
        let result = lz_ops::activation_silu(engine, ActivationSilu::new(x.view()).alpha(alpha))?;
        Ok(vec![MappedOutput { output: 0, tensor: named(&result.output, &shape)? }])
    })])
}

/// `Relu` maps to `activation.relu`.
pub fn relu(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&[], 1)?;
    let (x, shape) = (float(arguments.input(0)?)?, arguments.input(0)?.shape.clone());
    Ok(vec![MappedCall::new("activation.relu", move |engine| {
        let result = lz_ops::activation_relu(engine, ActivationRelu::new(x.view()))?;
        Ok(vec![MappedOutput { output: 0, tensor: named(&result.output, &shape)? }])
    })])
}
