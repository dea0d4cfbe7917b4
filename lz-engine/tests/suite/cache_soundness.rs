//! Cached decisions equal fresh ones: for random kernels, policies and calls, with kernels registered in between.

use crate::engine_support::{Shape, attend, engine, entry, run, spec};
use lz_core::spec::StrideNeeds;
use lz_core::{DType, KernelSpec, ReasonCode};
use lz_engine::Engine;
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_engine::policy::layer::{Layer, SettingInput};
use lz_engine::policy::overlay::Overlay;
use lz_engine::policy::{Action, ListEntry, Lock, Pattern, Policy, Provenance, Rule, WithSource};
use lz_schema::policy::List;
use proptest::collection::vec as vec_of;
use proptest::prelude::*;
use proptest::sample::select;

/// Sizes around the bounds where a decision can change.
fn size() -> impl Strategy<Value = i64> {
    prop_oneof![
        0i64..20,
        select(vec![15, 16, 17, 63, 64, 65, 127, 128, 129, 2047, 2048, 2049, 4096, 1 << 20, 1 << 33]),
    ]
}

/// A condition over the operation, of every form that limits support.
fn condition() -> impl Strategy<Value = String> {
    let axis = || select(vec!["batch", "seq", "heads", "head_dim", "pages"]);
    let comparison = || select(vec!["<", "<=", ">", ">=", "==", "!="]);
    let simple = prop_oneof![
        4 => (axis(), comparison(), size()).prop_map(|(axis, op, size)| format!("{axis} {op} {size}")),
        2 => (axis(), 1i64..9, 0i64..4).prop_map(|(axis, by, rest)| format!("{axis} % {by} == {rest}")),
        1 => (axis(), axis(), comparison(), size()).prop_map(|(a, b, op, size)| format!("{a} * {b} {op} {size}")),
        1 => (axis(), axis()).prop_map(|(a, b)| format!("{a} % {b} == 0")),
        1 => (comparison(), 0i64..4).prop_map(|(op, size)| format!("window {op} {size}")),
        1 => (comparison(), 0i64..4).prop_map(|(op, size)| format!("scale {op} {size}")),
        1 => Just("causal".to_owned()),
        1 => Just("layout == BHSD".to_owned()),
        1 => Just("T in [f16, bf16]".to_owned()),
        1 => (axis(), size(), size()).prop_map(|(axis, a, b)| format!("{axis} in [{a}, {b}]")),
    ];
    let joined = (simple, select(vec!["and", "or"]));
    vec_of(joined, 1..4).prop_map(|parts| {
        let mut text = String::new();
        for (position, (part, join)) in parts.into_iter().enumerate() {
            text = if position == 0 { part } else { format!("{text} {join} ({part})") };
        }
        text
    })
}

fn kernel() -> impl Strategy<Value = KernelSpec> {
    let dtypes = proptest::option::weighted(0.2, select(vec![DType::F32, DType::F16, DType::BF16]));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let memory = proptest::option::of(select(vec!["seq * head_dim", "batch * 65536", "1024"]));
    let strides = select(vec![StrideNeeds::Any, StrideNeeds::LastDense, StrideNeeds::Contiguous]);
    let shape = (select(vec![1u32, 16]), strides, prop::bool::weighted(0.2));
    (0u8..=10, vec_of(condition(), 0..4), dtypes, flags, memory, shape).prop_map(
        |(
            priority,
            limits,
            dtype,
            (deterministic, graph, reference),
            memory,
            (alignment, strides, layout),
        )| {
            let mut kernel = spec(if reference { "reference.x" } else { "some.x" }).priority(priority);
            for limit in &limits {
                kernel = kernel.limit(limit, ReasonCode::AxisLimit);
            }
            kernel.dtypes.extend(dtype.map(|dtype| ("T".to_owned(), vec![dtype])));
            (kernel.deterministic, kernel.cuda_graph_safe) = (deterministic, graph);
            kernel.workspace = memory.map(str::to_owned);
            (kernel.alignment, kernel.strides) = (alignment, strides);
            if layout {
                kernel.layouts = vec!["BSHD".to_owned()];
            }
            kernel
        },
    )
}

fn policy() -> impl Strategy<Value = Policy> {
    let pattern = || select(vec!["some.*", "reference", "*.0", "*.1", "*"]).prop_map(Pattern::new);
    let listed = move || {
        pattern().prop_map(|kernels| ListEntry {
            kernels,
            operations: Pattern::any(),
            source: Provenance::new("test"),
        })
    };
    let action = prop_oneof![
        pattern().prop_map(Action::Prefer),
        pattern().prop_map(Action::Avoid),
        pattern().prop_map(Action::Deny),
        (pattern(), -9i32..9).prop_map(|(pattern, points)| Action::Boost(pattern, f64::from(points))),
        Just(Action::Filter("deterministic or priority > 3".to_owned())),
        Just(Action::Override("some.x.1".to_owned())),
    ];
    let rule = (condition(), action).prop_map(|(condition, action)| Rule {
        name: String::new(),
        operations: Pattern::new("demo.*"),
        condition: Some(condition),
        actions: vec![action],
        source: Provenance::new("test"),
    });
    let lock = (condition(), any::<bool>()).prop_map(|(condition, alias)| Lock {
        operation: Pattern::new(if alias { "demo.attend_causal" } else { "demo.attend" }),
        kernel: "some.x.0".to_owned(),
        condition: Some(condition),
        source: Provenance::new("test"),
    });
    let memory = select(vec![None, Some(1 << 16), Some(1 << 30)]);
    (
        vec_of(rule, 0..4),
        vec_of(lock, 0..2),
        vec_of(listed(), 0..2),
        vec_of(listed(), 0..2),
        memory,
        any::<bool>(),
    )
        .prop_map(|(rules, locks, prefer, avoid, memory, strict)| Policy {
            rules,
            locks,
            prefer,
            avoid,
            memory_headroom: WithSource::new(memory, "test"),
            strict_mode: WithSource::new(strict, "test"),
            ..Policy::default()
        })
}

/// Calls that differ mostly in what a cell does not fix, so that many of them share a cell.
fn shape() -> impl Strategy<Value = Shape> {
    let sizes = (size(), size(), select(vec![6, 8]), size());
    let exact = prop_oneof![9 => Just(64i64), 1 => size()];
    let params = (prop::bool::weighted(0.2), prop::bool::weighted(0.1), 0i64..4, 0i64..4);
    let strides = prop_oneof![9 => Just((true, true, 6u64)), 1 => (any::<bool>(), any::<bool>(), 2u64..7)];
    let dtype = prop_oneof![9 => Just(DType::BF16), 1 => select(vec![DType::F32, DType::F16])];
    (sizes, exact, params, strides, dtype).prop_map(
        |((batch, seq, heads, pages), head_dim, (causal, layout, window, scale), strides, dtype)| Shape {
            batch,
            seq,
            heads,
            head_dim,
            pages,
            dtype,
            causal,
            layout: u64::from(layout),
            window,
            scale: scale as f64,
            strides,
            ..Shape::default()
        },
    )
}

/// Makes ids unique.
fn numbered(kernels: Vec<KernelSpec>, first: usize) -> Vec<KernelSpec> {
    let number = |(position, mut kernel): (usize, KernelSpec)| {
        kernel.id = format!("{}.{}", kernel.id, first + position);
        kernel
    };
    kernels.into_iter().enumerate().map(number).collect()
}

/// Compares the answer of every cache with a fresh decision, and that with the filter.
fn agree(engine: &Engine, shape: &Shape) -> Result<(), TestCaseError> {
    let context = shape.context();
    let explanation = engine.explain(attend(), &context);
    let plan = engine.which(attend(), &context).ok();
    prop_assert_eq!(explanation.plan.as_ref(), plan.as_ref());
    // A prepared context has no tensors to split.
    let fresh = plan.filter(|plan| plan.split.is_none()).map(|plan| plan.kernel);
    let shared = engine.decide(attend(), &context).ok();
    let dispatched = run(engine, shape).ok();
    let again = run(engine, shape).ok();
    prop_assert_eq!(&shared, &fresh, "shared table, {:?}\n{}", shape, explanation);
    prop_assert_eq!(&dispatched, &fresh, "dispatch, {:?}\n{}", shape, explanation);
    prop_assert_eq!(&again, &fresh, "thread's memory, {:?}\n{}", shape, explanation);
    if let Some(chosen) = &fresh {
        let reasons = explanation.candidate(chosen).map(|candidate| candidate.reasons.clone());
        prop_assert_eq!(reasons, Some(Vec::new()));
    }
    Ok(())
}

/// Something that can be set in an overlay or in the policy itself.
#[derive(Debug, Clone)]
enum Said {
    Prefer(usize),
    Avoid(usize),
    Deny(usize),
    Allow(usize),
    Lock(usize),
    Headroom(i64),
    Switch(&'static str, bool),
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        (0..6usize).prop_map(Said::Prefer),
        (0..6usize).prop_map(Said::Avoid),
        (0..6usize).prop_map(Said::Deny),
        (0..6usize).prop_map(Said::Allow),
        (0..6usize).prop_map(Said::Lock),
        (0..4i64).prop_map(Said::Headroom),
        (
            prop_oneof![
                Just("deterministic"),
                Just("strict_mode"),
                Just("allow_adaptation"),
                Just("enabled")
            ],
            any::<bool>()
        )
            .prop_map(|(key, on)| Said::Switch(key, on)),
    ]
}

/// Both forms of the same; later ones override earlier ones.
fn both_forms(all: &[Said], ids: &[String]) -> (Overlay, Layer) {
    let (mut overlay, mut layer) = (Overlay::new(), Layer::new());
    for said in all {
        let name = |at: &usize| vec![ids.get(at % ids.len()).cloned().unwrap_or_default()];
        let mut list = |list: List, at: &usize| layer.list(list, &name(at), "test");
        match said {
            Said::Prefer(at) => (overlay, _) = (overlay.prefer(&name(at)), list(List::Prefer, at)),
            Said::Avoid(at) => (overlay, _) = (overlay.avoid(&name(at)), list(List::Avoid, at)),
            Said::Deny(at) => (overlay, _) = (overlay.deny(&name(at)), list(List::Deny, at)),
            Said::Allow(at) => (overlay, _) = (overlay.allow(&name(at)), list(List::Allow, at)),
            Said::Lock(at) => {
                let id = name(at).remove(0);
                overlay = overlay.lock("demo.attend", &id);
                layer.lock("demo.attend", &id, "test");
            }
            Said::Headroom(size) => {
                overlay =
                    overlay.set("memory_headroom_mb", SettingInput::Int(*size)).expect("it is a setting");
                layer.set("memory_headroom_mb", SettingInput::Int(*size), "test").expect("it is a setting");
            }
            Said::Switch(key, on) => {
                overlay = overlay.set(key, SettingInput::Bool(*on)).expect("it is a setting");
                layer.set(key, SettingInput::Bool(*on), "test").expect("it is a setting");
            }
        }
    }
    (overlay, layer)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn scope_equals_the_same_policy(
        kernels in vec_of(kernel(), 2..6),
        policy in policy(),
        scopes in vec_of(vec_of(said(), 1..4), 1..4),
        shapes in vec_of(shape(), 4..12),
    ) {
        let kernels = numbered(kernels, 0);
        let ids: Vec<String> = kernels.iter().map(|kernel| kernel.id.clone()).collect();
        let scoped = engine(kernels.clone());
        let plain = engine(kernels);
        scoped.set_policy(policy.clone());
        for all in &scopes {
            let (overlay, layer) = both_forms(all, &ids);
            plain.set_policy(policy.overlaid(&layer));
            let guard = scoped.scope(overlay).expect("there are numbers left");
            for shape in &shapes {
                agree(&scoped, shape)?;
                let expected = std::thread::scope(|threads| {
                    threads.spawn(|| run(&plain, shape).ok()).join().expect("no panic")
                });
                prop_assert_eq!(run(&scoped, shape).ok(), expected, "{:?} {:?}", all, shape);
            }
            drop(guard);
            plain.set_policy(policy.clone());
            for shape in &shapes {
                prop_assert_eq!(run(&scoped, shape).ok(), run(&plain, shape).ok(), "after {:?}", all);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn cached_decisions_equal_fresh_decisions(
        first in vec_of(kernel(), 1..6),
        later in vec_of(kernel(), 0..4),
        policies in vec_of(policy(), 1..3),
        shapes in vec_of(shape(), 8..48),
        deterministic in any::<bool>(),
    ) {
        let count = first.len();
        let engine = engine(numbered(first, 0));
        for policy in policies {
            engine.set_policy(policy);
            for shape in &shapes {
                agree(&engine, shape)?;
            }
        // All are cached now; a second lookup must return the same.
            let _mode = mode::scope(ModeOverride::NONE.set(ModeFlag::Deterministic, deterministic));
            for shape in &shapes {
                agree(&engine, shape)?;
            }
        }
        // A plugin with any limit on any axis does not make a cached answer stale.
        for kernel in numbered(later, count) {
            engine.register([entry(kernel)]).expect("drawn kernels fit");
            for shape in &shapes {
                agree(&engine, shape)?;
            }
        }
    }

    #[test]
    fn decisions_are_independent_of_registration_order(
        kernels in vec_of(kernel(), 1..8),
        policy in policy(),
        shapes in vec_of(shape(), 1..8),
    ) {
        let kernels = numbered(kernels, 0);
        let forwards = engine(kernels.clone());
        let backwards = engine(kernels.into_iter().rev());
        forwards.set_policy(policy.clone());
        backwards.set_policy(policy);
        for shape in &shapes {
            let chosen = |engine: &Engine| engine.decide(attend(), &shape.context()).ok();
            prop_assert_eq!(chosen(&forwards), chosen(&backwards));
        }
    }
}
