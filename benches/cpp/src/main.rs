//! Prints the latency of a call from C++ compared with the same call from Rust; with `--json` one object per
//! line.
//!
//! Both sides call `norm.rms` on one row of eight elements with the native kernel, with a cached decision.
//! The sides are interleaved and the best of many rounds counts, to reduce the effect of other load on the
//! machine.

use std::hint::black_box;
use std::time::Instant;

use lz_core::{TensorMut, TensorView};
use lz_engine::Engine;
use lz_ops::{NormRms, norm_rms, norm_rms_into};

// Symbols that the C++ half calls.
use lz_cpp as _;

const CALLS: u64 = 1_000;
const ROUNDS: usize = 500;
const HIDDEN: usize = 8;
/// Maximum overhead of a call from C++ over the call from Rust.
const LIMIT_NS: f64 = 60.0;

unsafe extern "C" {
    safe fn bench_cpp_into(count: u64) -> f64;
    safe fn bench_cpp_fresh(count: u64) -> f64;
}

fn rust_into(engine: &Engine) -> Result<f64, Box<dyn std::error::Error>> {
    let (x, weight, mut out) = ([1f32; HIDDEN], [2f32; HIDDEN], [0f32; HIDDEN]);
    let shape = [1, HIDDEN as i64];
    let args = NormRms::new(TensorView::from_slice(&x, &shape)?)
        .weight(TensorView::from_slice(&weight, &shape[1..])?);
    let mut output = TensorMut::from_slice(&mut out, &shape)?;
    let start = Instant::now();
    for _ in 0..CALLS {
        norm_rms_into(engine, black_box(&args), output.reborrow())?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / CALLS as f64)
}

fn rust_fresh(engine: &Engine) -> Result<f64, Box<dyn std::error::Error>> {
    let (x, weight) = ([1f32; HIDDEN], [2f32; HIDDEN]);
    let shape = [1, HIDDEN as i64];
    let start = Instant::now();
    for _ in 0..CALLS {
        let args = NormRms::new(TensorView::from_slice(&x, &shape)?)
            .weight(TensorView::from_slice(&weight, &shape[1..])?);
        black_box(norm_rms(engine, black_box(args))?);
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / CALLS as f64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let json = std::env::args().any(|argument| argument == "--json");
    let engine = lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    engine.register(lz_cpu::kernels())?;
    let mut best = [f64::INFINITY; 4];
    for _ in 0..ROUNDS {
        let times =
            [rust_into(&engine)?, bench_cpp_into(CALLS), rust_fresh(&engine)?, bench_cpp_fresh(CALLS)];
        for (best, time) in best.iter_mut().zip(times) {
            *best = best.min(time);
        }
    }
    let [into_rust, into_cpp, fresh_rust, fresh_cpp] = best;
    for (case, ours, theirs) in [
        ("norm_rms_into, cached native kernel", into_cpp, into_rust),
        ("norm_rms, new result", fresh_cpp, fresh_rust),
    ] {
        if json {
            println!(
                "{{\"bench\": \"cpp\", \"case\": \"{case}\", \"unit\": \"ns\", \"ours\": {ours:.1}, \"peer\": \"the same call from Rust\", \"theirs\": {theirs:.1}, \"speedup\": {:.3}, \"limit\": null}}",
                theirs / ours
            );
        } else {
            let over = ours - theirs;
            println!(
                "{case:<40} C++ {ours:>7.1} ns   Rust {theirs:>7.1} ns   overhead {over:>6.1} ns (target: {LIMIT_NS})"
            );
        }
    }
    Ok(())
}
