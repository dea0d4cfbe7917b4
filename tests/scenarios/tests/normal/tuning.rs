//! Tuning, stored measurements, JIT warmup.

use std::io::BufReader;

use lz_device::detect_cpu;
use lz_perfdb::{Filter, PerfDb};
use lz_scenarios::calls::{Norm, Prefill, ScenarioCall};
use lz_scenarios::engines::{device, engine_on};
use lz_scenarios::measured::{evidence, measurement, spec_of};
use lz_scenarios::process::{decisions, rank, rank_with, run_process};
use lz_test_support::Folder;

use super::OTHER_PROCESS;

/// Tuning that persists and belongs to the library (flashinfer#3920): one process tunes and exits, and the
/// next one uses its measurements.
#[test]
fn measurements_of_one_process_are_used_by_the_next() {
    let folder = Folder::new();
    let file = folder.database();
    assert_eq!(decisions(&rank()), ["alpha.norm.rms"; 5], "by priority");
    run_process(OTHER_PROCESS, &["tune", file.to_str().unwrap(), "alpha.norm.rms", "2000"]);
    run_process(OTHER_PROCESS, &["tune", file.to_str().unwrap(), "gamma.norm.rms", "1000"]);
    assert_eq!(decisions(&rank_with(&PerfDb::open(&file).db)), ["gamma.norm.rms"; 5]);
    assert_eq!(run_process(OTHER_PROCESS, &["decide", file.to_str().unwrap()]), ["gamma.norm.rms"; 5]);
}

/// The tuned kernel is the one that runs (flashinfer#4132): the kernel that was measured fastest for a bucket
/// runs its calls.
#[test]
fn the_kernel_measured_fastest_is_selected() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    let engine = rank();
    for (kernel, median) in [("alpha.norm.rms", 900.0), ("beta.norm.rms", 300.0), ("gamma.norm.rms", 600.0)] {
        let row = measurement(&Norm::rows(64), &spec_of(&engine, kernel), &detect_cpu(), median);
        database.record(&row).unwrap();
    }
    engine.set_evidence(Some(evidence(&database, &detect_cpu())));
    for rows in [17, 64, 256] {
        assert_eq!(Norm::rows(rows).serve(&engine).unwrap(), "beta.norm.rms");
        let explanation = Norm::rows(rows).explain(&engine);
        let fastest =
            explanation.candidates.iter().filter_map(|one| Some((one.evidence?.median_ns, &one.kernel)));
        let fastest = fastest.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        assert_eq!(explanation.chosen(), Some(fastest.1.as_str()));
    }
}

/// The evidence behind a selection is shown: median, samples, age, and the score points.
#[test]
fn the_evidence_behind_a_choice_is_shown() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    let engine = rank();
    let mut row = measurement(&Norm::default(), &spec_of(&engine, "beta.norm.rms"), &detect_cpu(), 1500.0);
    row.timing.measured_at -= 7200;
    database.record(&row).unwrap();
    engine.set_evidence(Some(evidence(&database, &detect_cpu())));
    let explanation = Norm::default().explain(&engine);
    let beta = explanation.candidate("beta.norm.rms").unwrap();
    let found = beta.evidence.unwrap();
    assert_eq!((found.median_ns, found.samples, found.age_seconds / 60), (1500.0, 40, 120));
    assert!(beta.score.perf.is_some_and(|points| points > 9.0 && points < 12.0), "{:?}", beta.score);
    assert!(explanation.to_string().contains("1.5 µs median, 40 samples, 2 h old"), "{explanation}");
    assert_eq!(explanation.candidate("alpha.norm.rms").unwrap().score.perf, None);
}

/// Measurements of a staging machine are exported and imported in production; a second import does not count
/// them twice.
#[test]
fn measurements_are_exported_and_imported() {
    let folder = Folder::new();
    let staging = PerfDb::open(folder.file("staging.sqlite")).db;
    let engine = rank();
    let row = measurement(&Norm::default(), &spec_of(&engine, "gamma.norm.rms"), &detect_cpu(), 10.0);
    staging.record(&row).unwrap();
    let mut text = Vec::new();
    assert_eq!(staging.export(&Filter::default(), &mut text).unwrap().measurements, 1);

    let production = PerfDb::open(folder.database()).db;
    for (stored, kept) in [(1, 0), (0, 1)] {
        let report = production.import(BufReader::new(text.as_slice())).unwrap();
        assert_eq!((report.stored, report.kept), (stored, kept));
    }
    let rows = production.show(&Filter::default(), 9);
    assert_eq!((rows.len(), rows[0].timing.samples), (1, 40));
    assert_eq!(Norm::default().selected(&rank_with(&production)).unwrap(), "gamma.norm.rms");
}

/// JIT cold start (flashinfer#2968): a cold kernel is skipped; once warm it is selected for its bucket only.
#[test]
fn a_jit_kernel_is_selected_once_it_is_warm() {
    let engine = engine_on("h100");
    let call = Prefill::llama3_8b();
    assert_eq!(call.selected(&engine).unwrap(), "flash_attn.v3.prefill");
    engine.mark_warm("flashinfer.fa3.prefill", call.operation(), &call.context().unwrap());
    assert_eq!(call.selected(&engine).unwrap(), "flashinfer.fa3.prefill");
    let other = Prefill { head_dim: 64, ..Prefill::llama3_8b() };
    assert_eq!(other.selected(&engine).unwrap(), "flash_attn.v3.prefill");
}

/// Kernels tuned on an H100 do not affect a B200: measurements are per device.
#[test]
fn measurements_are_per_device() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    let hopper = device("h100");
    let engine = engine_on("h100");
    let call = Prefill::llama3_8b();
    for (kernel, median) in [("flash_attn.v2.prefill", 487_000.0), ("torch.sdpa.cudnn", 334_000.0)] {
        database.record(&measurement(&call, &spec_of(&engine, kernel), &hopper, median)).unwrap();
    }
    engine.set_evidence(Some(evidence(&database, &hopper)));
    let perf =
        |explanation: lz_engine::Explanation| explanation.candidate("torch.sdpa.cudnn").unwrap().score.perf;
    assert!(perf(call.explain(&engine)).is_some());
    let blackwell = engine_on("b200");
    blackwell.set_evidence(Some(evidence(&database, &device("b200"))));
    assert_eq!(perf(call.explain(&blackwell)), None);
}
