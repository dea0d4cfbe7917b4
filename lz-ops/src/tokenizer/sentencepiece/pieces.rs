//! The vocabulary of a model: text, score and type of each piece by id.

use rustc_hash::FxHashMap;

use super::proto::ModelProto;
use super::trie::Trie;
use super::{Segment, character_length};

/// The type of a piece (`SentencePiece.Type` in the protocol buffer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    pub fn from_number(number: u64) -> Option<Kind> {
        Some(match number {
            1 => Kind::Normal,
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => return None,
        })
    }

    /// Whether text can be segmented into such a piece; the other types are reserved.
    pub fn is_text(self) -> bool {
        matches!(self, Kind::Normal | Kind::UserDefined | Kind::Unused)
    }
}

/// One piece.
#[derive(Debug, Clone)]
pub struct Piece {
    pub id: u32,
    pub text: Box<str>,
    pub score: f32,
    pub kind: Kind,
}

/// All pieces of a model.
pub struct Pieces {
    list: Vec<Piece>,
    /// Ids by text. A reserved piece takes precedence over a text piece with the same text.
    ids: FxHashMap<Box<[u8]>, u32>,
    /// The id of the unknown piece.
    pub unknown: u32,
}

/// The library rejects longer pieces.
const MAX_PIECE_BYTES: usize = 8000;
const SPACE: &[u8] = "\u{2581}".as_bytes();

impl Pieces {
    /// From a model, with the checks of the library. With `one_namespace`, a reserved piece must not have the text of a text piece.
    pub fn new(proto: &ModelProto<'_>, one_namespace: bool) -> Result<Pieces, String> {
        let mut list = Vec::with_capacity(proto.pieces.len());
        let (mut ids, mut reserved) = (FxHashMap::default(), FxHashMap::default());
        ids.reserve(proto.pieces.len());
        let mut unknown = None;
        for (id, piece) in (0u32..).zip(&proto.pieces) {
            let text = std::str::from_utf8(piece.text).map_err(|_| format!("piece {id} is not UTF-8"))?;
            if text.is_empty() || text.len() >= MAX_PIECE_BYTES || text.contains('\0') {
                return Err(format!(
                    "piece {id} is empty, contains a null character, or has {MAX_PIECE_BYTES} bytes or more"
                ));
            }
            let names = if one_namespace || piece.kind.is_text() { &mut ids } else { &mut reserved };
            if names.insert(Box::from(piece.text), id).is_some() {
                return Err(format!("piece {text:?} is defined twice"));
            }
            if piece.kind == Kind::Unknown && unknown.replace(id).is_some() {
                return Err(format!(
                    "piece {text:?} is the second piece of type UNKNOWN; expected exactly one"
                ));
            }
            if piece.kind == Kind::Byte && !proto.byte_fallback {
                return Err(format!("piece {text:?} has type BYTE, but `byte_fallback` is off"));
            }
            list.push(Piece { id, text: text.into(), score: piece.score, kind: piece.kind });
        }
        let unknown = unknown.ok_or("no piece has type UNKNOWN; expected exactly one")?;
        ids.extend(reserved);
        Ok(Pieces { list, ids, unknown })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.list.iter()
    }

    pub fn get(&self, id: u32) -> Option<&Piece> {
        self.list.get(id as usize)
    }

    /// The number of pieces.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The id of the piece with this text, if there is one.
    pub fn find(&self, text: &[u8]) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// The id of the piece with this text, or the id of the unknown piece.
    pub fn id(&self, text: &[u8]) -> u32 {
        self.find(text).unwrap_or(self.unknown)
    }

    /// The ids of the byte pieces; an error unless there is one for each byte.
    pub fn bytes(&self) -> Result<Box<[u32; 256]>, String> {
        let mut found = [None; 256];
        for piece in self.iter().filter(|piece| piece.kind == Kind::Byte) {
            let byte = byte_of(&piece.text)
                .ok_or_else(|| format!("piece {:?} has type BYTE; expected <0x00> to <0xFF>", piece.text))?;
            found[usize::from(byte)] = Some(piece.id);
        }
        let mut ids = Box::new([0; 256]);
        for (byte, id) in found.into_iter().enumerate() {
            ids[byte] = id.ok_or_else(|| {
                format!("no piece of type BYTE for byte {byte:#04x}, but `byte_fallback` is on")
            })?;
        }
        Ok(ids)
    }

    /// Segments a normalized text into words; each begins with its space.
    pub fn words(&self, normalized: &[u8]) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut start = 0;
        while start < normalized.len() {
            let mut end = start + character_length(&normalized[start..]);
            while end < normalized.len() && !normalized[end..].starts_with(SPACE) {
                end += character_length(&normalized[end..]);
            }
            segments.push(Segment { id: self.id(&normalized[start..end]), end });
            start = end;
        }
        segments
    }

    /// Segments a normalized text into characters and user-defined pieces.
    pub fn characters(&self, normalized: &[u8], user_defined: &Trie) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut start = 0;
        while start < normalized.len() {
            let rest = &normalized[start..];
            let end = start + user_defined.longest(rest).unwrap_or_else(|| character_length(rest));
            segments.push(Segment { id: self.id(&normalized[start..end]), end });
            start = end;
        }
        segments
    }
}

/// The byte of a byte piece (`<0x0A>`).
pub fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let upper = digits.len() == 2 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
    upper.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}
