//! An engine as its operator set it up: what is in force, where it came from, and what a mistake does.

mod engine_support;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use engine_support::{Shape, attend, entry, failing, run, spec};
use lz_core::health::ManualClock;
use lz_core::policy::layer::Given;
use lz_core::reload::Outcome;
use lz_core::{Engine, EngineBuilder, KernelError, ReasonCode};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("lz-open-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Without a database, unless a test brings one.
    fn builder(&self) -> EngineBuilder {
        let path = self.0.join("perfdb.sqlite").display().to_string();
        Engine::builder().operations([attend()]).set("perfdb.path", Given::Text(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn variables(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn shown(engine: &Engine, key: &str) -> (String, String) {
    let found = engine.config().into_iter().find(|entry| entry.key == key);
    found.map_or_else(Default::default, |entry| (entry.value, entry.source.to_string()))
}

#[test]
fn later_beats_earlier_and_each_value_says_where_it_came_from() {
    let folder = Folder::new("layers");
    let path = folder.file(
        "policy.yaml",
        "deterministic: true\ncache:\n  max_size: 50\nmemory_headroom_mb: 7\nstrict_mode: true\n",
    );
    let engine = folder
        .builder()
        .variables(variables(&[
            ("LAYERZERO_CONFIG", path.to_str().unwrap()),
            ("LAYERZERO_DETERMINISTIC", "0"),
            ("LAYERZERO_LOCK_DEMO_ATTEND", "b.x"),
        ]))
        .set("strict_mode", Given::Bool(false))
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
fn what_is_wrong_is_an_error_and_no_engine() {
    let folder = Folder::new("wrong");
    let message = |builder: EngineBuilder| match builder.open() {
        Ok(_) => panic!("it opened"),
        Err(error) => {
            assert!(error.has(ReasonCode::PolicyInvalid), "{error}");
            error.to_string()
        }
    };
    let bad = folder.file("bad.yaml", "determinstic: true\n");
    assert!(message(folder.builder().config(&bad)).contains("did you mean `deterministic`"));
    assert!(message(folder.builder().config(folder.0.join("none.yaml"))).contains("cannot be read"));
    let switch = variables(&[("LAYERZERO_DEBUG", "perhaps")]);
    assert!(message(folder.builder().variables(switch)).contains("is a switch"));
    let profile = variables(&[("LAYERZERO_PROFILE", "poduction")]);
    assert!(message(folder.builder().variables(profile)).contains("there is no profile `poduction`"));
    assert!(message(folder.builder().set("cache.max_size", Given::Int(0))).contains("cache.max_size"));
}

#[test]
fn calls_change_it_while_it_runs_and_a_bad_one_changes_nothing() {
    let folder = Folder::new("calls");
    let engine = folder.builder().open().unwrap();
    engine.register([entry(spec("a.x").priority(50)), entry(spec("b.x"))]).unwrap();
    engine.lock("demo.attend", "b.x").unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "b.x");
    let error = engine.lock("demo.atend", "b.x").unwrap_err();
    assert!(error.to_string().contains("did you mean `demo.attend`"), "{error}");
    engine.lock("demo.attend_causal", "b.x").unwrap();
    let generation = engine.generation();
    let bad = folder.file("bad.yaml", "strict_mode: 7\n");
    assert!(engine.load_config(&bad).is_err());
    assert_eq!(engine.generation(), generation);
    let good = folder.file("good.yaml", "strict_mode: true\nprofile: development\n");
    engine.load_config(&good).unwrap();
    assert!(engine.policy().strict_mode.value);
    assert_eq!(shown(&engine, "log_selections").0, "true");
    assert!(shown(&engine, "log_selections").1.contains("(profile development)"));
    engine.configure([("profile".to_owned(), Given::Text("production".to_owned()))]).unwrap();
    assert_eq!(shown(&engine, "log_selections").0, "false");
    assert_eq!(shown(&engine, "graph_strict_mode").0, "true");
}

#[test]
fn a_watched_file_is_followed_and_a_bad_one_changes_nothing() {
    let folder = Folder::new("watch");
    let path = folder.file("layerzero.yaml", "locks:\n  demo.attend: b.x\n");
    let engine = folder.builder().config(&path).open().unwrap();
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

#[test]
fn circuits_follow_settings() {
    let folder = Folder::new("circuits");
    let engine = folder
        .builder()
        .set("circuit_breaker.failure_threshold", Given::Int(2))
        .set("circuit_breaker.timeout_ms", Given::Int(1234))
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
    engine.configure([("circuit_breaker.failure_threshold".to_owned(), Given::Int(9))]).unwrap();
    assert_eq!(engine.health().config().kernel.failure_threshold, 9);
}

#[test]
fn health_outlives_the_process() {
    let folder = Folder::new("health");
    let open = || {
        let engine = folder.builder().set("circuit_breaker.failure_threshold", Given::Int(1)).open().unwrap();
        engine.register([entry(spec("reference.x"))]).unwrap();
        engine.register([failing(spec("bad.x").priority(90), || Err(KernelError::failed("no")))]).unwrap();
        engine
    };
    let first = open();
    run(&first, &Shape::default()).unwrap();
    drop(first);
    let second = open();
    assert_eq!(run(&second, &Shape::default()).unwrap(), "reference.x");
    assert_eq!(second.metrics().failures, 0, "nobody had to fail again");
    let explanation = second.explain(attend(), &Shape::default().context());
    let why = &explanation.candidate("bad.x").unwrap().reasons[0];
    assert_eq!(why.code, "CIRCUIT_OPEN");
    drop(second);
    // Switched off, the database says nothing.
    let off = folder.builder().set("perfdb.enabled", Given::Bool(false)).open().unwrap();
    assert!(off.perfdb().is_none());
}

#[test]
fn an_engine_without_a_home_goes_on() {
    let folder = Folder::new("nowhere");
    let blocked = folder.file("file", "");
    let path = blocked.join("under/a/file.sqlite").display().to_string();
    let engine = Engine::builder().set("perfdb.path", Given::Text(path)).open().unwrap();
    engine.register([entry(spec("a.x"))]).unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
}
