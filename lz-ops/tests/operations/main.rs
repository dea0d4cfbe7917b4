//! References of all operations except attention, checked against values computed by hand.

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
use lz_core::tensor::{Device, Dims, Layout};
use lz_core::{Tensor, TensorView};

/// A contiguous view.
fn view<'a, T: Element>(data: &'a [T], shape: &[i64]) -> TensorView<'a> {
    TensorView::from_slice(data, shape).unwrap()
}

/// A view with strides.
fn strided<'a, T: Element>(data: &'a [T], start: usize, shape: &[i64], strides: &[i64]) -> TensorView<'a> {
    let layout = Layout {
        shape: Dims::new(shape).unwrap(),
        strides: Dims::new(strides).unwrap(),
        dtype: T::DTYPE,
        device: Device::HOST,
    };
    TensorView::from_slice_with(data, start, layout).unwrap()
}

/// All elements of an output.
fn values<T: Element>(tensor: &Tensor) -> Vec<T> {
    tensor.view().as_slice::<T>().unwrap().to_vec()
}

/// Compares element by element, with a relative and absolute tolerance.
#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        let close = (found - expected).abs() <= tolerance * (1.0 + expected.abs()) || found == expected;
        assert!(close || (found.is_nan() && expected.is_nan()), "[{position}]: {found}, not {expected}");
    }
}
