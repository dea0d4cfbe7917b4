//! The same cases for criterion, which keeps a history and compares with it.

use std::hint::black_box;

use bench_select::{Tensors, call, decide, full_house};
use criterion::{Criterion, criterion_group, criterion_main};

fn select(criterion: &mut Criterion) {
    let tensors = Tensors::new(64);
    let Ok(args) = tensors.args() else { return };
    let Ok(house) = full_house(&args) else { return };
    let engine = &house.engine;
    let Ok(calls) = args.iter().map(|one| one.check()).collect::<Result<Vec<_>, _>>() else { return };
    criterion.bench_function("inline hit", |bench| bench.iter(|| decide(engine, black_box(&calls[0]))));
    criterion
        .bench_function("inline hit with check", |bench| bench.iter(|| call(engine, black_box(&args[0]))));
    criterion.bench_function("shared hit", |bench| {
        let mut turn = calls.iter().cycle();
        bench.iter(|| turn.next().map(|one| decide(engine, one)));
    });
}

criterion_group!(benches, select);
criterion_main!(benches);
