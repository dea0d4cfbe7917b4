//! Opening an engine from file, environment and calls: effective values, their sources, and errors.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use crate::engine_support::{Shape, attend, entry, failing, run, spec};
use lz_core::{KernelError, ReasonCode};
use lz_engine::health::ManualClock;
use lz_engine::policy::layer::SettingInput;
use lz_engine::reload::Outcome;
use lz_engine::{Engine, EngineBuilder};
use lz_test_support::Folder;

/// Without a database, unless a test provides one.
fn builder(folder: &Folder) -> EngineBuilder {
    let path = folder.database().display().to_string();
    Engine::builder().operations([attend()]).set("perfdb.path", SettingInput::Text(path))
}

fn variables(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn shown(engine: &Engine, key: &str) -> (String, String) {
    let found = engine.config().into_iter().find(|entry| entry.key == key);
    found.map_or_else(Default::default, |entry| (entry.value, entry.source.to_string()))
}

#[test]
fn later_layers_win_and_values_have_sources() {
    let folder = Folder::new();
    let path = folder.write(
        "policy.yaml",
        "deterministic: true\ncache:\n  max_size: 50\nmemory_headroom_mb: 7\nstrict_mode: true\n",
    );
    let engine = builder(&folder)
        .variables(variables(&[
            ("LAYERZERO_CONFIG", path.to_str().unwrap()),
            ("LAYERZERO_DETERMINISTIC", "0"),
            ("LAYERZERO_LOCK_DEMO_ATTEND", "b.x"),
        ]))
        .set("strict_mode", SettingInput::Bool(false))
        .open()
        .unwrap();
    let file = path.display().to_string();
    assert_eq!(shown(&engine, "cache.max_size"), ("50".to_owned(), format!("{file}:3")));
    assert_eq!(shown(&engine, "deterministic").1, "LAYERZERO_DETERMINISTIC");
    assert_eq!(shown(&engine, "strict_mode"), ("false".to_owned(), "lz.configure".to_owned()));
    assert_eq!(shown(&engine, "enabled").1, "default");
    assert_eq!(
        shown(&engine, "locks.demo.attend"),
        ("b.x".to_owned(), "LAYERZERO_LOCK_DEMO_ATTEND".to_owned())
    );
    let policy = engine.policy();
    assert_eq!((policy.cache.value.max_entries, policy.memory_headroom.value), (50, Some(7 << 20)));
    assert!(!policy.deterministic.value && !policy.strict_mode.value);
    engine.register([entry(spec("a.x").priority(50)), entry(spec("b.x"))]).unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "b.x");
    engine.unlock("demo.attend").unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
}

#[test]
fn invalid_configuration_is_an_error() {
    let folder = Folder::new();
    let message = |builder: EngineBuilder| match builder.open() {
        Ok(_) => panic!("it opened"),
        Err(error) => {
            assert!(error.has(ReasonCode::PolicyInvalid), "{error}");
            error.to_string()
        }
    };
    let bad = folder.write("bad.yaml", "determinstic: true\n");
    assert!(message(builder(&folder).config(&bad)).contains("did you mean `deterministic`"));
    assert!(message(builder(&folder).config(folder.file("none.yaml"))).contains("cannot be read"));
    let switch = variables(&[("LAYERZERO_DEBUG", "perhaps")]);
    assert!(message(builder(&folder).variables(switch)).contains("must be 1 or 0"));
    let profile = variables(&[("LAYERZERO_PROFILE", "poduction")]);
    assert!(message(builder(&folder).variables(profile)).contains("unknown profile `poduction`"));
    assert!(message(builder(&folder).set("cache.max_size", SettingInput::Int(0))).contains("cache.max_size"));
}

#[test]
fn configure_at_run_time_is_all_or_nothing() {
    let folder = Folder::new();
    let engine = builder(&folder).open().unwrap();
    engine.register([entry(spec("a.x").priority(50)), entry(spec("b.x"))]).unwrap();
    engine.lock("demo.attend", "b.x").unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "b.x");
    let error = engine.lock("demo.atend", "b.x").unwrap_err();
    assert!(error.to_string().contains("did you mean `demo.attend`"), "{error}");
    engine.lock("demo.attend_causal", "b.x").unwrap();
    let generation = engine.generation();
    let bad = folder.write("bad.yaml", "strict_mode: 7\n");
    assert!(engine.load_config(&bad).is_err());
    assert_eq!(engine.generation(), generation);
    let good = folder.write("good.yaml", "strict_mode: true\nprofile: development\n");
    engine.load_config(&good).unwrap();
    assert!(engine.policy().strict_mode.value);
    assert_eq!(shown(&engine, "log_selections").0, "true");
    assert!(shown(&engine, "log_selections").1.contains("(profile development)"));
    engine.configure([("profile".to_owned(), SettingInput::Text("production".to_owned()))]).unwrap();
    assert_eq!(shown(&engine, "log_selections").0, "false");
    assert_eq!(shown(&engine, "graph_strict_mode").0, "true");
}

#[test]
fn watched_file_is_applied_and_an_invalid_one_ignored() {
    let folder = Folder::new();
    let path = folder.write("layerzero.yaml", "locks:\n  demo.attend: b.x\n");
    let engine = builder(&folder).config(&path).open().unwrap();
    engine.register([entry(spec("a.x").priority(50)), entry(spec("b.x"))]).unwrap();
    let (sender, outcomes) = mpsc::channel();
    let _watching = engine
        .watch_config(&path, move |outcome| {
            let _ = sender.send(outcome);
        })
        .unwrap();
    let wait = |fits: &dyn Fn(&Outcome) -> bool| {
        while !fits(&outcomes.recv_timeout(Duration::from_secs(60)).expect("the change is seen")) {}
    };
    wait(&|outcome| matches!(outcome, Outcome::Applied));
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "b.x");
    fs::write(&path, "locks:\n  demo.attnd: b.x\n").unwrap();
    wait(&|outcome| matches!(outcome, Outcome::Refused(_)));
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "b.x");
    fs::write(&path, "enabled: true\n").unwrap();
    wait(&|outcome| matches!(outcome, Outcome::Applied));
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
}

/// Runs something that must not block: a pipe has no writer here, so opening one would never return.
fn at_once<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || drop(sender.send(act())));
    receiver.recv_timeout(Duration::from_secs(60)).expect("it does not hang")
}

#[test]
fn only_regular_files_of_bounded_size_are_read() {
    let folder = Folder::new();
    let pipe = folder.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [pipe, folder.path().to_owned(), PathBuf::from("/dev/zero")] {
        let (opened, loaded) = (builder(&folder).config(&path), path.clone());
        let engine = builder(&folder).open().unwrap();
        let texts = at_once(move || {
            [
                opened.open().map(drop).unwrap_err().to_string(),
                engine.load_config(&loaded).unwrap_err().to_string(),
                engine.load_dispatch_table(&loaded).map(drop).unwrap_err().to_string(),
                engine.verify_lockfile_at(&loaded).map(drop).unwrap_err().to_string(),
                lz_engine::jit::Manifest::load(&loaded, "m", Duration::MAX).1.unwrap(),
            ]
        });
        for text in texts {
            assert!(text.contains("is not a regular file"), "{text}");
        }
    }
    let large = folder.write("large.yaml", "# comment\n".repeat(200_000));
    let error = builder(&folder).config(&large).open().unwrap_err().to_string();
    assert!(error.contains("is larger than 1048576 bytes"), "{error}");
}

#[test]
fn shape_manifest_does_not_overwrite_another_file() {
    let folder = Folder::new();
    for (name, bytes) in [("notes.txt", b"{ not JSON".as_slice()), ("model.bin", b"\xff\xfe")] {
        let path = folder.file(name);
        fs::write(&path, bytes).unwrap();
        let (manifest, why) = lz_engine::jit::Manifest::load(&path, "m", Duration::MAX);
        assert!(why.unwrap().contains("is not modified"));
        assert!(manifest.save(&path).is_err());
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn programs_and_plugins_are_accepted_only_from_trusted_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let with_mode = |text: &str, mode: u32| {
        let path = folder.write("policy.yaml", text);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let engine = builder(&folder).open().unwrap();
        let outcomes = [builder(&folder).config(&path).open().map(drop), engine.load_config(&path)];
        assert_eq!(outcomes[0].is_ok(), outcomes[1].is_ok());
        outcomes.into_iter().find_map(Result::err).map(|error| error.to_string())
    };
    for text in [
        "worker: {program: /bin/true}\n",
        "plugins: {load: [/x.so]}\n",
        "plugins: {directories: [/opt]}\n",
        "plugins: {manifest: /m}\n",
        "plugins: {keys: [abc]}\n",
        "profiles: {p: {worker: {program: /bin/true}}}\n",
    ] {
        assert_eq!(with_mode(text, 0o644), None, "{text}");
        for mode in [0o664, 0o646] {
            let error = with_mode(text, mode).expect("others can write it");
            assert!(error.contains("run `chmod go-w "), "{error}");
        }
    }
    assert_eq!(with_mode("deterministic: true\n", 0o666), None, "it names nothing that is run");
}

#[test]
fn report_of_many_errors_is_bounded() {
    let folder = Folder::new();
    let keys: String = (0..8000).map(|at| format!("determinstic_{at}: true\n")).collect();
    let error = builder(&folder).config(folder.write("a.yaml", &keys)).open().unwrap_err().to_string();
    assert!(error.contains("… and 7950 more") && error.contains("8000 errors in "), "{error}");
    let deep = format!("{}1{}\n", "[".repeat(10_000), "]".repeat(10_000));
    let error = builder(&folder).config(folder.write("b.yaml", &deep)).open().unwrap_err().to_string();
    assert!(error.contains("error["), "{error}");
    let locks: String = (0..10_001).map(|at| format!("  a{at}: b\n")).collect();
    let many = folder.write("c.yaml", format!("locks:\n{locks}"));
    let error = Engine::builder().config(many).open().unwrap_err().to_string();
    assert!(error.contains("10001 entries exceed the limit of 10000"), "{error}");
    let name = format!("{}: true\n", "x".repeat(100_000));
    let error = builder(&folder).config(folder.write("d.yaml", &name)).open().unwrap_err().to_string();
    assert!(error.len() < 40_000, "{} bytes", error.len());
}

#[test]
fn unknown_variables_are_rejected_or_warned_about() {
    use std::sync::Mutex;
    static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let folder = Folder::new();
    let open = |name: &str, value: &str| {
        let builder = builder(&folder).variables(variables(&[(name, value)]));
        let opened = builder.warn(|text| WARNINGS.lock().unwrap().push(text.to_owned())).open();
        let warnings = std::mem::take(&mut *WARNINGS.lock().unwrap());
        opened.map(|_| warnings).map_err(|error| error.to_string())
    };
    for (name, value) in [
        ("LAYERZERO_THREADS", "many"),
        ("LAYERZERO_TOKENIZERS", "yes please"),
        ("LAYERZERO_PRIVATE_INTERFACES", "maybe"),
        ("LAYERZERO_BACKENDS", "torch"),
        ("LAYERZERO_CONFIG", "\u{fffd}"),
    ] {
        let error = open(name, value).expect_err(name);
        assert!(error.contains(name), "{error}");
    }
    for (name, meant) in [
        ("LAYERZERO_CONFG", "LAYERZERO_CONFIG"),
        ("LAYER_ZERO_CONFIG", "LAYERZERO_CONFIG"),
        ("layerzero_debug", "LAYERZERO_DEBUG"),
        ("LAYERZERO_BACKEND_ISOLATON", "LAYERZERO_BACKEND_ISOLATION"),
    ] {
        let warnings = open(name, "1").expect(name);
        let text = format!("unknown environment variable `{name}`; did you mean `{meant}`?");
        assert_eq!(warnings, [text]);
    }
    for (name, value) in [("LAYERZERO_THREADS", "2"), ("LAYERZERO_BACKENDS", "none"), ("LAYERS", "3")] {
        assert_eq!(open(name, value), Ok(Vec::new()));
    }
}

#[test]
fn settings_configure_circuit_breakers() {
    let folder = Folder::new();
    let engine = builder(&folder)
        .set("circuit_breaker.failure_threshold", SettingInput::Int(2))
        .set("circuit_breaker.timeout_ms", SettingInput::Int(1234))
        .clock(Arc::new(ManualClock::starting_at(1_000_000)))
        .open()
        .unwrap();
    let kernel = engine.health().config().kernel;
    assert_eq!((kernel.failure_threshold, kernel.base_backoff), (2, Duration::from_millis(1234)));
    engine.register([entry(spec("reference.x"))]).unwrap();
    engine.register([failing(spec("bad.x").priority(90), || Err(KernelError::failed("no")))]).unwrap();
    for _ in 0..3 {
        run(&engine, &Shape::default()).unwrap();
    }
    assert_eq!((engine.metrics().failures, engine.metrics().circuit_openings), (2, 1));
    engine.configure([("circuit_breaker.failure_threshold".to_owned(), SettingInput::Int(9))]).unwrap();
    assert_eq!(engine.health().config().kernel.failure_threshold, 9);
}

#[test]
fn health_is_persisted_across_processes() {
    let folder = Folder::new();
    let open = || {
        let engine =
            builder(&folder).set("circuit_breaker.failure_threshold", SettingInput::Int(1)).open().unwrap();
        engine.register([entry(spec("reference.x"))]).unwrap();
        engine.register([failing(spec("bad.x").priority(90), || Err(KernelError::failed("no")))]).unwrap();
        engine
    };
    let first = open();
    run(&first, &Shape::default()).unwrap();
    drop(first);
    let second = open();
    assert_eq!(run(&second, &Shape::default()).unwrap(), "reference.x");
    assert_eq!(second.metrics().failures, 0, "the failure is known from the first engine");
    let explanation = second.explain(attend(), &Shape::default().context());
    let why = &explanation.candidate("bad.x").unwrap().reasons[0];
    assert_eq!(why.code, "CIRCUIT_OPEN");
    drop(second);
    // A disabled database reports nothing.
    let off = builder(&folder).set("perfdb.enabled", SettingInput::Bool(false)).open().unwrap();
    assert!(off.perfdb().is_none());
}

#[test]
fn engine_works_without_a_home_directory() {
    let folder = Folder::new();
    let blocked = folder.write("file", "");
    let path = blocked.join("under/a/file.sqlite").display().to_string();
    let engine = Engine::builder().set("perfdb.path", SettingInput::Text(path)).open().unwrap();
    engine.register([entry(spec("a.x"))]).unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
}
