//! Tensors: borrowed views of foreign memory, one owned host buffer, and memory in huge pages.
//!
//! A view may carry invalid metadata. [`Layout::problem`] reports what is invalid, and elements are only accessed through views whose
//! layout is sound for the memory behind them (safe constructors check; callers of `from_raw` guarantee it).

mod copy;
mod dims;
mod layout;
mod overlap;
mod owned;
mod pages;
mod view;

pub use copy::copy_elements;
pub use dims::{Dims, Indices, MAX_RANK};
pub use layout::{Device, Layout};
pub use overlap::may_overlap;
pub use owned::{BUFFER_ALIGNMENT, Tensor};
pub use pages::{HUGE_PAGE, Pages, advise_huge_pages};
pub use view::{TensorMut, TensorView};

#[cfg(test)]
mod tests {
    use lz_schema::DType;

    use super::*;
    use crate::reason::ReasonCode;

    fn layout(shape: &[i64], strides: &[i64], dtype: DType) -> Layout {
        Layout {
            shape: Dims::new(shape).unwrap(),
            strides: Dims::new(strides).unwrap(),
            dtype,
            device: Device::HOST,
        }
    }

    #[test]
    fn too_short_slice_is_rejected() {
        let data = [0f32; 5];
        let reason = TensorView::from_slice(&data, &[2, 3]).unwrap_err();
        assert_eq!(reason.code, ReasonCode::ShapeMismatch);
        assert!(TensorView::from_slice_with(&data, 4, layout(&[5], &[-1], DType::F32)).is_ok());
        assert!(TensorView::from_slice_with(&data, 3, layout(&[5], &[-1], DType::F32)).is_err());
    }

    #[test]
    fn unsound_metadata_is_reported() {
        let cases = [
            (layout(&[-1], &[1], DType::F32), ReasonCode::NegativeSize),
            (layout(&[i64::MAX, 3], &[1, 1], DType::F32), ReasonCode::SizeOverflow),
            (layout(&[4], &[i64::MAX], DType::F32), ReasonCode::StrideInvalid),
            (layout(&[4], &[1, 1], DType::F32), ReasonCode::StrideInvalid),
        ];
        for (layout, code) in cases {
            assert_eq!(layout.problem().map(|reason| reason.code), Some(code), "{layout:?}");
        }
    }

    #[test]
    fn contiguity() {
        assert!(layout(&[2, 3], &[3, 1], DType::F32).is_contiguous());
        assert!(layout(&[2, 1, 3], &[3, 99, 1], DType::F32).is_contiguous());
        assert!(!layout(&[2, 3], &[1, 2], DType::F32).is_contiguous());
        assert!(layout(&[0, 3], &[7, 5], DType::F32).is_contiguous());
        assert!(layout(&[], &[], DType::F32).is_contiguous());
    }

    #[test]
    fn overlap_of_columns_and_of_rows() {
        let data = [0f32; 24];
        let left = TensorView::from_slice_with(&data, 0, layout(&[4, 3], &[6, 1], DType::F32)).unwrap();
        let right = TensorView::from_slice_with(&data, 3, layout(&[4, 3], &[6, 1], DType::F32)).unwrap();
        let middle = TensorView::from_slice_with(&data, 2, layout(&[4, 3], &[6, 1], DType::F32)).unwrap();
        assert!(!may_overlap(&left, &right));
        assert!(may_overlap(&left, &middle));
        assert!(may_overlap(&middle, &right));
        assert!(may_overlap(&left, &left));
        assert!(layout(&[4, 3], &[0, 1], DType::F32).overlaps_itself());
        assert!(layout(&[4, 3], &[2, 1], DType::F32).overlaps_itself());
        assert!(!layout(&[4, 3], &[1, 4], DType::F32).overlaps_itself());
    }

    #[test]
    fn bitwise_copy_preserves_nan_payloads() {
        let signaling = [f32::from_bits(0x7f80_0001), f32::from_bits(0xffc1_2345), -0.0];
        let mut copy = [0f32; 3];
        let view = TensorView::from_slice(&signaling, &[3]).unwrap().bits();
        let mut target = TensorMut::from_slice(&mut copy, &[3]).unwrap();
        for index in 0..3 {
            target.bits_mut().set_int(&[index], view.int_at(&[index]));
        }
        assert_eq!(copy.map(f32::to_bits), signaling.map(f32::to_bits));
    }

    #[test]
    fn indices_visit_each_element_once() {
        assert_eq!(Indices::new(&[]).count(), 1);
        assert_eq!(Indices::new(&[2, 0]).count(), 0);
        let seen: Vec<Vec<i64>> = Indices::new(&[2, 2]).map(|index| index.to_vec()).collect();
        assert_eq!(seen, [[0, 0], [0, 1], [1, 0], [1, 1]]);
    }
}
