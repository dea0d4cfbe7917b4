//! SentencePiece models (`.model` files), compatible with release 0.2.2 of the SentencePiece library.
//!
//! The file is a protocol buffer (`proto`). A text is normalized (`normalizer`) and segmented into pieces by the model (`unigram`, `bpe`,
//! and words or characters in `pieces`). Unknown characters become byte pieces (byte fallback) or one unknown piece. `decode` is the
//! inverse. Nothing here depends on `tokenizer.json` or tensors. Tests compare it with the library for many models.

mod bpe;
mod charsmap;
mod decode;
mod normalizer;
mod pieces;
mod proto;
mod trie;
mod unigram;

use bpe::Bpe;
use normalizer::Normalizer;
use pieces::{Kind, Pieces};
use proto::{ModelProto, ModelType};
use trie::Trie;
use unigram::Unigram;

use super::{Token, TokenizerError};

/// A SentencePiece model.
pub struct SentencePiece {
    pieces: Pieces,
    /// User-defined pieces, which are matched before anything else.
    user_defined: Trie,
    normalizer: Normalizer,
    denormalizer: Option<Normalizer>,
    algorithm: Algorithm,
    /// Ids of the byte pieces, if the model has byte fallback.
    bytes: Option<Box<[u32; 256]>>,
    unknown_surface: String,
}

enum Algorithm {
    Unigram(Unigram),
    Bpe(Bpe),
    Word,
    Char,
}

/// A piece of a normalized text: its id and its end offset (exclusive).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    id: u32,
    end: usize,
}

impl SentencePiece {
    /// Parses the content of a `.model` file; an error if release 0.2.2 of the library would not load it.
    pub fn parse(model: &[u8]) -> Result<SentencePiece, TokenizerError> {
        let invalid = |message: String| TokenizerError::SentencePiece { message };
        let proto = ModelProto::parse(model).map_err(invalid)?;
        SentencePiece::build(proto).map_err(invalid)
    }

    fn build(proto: ModelProto<'_>) -> Result<SentencePiece, String> {
        let bpe = proto.model_type == ModelType::Bpe;
        let pieces = Pieces::new(&proto, bpe)?;
        let user_defined = pieces.iter().filter(|piece| piece.kind == Kind::UserDefined);
        let user_defined = Trie::new(user_defined.map(|piece| (piece.text.as_bytes(), piece.id)).collect());
        let normalizer = Normalizer::new(&proto.normalizer, proto.whitespace_as_suffix)?;
        let denormalizer = match &proto.denormalizer {
            Some(spec) if !spec.charsmap.is_empty() => Some(Normalizer::new(spec, false)?),
            _ => None,
        };
        let algorithm = match proto.model_type {
            ModelType::Unigram => Algorithm::Unigram(Unigram::new(&pieces)?),
            ModelType::Bpe => Algorithm::Bpe(Bpe::new(&pieces)),
            ModelType::Word => Algorithm::Word,
            ModelType::Char => Algorithm::Char,
        };
        let bytes = if proto.byte_fallback { Some(pieces.bytes()?) } else { None };
        let unknown_surface = std::str::from_utf8(proto.unknown_surface)
            .map_err(|_| "`unk_surface` is not UTF-8".to_owned())?
            .to_owned();
        Ok(SentencePiece {
            pieces,
            user_defined,
            normalizer,
            denormalizer,
            algorithm,
            bytes,
            unknown_surface,
        })
    }

    /// The tokens of a text with their byte ranges. As in the library, of the byte pieces of one character only the last has the range of
    /// the character; the others have an empty range at its start.
    pub fn encode(&self, text: &str) -> Vec<Token> {
        let mut original = Vec::new();
        let normalized = self.normalizer.normalize(&self.user_defined, text.as_bytes(), Some(&mut original));
        let mut tokens: Vec<Token> = Vec::with_capacity(normalized.len() / 4 + 1);
        let (mut start, mut after_unknown) = (0, false);
        for segment in self.segments(&normalized) {
            let range = original[start]..original[segment.end];
            let unknown = segment.id == self.pieces.unknown;
            match (&self.bytes, tokens.last_mut()) {
                (Some(bytes), _) if unknown => {
                    let surface = &normalized[start..segment.end];
                    let all = surface.iter().map(|byte| bytes[usize::from(*byte)]);
                    tokens.extend(all.map(|id| Token { id, bytes: range.start..range.start }));
                    if let Some(last) = tokens.last_mut() {
                        last.bytes.end = range.end;
                    }
                }
                (None, Some(last)) if unknown && after_unknown => last.bytes.end = range.end,
                _ => tokens.push(Token { id: segment.id, bytes: range }),
            }
            (start, after_unknown) = (segment.end, unknown);
        }
        tokens
    }

    /// The text of a piece.
    pub fn piece_of(&self, id: u32) -> Option<&str> {
        self.pieces.get(id).map(|piece| &*piece.text)
    }

    /// The id of a piece.
    pub fn id_of(&self, piece: &str) -> Option<u32> {
        self.pieces.find(piece.as_bytes())
    }

    /// The number of pieces.
    pub fn size(&self) -> usize {
        self.pieces.len()
    }

    /// The pieces of a normalized text.
    fn segments(&self, normalized: &[u8]) -> Vec<Segment> {
        match &self.algorithm {
            Algorithm::Unigram(unigram) => unigram.encode(normalized),
            Algorithm::Bpe(bpe) => bpe.encode(normalized, &self.user_defined, &self.pieces),
            Algorithm::Word => self.pieces.words(normalized),
            Algorithm::Char => self.pieces.characters(normalized, &self.user_defined),
        }
    }
}

/// The length in bytes of the first character, as the library derives it from the first byte; at most the length of the text.
fn character_length(text: &[u8]) -> usize {
    let length = match text.first() {
        None => 0,
        Some(0xf0..) => 4,
        Some(0xe0..) => 3,
        Some(0xc0..) => 2,
        Some(_) => 1,
    };
    length.min(text.len())
}
