//! Hot reload with real files. No test asserts speed: each step waits for its outcome, up to a generous deadline.

use std::fs;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use lz_engine::policy::file::Vocabulary;
use lz_engine::policy::stack::PolicyStack;
use lz_engine::reload::{Outcome, watch};
use lz_test_support::Folder;

/// Waits for a matching outcome; others may come first, because a system may report one change several times.
fn wait(outcomes: &Receiver<Outcome>, fits: impl Fn(&Outcome) -> bool) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = outcomes.recv_timeout(left).expect("the change is seen before the deadline");
        if fits(&outcome) {
            return outcome;
        }
    }
}

#[test]
fn valid_file_is_applied_and_an_invalid_one_ignored() {
    let folder = Folder::new();
    let path = folder.file("layerzero.yaml");
    fs::write(&path, "deterministic: true\n").unwrap();
    let stack = PolicyStack::new(|_| {});
    let (sender, outcomes) = mpsc::channel();
    let reload =
        watch(&path, Duration::from_millis(20), stack.clone(), Vocabulary::default(), move |outcome| {
            let _ = sender.send(outcome);
        })
        .unwrap();
    wait(&outcomes, |outcome| matches!(outcome, Outcome::Applied));
    assert!(stack.policy().deterministic.value);

    // Replaced by renaming, as editors do.
    let new_file = folder.file("layerzero.yaml.new");
    fs::write(&new_file, "deterministic: false\nstrict_mode: true\n").unwrap();
    fs::rename(&new_file, &path).unwrap();
    wait(&outcomes, |outcome| matches!(outcome, Outcome::Applied));
    assert!(stack.policy().strict_mode.value && !stack.policy().deterministic.value);

    fs::write(&path, "strict_mod: false\n").unwrap();
    let refused = wait(&outcomes, |outcome| matches!(outcome, Outcome::Refused(_)));
    let Outcome::Refused(report) = refused else { unreachable!("waited for it") };
    assert!(report.contains("error[LZ0003]") && report.contains("did you mean `strict_mode`?"), "{report}");
    assert!(stack.policy().strict_mode.value);

    fs::remove_file(&path).unwrap();
    wait(&outcomes, |outcome| matches!(outcome, Outcome::Unreadable(_)));
    assert!(stack.policy().strict_mode.value);

    fs::write(&path, "strict_mode: false\n").unwrap();
    wait(&outcomes, |outcome| matches!(outcome, Outcome::Applied));
    assert!(!stack.policy().strict_mode.value);

    drop(reload);
    // The callback is dropped with the watcher, so the channel ends once it is empty.
    while outcomes.recv().is_ok() {}
}

#[test]
fn unwatchable_path_is_an_error() {
    let path = std::env::temp_dir().join("lz-no-such-folder/layerzero.yaml");
    let stack = PolicyStack::new(|_| {});
    let error = watch(&path, Duration::from_millis(1), stack, Vocabulary::default(), |_| {}).unwrap_err();
    assert_eq!(error.path, path);
}
