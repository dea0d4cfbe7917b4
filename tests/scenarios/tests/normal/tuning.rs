//! Measuring, keeping what was measured, compiling beforehand.

use std::io::BufReader;

use lz_device::detect_cpu;
use lz_perfdb::{Filter, PerfDb};
use lz_scenarios::calls::{Ask, Norm, Prefill};
use lz_scenarios::house::{device, house_on};
use lz_scenarios::measured::{evidence, measurement, spec_of};
use lz_scenarios::process::{ask, decisions, rank, rank_with};
use lz_test_support::Folder;

use super::OTHER;

/// Tuning that persists and belongs to the library (flashinfer#3920): one process tunes, ends, and the next decides by its figures.
#[test]
fn what_one_process_tunes_the_next_decides_by() {
    let folder = Folder::new();
    let file = folder.database();
    assert_eq!(decisions(&rank()), ["alpha.norm.rms"; 5], "on paper");
    ask(OTHER, &["tune", file.to_str().unwrap(), "alpha.norm.rms", "2000"]);
    ask(OTHER, &["tune", file.to_str().unwrap(), "gamma.norm.rms", "1000"]);
    assert_eq!(decisions(&rank_with(&PerfDb::open(&file).db)), ["gamma.norm.rms"; 5]);
    assert_eq!(ask(OTHER, &["decide", file.to_str().unwrap()]), ["gamma.norm.rms"; 5]);
}

/// Tuned is what is served (flashinfer#4132): the kernel that was measured fastest for a bucket is the one that runs its calls.
#[test]
fn the_kernel_that_was_measured_fastest_is_the_one_that_serves() {
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

/// The evidence behind a choice is shown: median, samples, age, and the points that it gave and took.
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

/// Figures of a staging machine are carried to production as a file: imported once they count, imported twice they count once.
#[test]
fn measurements_travel_as_a_file() {
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
    assert_eq!(Norm::default().chosen(&rank_with(&production)).unwrap(), "gamma.norm.rms");
}

/// JIT cold start (flashinfer#2968): a cold kernel is passed over, and from the moment it is warm it serves its bucket and no other.
#[test]
fn a_kernel_serves_from_the_moment_it_is_warm() {
    let engine = house_on("h100");
    let call = Prefill::llama3_8b();
    assert_eq!(call.chosen(&engine).unwrap(), "flash_attn.v3.prefill");
    engine.mark_warm("flashinfer.fa3.prefill", call.operation(), &call.context().unwrap());
    assert_eq!(call.chosen(&engine).unwrap(), "flashinfer.fa3.prefill");
    let other = Prefill { head_dim: 64, ..Prefill::llama3_8b() };
    assert_eq!(other.chosen(&engine).unwrap(), "flash_attn.v3.prefill");
}

/// Kernels tuned on an H100 say nothing on a B200: each device has figures of its own.
#[test]
fn each_device_has_figures_of_its_own() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    let hopper = device("h100");
    let engine = house_on("h100");
    let call = Prefill::llama3_8b();
    for (kernel, median) in [("flash_attn.v2.prefill", 487_000.0), ("torch.sdpa.cudnn", 334_000.0)] {
        database.record(&measurement(&call, &spec_of(&engine, kernel), &hopper, median)).unwrap();
    }
    engine.set_evidence(Some(evidence(&database, &hopper)));
    let perf =
        |explanation: lz_engine::Explanation| explanation.candidate("torch.sdpa.cudnn").unwrap().score.perf;
    assert!(perf(call.explain(&engine)).is_some());
    let blackwell = house_on("b200");
    blackwell.set_evidence(Some(evidence(&database, &device("b200"))));
    assert_eq!(perf(call.explain(&blackwell)), None);
}
