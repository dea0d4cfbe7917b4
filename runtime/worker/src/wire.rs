//! The little-endian byte format of messages. Parsing validates its input and returns `None` for invalid bytes.

use lz_core::DType;
use lz_core::tensor::{Device, Dims, Layout};

use crate::arena::{ArenaTensor, Block};

/// Serializes values.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub fn word(&mut self, word: u64) {
        self.bytes.extend(word.to_le_bytes());
    }

    pub fn tagged(&mut self, tag: u8, word: u64) {
        self.byte(tag);
        self.word(word);
    }

    pub fn text(&mut self, text: &str) {
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    pub fn block(&mut self, block: Block) {
        self.word(block.offset);
        self.word(block.bytes);
    }

    pub fn arena_tensor(&mut self, tag: u8, tensor: &ArenaTensor) {
        self.tagged(tag, tensor.offset);
        self.byte(tensor.layout.dtype as u8);
        self.byte(tensor.layout.shape.len() as u8);
        for value in tensor.layout.shape.iter().chain(tensor.layout.strides.iter()) {
            self.word(*value as u64);
        }
    }
}

/// Parses the remaining bytes.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub bytes: &'a [u8],
}

impl Reader<'_> {
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*first)
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn word(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn text(&mut self) -> Option<String> {
        let size = u32::from_le_bytes(self.array()?) as usize;
        let (text, rest) = self.bytes.split_at_checked(size)?;
        self.bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    pub fn block(&mut self) -> Option<Block> {
        Some(Block { offset: self.word()?, bytes: self.word()? })
    }

    pub fn dims(&mut self, rank: u8) -> Option<Dims> {
        let mut dims = Dims::empty();
        for _ in 0..rank {
            if !dims.push(self.word()? as i64) {
                return None;
            }
        }
        Some(dims)
    }

    pub fn arena_tensor(&mut self) -> Option<ArenaTensor> {
        let offset = self.word()?;
        let dtype = DType::from_number(self.byte()?)?;
        let rank = self.byte()?;
        let (shape, strides) = (self.dims(rank)?, self.dims(rank)?);
        Some(ArenaTensor { offset, layout: Layout { shape, strides, dtype, device: Device::HOST } })
    }
}

/// Why strings were not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnpackError {
    /// The bytes are not what [`pack_texts`] writes.
    Invalid,
    /// There is no memory for a copy of the strings.
    OutOfMemory,
}

/// Memory for `count` elements, whose number comes from a call: `None` if there is not as much.
pub(crate) fn try_with_capacity<T>(count: usize) -> Option<Vec<T>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(count).ok()?;
    Some(memory)
}

/// Serializes strings: their count, the size of each, then their bytes. `None` if there is no memory for them.
pub fn pack_texts<T: AsRef<str>>(texts: &[T]) -> Option<Vec<u8>> {
    let sizes = texts.iter().map(|text| text.as_ref().len() + 8);
    let mut writer = Writer { bytes: try_with_capacity(8 + sizes.sum::<usize>())? };
    writer.word(texts.len() as u64);
    texts.iter().for_each(|text| writer.word(text.as_ref().len() as u64));
    texts.iter().for_each(|text| writer.bytes.extend(text.as_ref().as_bytes()));
    Some(writer.bytes)
}

/// Parses strings.
pub fn unpack_texts(bytes: &[u8]) -> Result<Vec<String>, UnpackError> {
    let mut reader = Reader { bytes };
    let count = reader.word().and_then(|count| usize::try_from(count).ok()).ok_or(UnpackError::Invalid)?;
    // Each size takes eight bytes, so an invalid count cannot cause a large allocation.
    let sizes = count.checked_mul(8).and_then(|bytes| reader.bytes.split_at_checked(bytes));
    let (sizes, mut rest) = sizes.ok_or(UnpackError::Invalid)?;
    let mut texts = try_with_capacity(count).ok_or(UnpackError::OutOfMemory)?;
    let (sizes, _) = sizes.as_chunks::<8>();
    for size in sizes {
        let size = usize::try_from(u64::from_le_bytes(*size)).map_err(|_| UnpackError::Invalid)?;
        let (text, after) = rest.split_at_checked(size).ok_or(UnpackError::Invalid)?;
        let text = std::str::from_utf8(text).map_err(|_| UnpackError::Invalid)?;
        let mut copy = String::new();
        copy.try_reserve_exact(size).map_err(|_| UnpackError::OutOfMemory)?;
        copy.push_str(text);
        texts.push(copy);
        rest = after;
    }
    if rest.is_empty() { Ok(texts) } else { Err(UnpackError::Invalid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip_and_invalid_bytes_are_rejected() {
        for texts in [vec![], vec![""], vec!["a", "", "äöü 🙂"]] {
            let bytes = pack_texts(&texts).unwrap();
            assert_eq!(unpack_texts(&bytes).unwrap(), texts);
            for end in 0..bytes.len() {
                assert_eq!(unpack_texts(&bytes[..end]), Err(UnpackError::Invalid), "a truncated batch");
            }
        }
        assert_eq!(unpack_texts(&[255; 8]), Err(UnpackError::Invalid), "an impossible count");
        let not_utf8 = [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xff];
        assert_eq!(unpack_texts(&not_utf8), Err(UnpackError::Invalid));
    }
}
