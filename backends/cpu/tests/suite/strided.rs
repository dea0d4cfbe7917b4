//! Tensors whose last stride is not 1: the engine copies them to dense ones for a native kernel, and says so.

use lz_core::plan::TransformKind;
use lz_core::tensor::{Device, Dims, Layout};
use lz_core::{DType, OperationInfo, Tensor, TensorMut, TensorView};
use lz_engine::Engine;
use lz_engine::policy::{Policy, WithSource};
use lz_ops::*;

fn engine() -> Engine {
    Engine::with_kernels(reference_kernels::kernels().into_iter().chain(lz_cpu::kernels())).unwrap()
}

fn layout(shape: &[i64], strides: &[i64], dtype: DType) -> Layout {
    Layout {
        shape: Dims::new(shape).unwrap(),
        strides: Dims::new(strides).unwrap(),
        dtype,
        device: Device::HOST,
    }
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919) % 1009) as f32 / 500.0 - 1.0).collect()
}

/// A matrix of `rows` rows that is stored column by column.
fn transposed(data: &[f32], rows: i64) -> TensorView<'_> {
    let columns = data.len() as i64 / rows;
    TensorView::from_slice_with(data, 0, layout(&[rows, columns], &[1, rows], DType::F32)).unwrap()
}

fn dense(view: &TensorView<'_>) -> Tensor {
    let mut copy = Tensor::zeros(view.shape(), view.dtype()).unwrap();
    assert!(lz_core::tensor::copy_elements(view, &mut copy.view_mut()));
    copy
}

#[test]
fn a_native_kernel_runs_on_dense_copies_and_explain_says_so() {
    let (engine, data, weight) = (engine(), numbers(70 * 33), numbers(33));
    let x = transposed(&data, 70);
    let weight = TensorView::from_slice(&weight, &[33]).unwrap();
    let args = || NormRms::new(x).weight(weight);
    let context = args().check().unwrap().context();
    let plan = engine.which(&NORM_RMS, &context).unwrap();
    assert!(plan.kernel.starts_with("cpu.norm.rms."), "{}", plan.kernel);
    assert!(plan.transforms.contains(TransformKind::Contiguous) && plan.transform_cost > 0.0);
    let text = engine.explain(&NORM_RMS, &context).to_string();
    assert!(text.contains("converts contiguous: strided tensors are copied first"), "{text}");
    // The same bits as for dense tensors, from every cache level.
    let copy = dense(&x);
    let expected = norm_rms(&engine, NormRms::new(copy.view()).weight(weight)).unwrap().output;
    for _ in 0..6 {
        assert_eq!(norm_rms(&engine, args()).unwrap().output.bytes(), expected.bytes());
        let again = norm_rms(&engine, NormRms::new(copy.view()).weight(weight)).unwrap().output;
        assert_eq!(again.bytes(), expected.bytes());
    }
    let plain = NormRms::new(copy.view()).weight(weight).check().unwrap().context();
    let plain = engine.which(&NORM_RMS, &plain).unwrap();
    assert_eq!((plain.kernel, plain.transforms.is_empty()), (plan.kernel, true));
}

#[test]
fn a_strided_output_is_written_where_the_caller_wants_it() {
    let (engine, data) = (engine(), numbers(40 * 35));
    let x = transposed(&data, 40);
    let expected = activation_silu(&engine, ActivationSilu::new(x)).unwrap().output;
    let mut memory = vec![0.0f32; 40 * 35 * 2 + 1];
    let wide = layout(&[40, 35], &[2, 80], DType::F32);
    let out = TensorMut::from_slice_with(&mut memory, 1, wide).unwrap();
    activation_silu_into(&engine, &ActivationSilu::new(x), out).unwrap();
    let found = TensorView::from_slice_with(&memory, 1, wide).unwrap();
    assert_eq!(dense(&found).bytes(), expected.bytes());
    assert!(memory.iter().step_by(2).all(|number| *number == 0.0), "nothing else is written");
}

#[test]
fn strict_mode_and_policy_keep_the_reference() {
    let data = numbers(64);
    let context = ActivationSilu::new(transposed(&data, 8)).check().unwrap().context();
    let set = |value: bool| WithSource::new(value, "test");
    for policy in [
        Policy { strict_mode: set(true), ..Policy::default() },
        Policy { allow_adaptation: set(false), ..Policy::default() },
    ] {
        let engine = engine();
        engine.set_policy(policy);
        assert_eq!(engine.which(&ACTIVATION_SILU, &context).unwrap().kernel, "reference.activation.silu");
        let text = engine.explain(&ACTIVATION_SILU, &context).to_string();
        assert!(text.contains("STRICT_MODE_TRANSFORM: contiguous would have to be converted"), "{text}");
    }
}

/// The kernel that runs a call with this context.
fn chosen(engine: &Engine, operation: &'static OperationInfo, context: &lz_core::context::Context) -> String {
    engine.which(operation, context).unwrap().kernel
}

/// Of a table, a call reads a few rows; a cache that is changed would have to be copied back.
#[test]
fn tables_that_are_indexed_and_tensors_that_are_changed_are_not_copied() {
    let engine = engine();
    let (data, ids) = (numbers(50 * 8), [3i32, 4]);
    let ids = TensorView::from_slice(&ids, &[2]).unwrap();
    let context = EmbeddingLookup::new(transposed(&data, 50), ids).check().unwrap().context();
    assert_eq!(chosen(&engine, &EMBEDDING_LOOKUP, &context), "reference.embedding.lookup");
    let found = embedding_lookup(&engine, EmbeddingLookup::new(transposed(&data, 50), ids)).unwrap();
    assert_eq!(found.output.view().at(&[1, 2]), f64::from(data[2 * 50 + 4]));
}

/// A plan for dense tensors also runs strided ones, and the other way round.
#[test]
fn a_pinned_kernel_takes_other_strides() {
    let (engine, data) = (engine(), numbers(30 * 20));
    let strided = transposed(&data, 30);
    let copy = dense(&strided);
    let expected = activation_silu(&engine, ActivationSilu::new(strided)).unwrap().output;
    for [planned, called] in [[strided, copy.view()], [copy.view(), strided], [strided, strided]] {
        let args = ActivationSilu::new(planned);
        let pinned = engine.pin(&ACTIVATION_SILU, &args.check().unwrap().context(), &mut |_| Ok(())).unwrap();
        // A new snapshot: the plan is examined again.
        for round in 0..3 {
            let args = ActivationSilu::new(called);
            let call = args.check().unwrap();
            let mut result = Tensor::zeros(&[30, 20], DType::F32).unwrap();
            let mut out = call.outputs(result.view_mut()).unwrap();
            engine
                .run_pinned(&pinned, &call.context(), &mut |entry, run| {
                    call.run_kernel(entry, out.reborrow(), run)
                })
                .unwrap();
            assert_eq!(result.bytes(), expected.bytes());
            if round == 1 {
                engine.set_evidence(None);
            }
        }
    }
}
