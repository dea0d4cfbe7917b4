//! Policy changes from several sources (files, calls, scopes) on several threads.

use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use lz_engine::policy::file::Document;
use lz_engine::policy::layer::SettingInput;
use lz_engine::policy::stack::PolicyStack;
use lz_engine::reload::{Outcome, watch};
use lz_scenarios::calls::{Norm, ScenarioCall};
use lz_scenarios::engines::{host_engine, host_spec, stack, vocabulary};
use lz_test_support::Folder;

use super::run_concurrently;

/// The policy file is rewritten repeatedly while 16 threads serve: each version is applied atomically, every
/// call is served.
#[test]
fn reloading_under_load_serves_every_call() {
    let folder = Folder::new();
    let file = folder.write("layerzero.yaml", "deny: [beta]\n");
    let engine = host_engine([host_spec("alpha.x"), host_spec("beta.x").priority(90)]);
    let (sender, outcomes) = mpsc::channel();
    let on_outcome = move |outcome| drop(sender.send(outcome));
    let reload = watch(&file, Duration::from_millis(1), stack(&engine), vocabulary(), on_outcome).unwrap();
    let applied =
        || while !matches!(outcomes.recv_timeout(Duration::from_secs(60)).unwrap(), Outcome::Applied) {};
    applied();
    run_concurrently(
        16,
        |_| {
            let kernel = Norm::default().serve(&engine).unwrap();
            assert!(["alpha.x", "beta.x"].contains(&kernel.as_str()), "{kernel}");
        },
        || {
            for round in 0..10 {
                let (text, expected) = if round % 2 == 0 {
                    ("deny: [alpha]\n", "beta.x")
                } else {
                    ("deny: [beta]\n", "alpha.x")
                };
                let temporary = folder.write("layerzero.yaml.new", text);
                std::fs::rename(temporary, &file).unwrap();
                applied();
                assert_eq!(Norm::default().serve(&engine).unwrap(), expected, "round {round}");
            }
        },
    );
    drop(reload);
}

/// Two engines of one process watch the same file: both apply its changes.
#[test]
fn two_watchers_of_one_file_both_apply_changes() {
    let folder = Folder::new();
    let file = folder.write("layerzero.yaml", "deny: [beta]\n");
    let watched: Vec<_> = (0..2)
        .map(|_| {
            let engine = host_engine([host_spec("alpha.x"), host_spec("beta.x").priority(90)]);
            let (sender, outcomes) = mpsc::channel();
            let on_outcome = move |outcome| drop(sender.send(outcome));
            let reload =
                watch(&file, Duration::from_millis(10), stack(&engine), vocabulary(), on_outcome).unwrap();
            (engine, reload, outcomes)
        })
        .collect();
    let all = |expected: &str| {
        for (engine, _, outcomes) in &watched {
            while !matches!(outcomes.recv_timeout(Duration::from_secs(60)).unwrap(), Outcome::Applied) {}
            assert_eq!(Norm::default().serve(engine).unwrap(), expected);
        }
    };
    all("alpha.x");
    folder.write("layerzero.yaml", "deny: [alpha]\n");
    all("beta.x");
}

/// 16 threads lock one operation each at the same time: no lock is lost.
#[test]
fn locks_from_many_threads_are_all_kept() {
    let stack = PolicyStack::new(|_| {});
    let operations: Vec<&str> = lz_ops::OPERATIONS.iter().take(16).map(|info| info.name.as_ref()).collect();
    let start = Barrier::new(16);
    thread::scope(|scope| {
        for operation in &operations {
            let (stack, start) = (&stack, &start);
            scope.spawn(move || {
                start.wait();
                stack.lock(operation, "torch.x", "lz.lock");
            });
        }
    });
    assert_eq!(stack.policy().locks.len(), 16);
}

/// Each of eight threads prefers a different kernel in a scope, some in nested scopes: preferences do not
/// leak between threads, and none is left at the end.
#[test]
fn preference_scopes_are_per_thread() {
    let names = ["alpha", "beta", "gamma"];
    let engine = host_engine(names.map(|name| host_spec(&format!("{name}.x"))));
    let start = Barrier::new(8);
    thread::scope(|scope| {
        for number in 0..8 {
            let (engine, start) = (&engine, &start);
            scope.spawn(move || {
                start.wait();
                for turn in 0..30 {
                    let (outer, inner) = (names[(number + turn) % 3], names[(number + 2 * turn) % 3]);
                    let _outer = engine.prefer(&[outer.to_owned()]).unwrap();
                    assert_eq!(Norm::default().serve(engine).unwrap(), format!("{outer}.x"));
                    {
                        let _inner = engine.prefer(&[inner.to_owned()]).unwrap();
                        assert_eq!(Norm::default().serve(engine).unwrap(), format!("{inner}.x"));
                    }
                    assert_eq!(Norm::default().serve(engine).unwrap(), format!("{outer}.x"));
                }
            });
        }
    });
    assert_eq!(Norm::default().serve(&engine).unwrap(), "alpha.x");
}

/// One thread loads files while another sets values by calls: values set by calls override the file in any
/// order.
#[test]
fn values_set_by_calls_override_the_file_in_any_order() {
    let stack = PolicyStack::new(|_| {});
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..50 {
                let text =
                    format!("strict_mode: {}\ncache: {{ max_size: {} }}\n", round % 2 == 0, 100 + round);
                stack.load(Document::read("layerzero.yaml", &text, &vocabulary()).unwrap());
            }
        });
        for round in 0..50 {
            stack
                .configure([("cache.max_size".to_owned(), SettingInput::Int(1000 + round))], "lz.configure")
                .unwrap();
        }
    });
    let policy = stack.policy();
    assert_eq!(
        (policy.cache.value.max_entries, policy.cache.source.to_string().as_str()),
        (1049, "lz.configure")
    );
    assert_eq!(
        (policy.strict_mode.value, policy.strict_mode.source.to_string().as_str()),
        (false, "layerzero.yaml:1")
    );
}

/// Published policies reach the engine in the order of the changes: after 8 threads have set values, the
/// engine's policy equals the stack's.
#[test]
fn the_engine_policy_equals_the_stack_policy() {
    let engine = host_engine([host_spec("alpha.x")]);
    let stack = Arc::new(stack(&engine));
    thread::scope(|scope| {
        for number in 0..8i64 {
            let stack = Arc::clone(&stack);
            scope.spawn(move || {
                for turn in 0..40 {
                    let value = SettingInput::Int(1 + 100 * number + turn);
                    stack.configure([("cache.max_size".to_owned(), value)], "lz.configure").unwrap();
                }
            });
        }
    });
    assert_eq!(*engine.policy(), stack.policy());
}
