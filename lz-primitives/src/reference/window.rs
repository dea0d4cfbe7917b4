//! References of convolutions and pooling.

use lz_core::tensor::Indices;
use lz_core::{KernelError, OutArg};

use crate::call::{Call, mismatch, output};
use crate::functions::{ConvActivation, PoolFunction};
use crate::numbers;

/// Strides, paddings and dilations: eight int params from `first` on.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Steps between outputs: rows, columns.
    pub stride: [i64; 2],
    /// Padding before the first row and column.
    pub before: [i64; 2],
    /// Padding after the last row and column.
    pub after: [i64; 2],
    /// Steps between elements of a window.
    pub dilation: [i64; 2],
}

impl Window {
    /// Reads the params.
    pub fn read(call: Call<'_, '_>, first: usize) -> Result<Window, KernelError> {
        let mut values = [0; 8];
        for (index, value) in values.iter_mut().enumerate() {
            *value = call.int(first + index)?;
            if !(0..65536).contains(value) {
                return Err(mismatch("strides, paddings and dilations must be less than 65536"));
            }
        }
        let [stride_h, stride_w, top, left, bottom, right, dilation_h, dilation_w] = values;
        if stride_h == 0 || stride_w == 0 || dilation_h == 0 || dilation_w == 0 {
            return Err(mismatch("strides and dilations must be at least 1"));
        }
        Ok(Window {
            stride: [stride_h, stride_w],
            before: [top, left],
            after: [bottom, right],
            dilation: [dilation_h, dilation_w],
        })
    }

    /// The position in the image of an element of a window; may be outside.
    fn position(&self, axis: usize, output: i64, element: i64) -> i64 {
        output * self.stride[axis] + element * self.dilation[axis] - self.before[axis]
    }
}

/// `primitive.conv2d`.
pub fn conv2d(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, weight, bias, residual) =
        (call.tensor(0)?, call.tensor(1)?, call.optional(2)?, call.optional(3)?);
    let window = Window::read(call, 4)?;
    let (groups, activation) = (call.int(12)?, call.case::<ConvActivation>(13)?);
    let &[_, _, height, width] = x.shape() else { return Err(mismatch("x must have four dimensions")) };
    let &[out_channels, channels, kernel_h, kernel_w] = weight.shape() else {
        return Err(mismatch("weight must have four dimensions"));
    };
    let output = output(outputs, 0)?;
    let shape = output.layout().shape;
    for index in Indices::new(&shape) {
        let &[batch, channel, y, z] = &index[..] else { continue };
        let first = channel / (out_channels / groups) * channels;
        let mut sum = bias.map_or(0.0, |bias| bias.at(&[channel]))
            + residual.map_or(0.0, |residual| residual.at(&index));
        for [c, i, j] in
            (0..channels).flat_map(|c| (0..kernel_h).flat_map(move |i| (0..kernel_w).map(move |j| [c, i, j])))
        {
            let (row, column) = (window.position(0, y, i), window.position(1, z, j));
            if (0..height).contains(&row) && (0..width).contains(&column) {
                sum += x.at(&[batch, first + c, row, column]) * weight.at(&[channel, c, i, j]);
            }
        }
        output.set(
            &index,
            match activation {
                ConvActivation::None => sum,
                ConvActivation::Relu => numbers::maximum(sum, 0.0),
            },
        );
    }
    Ok(())
}

/// `primitive.pool2d`.
pub fn pool2d(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<PoolFunction>(1)?);
    let (kernel, window) = ([call.int(2)?, call.int(3)?], Window::read(call, 4)?);
    let (extra, include) = ([call.int(12)?, call.int(13)?], call.flag(14)?);
    let &[_, _, height, width] = x.shape() else { return Err(mismatch("x must have four dimensions")) };
    let size = [height, width];
    let output = output(outputs, 0)?;
    let shape = output.layout().shape;
    for index in Indices::new(&shape) {
        let &[batch, channel, y, z] = &index[..] else { continue };
        let (mut largest, mut sum, mut inside, mut counted) = (f64::NEG_INFINITY, 0.0, 0, 0);
        for (i, j) in (0..kernel[0]).flat_map(|i| (0..kernel[1]).map(move |j| (i, j))) {
            let at = [window.position(0, y, i), window.position(1, z, j)];
            let padded = (0..2).all(|axis| at[axis] < size[axis] + window.after[axis] - extra[axis]);
            counted += i64::from(padded);
            if (0..height).contains(&at[0]) && (0..width).contains(&at[1]) {
                let value = x.at(&[batch, channel, at[0], at[1]]);
                (largest, sum, inside) = (numbers::maximum(largest, value), sum + value, inside + 1);
            }
        }
        let count = if include { counted } else { inside };
        output.set(
            &index,
            match function {
                PoolFunction::Max => largest,
                PoolFunction::Avg => sum / count as f64,
            },
        );
    }
    Ok(())
}
