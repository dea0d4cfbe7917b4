//! Resizing of images with known sizes: each output is a sum of one, two or four weighted elements along each dimension.

use lz_core::Tensor;

use super::super::op::{Handler, Op, Outputs, one};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[("Resize", resize), ("Upsample", upsample)];

/// How one dimension is resized.
struct Axis {
    axis: usize,
    input: i64,
    output: i64,
    scale: f64,
}

/// The options of a node.
struct Rule<'a> {
    mode: &'a str,
    coordinates: &'a str,
    nearest: &'a str,
    cubic: f64,
    exclude_outside: bool,
}

impl Rule<'_> {
    /// The position in the input of an output.
    fn source(&self, axis: &Axis, x: f64) -> Option<f64> {
        // The size before it is rounded down, as the suite defines it.
        let (input, exact) = (axis.input as f64, axis.scale * axis.input as f64);
        let half_pixel = (x + 0.5) / axis.scale - 0.5;
        Some(match self.coordinates {
            "half_pixel" => half_pixel,
            "half_pixel_symmetric" => input / 2.0 * (1.0 - axis.output as f64 / exact) + half_pixel,
            "pytorch_half_pixel" if axis.output > 1 => half_pixel,
            "pytorch_half_pixel" => 0.0,
            "align_corners" if exact != 1.0 => x * (input - 1.0) / (exact - 1.0),
            "align_corners" => 0.0,
            "asymmetric" => x / axis.scale,
            _ => return None,
        })
    }

    /// Indices and weights of the elements that make up an output.
    fn taps(&self, axis: &Axis, x: f64) -> Option<Vec<(i64, f64)>> {
        let source = self.source(axis, x)?;
        let (below, last) = (source.floor(), axis.input - 1);
        let t = source - below;
        let mut taps: Vec<(i64, f64)> = match self.mode {
            "nearest" => {
                let index = match self.nearest {
                    "round_prefer_floor" => (source - 0.5).ceil(),
                    "round_prefer_ceil" => (source + 0.5).floor(),
                    "floor" => below,
                    "ceil" => source.ceil(),
                    _ => return None,
                };
                vec![(index as i64, 1.0)]
            }
            "linear" => vec![(below as i64, 1.0 - t), (below as i64 + 1, t)],
            "cubic" => {
                let a = self.cubic;
                let near = |d: f64| ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0;
                let far = |d: f64| ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
                let weights = [far(1.0 + t), near(t), near(1.0 - t), far(2.0 - t)];
                weights
                    .into_iter()
                    .enumerate()
                    .map(|(tap, weight)| (below as i64 + tap as i64 - 1, weight))
                    .collect()
            }
            _ => return None,
        };
        if self.exclude_outside {
            taps.iter_mut()
                .filter(|(index, _)| !(0..=last).contains(index))
                .for_each(|(_, weight)| *weight = 0.0);
            let sum: f64 = taps.iter().map(|(_, weight)| weight).sum();
            taps.iter_mut().for_each(|(_, weight)| *weight /= sum);
        }
        taps.iter_mut().for_each(|(index, _)| *index = (*index).clamp(0, last));
        Some(taps)
    }
}

/// Before opset 9 scales are an attribute.
fn upsample(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let scales = match op.attribute("scales") {
        Some(super::super::model::AttributeValue::Floats(scales)) => {
            Some(scales.iter().map(|&scale| f64::from(scale)).collect())
        }
        _ => op.constant_floats(1),
    };
    let Some(scales) = scales else { return Err(op.error("the scales depend on data")) };
    let mode = op.text("mode", "nearest")?;
    let rule =
        Rule { mode, coordinates: "asymmetric", nearest: "floor", cubic: -0.75, exclude_outside: false };
    let all: Vec<usize> = (0..op.build.rank(x)).collect();
    let axes = from_scales(op, x, &all, &scales)?;
    one(resized(op, x, &rule, &axes)?)
}

fn resize(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let rank = op.build.rank(x);
    let first = op.opset < 11;
    let rule = Rule {
        mode: op.text("mode", "nearest")?,
        coordinates: op
            .text("coordinate_transformation_mode", if first { "asymmetric" } else { "half_pixel" })?,
        nearest: op.text("nearest_mode", if first { "floor" } else { "round_prefer_floor" })?,
        cubic: op.float("cubic_coeff_a", -0.75)?,
        exclude_outside: op.flag("exclude_outside", false)?,
    };
    if op.flag("antialias", false)? {
        return Err(op.error("antialiasing is not supported"));
    }
    let policy = op.text("keep_aspect_ratio_policy", "stretch")?;
    // Used by `tf_crop_and_resize` only, which is refused.
    op.attribute("extrapolation_value");
    if !first {
        op.ignore(1);
    }
    let axes: Vec<usize> = match op.list("axes")? {
        Some(axes) => axes.iter().map(|&axis| op.build.axis(x, axis)).collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    let scales = op.constant_floats(if first { 1 } else { 2 }).filter(|scales| !scales.is_empty());
    let axes = match (scales, op.numbers(3)?) {
        (Some(scales), _) => from_scales(op, x, &axes, &scales)?,
        (None, Some(sizes)) => from_sizes(op, x, &axes, &sizes, policy)?,
        (None, None) => return Err(op.error("neither constant scales nor sizes are given")),
    };
    one(resized(op, x, &rule, &axes)?)
}

fn input_size(op: &Op<'_>, x: NodeId, axis: usize) -> Result<i64, GraphError> {
    let size = &op.build.shape(x)[axis];
    match size.constant() {
        Some(size @ 1..=1_000_000) => Ok(size),
        _ => Err(op.error(format!("dimension {axis} of size {size} cannot be resized: it must be a number"))),
    }
}

fn from_scales(op: &Op<'_>, x: NodeId, axes: &[usize], scales: &[f64]) -> Result<Vec<Axis>, GraphError> {
    if axes.len() != scales.len() {
        return Err(op.error(format!("{} scales for {} dimensions", scales.len(), axes.len())));
    }
    let resized = axes.iter().zip(scales).filter(|(_, scale)| **scale != 1.0);
    let axis = |(&axis, &scale): (&usize, &f64)| {
        let input = input_size(op, x, axis)?;
        let output = (input as f64 * scale).floor();
        if !(1.0..=1e6).contains(&output) {
            return Err(op.error(format!("dimension {axis} would get size {output}")));
        }
        Ok(Axis { axis, input, output: output as i64, scale })
    };
    resized.map(axis).collect()
}

fn from_sizes(
    op: &Op<'_>,
    x: NodeId,
    axes: &[usize],
    sizes: &[i64],
    policy: &str,
) -> Result<Vec<Axis>, GraphError> {
    if axes.len() != sizes.len() || sizes.iter().any(|size| !(1..=1_000_000).contains(size)) {
        return Err(op.error(format!("sizes {sizes:?} for {} dimensions", axes.len())));
    }
    let mut resized = Vec::new();
    for (&axis, &output) in axes.iter().zip(sizes) {
        if op.build.shape(x)[axis].is(output) {
            // An axis that keeps its size still takes part in the common scale.
            resized.push(Axis { axis, input: output, output, scale: 1.0 });
            continue;
        }
        let input = input_size(op, x, axis)?;
        resized.push(Axis { axis, input, output, scale: output as f64 / input as f64 });
    }
    let scales = resized.iter().map(|axis| axis.scale);
    let common = match policy {
        "stretch" => None,
        "not_larger" => scales.reduce(f64::min),
        "not_smaller" => scales.reduce(f64::max),
        other => return Err(op.error(format!("keep_aspect_ratio_policy is `{other}`"))),
    };
    if let Some(scale) = common {
        for axis in &mut resized {
            axis.output = (axis.input as f64 * scale + 0.5).floor() as i64;
            axis.scale = scale;
        }
    }
    resized.retain(|axis| axis.input != axis.output);
    Ok(resized)
}

fn resized(op: &mut Op<'_>, x: NodeId, rule: &Rule<'_>, axes: &[Axis]) -> Result<NodeId, GraphError> {
    let dtype = op.build.dtype(x);
    let exact = rule.mode == "nearest" || dtype.is_float();
    let mut result = if exact { x } else { op.build.cast(x, lz_core::DType::F32)? };
    for axis in axes {
        let taps: Option<Vec<Vec<(i64, f64)>>> =
            (0..axis.output).map(|x| rule.taps(axis, x as f64)).collect();
        let Some(taps) = taps else {
            return Err(op.error(format!(
                "mode {} with {} and {} is not supported",
                rule.mode, rule.coordinates, rule.nearest
            )));
        };
        let count = taps.first().map_or(0, Vec::len);
        let mut sum: Option<NodeId> = None;
        for tap in 0..count {
            let indices: Vec<i64> = taps.iter().map(|taps| taps[tap].0).collect();
            let weights: Vec<f64> = taps.iter().map(|taps| taps[tap].1).collect();
            let mut part = take(op, result, axis.axis, &indices)?;
            if count > 1 {
                let weights = column(op, part, axis.axis, &weights)?;
                part = op.build.binary("mul", part, weights)?;
            }
            sum = Some(match sum {
                Some(sum) => op.build.binary("add", sum, part)?,
                None => part,
            });
        }
        result = sum.unwrap_or(result);
    }
    op.build.cast(result, dtype)
}

fn take(op: &mut Op<'_>, x: NodeId, axis: usize, indices: &[i64]) -> Result<NodeId, GraphError> {
    let tensor = Tensor::from_slice(indices, &[indices.len() as i64])
        .map_err(|reason| op.error(reason.to_string()))?;
    let indices = op.build.owned(tensor);
    op.build.take(x, axis, indices)
}

/// Weights along one dimension, in the dtype of `x`.
fn column(op: &mut Op<'_>, x: NodeId, axis: usize, weights: &[f64]) -> Result<NodeId, GraphError> {
    let count = weights.len() as i64;
    let mut tensor =
        Tensor::zeros(&[count], op.build.dtype(x)).map_err(|reason| op.error(reason.to_string()))?;
    for (index, &weight) in weights.iter().enumerate() {
        tensor.view_mut().set(&[index as i64], weight);
    }
    let tensor = op.build.owned(tensor);
    let mut shape = vec![Dim::from(1); op.build.rank(x)];
    shape[axis] = Dim::from(count);
    op.build.reshape(tensor, shape)
}
