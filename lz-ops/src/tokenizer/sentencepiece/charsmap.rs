//! The charsmap of a normalizer: a double-array trie (Darts-clone) from byte strings to offsets in a block of null-terminated strings.

/// The library considers at most this many matching rules at one offset of a text.
const MAX_RULES: usize = 32;
/// Bytes of a block of 256 trie units.
const BLOCK_BYTES: usize = 1024;

/// A parsed charsmap.
pub struct CharsMap {
    units: Vec<Unit>,
    /// Null-terminated replacements.
    replacements: Box<[u8]>,
}

#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    fn has_leaf(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    fn value(self) -> usize {
        (self.0 & 0x7fff_ffff) as usize
    }

    /// The byte of the edge to this unit; above 0xff for a leaf.
    fn label(self) -> u32 {
        self.0 & 0x8000_00ff
    }

    fn offset(self) -> usize {
        ((self.0 >> 10) << ((self.0 & 1 << 9) >> 6)) as usize
    }
}

impl CharsMap {
    /// Parses `precompiled_charsmap` with the checks of the library: no unit leads outside the trie.
    pub fn parse(blob: &[u8]) -> Result<CharsMap, String> {
        let wrong = |what: &str| format!("`precompiled_charsmap` is invalid: {what}");
        let (size, rest) =
            blob.split_first_chunk::<4>().ok_or_else(|| wrong("the size of the trie is missing"))?;
        let size = u32::from_le_bytes(*size) as usize;
        if size >= rest.len() || size == 0 || !size.is_multiple_of(BLOCK_BYTES) {
            return Err(wrong(&format!(
                "the trie has {size} bytes, expected a positive multiple of {BLOCK_BYTES} below {}",
                rest.len()
            )));
        }
        let (trie, replacements) = rest.split_at(size);
        if replacements.last() != Some(&0) {
            return Err(wrong("the replacements do not end in a null byte"));
        }
        let units: Vec<Unit> =
            trie.as_chunks::<4>().0.iter().map(|unit| Unit(u32::from_le_bytes(*unit))).collect();
        let inside = |number: usize, unit: Unit| (number ^ unit.offset()) | 0xff < units.len();
        let root = units[0];
        let rooted = root.label() == 0 && !root.has_leaf() && root.offset() != 0 && inside(0, root);
        let valid = |(number, unit): (usize, &Unit)| match unit.label() {
            0..=0xff => inside(number, *unit),
            _ => unit.value() < replacements.len(),
        };
        if !rooted || !units.iter().enumerate().skip(1).all(valid) {
            return Err(wrong("a unit of the trie points outside of it"));
        }
        Ok(CharsMap { units, replacements: replacements.into() })
    }

    /// The longest rule that matches a prefix of the text: the length of the prefix and its replacement.
    #[inline]
    pub fn replace(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let mut index = self.units[0].offset();
        let (mut found, mut longest) = (0, None);
        for (length, byte) in (1..).zip(text) {
            index ^= usize::from(*byte);
            let unit = *self.units.get(index)?;
            if unit.label() != u32::from(*byte) {
                break;
            }
            index ^= unit.offset();
            if unit.has_leaf() {
                found += 1;
                if found <= MAX_RULES {
                    longest = Some((length, self.units.get(index)?.value()));
                }
            }
        }
        let (length, start) = longest?;
        let replacement = self.replacements.get(start..)?;
        let end = replacement.iter().position(|byte| *byte == 0)?;
        Some((length, &replacement[..end]))
    }
}
