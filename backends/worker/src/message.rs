//! What a slot carries: the arguments of a call as offsets into the arena, and what came of it.
//!
//! Both sides read what the other wrote, and neither trusts it: numbers are checked, and every tensor must lie inside the
//! arena before it is touched.

use lz_core::expr::Value;
use lz_core::tensor::{Dims, Layout, Place};
use lz_core::{DType, KernelError, Reason, ReasonCode};

/// Where a tensor lies and what it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placed {
    /// Offset of index 0 in the shared memory.
    pub offset: u64,
    /// Everything else.
    pub layout: Layout,
}

/// One argument.
#[derive(Debug, Clone, PartialEq)]
pub enum SentArg {
    /// Nothing.
    Absent,
    /// A tensor that is read.
    Tensor(Placed),
    /// A tensor that is changed in place.
    Written(Placed),
    /// A param.
    Value(Value),
}

/// One output.
#[derive(Debug, Clone, PartialEq)]
pub enum SentOut {
    /// Nothing.
    Absent,
    /// A tensor to fill.
    Tensor(Placed),
}

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Which kernel, by its place in the greeting.
    pub kernel: u32,
    /// Scratch memory that the plan allows.
    pub workspace: u64,
    /// Inputs, then params.
    pub args: Vec<SentArg>,
    /// Outputs.
    pub outputs: Vec<SentOut>,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It worked.
    Done,
    /// The kernel failed; whether it had written nothing, its code and its sentence.
    Failed {
        /// Nothing was written.
        untouched: bool,
        /// The reason's code.
        code: ReasonCode,
        /// The reason's sentence.
        message: String,
    },
}

impl Answer {
    /// Of a kernel's result.
    pub fn of(result: Result<(), KernelError>) -> Answer {
        match result {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Failed {
                untouched: error.untouched,
                code: error.reason.code,
                message: error.reason.sentence(),
            },
        }
    }

    /// As a kernel's result.
    pub fn into_result(self) -> Result<(), KernelError> {
        match self {
            Answer::Done => Ok(()),
            Answer::Failed { untouched, code, message } => {
                let error = KernelError::because(Reason::new(code).message(message));
                Err(if untouched { error.before_writing() } else { error })
            }
        }
    }

    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Answer::Done => bytes.push(0),
            Answer::Failed { untouched, code, message } => {
                bytes.push(1);
                bytes.push(u8::from(*untouched));
                text(&mut bytes, code.as_str());
                // A long sentence is cut, so that the answer fits.
                let end = message.floor_char_boundary(crate::protocol::MESSAGE_BYTES / 2);
                text(&mut bytes, message.get(..end).unwrap_or_default());
            }
        }
        bytes
    }

    /// From bytes; `None` if they are none of these.
    pub fn read(bytes: &[u8]) -> Option<Answer> {
        let mut reader = Reader { bytes };
        let answer = match reader.byte()? {
            0 => Answer::Done,
            1 => Answer::Failed {
                untouched: reader.byte()? != 0,
                code: ReasonCode::parse(&reader.text()?)?,
                message: reader.text()?,
            },
            _ => return None,
        };
        reader.bytes.is_empty().then_some(answer)
    }
}

impl Request {
    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.kernel.to_le_bytes());
        bytes.extend(self.workspace.to_le_bytes());
        bytes.push(self.args.len() as u8);
        for arg in &self.args {
            match arg {
                SentArg::Absent => bytes.push(0),
                SentArg::Tensor(tensor) => placed(&mut bytes, 1, tensor),
                SentArg::Written(tensor) => placed(&mut bytes, 2, tensor),
                SentArg::Value(Value::Int(value)) => word(&mut bytes, 3, *value as u64),
                SentArg::Value(Value::Float(value)) => word(&mut bytes, 4, value.to_bits()),
                SentArg::Value(Value::Bool(value)) => word(&mut bytes, 5, u64::from(*value)),
                SentArg::Value(Value::Enum(case)) => word(&mut bytes, 6, u64::from(*case)),
            }
        }
        bytes.push(self.outputs.len() as u8);
        for output in &self.outputs {
            match output {
                SentOut::Absent => bytes.push(0),
                SentOut::Tensor(tensor) => placed(&mut bytes, 1, tensor),
            }
        }
        bytes
    }

    /// From bytes; `None` if they are no request.
    pub fn read(bytes: &[u8]) -> Option<Request> {
        let mut reader = Reader { bytes };
        let kernel = u32::from_le_bytes(reader.array()?);
        let workspace = u64::from_le_bytes(reader.array()?);
        let mut args = Vec::new();
        for _ in 0..reader.byte()? {
            args.push(match reader.byte()? {
                0 => SentArg::Absent,
                1 => SentArg::Tensor(reader.placed()?),
                2 => SentArg::Written(reader.placed()?),
                3 => SentArg::Value(Value::Int(reader.word()? as i64)),
                4 => SentArg::Value(Value::Float(f64::from_bits(reader.word()?))),
                5 => SentArg::Value(Value::Bool(reader.word()? != 0)),
                6 => SentArg::Value(Value::Enum(u32::try_from(reader.word()?).ok()?)),
                _ => return None,
            });
        }
        let mut outputs = Vec::new();
        for _ in 0..reader.byte()? {
            outputs.push(match reader.byte()? {
                0 => SentOut::Absent,
                1 => SentOut::Tensor(reader.placed()?),
                _ => return None,
            });
        }
        reader.bytes.is_empty().then_some(Request { kernel, workspace, args, outputs })
    }
}

fn word(bytes: &mut Vec<u8>, tag: u8, word: u64) {
    bytes.push(tag);
    bytes.extend(word.to_le_bytes());
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn placed(bytes: &mut Vec<u8>, tag: u8, tensor: &Placed) {
    bytes.push(tag);
    bytes.extend(tensor.offset.to_le_bytes());
    bytes.push(tensor.layout.dtype as u8);
    bytes.push(tensor.layout.shape.len() as u8);
    for value in tensor.layout.shape.iter().chain(tensor.layout.strides.iter()) {
        bytes.extend(value.to_le_bytes());
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn word(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let size = u32::from_le_bytes(self.array()?) as usize;
        let (text, rest) = self.bytes.split_at_checked(size)?;
        self.bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn placed(&mut self) -> Option<Placed> {
        let offset = self.word()?;
        let dtype = DType::from_number(self.byte()?)?;
        let rank = usize::from(self.byte()?);
        let mut dims = || {
            let mut dims = Dims::EMPTY;
            for _ in 0..rank {
                if !dims.push(self.word()? as i64) {
                    return None;
                }
            }
            Some(dims)
        };
        let (shape, strides) = (dims()?, dims()?);
        Some(Placed { offset, layout: Layout { shape, strides, dtype, place: Place::HOST } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_went() {
        let layout = Layout::contiguous(&[2, 3], DType::F32).unwrap();
        let request = Request {
            kernel: 3,
            workspace: 77,
            args: vec![
                SentArg::Tensor(Placed { offset: 4096, layout }),
                SentArg::Absent,
                SentArg::Written(Placed { offset: 8192, layout }),
                SentArg::Value(Value::Float(0.5)),
                SentArg::Value(Value::Int(-1)),
                SentArg::Value(Value::Bool(true)),
                SentArg::Value(Value::Enum(2)),
            ],
            outputs: vec![SentOut::Absent, SentOut::Tensor(Placed { offset: 0, layout })],
        };
        let bytes = request.write();
        assert_eq!(Request::read(&bytes), Some(request));
        for end in 0..bytes.len() {
            assert_eq!(Request::read(&bytes[..end]), None, "half a message is none");
        }
        let answer = Answer::Failed {
            untouched: true,
            code: ReasonCode::KernelFailed,
            message: "it failed".to_owned(),
        };
        assert_eq!(Answer::read(&answer.write()), Some(answer));
        assert_eq!(Answer::read(&[9, 9, 9]), None);
    }
}
