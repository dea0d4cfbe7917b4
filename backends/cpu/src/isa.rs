//! Kernel variants: one kernel source, one registered kernel per instruction set.
//!
//! A kernel is a type generic over [`Simd`]; [`variants!`] registers it for every instruction set of the
//! target. Variants that this processor does not support are registered too: the engine rejects them with
//! `ISA_UNSUPPORTED`, and `explain` shows that.

use std::sync::Arc;

use lz_core::{KernelEntry, KernelError, Reason, ReasonCode};

use crate::simd::Simd;

/// The entry of a kernel compiled for `S`: extends its id and required features, lowers its priority, and
/// lets the engine copy strided tensors.
pub(crate) fn variant<S: Simd>(mut entry: KernelEntry) -> KernelEntry {
    let spec = Arc::make_mut(&mut entry.spec);
    spec.id = format!("{}.{}", spec.id, S::NAME);
    spec.device.isa.extend(S::FEATURES.iter().map(|&name| name.to_owned()));
    spec.priority = spec.priority.saturating_sub(S::PRIORITY_PENALTY);
    spec.copy_strided();
    entry
}

/// Returns the proof that this processor has the instructions of `S`; an error if a kernel is run without the
/// engine's filter.
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

/// If `S` has AMX tiles, requires AMX-INT8 as well.
pub(crate) fn require_amx_int8<S: Simd>() -> Result<(), KernelError> {
    #[cfg(target_arch = "x86_64")]
    let supported = !S::TILES || crate::simd::amx::available_for_bytes();
    #[cfg(not(target_arch = "x86_64"))]
    let supported = !S::TILES;
    if supported {
        return Ok(());
    }
    Err(KernelError::because(Reason::new(ReasonCode::IsaUnsupported).required("amx_int8")).before_writing())
}

/// Entries of kernels for every instruction set of this target: `variants![norm::RmsRows, …]`. `attention::GqaDecode as specialized` is
/// the kernel's entry for the specialization of its operation, `mlp::Linear as packing` the one that packs constant weights ahead of
/// calls, `norm::RmsRows as fusing_quantize` the one that fuses a following `quantize`.
macro_rules! variants {
    ($($kernel:path $(as $entry:ident)?),* $(,)?) => {
        $crate::isa::build(&[$(
            #[cfg(target_arch = "x86_64")]
            || {
                use $kernel as Kernel;
                use $crate::simd::Avx512;
                $crate::isa::variant::<Avx512>($crate::isa::entry!(Kernel::<Avx512> $(as $entry)?))
            },
            #[cfg(target_arch = "x86_64")]
            || {
                use $kernel as Kernel;
                use $crate::simd::Avx2;
                $crate::isa::variant::<Avx2>($crate::isa::entry!(Kernel::<Avx2> $(as $entry)?))
            },
            #[cfg(target_arch = "aarch64")]
            || {
                use $kernel as Kernel;
                use $crate::simd::Neon;
                $crate::isa::variant::<Neon>($crate::isa::entry!(Kernel::<Neon> $(as $entry)?))
            },
            || {
                use $kernel as Kernel;
                use $crate::simd::Scalar;
                $crate::isa::variant::<Scalar>($crate::isa::entry!(Kernel::<Scalar> $(as $entry)?))
            },
        )*])
    };
}
pub(crate) use variants;

/// Calls each function. A function for each entry, because one with hundreds of entries takes seconds to optimize.
pub(crate) fn build(entries: &[fn() -> KernelEntry]) -> Vec<KernelEntry> {
    entries.iter().map(|entry| entry()).collect()
}

/// The registry entry of a kernel.
macro_rules! entry {
    ($kernel:path) => {
        $kernel(std::marker::PhantomData).entry()
    };
    ($kernel:path as $entry:ident) => {
        $kernel(std::marker::PhantomData).$entry()
    };
}
pub(crate) use entry;

/// The AMX variant of a kernel: bf16 only, with a higher priority.
#[cfg(target_arch = "x86_64")]
pub(crate) fn amx_variant(entry: KernelEntry) -> KernelEntry {
    let mut entry = variant::<crate::simd::Amx>(entry);
    let spec = Arc::make_mut(&mut entry.spec);
    spec.dtypes.retain(|(variable, _)| variable != "T");
    spec.dtypes.push(("T".to_owned(), vec![lz_core::DType::BF16]));
    spec.priority = spec.priority.saturating_add(10);
    entry
}

/// AMX variants of kernels with a bf16 tile path; none if the target has no AMX.
macro_rules! amx_variants {
    ($($kernel:path $(as $entry:ident)?),* $(,)?) => {
        $crate::isa::build(&[$(
            #[cfg(target_arch = "x86_64")]
            || {
                use $kernel as Kernel;
                $crate::isa::amx_variant($crate::isa::entry!(Kernel::<$crate::simd::Amx> $(as $entry)?))
            },
        )*])
    };
}
pub(crate) use amx_variants;

/// The variant of an int8 kernel for `S`, which has an instruction for the dot product of bytes, with a higher priority.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn dot_product_variant<S: Simd>(entry: KernelEntry) -> KernelEntry {
    let mut entry = variant::<S>(entry);
    let spec = Arc::make_mut(&mut entry.spec);
    spec.priority = spec.priority.saturating_add(10);
    entry
}

/// The AMX-INT8 variant of an int8 kernel, with the highest priority.
#[cfg(target_arch = "x86_64")]
pub(crate) fn amx_int8_variant(entry: KernelEntry) -> KernelEntry {
    let mut entry = variant::<crate::simd::Amx>(entry);
    let spec = Arc::make_mut(&mut entry.spec);
    spec.device.isa.push("amx_int8".to_owned());
    spec.priority = spec.priority.saturating_add(20);
    entry
}

/// Variants of int8 kernels for VNNI and AMX-INT8 or for the dot product of NEON.
macro_rules! int8_variants {
    ($($kernel:path),* $(,)?) => {{
        let mut entries: Vec<lz_core::KernelEntry> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            $({
                use $kernel as Kernel;
                entries.push($crate::isa::amx_int8_variant(Kernel::<$crate::simd::Amx>(std::marker::PhantomData).entry()));
                let vnni = Kernel::<$crate::simd::Vnni>(std::marker::PhantomData).entry();
                entries.push($crate::isa::dot_product_variant::<$crate::simd::Vnni>(vnni));
            })*
        }
        #[cfg(target_arch = "aarch64")]
        {
            $({
                use $kernel as Kernel;
                let neon = Kernel::<$crate::simd::NeonDotProd>(std::marker::PhantomData).entry();
                entries.push($crate::isa::dot_product_variant::<$crate::simd::NeonDotProd>(neon));
            })*
        }
        entries
    }};
}
pub(crate) use int8_variants;
