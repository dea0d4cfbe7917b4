//! Policy settings for plugins: where they run, which may be loaded, and the audit log.

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use lz_core::{Error, ReasonCode, TensorView};
use lz_engine::Engine;
use lz_engine::policy::layer::SettingInput;
use lz_ops::{NormRms, norm_rms};
use lz_plugin::loader::LoadedPlugin;
use lz_worker::plugins;
use support::{compile, folder, worker_program};

/// An engine configured by a file and environment variables.
fn opened(yaml: &str, variables: &[(&str, &str)]) -> Result<Engine, Error> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let file = folder().join(format!("layerzero-{}.yaml", COUNT.fetch_add(1, Ordering::Relaxed)));
    let yaml = yaml
        .replace("FOLDER", &folder().display().to_string())
        .replace("PROGRAM", &worker_program().display().to_string());
    // Failures that earlier runs recorded in the user's database must not matter.
    std::fs::write(&file, format!("{yaml}perfdb: {{enabled: false}}\n")).unwrap();
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Engine::builder()
        .config(&file)
        .variables(variables.iter().map(owned))
        .operations(lz_ops::OPERATIONS.iter().copied())
        .open()
}

const BASE_CONFIG: &str = "plugins: {directories: [FOLDER]}\nworker: {program: PROGRAM, arena_mb: 1}\n";

fn load(engine: &Engine, path: &Path) -> Result<LoadedPlugin, Error> {
    // SAFETY: the plugins of this repository.
    unsafe { plugins::load(engine, path) }
}

fn explained(engine: &Engine) -> String {
    let x = vec![1f32; 24];
    let args = NormRms::new(TensorView::from_slice(&x, &[3, 8]).unwrap());
    engine.lock("norm.rms", "c.norm.rms").unwrap();
    norm_rms(engine, args).unwrap();
    let call = args.check().unwrap();
    engine.explain(&lz_ops::NORM_RMS, &call.context()).to_string()
}

#[test]
fn a_policy_file_isolates_every_plugin() {
    let engine = opened(&format!("{BASE_CONFIG}backend_isolation: subprocess\n"), &[]).unwrap();
    let loaded = load(&engine, &compile("plugin.c", "")).unwrap();
    let runs_in = loaded.runs_in.unwrap();
    assert!(runs_in.starts_with("a worker process (backend_isolation: "), "{runs_in}");
    let text = explained(&engine);
    assert!(text.contains("runs in a worker process (backend_isolation: "), "{text}");
    assert!(text.contains(".yaml:3)"), "with its location: {text}");
    // A crash of the plugin does not affect this process.
    let engine = opened(&format!("{BASE_CONFIG}backend_isolation: subprocess\n"), &[]).unwrap();
    load(&engine, &compile("plugin.c", "CRASH")).unwrap();
    engine.configure([("fallback_enabled".to_owned(), SettingInput::Bool(false))]).unwrap();
    let x = vec![1f32; 24];
    let args = NormRms::new(TensorView::from_slice(&x, &[3, 8]).unwrap());
    let error = norm_rms(&engine, args).unwrap_err();
    assert!(error.has(ReasonCode::WorkerCrashed), "{error}");
    let text = engine.explain(&lz_ops::NORM_RMS, &args.check().unwrap().context()).to_string();
    assert!(text.contains("last failure: [WORKER_CRASHED]"), "{text}");
    assert!(text.contains("SIGSEGV"), "{text}");
}

#[test]
fn a_backend_is_isolated_by_its_name() {
    let named = "backend_isolation: {default: in_process, c: subprocess}\n";
    let engine = opened(&format!("{BASE_CONFIG}{named}"), &[]).unwrap();
    assert!(load(&engine, &compile("plugin.c", "")).unwrap().runs_in.is_some());
    assert_eq!(load(&engine, &compile("plugin.cpp", "")).unwrap().runs_in, None);
}

#[test]
fn a_plugin_whose_name_is_misspelled_in_the_policy_is_refused() {
    let plugin = compile("plugin.cpp", "");
    let named = "backend_isolation: {cp: subprocess}\n";
    let engine = opened(&format!("{BASE_CONFIG}{named}"), &[]).unwrap();
    let error = load(&engine, &plugin).unwrap_err();
    assert!(error.has(ReasonCode::PolicyInvalid), "{error}");
    assert!(error.to_string().contains("did you mean `cpp`?"), "{error}");
    // The policy can state that the backend is another one.
    let named = "backend_isolation: {cp: subprocess, cpp: in_process}\n";
    let engine = opened(&format!("{BASE_CONFIG}{named}"), &[]).unwrap();
    assert_eq!(load(&engine, &plugin).unwrap().runs_in, None);
}

#[test]
fn the_environment_and_configure_override_the_file() {
    let variables = [("LAYERZERO_BACKEND_ISOLATION", "c: subprocess")];
    let engine = opened(BASE_CONFIG, &variables).unwrap();
    let loaded = load(&engine, &compile("plugin.c", "")).unwrap();
    assert!(loaded.runs_in.unwrap().contains("LAYERZERO_BACKEND_ISOLATION"));
    let engine = opened(BASE_CONFIG, &variables).unwrap();
    let in_process = SettingInput::Text("in_process".to_owned());
    engine.configure([("backend_isolation".to_owned(), in_process)]).unwrap();
    assert_eq!(load(&engine, &compile("plugin.c", "")).unwrap().runs_in, None);
    let wrong = opened(BASE_CONFIG, &[("LAYERZERO_BACKEND_ISOLATION", "sub_process")]).unwrap_err();
    assert!(wrong.to_string().contains("LAYERZERO_BACKEND_ISOLATION"), "{wrong}");
}

#[test]
fn container_isolation_is_rejected_with_a_reason() {
    let engine = opened(&format!("{BASE_CONFIG}backend_isolation: container\n"), &[]).unwrap();
    let error = load(&engine, &compile("plugin.c", "")).unwrap_err();
    assert!(error.has(ReasonCode::PolicyInvalid), "{error}");
}

#[test]
fn an_engine_loads_the_plugins_of_its_policy() {
    let plugin = compile("plugin.c", "").display().to_string();
    let yaml = format!(
        "plugins: {{directories: [FOLDER], load: [{plugin}, /no/such/plugin.so]}}\n\
         backend_isolation: in_process\n"
    );
    let engine = opened(&yaml, &[]).unwrap();
    // SAFETY: the plugins of this repository.
    let outcomes = unsafe { plugins::load_all(&engine) };
    assert_eq!(outcomes[0].1.as_ref().unwrap().kernels, ["c.norm.rms"]);
    assert!(outcomes[1].1.as_ref().unwrap_err().has(ReasonCode::PluginPermission));
}

#[test]
fn trust_settings_of_the_policy_apply() {
    let plugin = compile("plugin.c", "");
    let load_error = |yaml: &str| load(&opened(yaml, &[]).unwrap(), &plugin).unwrap_err();
    assert!(load_error("verbose: false\n").has(ReasonCode::PluginPathNotAllowed));
    let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    for isolation in ["in_process", "subprocess"] {
        let yaml = format!(
            "plugins: {{directories: [FOLDER], keys: [{key}]}}\nbackend_isolation: {isolation}\n\
             worker: {{program: PROGRAM}}\n"
        );
        assert!(load_error(&yaml).has(ReasonCode::PluginSignatureInvalid));
    }
    let error = load_error("plugins: {directories: [FOLDER], keys: [abc]}\n");
    assert!(error.has(ReasonCode::PolicyInvalid), "{error}");
    let error = load_error("plugins: {directories: [FOLDER], manifest: /no/such/manifest}\n");
    assert!(error.to_string().contains("/no/such/manifest"), "{error}");
}

/// Records the audit log.
struct Recorder {
    lines: Arc<Mutex<Vec<(ThreadId, String)>>>,
}

impl tracing::Subscriber for Recorder {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "lz::audit"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        self.lines.lock().unwrap().push((std::thread::current().id(), line.0));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn every_load_attempt_writes_an_audit_log_line() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let recorder = Recorder { lines: Arc::clone(&lines) };
    let (plugin, broken) = (compile("plugin.c", ""), compile("plugin.c", "VERSION"));
    let attempts = || {
        let engine = opened(BASE_CONFIG, &[]).unwrap();
        let hash = load(&engine, &plugin).unwrap().sha256;
        load(&engine, &broken).unwrap_err();
        let isolated = opened(&format!("{BASE_CONFIG}backend_isolation: subprocess\n"), &[]).unwrap();
        load(&isolated, &plugin).unwrap();
        load(&isolated, &broken).unwrap_err();
        hash
    };
    // A recorder for the whole process: tracing caches the interest of a log statement when any thread first reaches it, so one that
    // is installed for this thread only could miss statements that another test reached before.
    tracing::subscriber::set_global_default(recorder).unwrap();
    let hash = attempts();
    let this_thread = std::thread::current().id();
    let lines = lines.lock().unwrap();
    let lines: Vec<&String> =
        lines.iter().filter(|(thread, _)| *thread == this_thread).map(|(_, line)| line).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    let contains = |at: usize, words: &[&str]| {
        assert!(words.iter().all(|word| lines[at].contains(word)), "{words:?} in {}", lines[at]);
    };
    contains(0, &["plugin accepted", &hash, "user=", "backend=\"c\"", "this process"]);
    contains(1, &["plugin refused", "sha256=", "user=", "PLUGIN_VERSION_MISMATCH"]);
    contains(2, &["plugin accepted", &hash, "a worker process"]);
    contains(3, &["plugin refused", "version 2.0"]);
}

#[test]
fn the_names_of_built_in_backends_are_reserved() {
    for isolation in ["in_process", "subprocess", "{default: subprocess, cpu: in_process, torch: in_process}"]
    {
        for fault in ["NAMED_CPU", "NAMED_TORCH"] {
            let engine = opened(&format!("{BASE_CONFIG}backend_isolation: {isolation}\n"), &[]).unwrap();
            let error = load(&engine, &compile("plugin.c", fault)).unwrap_err();
            assert!(error.has(ReasonCode::BackendNameReserved), "{isolation}, {fault}: {error}");
            assert!(engine.registry().kernels().all(|entry| entry.spec.backend != "Torch"));
        }
    }
}

#[test]
fn a_plugin_cannot_leave_isolation_by_its_backend_name() {
    let by_name = "backend_isolation: {default: subprocess, c: in_process}\n";
    let engine = opened(&format!("{BASE_CONFIG}{by_name}"), &[]).unwrap();
    let plugin = compile("plugin.c", "");
    assert!(load(&engine, &plugin).unwrap().runs_in.is_some());
    // The policy can refer to its file instead.
    let (file, path) = (plugin.file_name().unwrap().to_str().unwrap(), plugin.display());
    for origin in [file, &path.to_string()] {
        let named = format!("backend_isolation: {{default: subprocess, {origin}: in_process}}\n");
        let engine = opened(&format!("{BASE_CONFIG}{named}"), &[]).unwrap();
        assert_eq!(load(&engine, &plugin).unwrap().runs_in, None, "{origin}");
        let stricter = format!("backend_isolation: {{{origin}: in_process, c: subprocess}}\n");
        let engine = opened(&format!("{BASE_CONFIG}{stricter}"), &[]).unwrap();
        assert!(load(&engine, &plugin).unwrap().runs_in.is_some(), "{origin}");
    }
}
