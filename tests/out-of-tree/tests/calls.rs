//! An operation of an external crate behaves like those of the catalog: called through selection, rejected
//! with reasons.

use lz_core::device::Platform;
use lz_core::mode::ReductionOrder;
use lz_core::plan::TransformKind;
use lz_core::spec::{DeviceNeeds, StrideNeeds};
use lz_core::{DType, ReasonCode, TensorView};
use lz_engine::Engine;
use lz_out_of_tree::scale_add::{DEMO_SCALE_ADD, DemoScaleAdd, demo_scale_add};
use lz_out_of_tree::{Blocked, Copies, EveryAttribute, Plain};

fn engine() -> Engine {
    let engine = Engine::new();
    engine.register([Plain.entry()]).unwrap();
    engine
}

#[test]
fn external_operation_is_called_through_the_engine() {
    let (x, y) = ([1.0f32, 2.0, 3.0, 4.0], [10.0f32, 20.0, 30.0, 40.0]);
    let args = DemoScaleAdd::new(TensorView::from_slice(&x, &[2, 2]).unwrap())
        .y(TensorView::from_slice(&y, &[2, 2]).unwrap())
        .scale(2.0);
    let result = demo_scale_add(&engine(), args).unwrap();
    assert_eq!(result.output.view().as_slice::<f32>(), Some(&[12.0, 24.0, 36.0, 48.0][..]));
}

#[test]
fn invalid_call_gives_reasons() {
    let (x, y) = ([1.0f32; 4], [1.0f32; 6]);
    let args = DemoScaleAdd::new(TensorView::from_slice(&x, &[2, 2]).unwrap()).y(TensorView::from_slice(
        &y,
        &[2, 3],
    )
    .unwrap());
    let error = demo_scale_add(&engine(), args).unwrap_err();
    assert!(error.has(ReasonCode::AxisMismatch), "{error}");
}

#[test]
fn operation_info_contains_the_schema() {
    assert_eq!(DEMO_SCALE_ADD.name, "demo.scale_add");
    assert_eq!(DEMO_SCALE_ADD.path, "ops/scale_add.yaml");
    assert_eq!(DEMO_SCALE_ADD.yaml, include_str!("../ops/scale_add.yaml"));
    assert_eq!(DEMO_SCALE_ADD.schema().digest, DEMO_SCALE_ADD.digest);
}

#[test]
fn kernel_attribute_becomes_the_spec() {
    let spec = Plain::spec();
    assert_eq!((spec.id.as_str(), spec.operation.as_str()), ("demo.scale_add.plain", "demo.scale_add"));
    assert_eq!((spec.backend.as_str(), spec.version.as_str()), ("demo", env!("CARGO_PKG_VERSION")));
    assert!(spec.deterministic && spec.platform == Platform::Cpu && spec.limits.is_empty());

    let spec = EveryAttribute::spec();
    assert_eq!((spec.backend.as_str(), spec.version.as_str(), spec.priority), ("talkative", "7.1", 60));
    let limits: Vec<_> = spec.limits.iter().map(|limit| (limit.check.as_str(), limit.code)).collect();
    assert_eq!(
        limits,
        [
            ("hidden % 8 == 0", ReasonCode::HeadDimAlignment),
            ("rows <= 4096 or T == f32", ReasonCode::AxisLimit)
        ]
    );
    assert_eq!(spec.dtypes, [("T".to_owned(), vec![DType::F32, DType::F16])]);
    assert_eq!((spec.platform, spec.strides, spec.alignment), (Platform::Cuda, StrideNeeds::Contiguous, 16));
    let device = DeviceNeeds {
        min_sm: Some(80),
        max_sm: Some(90),
        generations: vec!["hopper".to_owned()],
        min_tensor_core_generation: Some(4),
        instruction_set: Some("wgmma".to_owned()),
        isa: vec!["avx2".to_owned()],
        min_driver: Some("550.54".to_owned()),
    };
    assert_eq!(spec.device, device);
    assert_eq!(spec.workspace.as_deref(), Some("4 * hidden"));
    assert_eq!(spec.grid, Some(["rows", "1", "1"].map(str::to_owned)));
    assert_eq!(spec.block.as_deref(), Some("min(hidden, 1024)"));
    assert_eq!((spec.fuses, spec.transform_cost), (vec!["norm.rms.add".to_owned()], 3));
    assert_eq!((spec.kv_strategies, spec.quant_formats), (vec!["paged".to_owned()], vec!["int8".to_owned()]));
    assert!(
        spec.deterministic
            && spec.tp_invariant
            && spec.reduced_precision
            && spec.jit
            && spec.prepacked_weights
    );
    assert!(!spec.cuda_graph_safe && !spec.writes_into_output);
    assert_eq!((spec.max_tp_size, spec.reduction_order), (Some(8), Some(ReductionOrder::Tree)));
    assert_eq!(spec.speculative_algorithms, ["eagle", "medusa"]);
    assert_eq!(spec.adapts, [TransformKind::Contiguous, TransformKind::Align]);
}

#[test]
fn external_kernel_competes_with_catalog_kernels() {
    let engine = lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    engine.register([Copies.entry()]).unwrap();
    let rms = |x: &[f32]| {
        let shape = [1, i64::try_from(x.len()).unwrap()];
        let args = lz_ops::NormRms::new(TensorView::from_slice(x, &shape).unwrap());
        lz_ops::norm_rms(&engine, args).unwrap().output.view().as_slice::<f32>().unwrap().to_vec()
    };
    assert_eq!(rms(&[3.0; 8]), [3.0; 8], "priority 60 is above the reference");
    assert_ne!(rms(&[3.0; 7]), [3.0; 7], "7 violates its limit");
}

#[test]
fn generic_kernels_have_entries() {
    assert_eq!(Blocked::<4>.entry().spec.id, "demo.norm.rms.blocked");
}
