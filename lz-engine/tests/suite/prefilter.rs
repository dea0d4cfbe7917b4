//! Precomputed selection data gives the same results as examining every candidate.

use std::sync::Arc;

use crate::engine_support::{Shape, attend, engine, run, spec};
use lz_core::device::Environment;
use lz_core::{DType, KernelSpec, ReasonCode};
use lz_device::detect_cpu;
use lz_engine::Engine;
use lz_engine::bucket::Bucket;
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence, StoredEvidence, dtypes_text};
use lz_engine::policy::{Action, Pattern, Policy, Provenance, Rule};
use lz_perfdb::{EvidenceKey, Measurement, PerfDb, Setting, Timing, unix_now};
use lz_test_support::Folder;
use proptest::prelude::*;

/// More kernels and rules than the prefilter's bitset is wide.
fn crowd() -> Engine {
    let kernels = (0..300u32).map(|number| {
        let kernel = spec(&format!("b{}.k{number:03}", number % 7)).priority((number % 41) as u8);
        match number % 5 {
            0 => kernel.limit(&format!("seq <= {}", 8 * number), ReasonCode::SeqTooLong),
            1 => kernel.limit("heads % 3 == 0", ReasonCode::AxisLimit),
            2 => kernel.dtype("T", &[DType::F16]),
            3 => kernel.limit("batch * seq < 900", ReasonCode::AxisLimit),
            _ => kernel.limit("causal and head_dim >= 32", ReasonCode::AxisLimit),
        }
    });
    let engine = engine(kernels);
    let rules = (0..200).map(|number: i64| Rule {
        name: String::new(),
        operations: Pattern::any(),
        condition: Some(match number % 4 {
            0 => format!("seq > {}", 4 * number),
            1 => "heads % 2 == 0 and not deterministic".to_owned(),
            2 => "dtype in [f16, bf16] and platform == cpu".to_owned(),
            _ => format!("batch * heads >= {number}"),
        }),
        actions: vec![match number % 5 {
            0 => Action::Deny(Pattern::new(&format!("*.k{:03}", number + 90))),
            _ => Action::Boost(Pattern::new(&format!("b{}", number % 7)), 0.5),
        }],
        source: Provenance::new("test"),
    });
    engine.set_policy(Policy { rules: rules.collect(), ..Policy::default() });
    engine
}

fn shape() -> impl Strategy<Value = Shape> {
    let dtype = prop::sample::select(vec![DType::F32, DType::F16, DType::BF16]);
    (1i64..40, 1i64..2600, 1i64..13, 1i64..80, dtype, any::<bool>()).prop_map(
        |(batch, seq, heads, head_dim, dtype, causal)| Shape {
            batch,
            seq,
            heads,
            head_dim,
            dtype,
            causal,
            ..Shape::default()
        },
    )
}

fn row(spec: &KernelSpec, shape: &Shape, median_ns: f64, expires_at: Option<u64>) -> Measurement {
    let (context, device) = (shape.context(), detect_cpu());
    Measurement {
        key: EvidenceKey {
            kernel: spec.id.clone(),
            kernel_version: spec.version.clone(),
            operation: spec.operation.clone(),
            setting: Setting::of(&device, ""),
            dtypes: dtypes_text(attend(), &context),
            bucket: Bucket::of(attend(), &context).words().into(),
            capabilities_hash: spec.capabilities_hash.clone(),
            environment: Environment::default(),
        },
        timing: Timing {
            median_ns,
            p95_ns: median_ns,
            variance_ns2: 1.0,
            samples: 30,
            warmup_ns: 0.0,
            measured_at: unix_now(),
        },
        expires_at,
    }
}

/// The same measurements, queried instead of prepared.
struct Asked(Arc<StoredEvidence>);

impl Evidence for Asked {
    fn findings(&self, question: &EvidenceQuery<'_>, visit: &mut dyn FnMut(&KernelEvidence<'_>)) {
        self.0.findings(question, visit);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn prefilter_beyond_its_width_matches_the_filter(shapes in prop::collection::vec(shape(), 1..6)) {
        let engine = crowd();
        for shape in &shapes {
            let fresh = engine.which(attend(), &shape.context()).ok().map(|plan| plan.kernel);
            prop_assert_eq!(&engine.decide(attend(), &shape.context()).ok(), &fresh, "{:?}", shape);
            prop_assert_eq!(&run(&engine, shape).ok(), &fresh, "{:?}", shape);
        }
    }

    #[test]
    fn prepared_measurements_match_queried_ones(
        medians in prop::collection::vec((0usize..4, 0usize..3, 900.0f64..1100.0, any::<bool>()), 1..12),
        shapes in prop::collection::vec(shape(), 3),
    ) {
        let kernels: Vec<KernelSpec> =
            (0..4).map(|number| spec(&format!("b.k{number}")).priority(50 + 3 * number)).collect();
        let folder = Folder::new();
        let database = PerfDb::open(folder.file("perf.db")).db;
        // One in two expires after a second, so that some of the prepared points expire.
        let rows: Vec<Measurement> = medians
            .iter()
            .map(|(kernel, at, median, short)| {
                row(&kernels[*kernel], &shapes[*at], *median, short.then(|| unix_now() + 1))
            })
            .collect();
        database.record_all(&rows).unwrap();
        let device = detect_cpu();
        let stored = Arc::new(StoredEvidence::load(&database, [&device], ["demo.attend"], "", lz_device::read_environment));
        let (sorted, asked) = (engine(kernels.clone()), engine(kernels));
        sorted.set_evidence(Some(stored.clone()));
        asked.set_evidence(Some(Arc::new(Asked(stored.clone()))));
        for shape in &shapes {
            // A measurement that expires between two results makes them differ.
            let ([a, b], chosen) = loop {
                let second = unix_now();
                let explained = [&sorted, &asked].map(|engine| engine.explain(attend(), &shape.context()));
                let chosen = sorted.decide(attend(), &shape.context()).ok();
                if unix_now() == second {
                    break (explained, chosen);
                }
                // Drops the cached decision.
                sorted.set_evidence(Some(stored.clone()));
            };
            prop_assert_eq!(a.chosen(), b.chosen(), "{}{}", a, b);
            for one in &a.candidates {
                let other = b.candidate(&one.kernel).unwrap();
                prop_assert_eq!(one.evidence.is_some(), other.evidence.is_some());
                prop_assert_eq!(one.score.perf.is_some(), other.score.perf.is_some(), "{}{}", a, b);
                let difference = one.score.perf.unwrap_or(0.0) - other.score.perf.unwrap_or(0.0);
                prop_assert!(difference.abs() < 1e-3, "{}{}", a, b);
            }
            prop_assert_eq!(chosen.as_deref(), a.chosen());
        }
    }
}
