//! Queries, keys and values by batch row, head and position, in either order of the last two.

use super::tensors::{float_as, sizes, strided};
use super::{MapError, unsupported};
use crate::tensor::NamedTensor;
use lz_core::tensor::Indices;
use lz_core::{Tensor, TensorView};

/// Vectors by batch row, head and position.
pub struct Sequences {
    /// The elements, contiguous.
    pub tensor: Tensor,
    /// Batch rows.
    pub batch: i64,
    /// Heads.
    pub heads: i64,
    /// Positions.
    pub length: i64,
    /// Features.
    pub size: i64,
    /// Whether heads come before positions in memory.
    pub heads_first: bool,
}

impl Sequences {
    /// From four dimensions (heads before positions), or from three with heads concatenated in the last one.
    pub fn read(named: &NamedTensor, heads: i64) -> Result<Self, MapError> {
        let (shape, heads_first) = match *sizes(&named.shape) {
            [batch, heads, length, size] => ([batch, heads, length, size], true),
            [batch, length, features] if heads > 0 && features % heads == 0 => {
                ([batch, heads, length, features / heads], false)
            }
            _ => return Err(unsupported(format!("`{}` has the shape {:?}", named.name, named.shape))),
        };
        let [batch, heads, length, size] = shape;
        let tensor = float_as(named, &[batch * heads * length * size])?;
        Ok(Self { tensor, batch, heads, length, size, heads_first })
    }

    /// Zeros of the same sizes, heads before positions.
    pub fn zeros_like(other: &Self) -> Result<Self, MapError> {
        let Self { batch, heads, length, size, .. } = *other;
        let tensor = Tensor::zeros(&[batch, heads, length, size], other.tensor.dtype())?;
        Ok(Self { tensor, batch, heads, length, size, heads_first: true })
    }

    /// Strides of batch rows, heads, positions and features.
    fn strides(&self) -> [i64; 4] {
        let row = self.heads * self.length * self.size;
        if self.heads_first {
            [row, self.length * self.size, self.size, 1]
        } else {
            [row, self.size, self.heads * self.size, 1]
        }
    }

    /// The whole tensor, with heads before or after positions.
    pub fn view(&self, heads_first: bool) -> Result<TensorView<'_>, MapError> {
        let [row, head, position, feature] = self.strides();
        if heads_first {
            let shape = [self.batch, self.heads, self.length, self.size];
            strided(&self.tensor, 0, &shape, &[row, head, position, feature])
        } else {
            let shape = [self.batch, self.length, self.heads, self.size];
            strided(&self.tensor, 0, &shape, &[row, position, head, feature])
        }
    }

    /// One batch row: positions, heads, features.
    pub fn tokens(&self, batch_row: i64) -> Result<TensorView<'_>, MapError> {
        let [row, head, position, feature] = self.strides();
        let shape = [self.length, self.heads, self.size];
        strided(&self.tensor, batch_row * row, &shape, &[position, head, feature])
    }

    /// These positions after those of `past`.
    pub fn after(&self, past: &Self) -> Result<Self, MapError> {
        let Self { batch, heads, size, .. } = *self;
        let length = past.length + self.length;
        let mut tensor = Tensor::zeros(&[batch, heads, length, size], self.tensor.dtype())?;
        for (part, start) in [(past, 0), (self, past.length)] {
            let source = part.view(true)?;
            let mut target = tensor.view_mut();
            for index in Indices::new(source.shape()) {
                let [row, head, position, feature] = *index else { continue };
                target.set(&[row, head, start + position, feature], source.at(&index));
            }
        }
        Ok(Self { tensor, batch, heads, length, size, heads_first: true })
    }
}
