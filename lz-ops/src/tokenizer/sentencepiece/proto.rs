//! Parses the protocol buffer of a model (`sentencepiece_model.proto`) without a schema compiler. Unknown fields are rejected, because
//! they could change tokens; fields in the extension range are skipped, as in the library.

use super::pieces::Kind;

/// The fields of a model that affect encoding and decoding.
pub struct ModelProto<'a> {
    pub pieces: Vec<PieceProto<'a>>,
    pub model_type: ModelType,
    pub byte_fallback: bool,
    pub whitespace_as_suffix: bool,
    pub unknown_surface: &'a [u8],
    pub normalizer: NormalizerProto<'a>,
    pub denormalizer: Option<NormalizerProto<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelType {
    Unigram,
    Bpe,
    Word,
    Char,
}

pub struct PieceProto<'a> {
    pub text: &'a [u8],
    pub score: f32,
    pub kind: Kind,
}

#[derive(Clone)]
pub struct NormalizerProto<'a> {
    pub charsmap: &'a [u8],
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub escape_whitespaces: bool,
}

impl Default for NormalizerProto<'_> {
    fn default() -> Self {
        NormalizerProto {
            charsmap: &[],
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        }
    }
}

/// The first field number of third-party extensions.
const EXTENSIONS: u64 = 200;

/// Field numbers of trainer settings in releases up to 0.2.2. Encoding depends on four of them.
const TRAINER_FIELDS: std::ops::RangeInclusive<u64> = 1..=54;

impl<'a> ModelProto<'a> {
    /// Parses a model, or returns what is wrong with it.
    pub fn parse(model: &'a [u8]) -> Result<ModelProto<'a>, String> {
        let mut read = ModelProto {
            pieces: Vec::new(),
            model_type: ModelType::Unigram,
            byte_fallback: false,
            whitespace_as_suffix: false,
            unknown_surface: " \u{2047} ".as_bytes(),
            normalizer: NormalizerProto::default(),
            denormalizer: None,
        };
        for field in fields(model) {
            match field? {
                (1, value) => read.pieces.push(piece(value.bytes()?, read.pieces.len())?),
                (2, value) => read.trainer(value.bytes()?)?,
                (3, value) => read.normalizer.read(value.bytes()?)?,
                // Self-test samples; they do not change tokens.
                (4, _) => {}
                (5, value) => read.denormalizer.get_or_insert_default().read(value.bytes()?)?,
                (number, _) => skip_extension("ModelProto", number)?,
            }
        }
        if read.pieces.is_empty() {
            return Err("it has no pieces; is it a SentencePiece model?".to_owned());
        }
        Ok(read)
    }

    fn trainer(&mut self, spec: &'a [u8]) -> Result<(), String> {
        for field in fields(spec) {
            match field? {
                (3, value) => {
                    self.model_type = match value.number()? {
                        1 => ModelType::Unigram,
                        2 => ModelType::Bpe,
                        3 => ModelType::Word,
                        4 => ModelType::Char,
                        other => return Err(format!("unknown model type {other}; expected 1 to 4")),
                    }
                }
                (24, value) => self.whitespace_as_suffix = value.flag()?,
                (35, value) => self.byte_fallback = value.flag()?,
                (44, value) => self.unknown_surface = value.bytes()?,
                (number, _) if TRAINER_FIELDS.contains(&number) => {}
                (number, _) => skip_extension("TrainerSpec", number)?,
            }
        }
        Ok(())
    }
}

impl<'a> NormalizerProto<'a> {
    fn read(&mut self, spec: &'a [u8]) -> Result<(), String> {
        for field in fields(spec) {
            match field? {
                (2, value) => self.charsmap = value.bytes()?,
                (3, value) => self.add_dummy_prefix = value.flag()?,
                (4, value) => self.remove_extra_whitespaces = value.flag()?,
                (5, value) => self.escape_whitespaces = value.flag()?,
                // The name and the source of the normalization rules.
                (1 | 6, _) => {}
                (number, _) => skip_extension("NormalizerSpec", number)?,
            }
        }
        Ok(())
    }
}

fn piece(message: &[u8], id: usize) -> Result<PieceProto<'_>, String> {
    let mut read = PieceProto { text: &[], score: 0.0, kind: Kind::Normal };
    for field in fields(message) {
        match field? {
            (1, value) => read.text = value.bytes()?,
            (2, value) => read.score = value.float()?,
            (3, value) => {
                let number = value.number()?;
                read.kind = Kind::from_number(number)
                    .ok_or_else(|| format!("piece {id} has unknown type {number}; expected 1 to 6"))?;
            }
            (number, _) => skip_extension("SentencePiece", number)?,
        }
    }
    Ok(read)
}

fn skip_extension(message: &str, number: u64) -> Result<(), String> {
    if number >= EXTENSIONS {
        return Ok(());
    }
    Err(format!(
        "field {number} of {message} is unknown and could change tokens; expected a model of SentencePiece 0.2.2 or older"
    ))
}

/// The value of a field.
#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Fixed32([u8; 4]),
    Fixed64,
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn bytes(self) -> Result<&'a [u8], String> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(damaged()),
        }
    }

    fn number(self) -> Result<u64, String> {
        match self {
            Value::Number(number) => Ok(number),
            _ => Err(damaged()),
        }
    }

    fn flag(self) -> Result<bool, String> {
        Ok(self.number()? != 0)
    }

    fn float(self) -> Result<f32, String> {
        match self {
            Value::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(damaged()),
        }
    }
}

fn damaged() -> String {
    "the file is damaged or not a SentencePiece model: a field is truncated or has the wrong wire type"
        .to_owned()
}

/// The fields of a message, up to the first error.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<(u64, Value<'_>), String>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = field(&mut rest).ok_or_else(damaged);
        if field.is_err() {
            rest = &[];
        }
        Some(field)
    })
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let tag = varint(rest)?;
    let value = match tag & 7 {
        0 => Value::Number(varint(rest)?),
        1 => {
            rest.split_off(..8)?;
            Value::Fixed64
        }
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            Value::Bytes(rest.split_off(..length)?)
        }
        5 => Value::Fixed32(rest.split_off(..4)?.try_into().ok()?),
        _ => return None,
    };
    (tag >> 3 != 0).then_some((tag >> 3, value))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
