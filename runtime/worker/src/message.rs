//! What a slot carries: the arguments of a call as offsets into the arena, and what came of it.
//!
//! Both sides read what the other wrote, and neither trusts it: numbers are checked, and every tensor must lie inside the
//! arena before it is touched. The bytes themselves are [`crate::wire`]'s.

use lz_core::expr::Value;
use lz_core::tensor::{Dims, Layout};
use lz_core::{DType, KernelError, Reason, ReasonCode};

use crate::wire::{Reader, Writer};

/// Where a tensor lies and what it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placed {
    /// Offset of index 0 in the shared memory.
    pub offset: u64,
    /// Everything else.
    pub layout: Layout,
}

/// Bytes in the shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where they begin.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
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
    /// Strings, as [`crate::wire::pack_texts`] lays them out.
    Texts(Block),
    /// A tokenizer by its digest; with its `tokenizer.json` once the worker has said that it does not know it.
    Tokenizer([u8; 32], Option<Block>),
}

/// One output.
#[derive(Debug, Clone, PartialEq)]
pub enum SentOut {
    /// Nothing.
    Absent,
    /// A tensor to fill.
    Tensor(Placed),
    /// A tensor whose size the kernel finds out.
    Dynamic,
    /// Strings that the kernel makes.
    Texts,
}

/// What the host asks.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Run a kernel.
    Call(Call),
    /// Write what the last call of this slot made into these blocks, one for each output that was held.
    Fetch(Vec<Block>),
}

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Which kernel, by its place in the greeting.
    pub kernel: u32,
    /// Scratch memory that the plan allows.
    pub workspace: u64,
    /// Inputs, then params.
    pub args: Vec<SentArg>,
    /// Outputs.
    pub outputs: Vec<SentOut>,
}

/// An output whose size was not known before: the worker keeps it until the host has made room.
#[derive(Debug, Clone, PartialEq)]
pub enum HeldOut {
    /// A dense tensor.
    Tensor(DType, Dims),
    /// Strings of this many bytes, as [`crate::wire::pack_texts`] lays them out.
    Texts(u64),
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It worked.
    Done,
    /// It worked, and these outputs wait to be fetched, in the order of the outputs that had no size.
    Held(Vec<HeldOut>),
    /// The worker needs the definition of the tokenizer with this digest.
    Unknown([u8; 32]),
    /// The kernel failed.
    Failed(Failed),
}

/// How a kernel failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Failed {
    /// Nothing was written.
    pub untouched: bool,
    /// The reason's code.
    pub code: ReasonCode,
    /// The reason's sentence.
    pub message: String,
}

impl Failed {
    /// The failure, as the host reports it. A worker can only speak of its kernel: with another code it could end the caller's
    /// call or put the blame elsewhere.
    pub fn into_error(self) -> KernelError {
        let known = [
            ReasonCode::KernelFailed,
            ReasonCode::KernelPanicked,
            ReasonCode::KernelDeclined,
            ReasonCode::OutOfMemory,
        ];
        let reason = if known.contains(&self.code) {
            Reason::new(self.code).message(self.message)
        } else {
            Reason::new(ReasonCode::KernelFailed).message(format!(
                "[{}] {}",
                self.code.as_str(),
                self.message
            ))
        };
        let error = KernelError::because(reason);
        if self.untouched { error.before_writing() } else { error }
    }
}

impl Answer {
    /// Of a kernel's failure.
    pub fn failure(error: &KernelError) -> Answer {
        Answer::Failed(Failed {
            untouched: error.untouched,
            code: error.reason.code,
            message: error.reason.sentence(),
        })
    }

    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            Answer::Done => writer.byte(0),
            Answer::Failed(Failed { untouched, code, message }) => {
                writer.byte(1);
                writer.byte(u8::from(*untouched));
                writer.text(code.as_str());
                // A long sentence is cut, so that the answer fits.
                let end = message.floor_char_boundary(crate::protocol::MESSAGE_BYTES / 2);
                writer.text(message.get(..end).unwrap_or_default());
            }
            Answer::Held(outputs) => {
                writer.byte(2);
                writer.byte(outputs.len() as u8);
                for output in outputs {
                    match output {
                        HeldOut::Tensor(dtype, shape) => {
                            writer.byte(0);
                            writer.byte(*dtype as u8);
                            writer.byte(shape.len() as u8);
                            shape.iter().for_each(|size| writer.word(*size as u64));
                        }
                        HeldOut::Texts(bytes) => {
                            writer.byte(1);
                            writer.word(*bytes);
                        }
                    }
                }
            }
            Answer::Unknown(digest) => {
                writer.byte(3);
                writer.bytes.extend(digest);
            }
        }
        writer.bytes
    }

    /// From bytes; `None` if they are none of these.
    pub fn read(bytes: &[u8]) -> Option<Answer> {
        let mut reader = Reader { bytes };
        let answer = match reader.byte()? {
            0 => Answer::Done,
            1 => Answer::Failed(Failed {
                untouched: reader.byte()? != 0,
                code: ReasonCode::parse(&reader.text()?)?,
                message: reader.text()?,
            }),
            2 => {
                let mut outputs = Vec::new();
                for _ in 0..reader.byte()? {
                    outputs.push(match reader.byte()? {
                        0 => {
                            let dtype = DType::from_number(reader.byte()?)?;
                            let rank = reader.byte()?;
                            HeldOut::Tensor(dtype, reader.dims(rank)?)
                        }
                        1 => HeldOut::Texts(reader.word()?),
                        _ => return None,
                    });
                }
                Answer::Held(outputs)
            }
            3 => Answer::Unknown(reader.array()?),
            _ => return None,
        };
        reader.bytes.is_empty().then_some(answer)
    }
}

impl Request {
    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            Request::Call(call) => {
                writer.byte(0);
                call.write(&mut writer);
            }
            Request::Fetch(blocks) => {
                writer.byte(1);
                writer.byte(blocks.len() as u8);
                blocks.iter().for_each(|block| writer.block(*block));
            }
        }
        writer.bytes
    }

    /// From bytes; `None` if they are no request.
    pub fn read(bytes: &[u8]) -> Option<Request> {
        let mut reader = Reader { bytes };
        let request = match reader.byte()? {
            0 => Request::Call(Call::read(&mut reader)?),
            1 => {
                let count = reader.byte()?;
                Request::Fetch((0..count).map(|_| reader.block()).collect::<Option<_>>()?)
            }
            _ => return None,
        };
        reader.bytes.is_empty().then_some(request)
    }
}

impl Call {
    /// Numbers of the outputs whose size only the kernel knows: the worker holds them until they are fetched.
    pub fn held_outputs(&self) -> Vec<usize> {
        let held = |(_, output): &(usize, &SentOut)| matches!(output, SentOut::Dynamic | SentOut::Texts);
        self.outputs.iter().enumerate().filter(held).map(|(number, _)| number).collect()
    }

    fn write(&self, writer: &mut Writer) {
        writer.bytes.extend(self.kernel.to_le_bytes());
        writer.word(self.workspace);
        writer.byte(self.args.len() as u8);
        for arg in &self.args {
            match arg {
                SentArg::Absent => writer.byte(0),
                SentArg::Tensor(tensor) => writer.placed(1, tensor),
                SentArg::Written(tensor) => writer.placed(2, tensor),
                SentArg::Value(Value::Int(value)) => writer.tagged(3, *value as u64),
                SentArg::Value(Value::Float(value)) => writer.tagged(4, value.to_bits()),
                SentArg::Value(Value::Bool(value)) => writer.tagged(5, u64::from(*value)),
                SentArg::Value(Value::Enum(case)) => writer.tagged(6, u64::from(*case)),
                SentArg::Texts(block) => {
                    writer.byte(7);
                    writer.block(*block);
                }
                SentArg::Tokenizer(digest, None) => {
                    writer.byte(8);
                    writer.bytes.extend(digest);
                }
                SentArg::Tokenizer(digest, Some(block)) => {
                    writer.byte(9);
                    writer.bytes.extend(digest);
                    writer.block(*block);
                }
            }
        }
        writer.byte(self.outputs.len() as u8);
        for output in &self.outputs {
            match output {
                SentOut::Absent => writer.byte(0),
                SentOut::Tensor(tensor) => writer.placed(1, tensor),
                SentOut::Dynamic => writer.byte(2),
                SentOut::Texts => writer.byte(3),
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Call> {
        let kernel = u32::from_le_bytes(reader.array()?);
        let workspace = reader.word()?;
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
                7 => SentArg::Texts(reader.block()?),
                8 => SentArg::Tokenizer(reader.array()?, None),
                9 => SentArg::Tokenizer(reader.array()?, Some(reader.block()?)),
                _ => return None,
            });
        }
        let mut outputs = Vec::new();
        for _ in 0..reader.byte()? {
            outputs.push(match reader.byte()? {
                0 => SentOut::Absent,
                1 => SentOut::Tensor(reader.placed()?),
                2 => SentOut::Dynamic,
                3 => SentOut::Texts,
                _ => return None,
            });
        }
        Some(Call { kernel, workspace, args, outputs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_went() {
        let layout = Layout::contiguous(&[2, 3], DType::F32).unwrap();
        let request = Request::Call(Call {
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
                SentArg::Texts(Block { offset: 64, bytes: 9 }),
                SentArg::Tokenizer([7; 32], None),
                SentArg::Tokenizer([8; 32], Some(Block { offset: 128, bytes: 10 })),
            ],
            outputs: vec![
                SentOut::Absent,
                SentOut::Tensor(Placed { offset: 0, layout }),
                SentOut::Dynamic,
                SentOut::Texts,
            ],
        });
        let fetch = Request::Fetch(vec![Block { offset: 64, bytes: 9 }]);
        for request in [request, fetch] {
            let bytes = request.write();
            for end in 0..bytes.len() {
                assert_eq!(Request::read(&bytes[..end]), None, "half a message is none");
            }
            assert_eq!(Request::read(&bytes), Some(request));
        }
        let failed = Answer::Failed(Failed {
            untouched: true,
            code: ReasonCode::KernelFailed,
            message: "it failed".to_owned(),
        });
        let held =
            Answer::Held(vec![HeldOut::Tensor(DType::I32, Dims::new(&[5]).unwrap()), HeldOut::Texts(12)]);
        for answer in [Answer::Done, failed, held, Answer::Unknown([9; 32])] {
            assert_eq!(Answer::read(&answer.write()), Some(answer));
        }
        assert_eq!(Answer::read(&[9, 9, 9]), None);
    }
}
