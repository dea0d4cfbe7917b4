//! Dispatch tables and lockfiles: invalid ones have their exact diagnostic, valid ones decide and compare exactly.

use lz_core::context::Context;
use lz_core::{DType, OperationInfo, ReasonCode};
use lz_engine::table::{
    DispatchTable, Leaf, LockedDecision, Lockfile, Sizes, TableAnswer, TableWriter, grow,
};
use lz_test_support::{fixtures, hold, operation, operations};
use proptest::prelude::*;

const PASS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tables/pass");
const FAIL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tables/fail");

fn right(name: &str) -> DispatchTable {
    let (_, _, text) = fixtures(PASS).into_iter().find(|(_, found, _)| found == name).expect(name);
    DispatchTable::read(name, &text, operations()).unwrap_or_else(|error| panic!("{error}"))
}

/// A context with these fields set; all others are 0.
fn context(info: &OperationInfo, values: &[(&str, u64)]) -> Context {
    let mut context = Context::of(&info.fields);
    for (name, value) in values {
        context.set(info.field(name).unwrap_or_else(|| panic!("{name}")).store, *value);
    }
    context
}

fn kernel(found: &TableAnswer<'_>) -> String {
    match found {
        TableAnswer::Decision(decision) => decision.kernel.clone(),
        TableAnswer::Outside(reason) => reason.to_string(),
        TableAnswer::Unknown => "unknown".to_owned(),
    }
}

#[test]
fn each_invalid_table_has_its_diagnostic() {
    hold(FAIL, |name, text| {
        if name.ends_with(".lock") {
            return Lockfile::read(name, text).err().map(|error| error.report.render());
        }
        DispatchTable::read(name, text, operations()).err()?.report.map(|report| report.render())
    });
}

#[test]
fn example_table_loads_and_decides_only_in_its_bucket() {
    let table = right("appendix_e.json");
    let info = operation("attention.gqa.prefill");
    let call = |batch, seq, causal| {
        let context = context(info, &[("batch", batch), ("seq_q", seq), ("seq_k", seq), ("causal", causal)]);
        kernel(&table.lookup(info, &context))
    };
    assert_eq!(call(4, 512, 1), "flash_attn.v2.causal");
    assert_eq!(call(2, 129, 1), "flash_attn.v2.causal", "the bucket reaches down to the bound before it");
    assert_eq!(call(4, 128, 1), "[PLAN_BUCKET_MISS] the table has no plan for this combination of buckets");
    assert_eq!(call(65, 512, 1), "[PLAN_BUCKET_MISS] requires batch up to 64, found 65");
    assert_eq!(call(4, 512, 0), "[PLAN_BUCKET_MISS] causal: requires causal to be true, found another value");
    let other = operation("norm.layer");
    assert_eq!(kernel(&table.lookup(other, &Context::EMPTY)), "unknown");
}

#[test]
fn table_of_another_machine_is_rejected() {
    let table = right("appendix_e.json");
    let error = table.verify("t.json", "cuda_sm100_cu130", "abc").unwrap_err();
    let codes: Vec<ReasonCode> = error.reasons.iter().map(|reason| reason.code).collect();
    assert_eq!(codes, [ReasonCode::TableHardwareMismatch, ReasonCode::TableCapabilitiesMismatch]);
    insta::assert_snapshot!(error, @r"
    t.json: the dispatch table was rejected
      [TABLE_HARDWARE_MISMATCH] requires cuda_sm90_cu123, found cuda_sm100_cu130
      [TABLE_CAPABILITIES_MISMATCH] requires a capabilities hash, which the table lacks, found abc
    ");
}

#[test]
fn trees_split_by_fields_and_sizes() {
    let table = right("trees.json");
    let info = operation("norm.rms");
    let call = |dtype: DType, hidden, rows| {
        let context = context(info, &[("T", dtype as u64), ("hidden", hidden), ("rows", rows)]);
        kernel(&table.lookup(info, &context))
    };
    assert_eq!(call(DType::F16, 1024, 1000), "small");
    assert_eq!(call(DType::F16, 1025, 16), "large");
    assert_eq!(call(DType::F16, 1025, 17), "[PLAN_BUCKET_MISS] requires rows up to 16, found 17");
    assert_eq!(call(DType::F32, 1, 1), "[PLAN_BUCKET_MISS] T: requires T to be f16, found another value");
}

#[test]
fn equal_neighbors_are_merged() {
    let axes = [sizes("hidden", vec![64, 128, 256, 512])];
    let leaf =
        |kernel: &str| Leaf { kernel: kernel.to_owned(), fallbacks: Vec::new(), jit_artifacts: Vec::new() };
    let tree = grow(&axes, &mut |at| Ok(leaf(if at[0] <= 256 { "small" } else { "large" })));
    assert_eq!(tree.bounds, [256, 512]);
    assert_eq!(tree.branches.len(), 2);
    let tree =
        grow(&axes, &mut |at| if at[0] < 512 { Ok(leaf("a")) } else { Err("too large for all".to_owned()) });
    assert_eq!(tree.bounds, [256, 512]);
    assert_eq!(tree.branches[1].undecided.as_deref(), Some("too large for all"));
}

fn sizes(axis: &str, bounds: Vec<i64>) -> Sizes {
    Sizes { axis: axis.to_owned(), lowest: None, bounds }
}

proptest! {
    /// A table that was written and read again answers as the function it was grown from, everywhere inside its buckets.
    #[test]
    fn written_table_round_trips(
        hidden in prop::collection::btree_set(1i64..2000, 1..5),
        rows in prop::collection::btree_set(1i64..2000, 1..5),
        answers in prop::collection::vec(0u8..3, 25),
        calls in prop::collection::vec((0i64..2100, 0i64..2100), 20),
    ) {
        let info = operation("norm.rms");
        let axes =
            [sizes("hidden", hidden.into_iter().collect()), sizes("rows", rows.into_iter().collect())];
        let answer = |at: &[i64]| {
            let place = |axis: usize| axes[axis].bounds.iter().position(|bound| *bound == at[axis]).unwrap();
            format!("kernel{}", answers[place(0) * 5 + place(1)])
        };
        let tree = grow(&axes, &mut |at| {
            Ok(Leaf { kernel: answer(at), fallbacks: vec!["last".to_owned()], jit_artifacts: Vec::new() })
        });
        let mut writer = TableWriter::new("m", "cpu", "hash");
        writer.operation("norm.rms", &axes, tree);
        let table = DispatchTable::read("t.json", &writer.text(), operations()).unwrap();
        prop_assert!(table.verify("t.json", "cpu", "hash").is_ok());
        for (hidden, rows) in calls {
            let context = context(info, &[("hidden", hidden as u64), ("rows", rows as u64)]);
            let cell: Option<Vec<i64>> = [hidden, rows]
                .iter()
                .zip(&axes)
                .map(|(size, sizes)| sizes.bounds.iter().copied().find(|bound| size <= bound))
                .collect();
            match (table.lookup(info, &context), cell) {
                (TableAnswer::Decision(decision), Some(cell)) => prop_assert_eq!(&decision.kernel, &answer(&cell)),
                (TableAnswer::Outside(reason), None) => prop_assert_eq!(reason.code, ReasonCode::PlanBucketMiss),
                (found, cell) => prop_assert!(false, "{found:?} in {cell:?}"),
            }
        }
    }
}

fn decision(operation: &str, context: &str, kernel: &str) -> LockedDecision {
    LockedDecision {
        operation: operation.to_owned(),
        context: context.to_owned(),
        schema: "5e1f".to_owned(),
        kernel: kernel.to_owned(),
        kernel_version: "0.1.0".to_owned(),
        fallbacks: vec!["reference.norm.rms".to_owned()],
    }
}

fn lockfile() -> Lockfile {
    let mut lockfile = Lockfile::new("cpu_x86_64_avx2_16t", "90c1", "ca9a");
    lockfile.layerzero = "0.1.0".to_owned();
    lockfile.add(decision("norm.rms", "T=bf16 rows<=16 hidden=4096", "cpu.norm.rms.avx2"));
    lockfile.add(decision("norm.layer", "T=f32 rows<=1 hidden=64", "reference.norm.layer"));
    lockfile
}

#[test]
fn lockfile_round_trips_as_text() {
    let lockfile = lockfile();
    insta::assert_snapshot!(lockfile.text());
    assert_eq!(Lockfile::read("layerzero.lock", &lockfile.text()).unwrap(), lockfile);
    let empty = Lockfile::new("cpu", "", "");
    assert_eq!(Lockfile::read("layerzero.lock", &empty.text()).unwrap(), empty);
}

#[test]
fn lockfile_differences_are_exact() {
    let ours = lockfile();
    assert!(ours.compare(&lockfile()).is_empty());
    assert_eq!(ours.digest(), lockfile().digest());
    let mut theirs = Lockfile::new("cpu_x86_64_avx512_16t", "90c1", "ca9a");
    theirs.layerzero = "0.1.0".to_owned();
    theirs.add(decision("norm.rms", "T=bf16 rows<=16 hidden=4096", "cpu.norm.rms.avx512"));
    theirs.add(decision("quantize", "T=f32", "reference.quantize"));
    assert_ne!(ours.digest(), theirs.digest());
    insta::assert_snapshot!(ours.diff(&theirs), @r"
    hardware
      - cpu_x86_64_avx2_16t
      + cpu_x86_64_avx512_16t
    norm.layer [T=f32 rows<=1 hidden=64]
      - reference.norm.layer
    norm.rms [T=bf16 rows<=16 hidden=4096]: kernel
      - cpu.norm.rms.avx2
      + cpu.norm.rms.avx512
    quantize [T=f32]
      + reference.quantize
    ");
    assert!(ours.compare(&theirs).iter().all(|one| one.reason().code == ReasonCode::LockfileMismatch));
}

#[test]
fn any_edit_changes_the_digest() {
    let text = lockfile().text();
    for (at, character) in text.char_indices().filter(|(_, character)| character.is_ascii_alphanumeric()) {
        // The comment is not part of the digest.
        if text[..at].lines().count() < 2 {
            continue;
        }
        let other = if character == 'x' { 'y' } else { 'x' };
        let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
        assert!(Lockfile::read("layerzero.lock", &changed).is_err(), "{changed}");
    }
}

#[test]
fn table_with_too_many_combinations_is_rejected() {
    let (_, _, text) =
        fixtures(PASS).into_iter().find(|(_, found, _)| found == "appendix_e.json").expect("it is there");
    let mut table: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let buckets = table["shape_buckets"].as_object_mut().expect("it has buckets");
    for bounds in buckets.values_mut() {
        let last = bounds.as_array().and_then(|bounds| bounds.last()?.as_i64()).expect("numbers");
        let bounds = bounds.as_array_mut().expect("a list");
        bounds.extend((1..3000).map(|step| serde_json::Value::from(last + step)));
    }
    let text = serde_json::to_string(&table).expect("it is JSON");
    // A successfully read table is too long to be printed.
    let read = DispatchTable::read("many.json", &text, operations()).map(drop);
    let error = read.expect_err("nothing holds so many");
    assert!(error.to_string().contains("has too many combinations of buckets: "), "{error}");
}
