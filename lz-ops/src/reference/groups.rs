//! Groups of elements that share a scale, and packed 4- and 2-bit values: shared by all quantized operations.

use lz_core::tensor::{Dims, TensorMut, TensorView};

use crate::reference::index::join;

/// Which elements share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    /// The whole tensor.
    Tensor,
    /// One index of the second-last dimension.
    Channel,
    /// This many adjacent elements of the last dimension.
    Block(i64),
}

impl Groups {
    /// Index of an element's scale in the tensor of scales.
    pub fn of(self, element: &[i64]) -> Dims {
        match (self, element) {
            (Groups::Channel, [.., channel, _]) => join(&[&[*channel]]),
            (Groups::Block(size), [leading @ .., last]) => join(&[leading, &[*last / size.max(1)]]),
            _ => Dims::empty(),
        }
    }

    /// The first element of a group and its extent along each dimension, in a tensor of this shape.
    pub fn extent(self, group: &[i64], shape: &[i64]) -> (Vec<i64>, Vec<i64>) {
        let mut start = vec![0; shape.len()];
        let mut sizes = shape.to_vec();
        match (self, group) {
            (Groups::Channel, [channel]) => {
                if let ([.., start, _], [.., size, _]) = (start.as_mut_slice(), sizes.as_mut_slice()) {
                    (*start, *size) = (*channel, 1);
                }
            }
            (Groups::Block(length), _) => {
                for (index, (start, size)) in group.iter().zip(start.iter_mut().zip(&mut sizes)) {
                    (*start, *size) = (*index, 1);
                }
                if let (Some(start), Some(size), Some(inner)) =
                    (start.last_mut(), sizes.last_mut(), shape.last())
                {
                    *start *= length;
                    *size = length.min(*inner - *start);
                }
            }
            _ => {}
        }
        (start, sizes)
    }
}

/// Location of element `i` of a row of values of `BITS` bits: the byte's index, and the shift of the value inside the byte.
fn packed_location<const BITS: i64>(element: &[i64]) -> (Dims, i64) {
    let per_byte = 8 / BITS;
    match element {
        [leading @ .., i] => (join(&[leading, &[*i / per_byte]]), i % per_byte * BITS),
        [] => (Dims::empty(), 0),
    }
}

/// Reads the packed code of an element: `BITS` is 4 or 2, the first code is in the lowest bits of a byte.
pub fn packed_code<const BITS: i64>(bytes: &TensorView<'_>, element: &[i64]) -> u8 {
    let (location, shift) = packed_location::<BITS>(element);
    (bytes.bits().int_at(&location) >> shift & ((1 << BITS) - 1)) as u8
}

/// Sign-extends a two's complement value of `BITS` bits.
pub fn sign_extended<const BITS: i64>(code: u8) -> i64 {
    let code = i64::from(code);
    if code < 1 << (BITS - 1) { code } else { code - (1 << BITS) }
}

/// Writes the packed code of an element. Writing the first code of a byte clears the others, so rows must be written in order.
pub fn set_packed_code<const BITS: i64>(bytes: &mut TensorMut<'_>, element: &[i64], code: i64) {
    let (location, shift) = packed_location::<BITS>(element);
    let mut bytes = bytes.bits_mut();
    let before = if shift == 0 { 0 } else { bytes.as_view().int_at(&location) };
    bytes.set_int(&location, before | (code & ((1 << BITS) - 1)) << shift);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_in_exactly_one_group() {
        let shape = [2, 3, 7];
        let cases: [(Groups, Vec<i64>); 3] =
            [(Groups::Tensor, vec![]), (Groups::Channel, vec![3]), (Groups::Block(3), vec![2, 3, 3])];
        for (groups, group_counts) in cases {
            let mut seen = 0;
            for group in lz_core::tensor::Indices::new(&group_counts) {
                let (start, sizes) = groups.extent(&group, &shape);
                for inside in lz_core::tensor::Indices::new(&sizes) {
                    let element: Vec<i64> = start.iter().zip(inside.iter()).map(|(a, b)| a + b).collect();
                    assert_eq!(*groups.of(&element), *group, "{groups:?} {element:?}");
                    seen += 1;
                }
            }
            assert_eq!(seen, 42, "{groups:?}");
        }
    }
}
