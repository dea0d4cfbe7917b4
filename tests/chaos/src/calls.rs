//! The calls of a serving process: random operations and shapes, compared with the reference.

use lz_core::{Error, OperationInfo, ReasonCode, Tensor, TensorView, equivalence};
use lz_engine::Engine;
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{
    ACTIVATION_GELU, ACTIVATION_SILU, ActivationGelu, ActivationSilu, NORM_RMS, NormRms, TokenizeEncode,
    activation_gelu, activation_silu, norm_rms, tokenize_encode,
};

use crate::counts::{Counts, count};
use crate::memory;
use crate::random::Random;

/// What a call may fail with, because a fallback was interrupted by another fault.
const LISTED_ERRORS: &[ReasonCode] = &[
    ReasonCode::KernelFailed,
    ReasonCode::KernelPanicked,
    ReasonCode::KernelDeclined,
    ReasonCode::CapacityExceeded,
    ReasonCode::WorkerCrashed,
    ReasonCode::WorkerHung,
    ReasonCode::WorkerOom,
    ReasonCode::WorkerGarbage,
    ReasonCode::WorkerUnavailable,
    ReasonCode::OutOfMemory,
    ReasonCode::CircuitHalfOpenBusy,
    ReasonCode::EnvironmentFailed,
];

/// A definition with 300 tokens.
const TOKENIZER: &str = include_str!("../../../lz-ops/tests/data/byte_level_bpe.json");

/// Words of the texts that are encoded.
const WORDS: &[&str] = &["hello", " world", " Hello", "\n", "é", "東京", " 42", "🙂"];

/// Makes calls and judges their results.
pub struct Caller<'a> {
    engine: &'a Engine,
    truth: Engine,
    tokenizer: Tokenizer,
    counts: &'a Counts,
}

impl<'a> Caller<'a> {
    /// Of an engine.
    pub fn new(engine: &'a Engine, counts: &'a Counts) -> Result<Caller<'a>, String> {
        let truth = Engine::with_kernels(lz_ops::reference_kernels::kernels());
        let tokenizer = Tokenizer::from_json(TOKENIZER.as_bytes());
        Ok(Caller {
            engine,
            truth: truth.map_err(|error| error.to_string())?,
            tokenizer: tokenizer.map_err(|error| error.to_string())?,
            counts,
        })
    }

    /// One call of a random operation and shape, in which an allocation may fail. Its values are right, or its error is listed.
    pub fn call(&self, random: &mut Random) {
        count(&self.counts.calls);
        let outcome = if random.once_in(4) { self.encode(random) } else { self.compute(random) };
        if let Err(violation) = outcome {
            self.counts.violation(violation);
        }
    }

    fn compute(&self, random: &mut Random) -> Result<(), String> {
        let (rows, width) = (1 + random.below(20) as i64, *random.pick(&[4i64, 16, 64, 100]));
        let data: Vec<f32> = (0..rows * width).map(|_| random.value()).collect();
        let Ok(x) = TensorView::from_slice(&data, &[rows, width]) else { return Ok(()) };
        type Call = fn(&Engine, TensorView<'_>) -> Result<Tensor, Error>;
        let calls: [(&OperationInfo, Call); 3] = [
            (&NORM_RMS, |engine, x| Ok(norm_rms(engine, NormRms::new(x))?.output)),
            (&ACTIVATION_SILU, |engine, x| Ok(activation_silu(engine, ActivationSilu::new(x))?.output)),
            (&ACTIVATION_GELU, |engine, x| Ok(activation_gelu(engine, ActivationGelu::new(x))?.output)),
        ];
        let (operation, run) = *random.pick(&calls);
        // What the engine allocates for itself has other sizes.
        let size = Some(size_of_val(&data[..])).filter(|size| *size > 4096 && !size.is_power_of_two());
        let sizes = size.map_or(0..0, |size| size..size + 1);
        let found = memory::with_failures(random, sizes, || run(self.engine, x));
        let Some(found) = self.judge(&operation.name, found)? else { return Ok(()) };
        let expected = run(&self.truth, x).map_err(|error| format!("the reference failed: {error}"))?;
        match equivalence::difference(operation.schema(), &found.view(), &expected.view()) {
            None => Ok(()),
            // One kernel returns wrong values on purpose, until verification finds it.
            Some(_) if operation.name == "activation.gelu" => {
                count(&self.counts.wrong_values);
                Ok(())
            }
            Some(difference) => Err(format!("{}: {difference}", operation.name)),
        }
    }

    /// Encodes texts. The number of tokens is the kernel's to determine, and a faulty one returns tokens of a wrong shape.
    fn encode(&self, random: &mut Random) -> Result<(), String> {
        let text =
            |random: &mut Random| -> String { (0..random.below(30)).map(|_| *random.pick(WORDS)).collect() };
        let texts: Vec<String> = (0..1 + random.below(3)).map(|_| text(random)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let run = |engine: &Engine| tokenize_encode(engine, TokenizeEncode::new(&texts, &self.tokenizer));
        let found = memory::with_failures(random, 0..0, || run(self.engine));
        let Some(found) = self.judge("tokenize.encode", found)? else { return Ok(()) };
        let expected = run(&self.truth).map_err(|error| format!("the reference failed: {error}"))?;
        let is_equal = found.tokens.bytes() == expected.tokens.bytes()
            && found.tokens.shape() == expected.tokens.shape()
            && found.indptr.bytes() == expected.indptr.bytes();
        if is_equal { Ok(()) } else { Err(format!("tokenize.encode: other tokens of {texts:?}")) }
    }

    /// The result of a call that succeeded; an unlisted error is a violation.
    fn judge<R>(&self, operation: &str, outcome: Result<R, Error>) -> Result<Option<R>, String> {
        match outcome {
            Ok(found) => Ok(Some(found)),
            Err(error) if LISTED_ERRORS.iter().any(|code| error.has(*code)) => {
                count(&self.counts.listed_errors);
                Ok(None)
            }
            Err(error) => Err(format!("{operation}: unlisted error {error}")),
        }
    }
}
