//! Locks, lockfiles and dispatch tables that do not match: rejected with a reason, never silently replaced.

use lz_core::{DType, Error, ReasonCode};
use lz_engine::table::{DispatchTable, Lockfile};
use lz_ops::OPERATIONS;
use lz_scenarios::calls::{DecodePaged, Prefill, ScenarioCall};
use lz_scenarios::engines::{apply_policy, device, engine_on};
use lz_scenarios::process::{Freeze, freeze, freeze_rank, rank, run_process};
use lz_test_support::Folder;

use super::OTHER_PROCESS;

/// A lock names a kernel that cannot run the call: an error with that kernel's reasons, and no other kernel
/// runs.
#[test]
fn a_lock_on_an_impossible_kernel_is_an_error() {
    let engine = engine_on("h100");
    apply_policy(&engine, "locks:\n  attention.gqa.prefill: torch.sdpa.flash\n");
    let masked = Prefill { mask: Some(DType::Bool), ..Prefill::llama3_8b() };
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "torch.sdpa.flash");
    let error = masked.selected(&engine).unwrap_err();
    insta::assert_snapshot!(error, @r"
    attention.gqa.prefill: locked to torch.sdpa.flash, which cannot run this call; unlock it or change the call
      [LOCKED_KERNEL_INVALID] attention.gqa.prefill is locked to torch.sdpa.flash (layerzero.yaml:2)
      [ATTN_MASK_UNSUPPORTED] requires not given(mask), found given(mask) = true
    ");
}

/// A lock names a kernel that is not installed: the error says so and gives the source of the lock.
#[test]
fn a_lock_on_an_unknown_kernel_is_an_error() {
    let engine = engine_on("h100");
    apply_policy(&engine, "locks:\n  attention.gqa.prefill: xformers.cutlass\n");
    let error = Prefill::llama3_8b().selected(&engine).unwrap_err();
    assert!(matches!(&error, Error::Locked { kernel, .. } if kernel == "xformers.cutlass"), "{error}");
    assert_eq!(
        error.reasons()[0].sentence(),
        "attention.gqa.prefill has no kernel xformers.cutlass, to which it is locked (layerzero.yaml:2)"
    );
}

fn freeze_on(preset: &str) -> Lockfile {
    let (prefill, decode) = (Prefill::llama3_8b(), DecodePaged::llama3_8b());
    let calls: [(&str, &dyn Freeze); 2] = [("prompt of 2048", &prefill), ("64 requests", &decode)];
    freeze(&engine_on(preset), &device(preset), "default", &calls)
}

/// A rank loads the lockfile of another machine: rejected, and the differing decisions are listed.
#[test]
fn the_lockfile_of_another_machine_lists_the_differences() {
    let folder = Folder::new();
    let path = folder.write("layerzero.lock", freeze_on("h100").text());
    let text = std::fs::read_to_string(path).unwrap();
    let expected = Lockfile::read("layerzero.lock", &text).unwrap();
    let differences: Vec<String> =
        expected.compare(&freeze_on("b200")).iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(differences.join("\n"), @r"
    hardware: expected cuda_sm90_cu130, found cuda_sm100_cu130
    attention.gqa.prefill [prompt of 2048]: kernel: expected flash_attn.v3.prefill, found flash_attn.v2.prefill
    attention.gqa.prefill [prompt of 2048]: fallbacks: expected flash_attn.v2.prefill, torch.sdpa.flash, torch.sdpa.cudnn, torch.sdpa.math, found torch.sdpa.flash, torch.sdpa.cudnn, torch.sdpa.math
    ");
    assert!(expected.compare(&freeze_on("h200")).is_empty(), "the same architecture and toolkit");
}

/// A lockfile was edited by hand: its digest does not match, and it is rejected.
#[test]
fn an_edited_lockfile_is_rejected() {
    let text = freeze_on("h100").text().replace("flash_attn.v3.prefill", "torch.sdpa.math");
    let error = Lockfile::read("layerzero.lock", &text).unwrap_err();
    assert!(error.to_string().contains("digest"), "{error}");
    let error: Error = error.into();
    assert!(error.has(ReasonCode::LockfileInvalid), "{error}");
}

/// Ranks that tuned differently (flashinfer#3186, sglang#35343): with separate databases their decisions
/// differ, and the comparison lists the buckets.
#[test]
fn ranks_that_tuned_differently_are_detected() {
    let folder = Folder::new();
    let (first, second) = (folder.file("rank0.sqlite"), folder.file("rank1.sqlite"));
    run_process(OTHER_PROCESS, &["tune", first.to_str().unwrap(), "beta.norm.rms", "100"]);
    run_process(OTHER_PROCESS, &["tune", second.to_str().unwrap(), "gamma.norm.rms", "100"]);
    let frozen = |database: &std::path::Path, name: &str| {
        let lock = folder.file(name);
        run_process(OTHER_PROCESS, &["freeze", database.to_str().unwrap(), lock.to_str().unwrap()]);
        Lockfile::read(name, &std::fs::read_to_string(lock).unwrap()).unwrap()
    };
    let (rank0, rank1) = (frozen(&first, "rank0.lock"), frozen(&second, "rank1.lock"));
    let kernels = rank0.compare(&rank1).into_iter().filter(|one| one.what.ends_with(": kernel"));
    let kernels: Vec<String> = kernels.map(|one| one.to_string()).collect();
    assert_eq!(kernels.len(), 5, "every bucket differs: {kernels:?}");
    assert!(kernels[0].ends_with("expected beta.norm.rms, found gamma.norm.rms"), "{kernels:?}");
    // With the measurements of rank 0, rank 1 makes the same decisions.
    assert_eq!(rank0.digest(), frozen(&first, "again.lock").digest());
    assert_ne!(rank0.digest(), freeze_rank(&rank()).digest());
}

/// A dispatch table that was solved on an H100 is loaded on a B200: rejected with both signatures.
#[test]
fn the_table_of_another_machine_is_rejected() {
    let json = r#"{ "schema_version": "1.0", "model_id": "llama3-8b", "hardware_signature": "cuda_sm90_cu130",
        "capabilities_hash": "abc", "shape_buckets": { "batch_size": [8] },
        "plans": [ { "bucket": { "batch_size": 8 }, "ops": [ { "op": "norm.rms", "kernel_id": "flashinfer.norm.rms" } ] } ],
        "fallback": { "mode": "runtime_select" } }"#;
    let table =
        DispatchTable::read("llama3.json", json, &OPERATIONS).unwrap_or_else(|error| panic!("{error}"));
    let error = table.verify("llama3.json", &device("b200").hardware_signature(), "abd").unwrap_err();
    insta::assert_snapshot!(error, @r"
    llama3.json: the dispatch table was rejected
      [TABLE_HARDWARE_MISMATCH] requires cuda_sm90_cu130, found cuda_sm100_cu130
      [TABLE_CAPABILITIES_MISMATCH] requires abc, found abd
    ");
}
