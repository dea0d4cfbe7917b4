//! Policies from several hands at once: files, calls and blocks, on several threads.

use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use lz_engine::policy::file::Document;
use lz_engine::policy::layer::Given;
use lz_engine::policy::stack::PolicyStack;
use lz_engine::reload::{Outcome, watch};
use lz_scenarios::calls::{Ask, Norm};
use lz_scenarios::house::{host_house, host_spec, stack, vocabulary};
use lz_test_support::Folder;

use super::hammer;

/// The policy file is rewritten again and again while 16 threads serve: each outcome is applied whole, every call is served.
#[test]
fn reloading_under_load_serves_every_call() {
    let folder = Folder::new();
    let file = folder.write("layerzero.yaml", "deny: [beta]\n");
    let engine = host_house([host_spec("alpha.x"), host_spec("beta.x").priority(90)]);
    let (sender, outcomes) = mpsc::channel();
    let told = move |outcome| drop(sender.send(outcome));
    let reload = watch(&file, Duration::from_millis(1), stack(&engine), vocabulary(), told).unwrap();
    let applied =
        || while !matches!(outcomes.recv_timeout(Duration::from_secs(60)).unwrap(), Outcome::Applied) {};
    applied();
    hammer(
        16,
        |_| {
            let who = Norm::default().serve(&engine).unwrap();
            assert!(["alpha.x", "beta.x"].contains(&who.as_str()), "{who}");
        },
        || {
            for round in 0..10 {
                let (text, expected) = if round % 2 == 0 {
                    ("deny: [alpha]\n", "beta.x")
                } else {
                    ("deny: [beta]\n", "alpha.x")
                };
                let beside = folder.write("layerzero.yaml.new", text);
                std::fs::rename(beside, &file).unwrap();
                applied();
                assert_eq!(Norm::default().serve(&engine).unwrap(), expected, "round {round}");
            }
        },
    );
    drop(reload);
}

/// Two engines of one process watch the same file: both follow it.
#[test]
fn two_watchers_of_one_file_both_follow() {
    let folder = Folder::new();
    let file = folder.write("layerzero.yaml", "deny: [beta]\n");
    let watched: Vec<_> = (0..2)
        .map(|_| {
            let engine = host_house([host_spec("alpha.x"), host_spec("beta.x").priority(90)]);
            let (sender, outcomes) = mpsc::channel();
            let told = move |outcome| drop(sender.send(outcome));
            let reload = watch(&file, Duration::from_millis(10), stack(&engine), vocabulary(), told).unwrap();
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

/// 16 threads lock an operation each at the same time: no lock is lost.
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

/// Each of eight threads prefers a kernel of its own for a block, some inside of another block: no thread sees another's wish, and at the end nothing is left.
#[test]
fn blocks_of_threads_do_not_mix() {
    let names = ["alpha", "beta", "gamma"];
    let engine = host_house(names.map(|name| host_spec(&format!("{name}.x"))));
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

/// One thread loads files while another configures by calls: the calls lie above the file, whoever was last.
#[test]
fn calls_lie_above_the_file_whoever_was_last() {
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
                .configure([("cache.max_size".to_owned(), Given::Int(1000 + round))], "lz.configure")
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

/// Each published policy reaches the engine in the order of the changes: after 8 threads have set values, the engine has what the stack says.
#[test]
fn the_engine_has_what_the_stack_says() {
    let engine = host_house([host_spec("alpha.x")]);
    let stack = Arc::new(stack(&engine));
    thread::scope(|scope| {
        for number in 0..8i64 {
            let stack = Arc::clone(&stack);
            scope.spawn(move || {
                for turn in 0..40 {
                    let value = Given::Int(1 + 100 * number + turn);
                    stack.configure([("cache.max_size".to_owned(), value)], "lz.configure").unwrap();
                }
            });
        }
    });
    assert_eq!(*engine.policy(), stack.policy());
}
