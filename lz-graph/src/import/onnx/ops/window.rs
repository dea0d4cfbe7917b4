//! The geometry of sliding windows, and pooling.

use lz_core::DType;

use super::super::op::{Handler, Op, Outputs, one};
use crate::build::ParamValue;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] =
    &[("AveragePool", average_pool), ("LpPool", lp_pool), ("MaxPool", max_pool)];

/// Windows over two dimensions; one-dimensional ones have a height of 1.
pub struct Window {
    pub kernel: [i64; 2],
    pub strides: [i64; 2],
    pub dilations: [i64; 2],
    /// Padding before and after each dimension.
    pub pads: [[Dim; 2]; 2],
    /// Whether the image has one dimension.
    pub line: bool,
}

const NAMES: [[&str; 5]; 2] = [
    ["stride_h", "dilation_h", "pad_top", "pad_bottom", "extra_h"],
    ["stride_w", "dilation_w", "pad_left", "pad_right", "extra_w"],
];

impl Window {
    /// From the attributes of a node, for an image with these sizes.
    pub fn read(op: &mut Op<'_>, kernel: &[i64], sizes: &[Dim]) -> Result<Window, GraphError> {
        let count = sizes.len();
        if !(1..=2).contains(&count) || kernel.len() != count {
            return Err(op.error(format!("windows over {count} dimensions, supported are 1 and 2")));
        }
        let list = |op: &mut Op<'_>, name: &str, length: usize, default: i64| {
            let values = op.list(name)?.unwrap_or_else(|| vec![default; length]);
            let valid = values.len() == length && values.iter().all(|value| (0..65536).contains(value));
            if valid {
                Ok(values)
            } else {
                Err(op.error(format!("{name} is {values:?}, expected {length} numbers below 65536")))
            }
        };
        let strides = list(op, "strides", count, 1)?;
        let dilations = list(op, "dilations", count, 1)?;
        let pads = list(op, "pads", 2 * count, 0)?;
        let mode = op.text("auto_pad", "NOTSET")?;
        if strides.iter().chain(&dilations).chain(kernel).any(|value| *value < 1) {
            return Err(op.error("strides, dilations and kernels must be at least 1"));
        }
        let zero = || Dim::from(0);
        let mut window = Window {
            kernel: [1; 2],
            strides: [1; 2],
            dilations: [1; 2],
            pads: [[zero(), zero()], [zero(), zero()]],
            line: count == 1,
        };
        for index in 0..count {
            let slot = index + 2 - count;
            (window.kernel[slot], window.strides[slot]) = (kernel[index], strides[index]);
            window.dilations[slot] = dilations[index];
            window.pads[slot] = match mode {
                "NOTSET" => [Dim::from(pads[index]), Dim::from(pads[index + count])],
                "VALID" => [zero(), zero()],
                "SAME_UPPER" | "SAME_LOWER" => {
                    let stride = Dim::from(strides[index]);
                    let outputs = sizes[index].plus(&Dim::from(strides[index] - 1)).floor_div(&stride);
                    let reach = dilations[index] * (kernel[index] - 1) + 1;
                    let covered = outputs.minus(&Dim::from(1)).times(&stride).plus(&Dim::from(reach));
                    let total = covered.minus(&sizes[index]).larger(&zero());
                    let half = total.floor_div(&Dim::from(2));
                    let rest = total.minus(&half);
                    if mode == "SAME_UPPER" { [half, rest] } else { [rest, half] }
                }
                other => return Err(op.error(format!("auto_pad is `{other}`"))),
            };
        }
        Ok(window)
    }

    /// Params that convolution and pooling share.
    pub fn params(&self) -> Vec<(&'static str, ParamValue<'static>)> {
        let mut params = Vec::new();
        for (slot, names) in NAMES.iter().enumerate() {
            params.extend([(names[0], self.strides[slot].into()), (names[1], self.dilations[slot].into())]);
            params.extend([
                (names[2], self.pads[slot][0].clone().into()),
                (names[3], self.pads[slot][1].clone().into()),
            ]);
        }
        params
    }

    /// Rounds the number of windows up: more padding after the image, which no average counts. A window must start inside the
    /// image or the padding before it.
    fn round_up(&mut self, sizes: &[Dim; 2]) -> Vec<(&'static str, ParamValue<'static>)> {
        let mut params = Vec::new();
        for slot in 0..2 {
            let (stride, one) = (Dim::from(self.strides[slot]), Dim::from(1));
            let reach = Dim::from(self.dilations[slot] * (self.kernel[slot] - 1) + 1);
            let before = sizes[slot].plus(&self.pads[slot][0]);
            let padded = before.plus(&self.pads[slot][1]);
            let ceil = |dim: Dim| dim.plus(&stride).minus(&one).floor_div(&stride);
            let windows = ceil(padded.minus(&reach)).plus(&one).smaller(&ceil(before));
            let covered = windows.minus(&one).times(&stride).plus(&reach);
            let extra = covered.minus(&padded).larger(&Dim::from(0));
            self.pads[slot][1] = self.pads[slot][1].plus(&extra);
            params.push((NAMES[slot][4], extra.into()));
        }
        params
    }
}

/// As an image with two dimensions, and their sizes.
pub fn image(op: &mut Op<'_>, x: NodeId) -> Result<(NodeId, [Dim; 2]), GraphError> {
    let image = if op.build.rank(x) == 3 { op.build.unsqueeze(x, 2)? } else { x };
    match op.build.shape(image) {
        [_, _, height, width] => Ok((image, [height.clone(), width.clone()])),
        other => Err(op.error(format!(
            "windows over {} dimensions, supported are 1 and 2",
            other.len().saturating_sub(2)
        ))),
    }
}

fn kernel_shape(op: &mut Op<'_>) -> Result<Vec<i64>, GraphError> {
    match op.list("kernel_shape")? {
        Some(kernel) if kernel.iter().all(|size| (1..65536).contains(size)) => Ok(kernel),
        other => Err(op.error(format!("kernel_shape is {other:?}, expected numbers from 1 to 65535"))),
    }
}

fn pool(
    op: &mut Op<'_>,
    x: NodeId,
    function: &'static str,
    include_pad: bool,
) -> Result<(NodeId, i64), GraphError> {
    let kernel = kernel_shape(op)?;
    let sizes = op.build.shape(x).get(2..).unwrap_or_default().to_vec();
    let mut window = Window::read(op, &kernel, &sizes)?;
    let (image, sizes) = image(op, x)?;
    let extra = if op.flag("ceil_mode", false)? { window.round_up(&sizes) } else { Vec::new() };
    let mut params = window.params();
    params.extend(extra);
    params.extend([("function", function.into()), ("count_include_pad", include_pad.into())]);
    params.extend([("kernel_h", window.kernel[0].into()), ("kernel_w", window.kernel[1].into())]);
    let pooled = op.build.call("primitive.pool2d", &[Some(image)], &params)?;
    let result = if window.line { op.build.squeeze(pooled, 2)? } else { pooled };
    Ok((result, window.kernel[0] * window.kernel[1]))
}

/// Small integers are exact as f32.
fn max_pool(op: &mut Op<'_>) -> Outputs {
    if op.wants(1) {
        return Err(op.error("indices of the largest elements are not supported"));
    }
    // The order of indices, which are refused.
    op.attribute("storage_order");
    let x = op.x(0)?;
    let dtype = op.build.dtype(x);
    let x = if matches!(dtype, DType::I8 | DType::U8) { op.build.cast(x, DType::F32)? } else { x };
    let (pooled, _) = pool(op, x, "maximum", true)?;
    one(op.build.cast(pooled, dtype)?)
}

fn average_pool(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let include_pad = op.flag("count_include_pad", false)?;
    one(pool(op, x, "average", include_pad)?.0)
}

/// The root of the sum of powers: an average, times the number of positions.
fn lp_pool(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let p = op.int("p", 2)?;
    if p < 1 || op.flag("ceil_mode", false)? {
        return Err(op.error("only p >= 1 without ceil_mode is supported"));
    }
    let absolute = op.build.unary("absolute", x)?;
    let powers = op.build.binary_scalar("pow", absolute, p as f64, false)?;
    let (average, positions) = pool(op, powers, "average", true)?;
    let sum = op.build.binary_scalar("mul", average, positions as f64, false)?;
    one(op.build.binary_scalar("pow", sum, 1.0 / p as f64, false)?)
}
