//! Capability descriptors: invalid ones disable their backend with an exact diagnostic, valid ones become kernel specs.

use lz_core::ReasonCode;
use lz_core::descriptor::{self, Catalog, Descriptor};
use lz_core::spec::StrideNeeds;
use lz_test_support::{fixtures, hold, operations};

const PASS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/descriptors/pass");
const FAIL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/descriptors/fail");

fn catalog() -> Catalog<'static> {
    Catalog::new(operations().iter().map(|info| info.schema()))
}

fn right(name: &str) -> Descriptor {
    let (_, _, text) = fixtures(PASS).into_iter().find(|(_, found, _)| found == name).expect(name);
    descriptor::read(name, &text, &catalog()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn each_invalid_descriptor_has_its_diagnostic() {
    let catalog = catalog();
    let count = hold(FAIL, |name, text| {
        descriptor::read(name, text, &catalog).err().map(|error| error.report.render())
    });
    assert!(count >= 50, "{count} fixtures");
}

#[test]
fn disabled_backend_has_reasons() {
    let of = |name: &str| {
        let (_, _, text) = fixtures(FAIL).into_iter().find(|(_, found, _)| found == name).expect(name);
        let error = descriptor::read(name, &text, &catalog()).unwrap_err();
        let codes: Vec<ReasonCode> = error.reasons.iter().map(|reason| reason.code).collect();
        (error.backend.clone(), codes)
    };
    let flash = Some("flash_attn".to_owned());
    assert_eq!(
        of("LZ0702_future_version.json"),
        (flash.clone(), vec![ReasonCode::CapabilitiesSchemaMismatch])
    );
    assert_eq!(
        of("LZ0003_unknown_field.json"),
        (flash.clone(), vec![ReasonCode::CapabilitiesSchemaMismatch])
    );
    assert_eq!(of("LZ0005_no_dtypes.json"), (flash.clone(), vec![ReasonCode::CapabilitiesMissing]));
    assert_eq!(of("LZ0005_no_layouts.json"), (flash.clone(), vec![ReasonCode::CapabilitiesMissing]));
    assert_eq!(of("LZ0602_unknown_operation.json"), (flash.clone(), vec![ReasonCode::OperationUnknown]));
    assert_eq!(of("LZ0703_same_id_in_one_operation.json"), (flash, vec![ReasonCode::KernelDuplicate]));
    assert_eq!(of("LZ0701_not_json.json").0, None);
}

#[test]
fn the_example_descriptor_loads() {
    let descriptor = right("appendix_d.json");
    let shown: Vec<String> = descriptor
        .kernels
        .iter()
        .map(|spec| {
            let limits: Vec<String> =
                spec.limits.iter().map(|limit| format!("    {} else {}", limit.check, limit.code)).collect();
            let dtypes: Vec<String> =
                spec.dtypes.iter().map(|(name, dtypes)| format!("    {name}: {dtypes:?}")).collect();
            format!("{} for {}\n{}\n{}", spec.id, spec.operation, dtypes.join("\n"), limits.join("\n"))
        })
        .collect();
    insta::assert_snapshot!(shown.join("\n"));
    let spec = &descriptor.kernels[0];
    assert_eq!(spec.layouts, ["BSHD"]);
    assert_eq!(spec.strides, StrideNeeds::LastDense);
    assert!(spec.cuda_graph_safe && !spec.deterministic && !spec.tp_invariant && !spec.writes_into_output);
    assert_eq!((spec.device.min_sm, spec.device.max_sm), (Some(80), None));
    assert_eq!(spec.capabilities_hash, descriptor.hash);
}

#[test]
fn descriptor_with_all_fields_loads() {
    let descriptor = right("everything.json");
    assert_eq!(descriptor.generations[0].generation.name(), "rubin");
    let gqa = descriptor.kernels.iter().find(|spec| spec.operation == "attention.gqa.prefill").unwrap();
    assert_eq!(
        gqa.grid.as_ref().unwrap(),
        &["ceil_div(max(seq_q, seq_k), 128)".to_owned(), "heads".to_owned(), "batch".to_owned()]
    );
    assert_eq!(gqa.dtypes[1].1, [lz_core::DType::Bool], "of masks only bools");
    assert!(gqa.reduced_precision && gqa.tp_invariant && gqa.jit);
    let checks: Vec<&str> = gqa.limits.iter().map(|limit| limit.check.as_str()).collect();
    assert!(checks.contains(&"kv_heads >= 1 and heads // kv_heads in [1, 4, 8]"), "{checks:?}");
    assert!(!checks.iter().any(|check| check.contains("given(mask)")), "{checks:?}");
}

#[test]
fn undeclared_capabilities_are_unsupported() {
    let descriptor = right("norm_rms.json");
    let spec = &descriptor.kernels[0];
    assert_eq!(spec.strides, StrideNeeds::Contiguous);
    let checks: Vec<&str> = spec.limits.iter().map(|limit| limit.check.as_str()).collect();
    assert!(checks.contains(&"hidden % 8 == 0"), "{checks:?}");
    assert!(checks.iter().any(|check| check.contains("weight_offset")), "{checks:?}");
    assert!(!checks.iter().any(|check| check.contains("eps")), "{checks:?}");
}

#[test]
fn hash_is_independent_of_formatting() {
    let (_, _, text) = fixtures(PASS).into_iter().find(|(_, name, _)| name == "appendix_d.json").unwrap();
    let compact: serde_json::Value = serde_json::from_str(&text).unwrap();
    let same = descriptor::read("a", &compact.to_string(), &catalog()).unwrap();
    let first = right("appendix_d.json");
    assert_eq!(first.hash, same.hash);
    assert_eq!(first.hash.len(), 64);
    let other = descriptor::read("a", &text.replace("256", "128"), &catalog()).unwrap();
    assert_ne!(first.hash, other.hash);
    assert_eq!(
        descriptor::combined_hash([first.hash.as_str(), other.hash.as_str()]),
        descriptor::combined_hash([other.hash.as_str(), first.hash.as_str(), first.hash.as_str()]),
    );
}

#[test]
fn descriptor_report_is_bounded() {
    let (_, _, text) = fixtures(PASS).into_iter().next().expect("there is a fixture");
    let right: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let ops = right["ops"].as_object().expect("it has operations");
    let kernels = ops.values().next().expect("one at least").clone();
    let mut unknown = right.clone();
    unknown["ops"] = (0..5000)
        .map(|at| (format!("atention.causl.{at}"), kernels.clone()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let mut keys = right.clone();
    let first = ops.keys().next().expect("one at least");
    for at in 0..5000 {
        keys["ops"][first][0][format!("kernel_idd_{at}")] = 1.into();
    }
    for wrong in [unknown, keys] {
        let text = serde_json::to_string_pretty(&wrong).expect("it is JSON");
        let error = descriptor::read("many.json", &text, &catalog()).expect_err("it is wrong");
        assert_eq!(error.reasons.len(), lz_schema::diagnostics::MAX_REPORTED);
        let text = error.to_string();
        assert!(text.contains(" more\n") && text.len() < 100_000, "{} bytes", text.len());
    }
}
