//! The mode of a call, beyond its arguments: deterministic, capturing, strict. Policy sets the base mode, a thread may override
//! it.
//!
//! A mode is one word, so that it can be part of a cache key. Nothing here depends on kernels.

use std::fmt;

/// A requirement or permission of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ModeFlag {
    /// The same inputs must give the same bits.
    Deterministic = 0,
    /// The call is being captured into a graph.
    Capturing = 1,
    /// Bitwise equal results for every tensor-parallel size.
    TensorParallelInvariant = 2,
    /// No implicit conversion.
    Strict = 3,
    /// The weights are packed for kernels that require it.
    PackedWeights = 4,
    /// TF32 and similar modes are allowed.
    ReducedPrecision = 5,
    /// Optimization is disabled: reference kernels only.
    Disabled = 6,
    /// Adapters may not convert; like `Strict`, but from the setting `allow_adaptation`.
    NotAdapting = 7,
    /// Bitwise equal results of an item in every batch. Bits 8 to 10 are the KV-cache strategy.
    BatchInvariant = 11,
}

impl ModeFlag {
    const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// The KV-cache strategy: how keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KvStrategy {
    /// One contiguous block per sequence.
    Contiguous = 1,
    /// Fixed-size pages and a page table.
    Paged = 2,
    /// Contiguous virtual addresses over pages mapped on demand.
    Virtual = 3,
    /// One pool for host and device.
    Unified = 4,
}

impl KvStrategy {
    /// Every strategy.
    pub const ALL: [KvStrategy; 4] =
        [KvStrategy::Contiguous, KvStrategy::Paged, KvStrategy::Virtual, KvStrategy::Unified];

    /// The name used in descriptors and policy.
    pub const fn name(self) -> &'static str {
        match self {
            KvStrategy::Contiguous => "contiguous",
            KvStrategy::Paged => "paged",
            KvStrategy::Virtual => "virtual",
            KvStrategy::Unified => "unified",
        }
    }

    /// The strategy of this name.
    pub fn from_name(name: &str) -> Option<KvStrategy> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
}

/// The order in which the ranks of a tensor-parallel group reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReductionOrder {
    /// Ring reduction.
    Ring,
    /// Binary tree reduction.
    Tree,
    /// The order of a single rank.
    Canonical,
}

impl ReductionOrder {
    /// Every order.
    pub const ALL: [ReductionOrder; 3] =
        [ReductionOrder::Ring, ReductionOrder::Tree, ReductionOrder::Canonical];

    /// The name used in descriptors and policy.
    pub const fn name(self) -> &'static str {
        match self {
            ReductionOrder::Ring => "ring",
            ReductionOrder::Tree => "tree",
            ReductionOrder::Canonical => "canonical",
        }
    }

    /// The order of this name.
    pub fn from_name(name: &str) -> Option<ReductionOrder> {
        Self::ALL.into_iter().find(|order| order.name() == name)
    }
}

const KV_SHIFT: u32 = 8;
const KV_MASK: u64 = 0b111 << KV_SHIFT;
/// Tensor-parallel size minus one, so that 0 means one rank.
const TP_SHIFT: u32 = 12;
const TP_MASK: u64 = (u16::MAX as u64) << TP_SHIFT;
/// The upper half is the id of the thread's policy overlay; the engine maps ids to overlays.
const OVERLAY_SHIFT: u32 = 32;
const OVERLAY_MASK: u64 = (u32::MAX as u64) << OVERLAY_SHIFT;

/// The mode of a call.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Mode(u64);

impl Mode {
    /// No flags.
    pub const PLAIN: Mode = Mode(0);

    /// Sets or clears a flag.
    #[must_use]
    pub const fn set(self, ask: ModeFlag, on: bool) -> Mode {
        if on { Mode(self.0 | ask.bit()) } else { Mode(self.0 & !ask.bit()) }
    }

    /// Sets the KV-cache strategy.
    #[must_use]
    pub const fn kv(self, strategy: Option<KvStrategy>) -> Mode {
        let number = match strategy {
            Some(strategy) => strategy as u64,
            None => 0,
        };
        Mode(self.0 & !KV_MASK | number << KV_SHIFT)
    }

    /// Sets the tensor-parallel size.
    #[must_use]
    pub const fn tp(self, size: u32) -> Mode {
        Mode(self.0 & !TP_MASK | tp_bits(size))
    }

    /// The tensor-parallel size: number of ranks including this one.
    #[inline]
    pub const fn tp_size(self) -> u32 {
        ((self.0 & TP_MASK) >> TP_SHIFT) as u32 + 1
    }

    /// Whether a flag is set.
    #[inline]
    pub const fn has(self, ask: ModeFlag) -> bool {
        self.0 & ask.bit() != 0
    }

    /// The KV-cache strategy, if one is set.
    #[inline]
    pub fn kv_strategy(self) -> Option<KvStrategy> {
        let number = (self.0 & KV_MASK) >> KV_SHIFT;
        KvStrategy::ALL.into_iter().find(|strategy| *strategy as u64 == number)
    }

    /// The flags without the overlay id: scoped decisions are separated by their snapshot.
    #[inline]
    pub const fn flags(self) -> u32 {
        self.0 as u32
    }

    /// The id of the thread's policy overlay; 0 for none.
    #[inline]
    pub const fn overlay_id(self) -> u32 {
        (self.0 >> OVERLAY_SHIFT) as u32
    }
}

/// Saturates at the largest size that fits.
const fn tp_bits(size: u32) -> u64 {
    let others = size.saturating_sub(1);
    let others = if others > u16::MAX as u32 { u16::MAX as u64 } else { others as u64 };
    others << TP_SHIFT
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mode({self})")
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            (ModeFlag::Deterministic, "deterministic"),
            (ModeFlag::Capturing, "capturing"),
            (ModeFlag::TensorParallelInvariant, "tp-invariant"),
            (ModeFlag::BatchInvariant, "batch-invariant"),
            (ModeFlag::Strict, "strict"),
            (ModeFlag::PackedWeights, "packed weights"),
            (ModeFlag::ReducedPrecision, "reduced precision"),
            (ModeFlag::Disabled, "disabled"),
            (ModeFlag::NotAdapting, "not adapting"),
        ];
        let mut words: Vec<&str> =
            flags.into_iter().filter(|(ask, _)| self.has(*ask)).map(|(_, name)| name).collect();
        words.extend(self.kv_strategy().map(KvStrategy::name));
        let ranks = format!("{} ranks", self.tp_size());
        if self.tp_size() > 1 {
            words.push(&ranks);
        }
        f.write_str(&words.join(", "))
    }
}

/// A thread's mode override.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModeOverride {
    on: u64,
    off: u64,
}

impl ModeOverride {
    /// No change.
    pub const NONE: ModeOverride = ModeOverride { on: 0, off: 0 };

    /// Sets or clears a flag, overriding policy.
    #[must_use]
    pub const fn set(self, ask: ModeFlag, on: bool) -> ModeOverride {
        let bit = ask.bit();
        if on {
            ModeOverride { on: self.on | bit, off: self.off & !bit }
        } else {
            ModeOverride { on: self.on & !bit, off: self.off | bit }
        }
    }

    /// Sets the KV-cache strategy.
    #[must_use]
    pub const fn kv(self, strategy: KvStrategy) -> ModeOverride {
        ModeOverride { on: self.on & !KV_MASK | (strategy as u64) << KV_SHIFT, off: self.off | KV_MASK }
    }

    /// Sets the tensor-parallel size.
    #[must_use]
    pub const fn tp(self, size: u32) -> ModeOverride {
        ModeOverride { on: self.on & !TP_MASK | tp_bits(size), off: self.off | TP_MASK }
    }

    /// Sets the id of the thread's policy overlay.
    pub const fn with_overlay(self, number: u32) -> ModeOverride {
        ModeOverride {
            on: self.on & !OVERLAY_MASK | (number as u64) << OVERLAY_SHIFT,
            off: self.off | OVERLAY_MASK,
        }
    }

    /// The mode of a call under this change of `ground`.
    #[inline(always)]
    pub const fn apply(self, base: Mode) -> Mode {
        Mode(base.0 & !self.off | self.on)
    }

    /// This change and a later one as one change.
    pub const fn then(self, later: ModeOverride) -> ModeOverride {
        ModeOverride { on: self.on & !later.off | later.on, off: self.off & !later.on | later.off }
    }
}
