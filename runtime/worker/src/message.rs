//! The messages of a slot: requests with arguments as offsets into the arena, and answers.
//!
//! Each side validates what it reads: numbers are checked, and every tensor must be inside the arena before it is accessed. The byte
//! format is in [`crate::wire`].

use lz_core::expr::Value;
use lz_core::tensor::Dims;
use lz_core::{DType, KernelError, Reason, ReasonCode};

use crate::arena::{ArenaTensor, Block};
use crate::wire::{Reader, Writer};

/// An argument of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum WireArg {
    /// No value.
    Absent,
    /// A tensor that is read.
    Tensor(ArenaTensor),
    /// A tensor that is modified in place.
    TensorMut(ArenaTensor),
    /// A param.
    Value(Value),
    /// Strings in the format of [`crate::wire::pack_texts`].
    Texts(Block),
    /// A tokenizer by its digest, with its `tokenizer.json` after the worker answered [`Answer::UnknownTokenizer`].
    Tokenizer([u8; 32], Option<Block>),
}

/// An output of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum WireOutput {
    /// No output.
    Absent,
    /// A preallocated tensor.
    Tensor(ArenaTensor),
    /// A tensor whose size the kernel determines.
    Dynamic,
    /// Strings that the kernel produces.
    Texts,
}

/// A request of the host.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Run a kernel.
    Call(Call),
    /// Write the pending outputs of the last call of this slot into these blocks, one for each.
    Fetch(Vec<Block>),
}

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The kernel, by its index in the handshake.
    pub kernel: u32,
    /// Bytes of workspace that the plan permits.
    pub workspace: u64,
    /// Inputs, then params.
    pub args: Vec<WireArg>,
    /// Outputs.
    pub outputs: Vec<WireOutput>,
}

/// An output whose size was not known in advance: the worker keeps it until the host has allocated memory and fetches it.
#[derive(Debug, Clone, PartialEq)]
pub enum PendingOutput {
    /// A dense tensor.
    Tensor(DType, Dims),
    /// Strings of this many bytes in the format of [`crate::wire::pack_texts`].
    Texts(u64),
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Success.
    Done,
    /// Success; these dynamic outputs wait to be fetched, in order.
    Pending(Vec<PendingOutput>),
    /// The worker needs the definition of the tokenizer with this digest.
    UnknownTokenizer([u8; 32]),
    /// The kernel failed.
    Failed(KernelFailure),
}

/// A failure of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelFailure {
    /// Whether no output was written.
    pub untouched: bool,
    /// The reason code.
    pub code: ReasonCode,
    /// The sentence of the reason.
    pub message: String,
}

impl KernelFailure {
    /// The error that the host reports. Only codes that concern the kernel are accepted: with other codes a worker could abort the
    /// caller or attribute the failure elsewhere.
    pub fn into_error(self) -> KernelError {
        let accepted = [
            ReasonCode::KernelFailed,
            ReasonCode::KernelPanicked,
            ReasonCode::KernelDeclined,
            ReasonCode::OutOfMemory,
        ];
        let reason = if accepted.contains(&self.code) {
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
    /// The answer for a failed kernel.
    pub fn failure(error: &KernelError) -> Answer {
        Answer::Failed(KernelFailure {
            untouched: error.untouched,
            code: error.reason.code,
            message: error.reason.sentence(),
        })
    }

    /// Serializes it.
    pub fn write(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            Answer::Done => writer.byte(0),
            Answer::Failed(KernelFailure { untouched, code, message }) => {
                writer.byte(1);
                writer.byte(u8::from(*untouched));
                writer.text(code.as_str());
                // Truncated so that the answer fits into a message.
                let end = message.floor_char_boundary(crate::protocol::MESSAGE_BYTES / 2);
                writer.text(message.get(..end).unwrap_or_default());
            }
            Answer::Pending(outputs) => {
                writer.byte(2);
                writer.byte(outputs.len() as u8);
                for output in outputs {
                    match output {
                        PendingOutput::Tensor(dtype, shape) => {
                            writer.byte(0);
                            writer.byte(*dtype as u8);
                            writer.byte(shape.len() as u8);
                            shape.iter().for_each(|size| writer.word(*size as u64));
                        }
                        PendingOutput::Texts(bytes) => {
                            writer.byte(1);
                            writer.word(*bytes);
                        }
                    }
                }
            }
            Answer::UnknownTokenizer(digest) => {
                writer.byte(3);
                writer.bytes.extend(digest);
            }
        }
        writer.bytes
    }

    /// Parses an answer; `None` if the bytes are invalid.
    pub fn read(bytes: &[u8]) -> Option<Answer> {
        let mut reader = Reader { bytes };
        let answer = match reader.byte()? {
            0 => Answer::Done,
            1 => Answer::Failed(KernelFailure {
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
                            PendingOutput::Tensor(dtype, reader.dims(rank)?)
                        }
                        1 => PendingOutput::Texts(reader.word()?),
                        _ => return None,
                    });
                }
                Answer::Pending(outputs)
            }
            3 => Answer::UnknownTokenizer(reader.array()?),
            _ => return None,
        };
        reader.bytes.is_empty().then_some(answer)
    }
}

impl Request {
    /// Serializes it.
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

    /// Parses a request; `None` if the bytes are invalid.
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
    /// Indices of the dynamic outputs, which the worker keeps until they are fetched.
    pub fn dynamic_outputs(&self) -> Vec<usize> {
        let dynamic =
            |(_, output): &(usize, &WireOutput)| matches!(output, WireOutput::Dynamic | WireOutput::Texts);
        self.outputs.iter().enumerate().filter(dynamic).map(|(number, _)| number).collect()
    }

    fn write(&self, writer: &mut Writer) {
        writer.bytes.extend(self.kernel.to_le_bytes());
        writer.word(self.workspace);
        writer.byte(self.args.len() as u8);
        for arg in &self.args {
            match arg {
                WireArg::Absent => writer.byte(0),
                WireArg::Tensor(tensor) => writer.arena_tensor(1, tensor),
                WireArg::TensorMut(tensor) => writer.arena_tensor(2, tensor),
                WireArg::Value(Value::Int(value)) => writer.tagged(3, *value as u64),
                WireArg::Value(Value::Float(value)) => writer.tagged(4, value.to_bits()),
                WireArg::Value(Value::Bool(value)) => writer.tagged(5, u64::from(*value)),
                WireArg::Value(Value::Enum(case)) => writer.tagged(6, u64::from(*case)),
                WireArg::Texts(block) => {
                    writer.byte(7);
                    writer.block(*block);
                }
                WireArg::Tokenizer(digest, None) => {
                    writer.byte(8);
                    writer.bytes.extend(digest);
                }
                WireArg::Tokenizer(digest, Some(block)) => {
                    writer.byte(9);
                    writer.bytes.extend(digest);
                    writer.block(*block);
                }
            }
        }
        writer.byte(self.outputs.len() as u8);
        for output in &self.outputs {
            match output {
                WireOutput::Absent => writer.byte(0),
                WireOutput::Tensor(tensor) => writer.arena_tensor(1, tensor),
                WireOutput::Dynamic => writer.byte(2),
                WireOutput::Texts => writer.byte(3),
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Call> {
        let kernel = u32::from_le_bytes(reader.array()?);
        let workspace = reader.word()?;
        let mut args = Vec::new();
        for _ in 0..reader.byte()? {
            args.push(match reader.byte()? {
                0 => WireArg::Absent,
                1 => WireArg::Tensor(reader.arena_tensor()?),
                2 => WireArg::TensorMut(reader.arena_tensor()?),
                3 => WireArg::Value(Value::Int(reader.word()? as i64)),
                4 => WireArg::Value(Value::Float(f64::from_bits(reader.word()?))),
                5 => WireArg::Value(Value::Bool(reader.word()? != 0)),
                6 => WireArg::Value(Value::Enum(u32::try_from(reader.word()?).ok()?)),
                7 => WireArg::Texts(reader.block()?),
                8 => WireArg::Tokenizer(reader.array()?, None),
                9 => WireArg::Tokenizer(reader.array()?, Some(reader.block()?)),
                _ => return None,
            });
        }
        let mut outputs = Vec::new();
        for _ in 0..reader.byte()? {
            outputs.push(match reader.byte()? {
                0 => WireOutput::Absent,
                1 => WireOutput::Tensor(reader.arena_tensor()?),
                2 => WireOutput::Dynamic,
                3 => WireOutput::Texts,
                _ => return None,
            });
        }
        Some(Call { kernel, workspace, args, outputs })
    }
}

#[cfg(test)]
mod tests {
    use lz_core::tensor::Layout;

    use super::*;

    #[test]
    fn messages_round_trip_and_truncated_ones_are_rejected() {
        let layout = Layout::contiguous(&[2, 3], DType::F32).unwrap();
        let request = Request::Call(Call {
            kernel: 3,
            workspace: 77,
            args: vec![
                WireArg::Tensor(ArenaTensor { offset: 4096, layout }),
                WireArg::Absent,
                WireArg::TensorMut(ArenaTensor { offset: 8192, layout }),
                WireArg::Value(Value::Float(0.5)),
                WireArg::Value(Value::Int(-1)),
                WireArg::Value(Value::Bool(true)),
                WireArg::Value(Value::Enum(2)),
                WireArg::Texts(Block { offset: 64, bytes: 9 }),
                WireArg::Tokenizer([7; 32], None),
                WireArg::Tokenizer([8; 32], Some(Block { offset: 128, bytes: 10 })),
            ],
            outputs: vec![
                WireOutput::Absent,
                WireOutput::Tensor(ArenaTensor { offset: 0, layout }),
                WireOutput::Dynamic,
                WireOutput::Texts,
            ],
        });
        let fetch = Request::Fetch(vec![Block { offset: 64, bytes: 9 }]);
        for request in [request, fetch] {
            let bytes = request.write();
            for end in 0..bytes.len() {
                assert_eq!(Request::read(&bytes[..end]), None, "a truncated message is invalid");
            }
            assert_eq!(Request::read(&bytes), Some(request));
        }
        let failed = Answer::Failed(KernelFailure {
            untouched: true,
            code: ReasonCode::KernelFailed,
            message: "it failed".to_owned(),
        });
        let pending = Answer::Pending(vec![
            PendingOutput::Tensor(DType::I32, Dims::new(&[5]).unwrap()),
            PendingOutput::Texts(12),
        ]);
        for answer in [Answer::Done, failed, pending, Answer::UnknownTokenizer([9; 32])] {
            assert_eq!(Answer::read(&answer.write()), Some(answer));
        }
        assert_eq!(Answer::read(&[9, 9, 9]), None);
    }
}
