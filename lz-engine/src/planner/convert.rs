//! Tensors in another order of dimensions or another element type: what a block converts between its steps.

use lz_schema::model::{Cases, Dim};

use lz_core::reason::Reason;
use lz_core::tensor::{Indices, Tensor, TensorView};
use lz_schema::DType;

/// Which dimension of what the schema calls case `from` stands at each place of case `to`. `None` when the shape does not go by
/// layout, or a dimension of one is not one of the other.
pub(super) fn order(shape: &Cases<Vec<Dim>>, layout: usize, from: usize, to: usize) -> Option<Vec<usize>> {
    let Cases::By(param, cases) = shape else { return None };
    let (from, to) = (cases.get(from)?, cases.get(to)?);
    if *param != layout || from.len() != to.len() {
        return None;
    }
    let axis = |dim: &Dim| match dim {
        Dim::Axis(axis) => Some(*axis),
        _ => None,
    };
    let mut order: Vec<usize> = Vec::with_capacity(to.len());
    for wanted in to {
        let wanted = axis(wanted)?;
        let place = from.iter().position(|dim| axis(dim) == Some(wanted))?;
        if order.contains(&place) {
            return None;
        }
        order.push(place);
    }
    Some(order)
}

/// Where each place of an order has gone: the order that undoes it.
pub(super) fn undone(order: &[usize]) -> Vec<usize> {
    let mut undone = vec![0; order.len()];
    for (place, dimension) in order.iter().enumerate() {
        if let Some(entry) = undone.get_mut(*dimension) {
            *entry = place;
        }
    }
    undone
}

/// A dense copy whose dimension `k` is dimension `order[k]` of the view, in this element type.
pub(super) fn arranged(view: &TensorView<'_>, order: &[usize], dtype: DType) -> Result<Tensor, Reason> {
    let size = |dimension: &usize| view.shape().get(*dimension).copied().unwrap_or(1);
    let sizes: Vec<i64> = order.iter().map(size).collect();
    let mut copy = Tensor::zeros(&sizes, dtype)?;
    let keeps_bits = view.dtype() == dtype;
    let source = if keeps_bits { view.bits() } else { *view };
    let mut places = copy.view_mut();
    let mut target = if keeps_bits { places.bits_mut() } else { places };
    let mut from = vec![0; order.len()];
    for index in Indices::new(&sizes) {
        for (place, dimension) in order.iter().enumerate() {
            if let (Some(entry), Some(position)) = (from.get_mut(*dimension), index.get(place)) {
                *entry = *position;
            }
        }
        if keeps_bits {
            target.set_int(&index, source.int_at(&from));
        } else {
            target.set(&index, source.at(&from));
        }
    }
    Ok(copy)
}

/// The order that changes nothing.
pub(super) fn as_it_is(rank: usize) -> Vec<usize> {
    (0..rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_order_and_its_undoing_give_the_same_tensor(
            sizes in prop::collection::vec(0i64..4, 1..5),
            seed in any::<u64>(),
        ) {
            let mut order = as_it_is(sizes.len());
            let mut random = seed;
            for place in (1..order.len()).rev() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                order.swap(place, (random >> 33) as usize % (place + 1));
            }
            let count = sizes.iter().product::<i64>() as usize;
            let data: Vec<f32> = (0..count).map(|at| at as f32 - 1.5).collect();
            let tensor = Tensor::from_slice(&data, &sizes).unwrap();
            let turned = arranged(&tensor.view(), &order, DType::F32).unwrap();
            for index in Indices::new(&sizes) {
                let at: Vec<i64> = order.iter().map(|dimension| index[*dimension]).collect();
                prop_assert_eq!(turned.view().at(&at), tensor.view().at(&index));
            }
            let back = arranged(&turned.view(), &undone(&order), DType::F32).unwrap();
            prop_assert_eq!(back.bytes(), tensor.bytes());
            let half = arranged(&tensor.view(), &as_it_is(sizes.len()), DType::F16).unwrap();
            let wide = arranged(&half.view(), &as_it_is(sizes.len()), DType::F32).unwrap();
            prop_assert_eq!(wide.bytes(), tensor.bytes(), "small halves are exact");
        }
    }
}
