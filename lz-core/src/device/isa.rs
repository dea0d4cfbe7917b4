//! CPU instruction sets as a bit set.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! instruction_sets {
    ($($variant:ident = $name:literal),+ $(,)?) => {
        /// One instruction set that a kernel may require.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "each variant is the vendor's own name of the extension")]
        pub enum Isa { $($variant),+ }

        impl Isa {
            /// Every instruction set, in declaration order.
            pub const ALL: &'static [Isa] = &[$(Isa::$variant),+];

            /// The name used in descriptors: `avx512_bf16`.
            pub const fn name(self) -> &'static str {
                match self { $(Isa::$variant => $name),+ }
            }
        }
    };
}

instruction_sets! {
    Sse42 = "sse4.2",
    Avx = "avx",
    Avx2 = "avx2",
    Fma = "fma",
    F16c = "f16c",
    AvxVnni = "avx_vnni",
    Avx512F = "avx512f",
    Avx512Bw = "avx512bw",
    Avx512Dq = "avx512dq",
    Avx512Vl = "avx512vl",
    Avx512Vbmi = "avx512_vbmi",
    Avx512Vnni = "avx512_vnni",
    Avx512Bf16 = "avx512_bf16",
    Avx512Fp16 = "avx512_fp16",
    AmxTile = "amx_tile",
    AmxBf16 = "amx_bf16",
    AmxInt8 = "amx_int8",
    AmxFp16 = "amx_fp16",
    Neon = "neon",
    Fp16 = "fp16",
    DotProd = "dotprod",
    Bf16 = "bf16",
    I8mm = "i8mm",
    Sve = "sve",
    Sve2 = "sve2",
    Sme = "sme",
}

impl Isa {
    /// The instruction set with this name. Spellings with and without underscore are both common, so both are accepted.
    pub fn from_name(name: &str) -> Option<Isa> {
        let plain = |text: &str| text.replace(['_', '-', '.'], "").to_ascii_lowercase();
        let normalized = plain(name);
        Self::ALL.iter().copied().find(|isa| plain(isa.name()) == normalized)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of instruction sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct IsaSet(u64);

impl IsaSet {
    /// The empty set.
    pub const EMPTY: IsaSet = IsaSet(0);

    /// This set with one more element.
    #[must_use]
    pub const fn with(self, isa: Isa) -> IsaSet {
        IsaSet(self.0 | (1 << isa as u8))
    }

    /// Adds one instruction set when `present`.
    pub const fn set(&mut self, isa: Isa, present: bool) {
        if present {
            self.0 |= 1 << isa as u8;
        }
    }

    /// Whether an instruction set is in the set.
    pub const fn has(self, isa: Isa) -> bool {
        self.0 & (1 << isa as u8) != 0
    }

    /// Whether `required` is a subset.
    pub const fn contains(self, required: IsaSet) -> bool {
        self.0 & required.0 == required.0
    }

    /// The elements of `required` that this set lacks.
    #[must_use]
    pub const fn missing(self, required: IsaSet) -> IsaSet {
        IsaSet(required.0 & !self.0)
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The elements, in declaration order.
    pub fn iter(self) -> impl Iterator<Item = Isa> {
        Isa::ALL.iter().copied().filter(move |isa| self.has(*isa))
    }

    /// The tier in hardware signatures: the widest family that kernels specialize for.
    pub const fn tier(self) -> &'static str {
        if self.has(Isa::AmxBf16) || self.has(Isa::AmxInt8) {
            "amx"
        } else if self.has(Isa::Avx512Bf16) {
            "avx512_bf16"
        } else if self.has(Isa::Avx512Vnni) {
            "avx512_vnni"
        } else if self.has(Isa::Avx512F) {
            "avx512"
        } else if self.has(Isa::Avx2) {
            "avx2"
        } else if self.has(Isa::Avx) {
            "avx"
        } else if self.has(Isa::Sse42) {
            "sse4.2"
        } else if self.has(Isa::Sme) {
            "sme"
        } else if self.has(Isa::Sve2) {
            "sve2"
        } else if self.has(Isa::Sve) {
            "sve"
        } else if self.has(Isa::Neon) {
            "neon"
        } else {
            "scalar"
        }
    }
}

impl FromIterator<Isa> for IsaSet {
    fn from_iter<I: IntoIterator<Item = Isa>>(items: I) -> Self {
        items.into_iter().fold(IsaSet::EMPTY, IsaSet::with)
    }
}

impl fmt::Display for IsaSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, isa) in self.iter().enumerate() {
            if position > 0 {
                f.write_str(" ")?;
            }
            f.write_str(isa.name())?;
        }
        Ok(())
    }
}

impl Serialize for IsaSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Isa::name))
    }
}

impl<'de> Deserialize<'de> for IsaSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        names
            .iter()
            .map(|name| {
                Isa::from_name(name)
                    .ok_or_else(|| D::Error::custom(format!("unknown instruction set `{name}`")))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(*isa));
        }
        assert_eq!(Isa::from_name("avx512bf16"), Some(Isa::Avx512Bf16));
        assert_eq!(Isa::from_name("avx1024"), None);
        assert!(Isa::ALL.len() <= 64, "the set is one word");
    }

    #[test]
    fn missing_returns_the_difference() {
        let have: IsaSet = [Isa::Avx2, Isa::Fma].into_iter().collect();
        let need: IsaSet = [Isa::Avx2, Isa::F16c, Isa::Avx512F].into_iter().collect();
        assert!(!have.contains(need));
        assert_eq!(have.missing(need).to_string(), "f16c avx512f");
        assert!(have.contains(IsaSet::EMPTY));
    }

    #[test]
    fn json_is_a_list_of_known_names() {
        let have: IsaSet = [Isa::Avx2, Isa::AmxBf16].into_iter().collect();
        let text = serde_json::to_string(&have).unwrap();
        assert_eq!(text, r#"["avx2","amx_bf16"]"#);
        assert_eq!(serde_json::from_str::<IsaSet>(&text).unwrap(), have);
        assert!(serde_json::from_str::<IsaSet>(r#"["mmx9"]"#).is_err());
    }
}
