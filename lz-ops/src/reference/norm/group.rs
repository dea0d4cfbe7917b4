//! Reference of `norm.group`: mean, then variance of each group, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::{identity, silu};
use crate::{NormGroupActivation, NormGroupCall, NormGroupOut};

/// Runs the operation.
pub fn run(call: &NormGroupCall<'_>, mut out: NormGroupOut<'_>) -> Result<(), KernelError> {
    let (channels, spatial) = (call.axes.channels / call.groups, call.axes.spatial);
    let activation = match call.activation {
        NormGroupActivation::None => identity,
        NormGroupActivation::Silu => silu,
    };
    for index in Indices::new(&[call.axes.batch, call.groups]) {
        let [b, group] = *index else { continue };
        let elements: Vec<[i64; 3]> = (group * channels..(group + 1) * channels)
            .flat_map(|c| (0..spatial).map(move |s| [b, c, s]))
            .collect();
        let count = elements.len() as f64;
        let mean = elements.iter().map(|element| call.x.at(element)).sum::<f64>() / count;
        let variance =
            elements.iter().map(|element| (call.x.at(element) - mean).powi(2)).sum::<f64>() / count;
        let inv_std = 1.0 / (variance + f64::from(call.eps)).sqrt();
        for element in &elements {
            let weight = call.weight.map_or(1.0, |weight| weight.at(&[element[1]]));
            let bias = call.bias.map_or(0.0, |bias| bias.at(&[element[1]]));
            out.output.set(element, activation((call.x.at(element) - mean) * inv_std * weight + bias));
        }
    }
    Ok(())
}
