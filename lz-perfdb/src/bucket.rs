//! The packed context bucket as the database stores it: opaque words.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A packed context bucket. Equal words are the same bucket; their meaning is defined by the engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Bucket(Box<[u64]>);

impl Bucket {
    /// The words.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// `None` if the length is not a multiple of a word: the row was not written by this crate.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Bucket> {
        let (words, rest) = bytes.as_chunks::<8>();
        rest.is_empty().then(|| words.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }
}

impl From<&[u64]> for Bucket {
    fn from(words: &[u64]) -> Self {
        Bucket(words.into())
    }
}

impl FromIterator<u64> for Bucket {
    fn from_iter<I: IntoIterator<Item = u64>>(words: I) -> Self {
        Bucket(words.into_iter().collect())
    }
}

/// Sixteen hexadecimal digits per word, joined by dots: other readers would lose the high bits of JSON numbers.
impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, word) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(".")?;
            }
            write!(f, "{word:016x}")?;
        }
        Ok(())
    }
}

/// A text that is not a valid bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedBucket {
    /// The text.
    pub text: String,
}

impl fmt::Display for MalformedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid bucket `{}`; expected words of 16 hexadecimal digits joined by dots", self.text)
    }
}

impl std::error::Error for MalformedBucket {}

impl FromStr for Bucket {
    type Err = MalformedBucket;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Bucket::default());
        }
        let word = |part: &str| {
            let plain = part.len() == 16 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(part, 16).ok()).flatten()
        };
        text.split('.')
            .map(word)
            .collect::<Option<Bucket>>()
            .ok_or_else(|| MalformedBucket { text: text.to_owned() })
    }
}

impl Serialize for Bucket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bucket {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_and_text_round_trip(words in proptest::collection::vec(any::<u64>(), 0..6)) {
            let bucket = Bucket::from(words.as_slice());
            prop_assert_eq!(Bucket::from_bytes(&bucket.to_bytes()), Some(bucket.clone()));
            prop_assert_eq!(bucket.to_string().parse::<Bucket>(), Ok(bucket));
        }
    }

    #[test]
    fn invalid_buckets_are_rejected() {
        for text in ["1", "00000000000000zz", "0000000000000001.", "+000000000000001"] {
            assert!(text.parse::<Bucket>().is_err(), "{text}");
        }
        assert_eq!(Bucket::from_bytes(&[1, 2, 3]), None);
    }
}
