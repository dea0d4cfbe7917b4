//! Convolutions over one or two dimensions.

use super::super::op::{Handler, Op, Outputs, one};
use super::window::{Window, image};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[("Conv", conv), ("ConvTranspose", conv_transpose)];

/// The kernel's sizes, which must be numbers and agree with the attribute.
fn kernel(op: &mut Op<'_>, weight: NodeId) -> Result<Vec<i64>, GraphError> {
    let sizes: Option<Vec<i64>> =
        op.build.shape(weight).get(2..).unwrap_or_default().iter().map(Dim::constant).collect();
    let Some(sizes) = sizes else { return Err(op.error("the size of the kernel depends on symbols")) };
    match op.list("kernel_shape")? {
        Some(declared) if declared != sizes => {
            Err(op.error(format!("kernel_shape is {declared:?}, but the weight has {sizes:?}")))
        }
        _ if sizes.iter().any(|size| !(1..65536).contains(size)) => {
            Err(op.error(format!("a kernel of {sizes:?}")))
        }
        _ => Ok(sizes),
    }
}

fn conv(op: &mut Op<'_>) -> Outputs {
    let (x, weight) = (op.x(0)?, op.x(1)?);
    let bias = op.maybe(2)?;
    let groups = op.int("group", 1)?;
    let kernel = kernel(op, weight)?;
    let sizes = op.build.shape(x).get(2..).unwrap_or_default().to_vec();
    let window = Window::read(op, &kernel, &sizes)?;
    one(convolve(op, x, weight, bias, &window, groups)?)
}

fn convolve(
    op: &mut Op<'_>,
    x: NodeId,
    weight: NodeId,
    bias: Option<NodeId>,
    window: &Window,
    groups: i64,
) -> Result<NodeId, GraphError> {
    let (x, _) = image(op, x)?;
    let (weight, _) = image(op, weight)?;
    let mut params = window.params();
    params.push(("groups", groups.into()));
    let result = op.build.call("primitive.conv2d", &[Some(x), Some(weight), bias], &params)?;
    if window.line { op.build.squeeze(result, 2) } else { Ok(result) }
}

/// A convolution of the image with zeros between its elements, with the kernel mirrored and its channels exchanged.
fn conv_transpose(op: &mut Op<'_>) -> Outputs {
    let (x, weight) = (op.x(0)?, op.x(1)?);
    let bias = op.maybe(2)?;
    let groups = op.int("group", 1)?;
    if groups < 1 {
        return Err(op.error(format!("group is {groups}")));
    }
    let kernel = kernel(op, weight)?;
    let sizes = op.build.shape(x).get(2..).unwrap_or_default().to_vec();
    let automatic = !matches!(op.text("auto_pad", "NOTSET")?, "NOTSET" | "VALID");
    let (output_padding, output_shape) = (op.list("output_padding")?, op.list("output_shape")?);
    if automatic && output_shape.is_none() && output_padding.is_some() {
        return Err(op.error("output_padding together with auto_pad is not supported"));
    }
    let upper = op.text("auto_pad", "NOTSET")? == "SAME_UPPER";
    let mut window = Window::read(op, &kernel, &sizes)?;
    let (mut x, sizes) = image(op, x)?;
    for slot in 0..2usize {
        let index = if window.line { slot.wrapping_sub(1) } else { slot };
        let stride = Dim::from(window.strides[slot]);
        let reach = Dim::from(window.dilations[slot] * (window.kernel[slot] - 1));
        let stretched = sizes[slot].minus(&Dim::from(1)).times(&stride).plus(&Dim::from(1));
        let extra = output_padding
            .as_ref()
            .and_then(|all| all.get(index))
            .map_or(Dim::from(0), |&extra| Dim::from(extra));
        let fixed = match (&output_shape, automatic) {
            (Some(shape), _) => shape.get(index).map(|&size| Dim::from(size)),
            (None, true) => Some(sizes[slot].times(&stride)),
            (None, false) => None,
        };
        if let Some(size) = fixed {
            let total = stretched.plus(&reach).plus(&extra).minus(&size);
            let half = total.floor_div(&Dim::from(2));
            let rest = total.minus(&half);
            window.pads[slot] = if upper { [half, rest] } else { [rest, half] };
        }
        let [before, after] = window.pads[slot].clone();
        x = stretch(op, x, slot + 2, window.strides[slot])?;
        let mut padding = vec![(Dim::from(0), Dim::from(0)); 4];
        padding[slot + 2] = (reach.minus(&before), reach.minus(&after).plus(&extra));
        x = op.build.pad(x, &padding, 0.0)?;
        window.pads[slot] = [Dim::from(0), Dim::from(0)];
        window.strides[slot] = 1;
    }
    let weight = mirrored(op, weight, groups)?;
    let line = std::mem::take(&mut window.line);
    let result = convolve(op, x, weight, bias, &window, groups)?;
    one(if line { op.build.squeeze(result, 2)? } else { result })
}

/// Zeros between the elements of a dimension.
fn stretch(op: &mut Op<'_>, x: NodeId, axis: usize, stride: i64) -> Result<NodeId, GraphError> {
    if stride == 1 {
        return Ok(x);
    }
    let mut shape = op.build.shape(x).to_vec();
    let spaced = op.build.unsqueeze(x, axis + 1)?;
    let mut padding = vec![(Dim::from(0), Dim::from(0)); shape.len() + 1];
    padding[axis + 1].1 = Dim::from(stride - 1);
    let spaced = op.build.pad(spaced, &padding, 0.0)?;
    let last = Dim::from(stride - 1);
    shape[axis] = shape[axis].times(&Dim::from(stride));
    let length = shape[axis].minus(&last);
    let flat = op.build.reshape(spaced, shape)?;
    op.build.slice(flat, axis, Dim::from(0), length, 1)
}

/// `[in, out / groups, h, w]` as `[out, in / groups, h, w]`, with height and width reversed.
fn mirrored(op: &mut Op<'_>, weight: NodeId, groups: i64) -> Result<NodeId, GraphError> {
    let (mut weight, _) = image(op, weight)?;
    for axis in [2, 3] {
        let size = op.build.shape(weight)[axis].clone();
        weight = op.build.slice(weight, axis, size.minus(&Dim::from(1)), size, -1)?;
    }
    let [inputs, outputs, height, width] = <[Dim; 4]>::try_from(op.build.shape(weight).to_vec())
        .map_err(|_| op.error("the weight has no two dimensions"))?;
    let count = Dim::from(groups);
    let inner = inputs.floor_div(&count);
    let split = vec![count.clone(), inner.clone(), outputs.clone(), height.clone(), width.clone()];
    let split = op.build.reshape(weight, split)?;
    let moved = op.build.permute(split, &[0, 2, 1, 3, 4])?;
    op.build.reshape(moved, vec![count.times(&outputs), inner, height, width])
}
