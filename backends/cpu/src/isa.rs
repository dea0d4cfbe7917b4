//! One kernel source, one registered kernel for each instruction set.
//!
//! A kernel is a type over [`Simd`]; [`variants!`] lists it once for every instruction set of the target. The entry for one
//! that this processor lacks is registered too: the engine declines it with `ISA_UNSUPPORTED`, and `explain` shows it.

use std::sync::Arc;

use lz_core::{DType, KernelEntry, KernelError, Reason, ReasonCode};

use crate::simd::Simd;

/// The entry of a kernel that was compiled for `S`: its id, what it needs of the device and its priority say so.
pub(crate) fn variant<S: Simd>(mut entry: KernelEntry) -> KernelEntry {
    let spec = Arc::make_mut(&mut entry.spec);
    spec.id = format!("{}.{}", spec.id, S::NAME);
    spec.device.isa.extend(S::FEATURES.iter().map(|&name| name.to_owned()));
    spec.priority = spec.priority.saturating_sub(S::HANDICAP);
    entry
}

/// The proof that this processor has the instructions of `S`. Whoever runs a kernel past the engine's filter gets an error.
#[inline(always)]
pub(crate) fn require<S: Simd>() -> Result<S, KernelError> {
    match S::detect() {
        Some(simd) => Ok(simd),
        None => Err(missing::<S>()),
    }
}

#[cold]
fn missing<S: Simd>() -> KernelError {
    KernelError::because(Reason::new(ReasonCode::IsaUnsupported).required(S::FEATURES.join(", ")))
        .before_writing()
}

/// Where `S` has tiles, those of bytes must be there as well.
pub(crate) fn require_byte_tiles<S: Simd>() -> Result<(), KernelError> {
    #[cfg(target_arch = "x86_64")]
    let there = !S::TILES || crate::simd::tiles::available_for_bytes();
    #[cfg(not(target_arch = "x86_64"))]
    let there = !S::TILES;
    if there {
        return Ok(());
    }
    Err(KernelError::because(Reason::new(ReasonCode::IsaUnsupported).required("amx_int8")).before_writing())
}

/// Entries of kernels, each for every instruction set of this target: `variants![norm::RmsRows, …]`. NEON will be one line more.
macro_rules! variants {
    ($($kernel:path),* $(,)?) => {{
        let mut entries: Vec<lz_core::KernelEntry> = Vec::new();
        $({
            use $kernel as Kernel;
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::simd::{Avx2, Avx512};
                entries.push($crate::isa::variant::<Avx512>(Kernel::<Avx512>(std::marker::PhantomData).entry()));
                entries.push($crate::isa::variant::<Avx2>(Kernel::<Avx2>(std::marker::PhantomData).entry()));
            }
            use $crate::simd::Scalar;
            entries.push($crate::isa::variant::<Scalar>(Kernel::<Scalar>(std::marker::PhantomData).entry()));
        })*
        entries
    }};
}
pub(crate) use variants;

/// The entry of a kernel that multiplies bf16 on tiles, where it was compiled for them: it takes nothing else, and goes first.
#[cfg(target_arch = "x86_64")]
pub(crate) fn on_tiles(entry: KernelEntry) -> KernelEntry {
    let mut entry = variant::<crate::simd::Amx>(entry);
    let spec = Arc::make_mut(&mut entry.spec);
    spec.dtypes.retain(|(variable, _)| variable != "T");
    spec.dtypes.push(("T".to_owned(), vec![DType::BF16]));
    spec.priority = spec.priority.saturating_add(10);
    entry
}

/// Entries of kernels that have a way for bf16 tiles; none where the target has no tiles.
macro_rules! tile_variants {
    ($($kernel:path),* $(,)?) => {{
        let mut entries: Vec<lz_core::KernelEntry> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            $({
                use $kernel as Kernel;
                entries.push($crate::isa::on_tiles(Kernel::<$crate::simd::Amx>(std::marker::PhantomData).entry()));
            })*
        }
        entries
    }};
}
pub(crate) use tile_variants;

/// The entry of a kernel that multiplies bytes, where it was compiled for the instruction that does: it goes first.
#[cfg(target_arch = "x86_64")]
pub(crate) fn on_bytes(entry: KernelEntry) -> KernelEntry {
    let mut entry = variant::<crate::simd::Vnni>(entry);
    let spec = Arc::make_mut(&mut entry.spec);
    spec.priority = spec.priority.saturating_add(10);
    entry
}

/// As [`on_bytes`], on tiles: before everything else.
#[cfg(target_arch = "x86_64")]
pub(crate) fn on_byte_tiles(entry: KernelEntry) -> KernelEntry {
    let mut entry = variant::<crate::simd::Amx>(entry);
    let spec = Arc::make_mut(&mut entry.spec);
    spec.device.isa.push("amx_int8".to_owned());
    spec.priority = spec.priority.saturating_add(20);
    entry
}

/// Entries of kernels that multiply bytes; none where the target has no instruction for it.
macro_rules! byte_variants {
    ($($kernel:path),* $(,)?) => {{
        let mut entries: Vec<lz_core::KernelEntry> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            $({
                use $kernel as Kernel;
                entries.push($crate::isa::on_byte_tiles(Kernel::<$crate::simd::Amx>(std::marker::PhantomData).entry()));
                entries.push($crate::isa::on_bytes(Kernel::<$crate::simd::Vnni>(std::marker::PhantomData).entry()));
            })*
        }
        entries
    }};
}
pub(crate) use byte_variants;
