//! The same cases for criterion, which keeps a history and compares with it.

use std::hint::black_box;

use bench_select::{Tensors, bench_engine, call, decide};
use criterion::{Criterion, criterion_group, criterion_main};

fn select(criterion: &mut Criterion) {
    let tensors = Tensors::new(64);
    let Ok(args) = tensors.args() else { return };
    let Ok(bench) = bench_engine(&args) else { return };
    let engine = &bench.engine;
    let Ok(calls) = args.iter().map(|one| one.check()).collect::<Result<Vec<_>, _>>() else { return };
    criterion.bench_function("inline hit", |bench| bench.iter(|| decide(engine, black_box(&calls[0]))));
    criterion
        .bench_function("inline hit with check", |bench| bench.iter(|| call(engine, black_box(&args[0]))));
    criterion.bench_function("shared hit", |bench| {
        let mut next_call = calls.iter().cycle();
        bench.iter(|| next_call.next().map(|one| decide(engine, one)));
    });
}

criterion_group!(benches, select);
criterion_main!(benches);
