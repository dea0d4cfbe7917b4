//! The pieces of the fast check, of which generated code is composed.

use lz_core::DType;
use lz_core::check::fast;
use lz_core::device::Platform;
use lz_core::tensor::{Device, Dims, Layout, TensorMut, TensorView};

#[test]
fn axes_bind_once_and_are_compared_afterwards() {
    let mut axis = fast::UNBOUND;
    assert!(fast::bind(&mut axis, 5) && axis == 5);
    assert!(fast::bind(&mut axis, 5) && !fast::bind(&mut axis, 6) && axis == 5);
    for (size, other) in [(0, 1), (1, 2)] {
        let mut axis = fast::UNBOUND;
        assert!(fast::bind(&mut axis, size) && !fast::bind(&mut axis, other));
    }
}

#[test]
fn packs_bind_once_and_are_compared_afterwards() {
    let (mut pack, mut bound) = (Dims::empty(), false);
    assert!(fast::bind_pack(&mut pack, &mut bound, &[2, 3]) && bound && *pack == [2, 3]);
    assert!(fast::bind_pack(&mut pack, &mut bound, &[2, 3]));
    assert!(!fast::bind_pack(&mut pack, &mut bound, &[3, 2]) && *pack == [2, 3]);
    let (mut pack, mut bound) = (Dims::empty(), false);
    assert!(!fast::bind_pack(&mut pack, &mut bound, &[1; 64]) && !bound, "more dimensions than fit");
}

#[test]
fn dtype_variables_bind_once_and_only_to_allowed_dtypes() {
    let allowed = 1 << DType::F32 as u8 | 1 << DType::F16 as u8;
    let mut variable = 0;
    assert!(fast::bind_dtype(&mut variable, allowed, DType::F32));
    assert!(fast::bind_dtype(&mut variable, allowed, DType::F32));
    assert!(!fast::bind_dtype(&mut variable, allowed, DType::F16), "it is f32");
    for wrong in [DType::I32, DType::F64, DType::BF16] {
        assert!(!fast::bind_dtype(&mut 0, allowed, wrong));
    }
}

#[test]
fn shapes_broadcast_aligned_at_the_right() {
    for right in [&[][..], &[4], &[1], &[3, 4], &[3, 1], &[1, 4], &[2, 3, 4], &[1, 1, 1]] {
        assert!(fast::broadcasts(right, &[2, 3, 4]), "{right:?}");
    }
    for wrong in [&[3][..], &[2], &[0], &[4, 4], &[3, 3], &[2, 3, 4, 1], &[1, 2, 3, 4], &[3, 3, 4]] {
        assert!(!fast::broadcasts(wrong, &[2, 3, 4]), "{wrong:?}");
    }
}

#[test]
fn sizes_are_consumed_one_by_one() {
    let sizes = [2, 3, 4];
    let mut rest = &sizes[..];
    assert!(!fast::next_is(&mut rest, Some(3)) && rest.len() == 3, "nothing is consumed");
    assert!(!fast::next_is(&mut rest, None) && rest.len() == 3, "an unknown size equals none");
    assert!(fast::next_is(&mut rest, Some(2)) && rest == [3, 4]);
    assert!(fast::next_are(&mut rest, &[3, 4]) && rest.is_empty());
    assert!(!fast::next_is(&mut rest, Some(4)) && fast::next_are(&mut rest, &[]));
    let mut rest = &sizes[..];
    assert!(!fast::next_are(&mut rest, &[2, 4]));
}

#[test]
fn devices_dtypes_and_overlap_of_outputs() {
    let mut memory = [0f32; 12];
    let start = memory.as_mut_ptr().cast::<u8>();
    let on = |device: Device, at: usize, shape: &[i64], strides: Option<&[i64]>| {
        let mut layout = Layout::contiguous(shape, DType::F32).expect("a layout");
        layout.device = device;
        if let Some(strides) = strides {
            layout.strides = Dims::new(strides).expect("few strides");
        }
        // SAFETY: inside the memory; nothing reads or writes it.
        unsafe { TensorMut::from_raw(start.wrapping_add(at * 4), layout) }
    };
    let cuda = Device { platform: Platform::Cuda, index: 0 };
    let (host, device) = (on(Device::HOST, 0, &[4], None), on(cuda, 0, &[4], None));

    let mut first = None;
    assert!(fast::same_device(&mut first, host.view()) && first == Some(Device::HOST));
    assert!(fast::same_device(&mut first, host.view()) && !fast::same_device(&mut first, device.view()));

    assert!(fast::output_fits(&host, DType::F32) && !fast::output_fits(&host, DType::I32));
    assert!(fast::output_fits(&on(Device::HOST, 0, &[2, 2], Some(&[4, 1])), DType::F32), "padded rows");
    assert!(
        !fast::output_fits(&on(Device::HOST, 0, &[2, 2], Some(&[0, 1])), DType::F32),
        "rows share memory"
    );
    assert!(!fast::output_fits(&on(Device::HOST, 0, &[2, 2], Some(&[1])), DType::F32), "a stride is missing");

    let apart = on(Device::HOST, 4, &[4], None);
    let across = on(Device::HOST, 3, &[4], None);
    assert!(fast::disjoint(host.view(), apart.view()) && !fast::disjoint(host.view(), across.view()));
    let disjoint = |other: &TensorView<'_>, same| fast::output_is_disjoint(&host, other, same);
    assert!(
        disjoint(apart.view(), true) && !disjoint(across.view(), true) && !disjoint(across.view(), false)
    );
    assert!(!disjoint(device.view(), true) && disjoint(device.view(), false));
}
