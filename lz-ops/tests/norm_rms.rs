//! One operation end to end: from schema to result, and to an error with reasons.

use lz_core::{ReasonCode, TensorView};
use lz_ops::{NormRms, norm_rms};

/// An engine with the reference kernels of all operations.
fn reference_engine() -> lz_engine::Engine {
    lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

#[test]
fn row_is_divided_by_its_root_mean_square() {
    let engine = reference_engine();
    let x = [3.0f32, 4.0, 0.0, 0.0];
    let args = NormRms::new(TensorView::from_slice(&x, &[1, 1, 4]).unwrap()).eps(1e-12);
    let result = norm_rms(&engine, args).unwrap();
    assert_eq!(result.output.shape(), [1, 1, 4]);
    assert_eq!(result.output.view().as_slice::<f32>().unwrap(), [1.2, 1.6, 0.0, 0.0]);
}

#[test]
fn invalid_call_reports_every_problem() {
    let engine = reference_engine();
    let (x, w) = ([1.0f32; 8], [1.0f32; 3]);
    let args = NormRms::new(TensorView::from_slice(&x, &[2, 4]).unwrap())
        .weight(TensorView::from_slice(&w, &[3]).unwrap())
        .eps(-1.0);
    let error = norm_rms(&engine, args).unwrap_err();
    assert!(error.has(ReasonCode::AxisMismatch) && error.has(ReasonCode::ParamOutOfRange), "{error}");
    println!("{error}");
}
