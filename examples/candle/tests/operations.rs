//! Operations on tensors of candle give the results of candle's own formulas.

use candle_core::{D, DType, Device, Result, Tensor};
use layerzero::Engine;
use lz_candle_example::Operation;

fn random(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|at| ((at * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn rms(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
    x.broadcast_div(&scale)?.broadcast_mul(weight)
}

fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(found.dims(), expected.dims());
    let difference = (found.to_dtype(DType::F32).unwrap() - expected.to_dtype(DType::F32).unwrap()).unwrap();
    let largest =
        difference.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
    assert!(largest <= tolerance, "difference {largest}");
}

#[test]
fn a_custom_operation_of_two_tensors() -> Result<()> {
    let (x, weight) = (random(&[3, 16]), random(&[16]));
    let norm = Operation::new(&Engine::new(), "norm.rms")?.float("eps", 1e-5)?;
    let expected = rms(&x, &weight, 1e-5)?;
    assert_close(&x.apply_op2_no_bwd(&weight, &norm)?, &expected, 1e-5);
    for (dtype, tolerance) in [(DType::BF16, 3e-2), (DType::F16, 3e-3)] {
        let (x, weight) = (x.to_dtype(dtype)?, weight.to_dtype(dtype)?);
        let found = x.apply_op2(&weight, norm.clone())?;
        assert_eq!(found.dtype(), dtype);
        assert_close(&found, &expected, tolerance);
    }
    Ok(())
}

#[test]
fn strides_and_offsets() -> Result<()> {
    let x = random(&[16, 6]);
    let silu = Operation::new(&Engine::new(), "activation.silu")?;
    let part = x.narrow(0, 2, 8)?.t()?;
    assert!(!part.is_contiguous());
    let expected = part.contiguous()?.silu()?;
    assert_close(&part.apply_op1_no_bwd(&silu)?, &expected, 1e-5);
    Ok(())
}

#[test]
fn attention_of_three_tensors_and_with_a_mask() -> Result<()> {
    let (q, k, v) = (random(&[1, 4, 5, 8]), random(&[1, 4, 7, 8]), random(&[1, 4, 7, 8]));
    let attention = Operation::new(&Engine::new(), "attention.gqa.prefill")?.case("layout", "BHSD")?;
    let scores = (q.matmul(&k.t()?)? * (8f64).sqrt().recip())?;
    let softmax = |scores: &Tensor| -> Result<Tensor> {
        let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)
    };
    let expected = softmax(&scores)?.matmul(&v)?;
    assert_close(&q.apply_op3_no_bwd(&k, &v, &attention)?, &expected, 1e-5);
    let mask = random(&[1, 1, 5, 7]);
    let expected = softmax(&scores.broadcast_add(&mask)?)?.matmul(&v)?;
    let found = attention.flag("return_lse", true)?.call(&[Some(&q), Some(&k), Some(&v), Some(&mask)])?;
    assert_eq!(found.len(), 2);
    assert_close(&found[0], &expected, 1e-5);
    Ok(())
}

#[test]
fn what_cannot_be_expressed_is_an_error() -> Result<()> {
    let engine = Engine::new();
    let message = |result: Result<Operation>| result.unwrap_err().to_string();
    assert!(message(Operation::new(&engine, "norm.rmss")).contains("unknown operation `norm.rmss`"));
    assert!(
        message(Operation::new(&engine, "norm.rms.add")).contains("writes its input `residual` in place")
    );
    let norm = Operation::new(&engine, "norm.rms")?;
    assert!(message(norm.clone().float("epsilon", 1.0)).contains("no param `epsilon`, only eps"));
    let attention = Operation::new(&engine, "attention.gqa.prefill")?;
    assert!(message(attention.clone().case("layout", "SBHD")).contains("must be one of BSHD, BHSD"));
    let (q, x, ids) = (random(&[1, 5, 4, 8]), random(&[2, 8]), Tensor::new(&[1u32], &Device::Cpu)?);
    let problem = attention.flag("return_lse", true)?;
    let problem = q.apply_op3_no_bwd(&q, &q, &problem).unwrap_err().to_string();
    assert!(problem.contains("several results"), "{problem}");
    let problem = x.apply_op2_no_bwd(&ids, &norm).unwrap_err().to_string();
    assert!(problem.contains("norm.rms"), "{problem}");
    Ok(())
}
