//! Queries, keys and values: features by batch row, head and place, in either order of the two.

use super::tensors::{float_as, sizes, strided};
use super::{MapError, unstatable};
use crate::tensor::NamedTensor;
use lz_core::tensor::Indices;
use lz_core::{Tensor, TensorView};

/// Vectors by batch row, head and place.
pub struct Sequences {
    /// The elements, dense.
    pub tensor: Tensor,
    /// Batch rows.
    pub batch: i64,
    /// Heads.
    pub heads: i64,
    /// Places.
    pub length: i64,
    /// Features.
    pub size: i64,
    /// Whether heads come before places in memory.
    pub by_head: bool,
}

impl Sequences {
    /// Of four dimensions (heads before places), or of three with the heads side by side in the last one.
    pub fn read(named: &NamedTensor, heads: i64) -> Result<Self, MapError> {
        let (shape, by_head) = match *sizes(&named.shape) {
            [batch, heads, length, size] => ([batch, heads, length, size], true),
            [batch, length, features] if heads > 0 && features % heads == 0 => {
                ([batch, heads, length, features / heads], false)
            }
            _ => return Err(unstatable(format!("`{}` has the shape {:?}", named.name, named.shape))),
        };
        let [batch, heads, length, size] = shape;
        let tensor = float_as(named, &[batch * heads * length * size])?;
        Ok(Self { tensor, batch, heads, length, size, by_head })
    }

    /// Zeros of the same sizes, heads before places.
    pub fn zeros_like(other: &Self) -> Result<Self, MapError> {
        let Self { batch, heads, length, size, .. } = *other;
        let tensor = Tensor::zeros(&[batch, heads, length, size], other.tensor.dtype())?;
        Ok(Self { tensor, batch, heads, length, size, by_head: true })
    }

    /// Distances between batch rows, heads, places and features.
    fn strides(&self) -> [i64; 4] {
        let row = self.heads * self.length * self.size;
        if self.by_head {
            [row, self.length * self.size, self.size, 1]
        } else {
            [row, self.size, self.heads * self.size, 1]
        }
    }

    /// All of it, heads before places or after them.
    pub fn view(&self, by_head: bool) -> Result<TensorView<'_>, MapError> {
        let [row, head, place, feature] = self.strides();
        if by_head {
            let shape = [self.batch, self.heads, self.length, self.size];
            strided(&self.tensor, 0, &shape, &[row, head, place, feature])
        } else {
            let shape = [self.batch, self.length, self.heads, self.size];
            strided(&self.tensor, 0, &shape, &[row, place, head, feature])
        }
    }

    /// One batch row: places, heads, features.
    pub fn tokens(&self, batch_row: i64) -> Result<TensorView<'_>, MapError> {
        let [row, head, place, feature] = self.strides();
        let shape = [self.length, self.heads, self.size];
        strided(&self.tensor, batch_row * row, &shape, &[place, head, feature])
    }

    /// These places after those of `past`.
    pub fn after(&self, past: &Self) -> Result<Self, MapError> {
        let Self { batch, heads, size, .. } = *self;
        let length = past.length + self.length;
        let mut tensor = Tensor::zeros(&[batch, heads, length, size], self.tensor.dtype())?;
        for (part, start) in [(past, 0), (self, past.length)] {
            let source = part.view(true)?;
            let mut target = tensor.view_mut();
            for index in Indices::new(source.shape()) {
                let [row, head, place, feature] = *index else { continue };
                target.set(&[row, head, start + place, feature], source.at(&index));
            }
        }
        Ok(Self { tensor, batch, heads, length, size, by_head: true })
    }
}
