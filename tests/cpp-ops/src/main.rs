//! Writes random calls of every operation with the reference results: `lz-cpp-cases FILE [CASES]`.
//!
//! `case.cpp` reads the file. The format is internal to the two programs and has no version.

use std::fs;

use anyhow::{Context, Result, anyhow, bail};
use lz_conformance::assign::Prepared;
use lz_conformance::call::{OwnedArg, OwnedCall, OwnedOut};
use lz_conformance::fill::Numbers;
use lz_conformance::memory::OwnedTensor;
use lz_conformance::random::{Random, case_seed};
use lz_conformance::valid::{Drawing, draw_valid};
use lz_core::OperationInfo;
use lz_core::equivalence::tolerance;
use lz_core::expr::Value;
use lz_core::tensor::{Indices, TensorView};
use lz_engine::dynamic;
use lz_ops::tokenizer::Tokenizer;
use lz_schema::model::Operation;

/// Default number of cases per operation.
const CASES: u64 = 6;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().context("usage: lz-cpp-cases FILE [CASES]")?;
    let cases = arguments.next().map_or(Ok(CASES), |text| text.parse()).context("CASES must be a number")?;
    let mut file = Writer::default();
    for info in lz_ops::OPERATIONS {
        for case in 0..cases {
            write_case(&mut file, info, case).with_context(|| format!("{}, case {case}", info.name))?;
        }
    }
    fs::write(&path, file.bytes).with_context(|| format!("writing {path}"))
}

fn write_case(file: &mut Writer, info: &'static OperationInfo, case: u64) -> Result<()> {
    let operation = info.schema();
    let prepared = Prepared::new(operation).tame();
    let mut random = Random::new(case_seed(&operation.name, "cpp", case));
    let drawing = Drawing { size: 60, focus: &[], numbers: Numbers::Normal, devices: false };
    let drawn = draw_valid(&prepared, &mut random, &drawing).map_err(|problem| anyhow!(problem))?;
    let before = drawn.call.clone();
    let mut call = drawn.call;
    let engine = lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    call.with_args(|args, outputs| dynamic::call_into(&engine, info, args, outputs))?;
    file.text(&operation.name);
    write_arguments(file, operation, &before, &call)?;
    file.count(operation.outputs.len());
    for (output, result) in operation.outputs.iter().zip(&call.outputs) {
        file.text(&output.name);
        match result {
            OwnedOut::Absent => file.byte(0),
            OwnedOut::Tensor(tensor) => write_result(file, operation, &tensor.view()),
            OwnedOut::Dynamic(Some(tensor)) => write_result(file, operation, &tensor.view()),
            OwnedOut::Text(Some(texts)) => {
                file.byte(2);
                file.texts(texts);
            }
            _ => bail!("the reference did not produce output `{}`", output.name),
        }
    }
    Ok(())
}

fn write_arguments(
    file: &mut Writer,
    operation: &Operation,
    before: &OwnedCall,
    after: &OwnedCall,
) -> Result<()> {
    let names = operation.inputs.iter().map(|input| &input.name);
    let names: Vec<&String> = names.chain(operation.params.iter().map(|param| &param.name)).collect();
    file.count(names.len());
    for ((name, arg), ran) in names.into_iter().zip(&before.args).zip(&after.args) {
        file.text(name);
        match arg {
            OwnedArg::Absent => file.byte(0),
            OwnedArg::Tensor(tensor) => {
                file.byte(1);
                write_memory(file, tensor);
            }
            OwnedArg::Written(tensor) => {
                file.byte(2);
                write_memory(file, tensor);
                let ran = ran.tensor().context("an in-place tensor is missing after the call")?;
                file.block(ran.bytes());
            }
            OwnedArg::Text(texts) => {
                file.byte(3);
                file.texts(texts);
            }
            OwnedArg::Handle(handle) => {
                file.byte(4);
                file.block(Tokenizer::from_handle(&**handle).map_err(|error| anyhow!("{error}"))?.json());
            }
            OwnedArg::Value(Value::Int(value)) => file.number(5, *value),
            OwnedArg::Value(Value::Float(value)) => {
                file.byte(6);
                file.bytes.extend(value.to_le_bytes());
            }
            OwnedArg::Value(Value::Bool(value)) => file.number(7, i64::from(*value)),
            OwnedArg::Value(Value::Enum(case)) => file.number(8, i64::from(*case)),
        }
    }
    Ok(())
}

/// Writes the whole buffer of a tensor, and the offset of its first element.
fn write_memory(file: &mut Writer, tensor: &OwnedTensor) {
    let layout = tensor.layout();
    file.byte(layout.dtype as u8);
    file.sizes(&layout.shape);
    file.sizes(&layout.strides);
    let first = tensor.address().wrapping_sub(tensor.bytes().as_ptr() as usize);
    file.bytes.extend((first as u64).to_le_bytes());
    file.block(tensor.bytes());
}

/// Writes a dense result with its tolerance.
fn write_result(file: &mut Writer, operation: &Operation, tensor: &TensorView<'_>) {
    file.byte(1);
    file.byte(tensor.dtype() as u8);
    file.sizes(tensor.shape());
    let bits = tensor.bits();
    let size = tensor.dtype().size();
    let mut dense = Vec::new();
    for index in Indices::new(tensor.shape()) {
        dense.extend_from_slice(&bits.int_at(&index).to_le_bytes()[..size]);
    }
    file.block(&dense);
    let (rtol, atol) = tolerance(operation, tensor.dtype()).unwrap_or((-1.0, 0.0));
    file.bytes.extend(rtol.to_le_bytes());
    file.bytes.extend(atol.to_le_bytes());
}

/// The contents of the file; little-endian.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    fn number(&mut self, tag: u8, number: i64) {
        self.byte(tag);
        self.bytes.extend(number.to_le_bytes());
    }

    fn count(&mut self, count: usize) {
        self.bytes.extend((count as u32).to_le_bytes());
    }

    fn block(&mut self, block: &[u8]) {
        self.bytes.extend((block.len() as u64).to_le_bytes());
        self.bytes.extend(block);
    }

    fn text(&mut self, text: &str) {
        self.block(text.as_bytes());
    }

    fn texts(&mut self, texts: &[String]) {
        self.count(texts.len());
        texts.iter().for_each(|text| self.text(text));
    }

    fn sizes(&mut self, sizes: &[i64]) {
        self.count(sizes.len());
        sizes.iter().for_each(|size| self.bytes.extend(size.to_le_bytes()));
    }
}
