//! Allocations of the sizes that callers determine fail one after the other: each is a listed error, and the next call works.
//!
//! Small allocations (reasons, lists of arguments) are bookkeeping: Rust ends the process if one fails, and no test fails them.

use lz_core::run::{Run, Scratch};
use lz_core::tensor::{Tensor, TensorView};
use lz_core::{DType, Reason, ReasonCode};
use lz_test_support::{FailingAllocator, fail_allocation};

/// Allocations from this size on are data.
const DATA_BYTES: usize = 1 << 16;

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

/// Fails the first, second, … allocation of data until the call needs no more of them. Returns how many failures it reported.
fn fail_each(mut call: impl FnMut() -> Result<(), Reason>) -> u32 {
    for failures in 0.. {
        let (result, failed) = fail_allocation(failures, DATA_BYTES, &mut call);
        match result {
            Err(reason) => {
                assert!(failed, "nothing failed, but: {reason}");
                assert_eq!(reason.code, ReasonCode::OutOfMemory, "{reason}");
                assert!(reason.to_string().contains("bytes"), "{reason}");
            }
            Ok(()) => {
                assert!(!failed, "an allocation failed without an error");
                return failures;
            }
        }
    }
    unreachable!("there are fewer allocations than numbers")
}

#[test]
fn tensors_and_outputs() {
    assert_eq!(fail_each(|| Tensor::zeros(&[1 << 10, 1 << 10], DType::F32).map(drop)), 1);
    let data = vec![1.0f32; 1 << 16];
    assert_eq!(fail_each(|| Tensor::from_slice(&data, &[1 << 16]).map(drop)), 1);
    let view = TensorView::from_slice(&data, &[1 << 16]).expect("a view allocates nothing");
    assert_eq!(view.elements(), 1 << 16);
}

/// The scratch memory of a thread grows with the calls; after a failure it works as before.
#[test]
fn workspace() {
    let mut scratch = Scratch::default();
    for bytes in [1u64 << 16, 1 << 20] {
        let reported = fail_each(|| {
            let mut run = Run::new(&mut scratch, bytes);
            run.workspace(bytes)
                .map(|memory| assert_eq!(memory.len() as u64, bytes))
                .map_err(|error| error.reason.clone())
        });
        assert_eq!(reported, 1);
        let again = fail_each(|| {
            let mut run = Run::new(&mut scratch, bytes);
            run.workspace(bytes).map(drop).map_err(|error| error.reason.clone())
        });
        assert_eq!(again, 0, "the memory is kept");
    }
}

/// Sizes that no machine has: those whose bytes cannot be counted are refused before anything is allocated, the others when the system
/// refuses them.
#[test]
fn sizes_beyond_any_machine() {
    for (shape, dtype, code) in [
        (&[1i64 << 62, 4][..], DType::U8, ReasonCode::SizeOverflow),
        (&[1 << 31, 1 << 31, 4], DType::F32, ReasonCode::SizeOverflow),
        (&[i64::MAX], DType::F64, ReasonCode::SizeOverflow),
        (&[-1, 4], DType::F32, ReasonCode::NegativeSize),
        (&[1 << 46], DType::F32, ReasonCode::OutOfMemory),
    ] {
        let reason = Tensor::zeros(shape, dtype).map(drop).expect_err("no machine has so much memory");
        assert_eq!(reason.code, code, "{shape:?}: {reason}");
    }
}
