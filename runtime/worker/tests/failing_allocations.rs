//! Texts that cross between host and worker are copied; a copy for which there is no memory is an error and does not end the process.

use lz_test_support::{FailingAllocator, fail_allocation};
use lz_worker::wire::{UnpackError, pack_texts, unpack_texts};

/// Allocations from this size on are copies of texts.
const DATA_BYTES: usize = 1 << 12;

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

#[test]
fn copies_of_texts_are_fallible() {
    let texts: Vec<String> = (0..4).map(|number| number.to_string().repeat(1 << 14)).collect();
    assert_eq!(fail_allocation(0, DATA_BYTES, || pack_texts(&texts)), (None, true));
    let (packed, failed) = fail_allocation(1, DATA_BYTES, || pack_texts(&texts));
    assert!(!failed, "one allocation for all texts");
    let packed = packed.unwrap();
    for number in 0..4 {
        let result = fail_allocation(number, DATA_BYTES, || unpack_texts(&packed));
        assert_eq!(result, (Err(UnpackError::OutOfMemory), true), "the copy of text {number}");
    }
    assert_eq!(fail_allocation(4, DATA_BYTES, || unpack_texts(&packed)), (Ok(texts), false));
    let many = vec![""; 1 << 12];
    let packed = pack_texts(&many).unwrap();
    let list = fail_allocation(0, DATA_BYTES, || unpack_texts(&packed));
    assert_eq!(list, (Err(UnpackError::OutOfMemory), true), "the list of texts");
}
