//! Each kind of call in a separate function, so that its instructions can be counted.

use std::hint::black_box;

use lz_core::run::Scratch;
use lz_core::{Error, Run, TensorMut};
use lz_engine::Engine;
use lz_engine::policy::{CacheConfig, Policy, WithSource};
use lz_ops::{NormRms, NormRmsCall, NormRmsKernel};

use crate::{decide, whole_call};

/// Number of calls of [`inline_hits`] and [`whole_calls`].
pub const INLINE_HITS: usize = 1000;
/// Number of calls of [`shared_hits`].
pub const SHARED_HITS: usize = 1024;
/// Number of calls of [`misses`].
pub const MISSES: usize = 256;
/// Number of calls of [`static_calls`] and [`direct_calls`].
pub const STATIC_CALLS: usize = 1000;

/// Direct calls of the kernel. The constant keeps the compiler from merging the two functions.
#[inline(never)]
pub fn direct_calls(
    kernel: &impl NormRmsKernel,
    call: &NormRmsCall<'_>,
    output: &mut [f32],
) -> Result<(), Box<dyn std::error::Error>> {
    let mut scratch = Scratch::default();
    let mut output = TensorMut::from_slice(output, call.x.shape())?;
    black_box(1);
    for _ in 0..STATIC_CALLS {
        let out = call.outputs(output.reborrow())?;
        black_box(kernel).run(black_box(call), out, &mut Run::unbounded(&mut scratch))?;
    }
    Ok(())
}

/// Calls in static mode.
#[inline(never)]
pub fn static_calls(
    kernel: &impl NormRmsKernel,
    call: &NormRmsCall<'_>,
    output: &mut [f32],
) -> Result<(), Box<dyn std::error::Error>> {
    let mut scratch = Scratch::default();
    let mut output = TensorMut::from_slice(output, call.x.shape())?;
    black_box(2);
    for _ in 0..STATIC_CALLS {
        let out = call.outputs(output.reborrow())?;
        black_box(call).run_static(black_box(kernel), out, &mut scratch)?;
    }
    Ok(())
}

/// Whole calls that hit the thread cache.
#[inline(never)]
pub fn whole_calls(engine: &Engine, args: &NormRms<'_>, output: &mut [f32]) -> Result<(), Error> {
    (0..INLINE_HITS).try_for_each(|_| whole_call(engine, black_box(args), output))
}

/// Cache misses: full selection.
#[inline(never)]
pub fn misses(engine: &Engine, calls: &[NormRmsCall<'_>]) -> Result<(), Error> {
    calls.iter().cycle().take(MISSES).try_for_each(|call| decide(engine, black_box(call)))
}

/// A thousand hits in the thread cache.
#[inline(never)]
pub fn inline_hits(engine: &Engine, call: &NormRmsCall<'_>) -> Result<(), Error> {
    (0..INLINE_HITS).try_for_each(|_| decide(engine, black_box(call)))
}

/// Calls that miss the thread cache and hit the shared decision cache.
#[inline(never)]
pub fn shared_hits(engine: &Engine, calls: &[NormRmsCall<'_>]) -> Result<(), Error> {
    calls.iter().cycle().take(SHARED_HITS).try_for_each(|call| decide(engine, black_box(call)))
}

/// Enables or disables the decision cache; returns the previous policy.
pub fn cache(engine: &Engine, enabled: bool) -> Policy {
    let before = Policy::clone(&engine.policy());
    let config = CacheConfig { enabled, ..before.cache.value };
    engine.set_policy(Policy { cache: WithSource::new(config, "benchmark"), ..before.clone() });
    before
}
