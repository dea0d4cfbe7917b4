//! Engines opened from a file, environment variables and calls; tuned in place; selection of draft/target
//! pairs and formats.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lz_core::{KernelEntry, Run};
use lz_engine::Engine;
use lz_engine::health::{Clock, ManualClock};
use lz_engine::policy::layer::SettingInput;
use lz_engine::quant::{AccuracyWeighting, FormatCall, QuantConfig};
use lz_engine::speculative::{ModelCall, SpeculativeConfig};
use lz_engine::tune::TuneOptions;
use lz_ops::{NORM_RMS, OPERATIONS, QUANTIZE, QuantizeFormat};
use lz_perfdb::unix_now;
use lz_scenarios::calls::{DecodePaged, Norm, Quantized, ScenarioCall};
use lz_scenarios::engines::{engine_on, host_spec, register};
use lz_scenarios::kernels::{kernel_fn, noop_kernel};
use lz_test_support::Folder;

/// A server is opened with a file, a variable and a call: each overrides the one before, and the engine
/// applies all of them.
#[test]
fn an_engine_is_opened_from_file_environment_and_call() {
    let folder = Folder::new();
    let file = folder.write("layerzero.yaml", "deny: [alpha]\nstrict_mode: true\ncache: { max_size: 10 }\n");
    let engine = Engine::builder()
        .operations(OPERATIONS.iter().copied())
        .config(&file)
        .variables([("LAYERZERO_PREFER".to_owned(), "gamma".to_owned())])
        .set("cache.max_size", SettingInput::Int(20))
        .open()
        .unwrap();
    register(&engine, ["alpha.x", "beta.x", "gamma.x"].map(|id| noop_kernel(host_spec(id), &NORM_RMS)));
    assert_eq!(Norm::default().serve(&engine).unwrap(), "gamma.x");
    let policy = engine.policy();
    assert_eq!((policy.strict_mode.value, policy.cache.value.max_entries), (true, 20));
    assert_eq!(Norm::default().codes(&engine, "alpha.x"), ["POLICY_DENIED"]);
}

/// `lz tune`: kernels are measured, the fastest is selected immediately, and an engine that is opened later
/// loads the measurements.
#[test]
fn tuning_takes_effect_immediately_and_after_a_restart() {
    let folder = Folder::new();
    let clock = Arc::new(ManualClock::starting_at(unix_now()));
    let open = || {
        let path = folder.database().display().to_string();
        let engine = Engine::builder()
            .operations(OPERATIONS.iter().copied())
            .set("perfdb.path", SettingInput::Text(path))
            .set("perf_environment.use_nvml", SettingInput::Bool(false))
            .open()
            .unwrap();
        for (id, cost) in [("alpha.x", 9_000), ("beta.x", 1_000), ("gamma.x", 4_000)] {
            // Kernels advance the manual clock that the tuner reads.
            let clock = Arc::clone(&clock);
            let advance_clock = move || {
                clock.advance(Duration::from_nanos(cost));
                Ok(())
            };
            register(&engine, [kernel_fn(host_spec(id), &NORM_RMS, advance_clock)]);
        }
        engine
    };
    let engine = open();
    assert_eq!(Norm::default().selected(&engine).unwrap(), "alpha.x");
    let options = TuneOptions {
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        sample_time: Duration::ZERO,
        turn_time: Duration::ZERO,
        ..TuneOptions::default()
    };
    let mut run = |entry: &KernelEntry, run: &mut Run<'_>| entry.kernel.run(&mut [], &mut [], run);
    let context = Norm::default().context().unwrap();
    let tuned =
        engine.tune(&NORM_RMS, &context, &options, &mut run, &mut |_| ControlFlow::Continue(())).unwrap();
    let order: Vec<&str> = tuned.kernels.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(order, ["beta.x", "gamma.x", "alpha.x"]);
    assert_eq!((tuned.settled, tuned.kept), (true, Some(Ok(()))));
    assert_eq!(Norm::default().serve(&engine).unwrap(), "beta.x");
    drop(engine);
    let later = open();
    assert_eq!(Norm::default().serve(&later).unwrap(), "beta.x");
    assert_eq!(Norm::rows(5000).serve(&later).unwrap(), "alpha.x", "another bucket was not tuned");
}

/// A draft model and its target share a KV cache: their kernels are selected as a pair with the same page
/// layout.
#[test]
fn draft_and_target_are_selected_as_a_pair() {
    let engine = engine_on("h100");
    let (draft, target) = (
        DecodePaged { heads: 8, kv_heads: 8, ..DecodePaged::llama3_8b() }.context().unwrap(),
        DecodePaged::llama3_8b().context().unwrap(),
    );
    let side =
        |context| ModelCall { operation: DecodePaged::llama3_8b().operation(), context, pipeline_stages: 1 };
    let config = SpeculativeConfig { share_kv_cache: true, ..SpeculativeConfig::default() };
    let pair = engine.pair(&config, side(&draft), side(&target)).unwrap();
    assert_eq!(
        (pair.draft.as_str(), pair.target.as_str()),
        ("flashinfer.fa2.decode", "flashinfer.fa2.decode")
    );
    assert_eq!(pair.score, 160.0);
}

/// Weights may be stored in several formats: on a B200 the most accurate four-bit format is selected, on an
/// H100 a format that it supports.
#[test]
fn the_most_accurate_supported_format_is_selected() {
    let formats = [
        ("nvfp4", Quantized { format: QuantizeFormat::Nvfp4, block_size: 16, inner: 4096 }),
        ("mxfp4", Quantized { format: QuantizeFormat::Mxfp4, block_size: 32, inner: 4096 }),
        ("int8", Quantized { format: QuantizeFormat::Int8, block_size: 128, inner: 4096 }),
    ];
    let contexts: Vec<_> = formats.iter().map(|(_, call)| call.context().unwrap()).collect();
    let calls: Vec<FormatCall<'_>> = formats
        .iter()
        .zip(&contexts)
        .map(|((format, _), context)| FormatCall { format, operation: &QUANTIZE, context })
        .collect();
    let config =
        QuantConfig { weighing: AccuracyWeighting::High, max_drop_percent: 100.0, ..QuantConfig::default() };
    let choose = |preset: &str, calls: &[FormatCall<'_>]| {
        let choice = engine_on(preset).choose_format(&config, None, calls).unwrap();
        (choice.format, choice.kernel)
    };
    assert_eq!(choose("b200", &calls[..2]), ("nvfp4".to_owned(), "invented_nvfp4.quantize".to_owned()));
    assert_eq!(choose("h100", &calls), ("int8".to_owned(), "torch.fp8.quantize".to_owned()));
}
