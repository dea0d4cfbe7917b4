//! Calls of each kind, each kind in a function of its own, so that their instructions can be counted.

use std::hint::black_box;

use lz_core::run::Scratch;
use lz_core::{Error, Run, TensorMut};
use lz_engine::Engine;
use lz_engine::policy::{CacheConfig, Policy, Sourced};
use lz_ops::{NormRms, NormRmsCall, NormRmsKernel};

use crate::{decide, whole_call};

/// How many calls [`inline_hits`] and [`whole_calls`] make.
pub const INLINE_HITS: usize = 1000;
/// How many calls [`shared_hits`] makes.
pub const SHARED_HITS: usize = 1024;
/// How many calls [`misses`] makes.
pub const MISSES: usize = 256;
/// How many calls [`static_calls`] and [`direct_calls`] make.
pub const STATIC_CALLS: usize = 1000;

/// By hand. The number keeps the compiler from making one function of the two.
#[inline(never)]
pub fn direct_calls(
    kernel: &impl NormRmsKernel,
    call: &NormRmsCall<'_>,
    place: &mut [f32],
) -> Result<(), Box<dyn std::error::Error>> {
    let mut scratch = Scratch::default();
    let mut output = TensorMut::from_slice(place, call.x.shape())?;
    black_box(1);
    for _ in 0..STATIC_CALLS {
        let out = call.outputs(output.reborrow())?;
        black_box(kernel).run(black_box(call), out, &mut Run::unbounded(&mut scratch))?;
    }
    Ok(())
}

/// In static mode.
#[inline(never)]
pub fn static_calls(
    kernel: &impl NormRmsKernel,
    call: &NormRmsCall<'_>,
    place: &mut [f32],
) -> Result<(), Box<dyn std::error::Error>> {
    let mut scratch = Scratch::default();
    let mut output = TensorMut::from_slice(place, call.x.shape())?;
    black_box(2);
    for _ in 0..STATIC_CALLS {
        let out = call.outputs(output.reborrow())?;
        black_box(call).run_static(black_box(kernel), out, &mut scratch)?;
    }
    Ok(())
}

/// Whole calls that the thread remembers.
#[inline(never)]
pub fn whole_calls(engine: &Engine, args: &NormRms<'_>, place: &mut [f32]) -> Result<(), Error> {
    (0..INLINE_HITS).try_for_each(|_| whole_call(engine, black_box(args), place))
}

/// Decisions made afresh.
#[inline(never)]
pub fn misses(engine: &Engine, calls: &[NormRmsCall<'_>]) -> Result<(), Error> {
    calls.iter().cycle().take(MISSES).try_for_each(|call| decide(engine, black_box(call)))
}

/// A thousand calls that the thread remembers.
#[inline(never)]
pub fn inline_hits(engine: &Engine, call: &NormRmsCall<'_>) -> Result<(), Error> {
    (0..INLINE_HITS).try_for_each(|_| decide(engine, black_box(call)))
}

/// Calls that only the shared table remembers.
#[inline(never)]
pub fn shared_hits(engine: &Engine, calls: &[NormRmsCall<'_>]) -> Result<(), Error> {
    calls.iter().cycle().take(SHARED_HITS).try_for_each(|call| decide(engine, black_box(call)))
}

/// Switches the cache off or on; what the policy was before comes back.
pub fn cache(engine: &Engine, enabled: bool) -> Policy {
    let before = Policy::clone(&engine.policy());
    let config = CacheConfig { enabled, ..before.cache.value };
    engine.set_policy(Policy { cache: Sourced::new(config, "benchmark"), ..before.clone() });
    before
}
