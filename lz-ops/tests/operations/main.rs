//! The references of all operations but attention, held against values computed by hand.

mod activation;
mod copies;
mod dense;
mod integers;
mod kv;
mod posenc;
mod quantize;
mod quantize_scales;
mod sampling;
mod sentencepiece;
mod speculative;
#[cfg(feature = "tokenizers")]
mod tokenize;

use lz_core::element::Element;
use lz_core::tensor::{Dims, Layout, Place};
use lz_core::{Tensor, TensorView};

/// A dense view.
fn view<'a, T: Element>(data: &'a [T], shape: &[i64]) -> TensorView<'a> {
    TensorView::from_slice(data, shape).unwrap()
}

/// A view with strides.
fn strided<'a, T: Element>(data: &'a [T], start: usize, shape: &[i64], strides: &[i64]) -> TensorView<'a> {
    let layout = Layout {
        shape: Dims::new(shape).unwrap(),
        strides: Dims::new(strides).unwrap(),
        dtype: T::DTYPE,
        place: Place::HOST,
    };
    TensorView::from_slice_with(data, start, layout).unwrap()
}

/// All elements of a result.
fn values<T: Element>(tensor: &Tensor) -> Vec<T> {
    tensor.view().as_slice::<T>().unwrap().to_vec()
}

/// Element by element, to a relative and absolute error.
#[track_caller]
fn assert_near(found: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(found.len(), wanted.len());
    for (position, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let close = (found - wanted).abs() <= tolerance * (1.0 + wanted.abs()) || found == wanted;
        assert!(close || (found.is_nan() && wanted.is_nan()), "[{position}]: {found}, not {wanted}");
    }
}
