//! `embedding.lookup` copies bits, not values.

use lz_core::ReasonCode;
use lz_ops::{EmbeddingLookup, embedding_lookup};

use crate::{strided, values, view};

#[test]
fn lookup_copies_rows_bit_by_bit_in_id_order() {
    let signaling = f32::from_bits(0xff80_0001);
    let table = [1.0f32, signaling, -0.0, 4.0, 5.0, 6.0];
    let ids = [1i64, 0, 1, 2];
    let args = EmbeddingLookup::new(view(&table, &[3, 2]), view(&ids, &[2, 2]));
    let result = embedding_lookup(&crate::reference_engine(), args).unwrap();
    assert_eq!(result.output.shape(), [2, 2, 2]);
    let found: Vec<u32> = values::<f32>(&result.output).into_iter().map(f32::to_bits).collect();
    let expected = [-0.0f32, 4.0, 1.0, signaling, -0.0, 4.0, 5.0, 6.0].map(f32::to_bits);
    assert_eq!(found, expected);
}

#[test]
fn lookup_with_transposed_table_and_out_of_range_id() {
    let table = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let table = strided(&table, 0, &[3, 2], &[1, 3]);
    let result =
        embedding_lookup(&crate::reference_engine(), EmbeddingLookup::new(table, view(&[2i32], &[])))
            .unwrap();
    assert_eq!(values::<f32>(&result.output), [3.0, 6.0]);
    for id in [-1i32, 3] {
        let error =
            embedding_lookup(&crate::reference_engine(), EmbeddingLookup::new(table, view(&[id], &[1])))
                .unwrap_err();
        assert!(
            error.has(ReasonCode::IndexOutOfRange) || error.has(ReasonCode::TokenIdOutOfRange),
            "{error}"
        );
    }
}
