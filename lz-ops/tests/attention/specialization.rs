//! A specialization is checked, and selected for, as an operation of its own.

use lz_core::{DType, Tensor, TensorView};
use lz_ops::{ATTENTION_GQA_DECODE, ATTENTION_STANDARD_DECODE, AttentionGqaDecode, AttentionStandardDecode};

use crate::support::view;

/// Queries of `heads` heads, keys and values of `kv_heads`; 2 sequences of 5 keys, 3 and 4 features.
fn tensors(values: &[f32], heads: i64, kv_heads: i64) -> [TensorView<'_>; 3] {
    [[2, heads, 3].as_slice(), &[2, 5, kv_heads, 3], &[2, 5, kv_heads, 4]]
        .map(|shape| view(&values[..shape.iter().product::<i64>() as usize], shape))
}

#[test]
fn unequal_axes_are_rejected_in_terms_of_the_specialization() {
    let values = [0.0f32; 200];
    let [q, k, v] = tensors(&values, 4, 2);
    assert!(AttentionGqaDecode::new(q, k, v).check().is_ok());
    let error = AttentionStandardDecode::new(q, k, v).check().err().unwrap().to_string();
    assert!(error.contains("attention.standard.decode: 2 problems"), "{error}");
    assert!(error.contains("k.shape[2] (heads) is 2, but q.shape[1] bound heads to 4"), "{error}");
    assert!(!error.contains("kv_heads") && !error.contains("gqa"), "{error}");
}

#[test]
fn constraints_on_replaced_axes_do_not_apply() {
    let values = [0.0f32; 200];
    let [q, k, v] = tensors(&values, 0, 0);
    assert!(AttentionStandardDecode::new(q, k, v).check().is_ok());
    assert!(AttentionGqaDecode::new(q, k, v).check().is_err());
}

#[test]
fn context_is_that_of_the_general_operation_without_the_replaced_axis() {
    let values = [0.0f32; 200];
    let [q, k, v] = tensors(&values, 4, 4);
    let (special, general) = (AttentionStandardDecode::new(q, k, v), AttentionGqaDecode::new(q, k, v));
    let (special, general) = (special.check().unwrap().context(), general.check().unwrap().context());
    assert!(ATTENTION_STANDARD_DECODE.field("kv_heads").is_none());
    for field in ATTENTION_STANDARD_DECODE.fields.iter() {
        let other = ATTENTION_GQA_DECODE.field(&field.name).unwrap();
        assert_eq!(special.value(field), general.value(other), "{}", field.name);
    }
}

#[test]
fn output_errors_name_the_specialization() {
    let values = [0.0f32; 200];
    let [q, k, v] = tensors(&values, 4, 4);
    let args = AttentionStandardDecode::new(q, k, v);
    let call = args.check().unwrap();
    let mut output = Tensor::zeros(&[2, 4, 3], DType::F32).unwrap();
    let error = call.outputs(output.view_mut(), None).err().unwrap().to_string();
    assert!(error.contains("attention.standard.decode") && !error.contains("gqa"), "{error}");
}

#[test]
fn schema_is_resolved_at_run_time() {
    let (special, general) = (ATTENTION_STANDARD_DECODE.schema(), ATTENTION_GQA_DECODE.schema());
    assert_eq!(special.digest, ATTENTION_STANDARD_DECODE.digest);
    assert_eq!(special.axes.len() + 1, general.axes.len());
}
