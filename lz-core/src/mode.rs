//! How a call is to be made, beyond its arguments: deterministically, inside a capture, strictly. Policy gives the ground,
//! a thread may change it for a while.
//!
//! A mode is one word, so that it can be part of a cache's key. Nothing here knows kernels.

use std::fmt;

/// One thing that a call may ask for or allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Ask {
    /// The same inputs must give the same bits.
    Deterministic = 0,
    /// The call is being captured into a graph.
    Capturing = 1,
    /// The same bits for every tensor-parallel size.
    TensorParallelInvariant = 2,
    /// No implicit conversion.
    Strict = 3,
    /// The weights were packed for the kernels that need it.
    PackedWeights = 4,
    /// TF32 and the like are allowed.
    ReducedPrecision = 5,
    /// Optimisation is off: references only.
    Disabled = 6,
    /// Adapters may not convert; the same as strict, but said by another setting.
    NotAdapting = 7,
}

impl Ask {
    const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// How a paged or contiguous cache of keys and values is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KvStrategy {
    /// One block of memory a sequence.
    Contiguous = 1,
    /// Fixed pages and a table.
    Paged = 2,
    /// Contiguous addresses over pages that are mapped on demand.
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

/// In which order the ranks of a tensor-parallel group add what each of them has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReductionOrder {
    /// One rank after the other, in a circle.
    Ring,
    /// In pairs, and pairs of pairs.
    Tree,
    /// As one rank alone would add.
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
/// One less than the tensor-parallel size, so that nothing said means one rank.
const TP_SHIFT: u32 = 12;
const TP_MASK: u64 = (u16::MAX as u64) << TP_SHIFT;
/// The upper half numbers what the thread lays over policies; the engine keeps what each number stands for.
const LAID_SHIFT: u32 = 32;
const LAID_MASK: u64 = (u32::MAX as u64) << LAID_SHIFT;

/// How a call is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Mode(u64);

impl Mode {
    /// Nothing special.
    pub const PLAIN: Mode = Mode(0);

    /// With one ask more, or without it.
    #[must_use]
    pub const fn set(self, ask: Ask, on: bool) -> Mode {
        if on { Mode(self.0 | ask.bit()) } else { Mode(self.0 & !ask.bit()) }
    }

    /// With a strategy of the cache of keys and values.
    #[must_use]
    pub const fn kv(self, strategy: Option<KvStrategy>) -> Mode {
        let number = match strategy {
            Some(strategy) => strategy as u64,
            None => 0,
        };
        Mode(self.0 & !KV_MASK | number << KV_SHIFT)
    }

    /// With so many ranks in the tensor-parallel group.
    #[must_use]
    pub const fn tp(self, size: u32) -> Mode {
        Mode(self.0 & !TP_MASK | tp_bits(size))
    }

    /// How many ranks the tensor-parallel group has, this one among them.
    #[inline]
    pub const fn tp_size(self) -> u32 {
        ((self.0 & TP_MASK) >> TP_SHIFT) as u32 + 1
    }

    /// Whether it asks for this.
    #[inline]
    pub const fn has(self, ask: Ask) -> bool {
        self.0 & ask.bit() != 0
    }

    /// The strategy of the cache of keys and values, where one is stated.
    #[inline]
    pub fn kv_strategy(self) -> Option<KvStrategy> {
        let number = (self.0 & KV_MASK) >> KV_SHIFT;
        KvStrategy::ALL.into_iter().find(|strategy| *strategy as u64 == number)
    }

    /// What it asks for, without the number of what is laid over policy: decisions of a scope are kept apart by their world.
    #[inline]
    pub const fn asks(self) -> u32 {
        self.0 as u32
    }

    /// The number of what the thread lays over policies; 0 for nothing.
    #[inline]
    pub const fn laid(self) -> u32 {
        (self.0 >> LAID_SHIFT) as u32
    }
}

/// Groups that are larger than fit count as the largest that fits.
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
        let asks = [
            (Ask::Deterministic, "deterministic"),
            (Ask::Capturing, "capturing"),
            (Ask::TensorParallelInvariant, "tp-invariant"),
            (Ask::Strict, "strict"),
            (Ask::PackedWeights, "packed weights"),
            (Ask::ReducedPrecision, "reduced precision"),
            (Ask::Disabled, "disabled"),
            (Ask::NotAdapting, "not adapting"),
        ];
        let mut words: Vec<&str> =
            asks.into_iter().filter(|(ask, _)| self.has(*ask)).map(|(_, name)| name).collect();
        words.extend(self.kv_strategy().map(KvStrategy::name));
        let ranks = format!("{} ranks", self.tp_size());
        if self.tp_size() > 1 {
            words.push(&ranks);
        }
        f.write_str(&words.join(", "))
    }
}

/// What a thread changes for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModeChange {
    on: u64,
    off: u64,
}

impl ModeChange {
    /// No change.
    pub const NONE: ModeChange = ModeChange { on: 0, off: 0 };

    /// Turns one ask on or off, whatever policy says.
    #[must_use]
    pub const fn set(self, ask: Ask, on: bool) -> ModeChange {
        let bit = ask.bit();
        if on {
            ModeChange { on: self.on | bit, off: self.off & !bit }
        } else {
            ModeChange { on: self.on & !bit, off: self.off | bit }
        }
    }

    /// States the strategy of the cache of keys and values.
    #[must_use]
    pub const fn kv(self, strategy: KvStrategy) -> ModeChange {
        ModeChange { on: self.on & !KV_MASK | (strategy as u64) << KV_SHIFT, off: self.off | KV_MASK }
    }

    /// States how many ranks the tensor-parallel group has.
    #[must_use]
    pub const fn tp(self, size: u32) -> ModeChange {
        ModeChange { on: self.on & !TP_MASK | tp_bits(size), off: self.off | TP_MASK }
    }

    /// Says what the thread lays over policies.
    pub const fn laying(self, number: u32) -> ModeChange {
        ModeChange { on: self.on & !LAID_MASK | (number as u64) << LAID_SHIFT, off: self.off | LAID_MASK }
    }

    /// The mode of a call under this change of `ground`.
    #[inline(always)]
    pub const fn apply(self, ground: Mode) -> Mode {
        Mode(ground.0 & !self.off | self.on)
    }

    /// This change and a later one as one change.
    pub const fn then(self, later: ModeChange) -> ModeChange {
        ModeChange { on: self.on & !later.off | later.on, off: self.off & !later.on | later.off }
    }
}
