//! Permutes dimensions and converts element types between the steps of a block.

use lz_schema::model::{Cases, Dim};

use lz_core::reason::Reason;
use lz_core::tensor::{Indices, Tensor, TensorView};
use lz_schema::DType;

/// The permutation from the shape of layout case `from` to that of case `to`. `None` if the shape does not depend on the layout, or the
/// dimensions differ.
pub(super) fn permutation(
    shape: &Cases<Vec<Dim>>,
    layout: usize,
    from: usize,
    to: usize,
) -> Option<Vec<usize>> {
    let Cases::By(param, cases) = shape else { return None };
    let (from, to) = (cases.get(from)?, cases.get(to)?);
    if *param != layout || from.len() != to.len() {
        return None;
    }
    let axis = |dim: &Dim| match dim {
        Dim::Axis(axis) => Some(*axis),
        _ => None,
    };
    let mut permutation: Vec<usize> = Vec::with_capacity(to.len());
    for dim in to {
        let axis_index = axis(dim)?;
        let index = from.iter().position(|dim| axis(dim) == Some(axis_index))?;
        if permutation.contains(&index) {
            return None;
        }
        permutation.push(index);
    }
    Some(permutation)
}

/// The inverse permutation.
pub(super) fn inverse(permutation: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; permutation.len()];
    for (index, dimension) in permutation.iter().enumerate() {
        if let Some(entry) = inverse.get_mut(*dimension) {
            *entry = index;
        }
    }
    inverse
}

/// A dense copy whose dimension `k` is dimension `permutation[k]` of the view, in this element type.
pub(super) fn permuted(view: &TensorView<'_>, permutation: &[usize], dtype: DType) -> Result<Tensor, Reason> {
    let size = |dimension: &usize| view.shape().get(*dimension).copied().unwrap_or(1);
    let sizes: Vec<i64> = permutation.iter().map(size).collect();
    let mut copy = Tensor::zeros(&sizes, dtype)?;
    let same_dtype = view.dtype() == dtype;
    let source = if same_dtype { view.bits() } else { *view };
    let mut copy_view = copy.view_mut();
    let mut target = if same_dtype { copy_view.bits_mut() } else { copy_view };
    let mut from = vec![0; permutation.len()];
    for index in Indices::new(&sizes) {
        for (target_dimension, dimension) in permutation.iter().enumerate() {
            if let (Some(entry), Some(position)) = (from.get_mut(*dimension), index.get(target_dimension)) {
                *entry = *position;
            }
        }
        if same_dtype {
            target.set_int(&index, source.int_at(&from));
        } else {
            target.set(&index, source.at(&from));
        }
    }
    Ok(copy)
}

/// The identity permutation.
pub(super) fn identity(rank: usize) -> Vec<usize> {
    (0..rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn permutation_and_inverse_round_trip(
            sizes in prop::collection::vec(0i64..4, 1..5),
            seed in any::<u64>(),
        ) {
            let mut permutation = identity(sizes.len());
            let mut random = seed;
            for index in (1..permutation.len()).rev() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                permutation.swap(index, (random >> 33) as usize % (index + 1));
            }
            let count = sizes.iter().product::<i64>() as usize;
            let data: Vec<f32> = (0..count).map(|at| at as f32 - 1.5).collect();
            let tensor = Tensor::from_slice(&data, &sizes).unwrap();
            let turned = permuted(&tensor.view(), &permutation, DType::F32).unwrap();
            for index in Indices::new(&sizes) {
                let at: Vec<i64> = permutation.iter().map(|dimension| index[*dimension]).collect();
                prop_assert_eq!(turned.view().at(&at), tensor.view().at(&index));
            }
            let back = permuted(&turned.view(), &inverse(&permutation), DType::F32).unwrap();
            prop_assert_eq!(back.bytes(), tensor.bytes());
            let half = permuted(&tensor.view(), &identity(sizes.len()), DType::F16).unwrap();
            let wide = permuted(&half.view(), &identity(sizes.len()), DType::F32).unwrap();
            prop_assert_eq!(wide.bytes(), tensor.bytes(), "small halves are exact");
        }
    }
}
