//! Groups of elements that share a scale, and packed 4-bit values: shared by all quantized operations.

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

/// Location of element `i` of a row of 4-bit values: the byte's index, and whether it is the high nibble.
fn nibble_location(element: &[i64]) -> (Dims, bool) {
    match element {
        [leading @ .., i] => (join(&[leading, &[*i / 2]]), i % 2 == 1),
        [] => (Dims::empty(), false),
    }
}

/// Reads the 4-bit code of an element; two elements per byte, low nibble first.
pub fn nibble(bytes: &TensorView<'_>, element: &[i64]) -> u8 {
    let (location, high) = nibble_location(element);
    let byte = bytes.bits().int_at(&location) as u8;
    if high { byte >> 4 } else { byte & 15 }
}

/// Sign-extends a 4-bit two's complement value.
pub fn sign_extended(code: u8) -> i64 {
    if code < 8 { i64::from(code) } else { i64::from(code) - 16 }
}

/// Writes the 4-bit code of an element. Writing the low nibble clears the high one, so rows must be written
/// in order.
pub fn set_nibble(bytes: &mut TensorMut<'_>, element: &[i64], code: u8) {
    let (location, high) = nibble_location(element);
    let mut bytes = bytes.bits_mut();
    let byte = if high {
        bytes.as_view().int_at(&location) & 15 | i64::from(code & 15) << 4
    } else {
        i64::from(code & 15)
    };
    bytes.set_int(&location, byte);
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
