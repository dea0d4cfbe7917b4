//! Wraps candidates as kernels: splits a batch into tasks for the thread pool and writes the results into the output tensors.

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use lz_core::context::FieldKind;
use lz_core::device::Platform;
use lz_core::expr::Value;
use lz_core::{
    Context, HandlePredicate, KernelEntry, KernelError, KernelSpec, OperationInfo, Reason, ReasonCode, Run,
    Tensor,
};
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{
    TOKENIZE_DECODE, TOKENIZE_ENCODE, TokenizeDecodeCall, TokenizeDecodeKernel, TokenizeDecodeOut,
    TokenizeEncodeCall, TokenizeEncodeKernel, TokenizeEncodeOut,
};

use crate::background;
use crate::coder::{Coder, Encoded};
use crate::memory;
use crate::verification::{self, Candidate, verified};

/// The backend name of all kernels in this crate.
pub const BACKEND: &str = "tokenize";

/// Minimum bytes of text per task, so that scheduling overhead stays small.
const TASK_BYTES: usize = 1 << 15;

struct Encode<C>(PhantomData<fn() -> C>);
struct Decode<C>(PhantomData<fn() -> C>);

/// Admits a candidate only for tokenizers for which it is verified, or will be before it runs. A verification that is not done runs in
/// the background.
struct VerifiedOnly<C>(PhantomData<fn() -> C>);

/// The kernels of one candidate: encoding, and decoding if it supports that.
pub fn of<C: Candidate>(name: &str, version: &str, priority: u8) -> Vec<KernelEntry> {
    let spec = |info: &OperationInfo, what: &str| {
        let id = format!("{BACKEND}.{name}.{what}");
        let mut spec = KernelSpec::new(&id, &info.name, BACKEND, version, Platform::Cpu).priority(priority);
        spec.deterministic = true;
        spec.tp_invariant = true;
        spec
    };
    let mut encode = spec(&TOKENIZE_ENCODE, "encode");
    if !C::OFFSETS {
        encode = encode.limit("not return_offsets", ReasonCode::OffsetsUnsupported);
    }
    let mut entries =
        vec![Encode::<C>(PhantomData).into_entry(encode).judged_by(VerifiedOnly::<C>(PhantomData))];
    if C::DECODES {
        let entry = Decode::<C>(PhantomData).into_entry(spec(&TOKENIZE_DECODE, "decode"));
        entries.push(entry.judged_by(VerifiedOnly::<C>(PhantomData)));
    }
    entries
}

impl<C: Candidate> HandlePredicate for VerifiedOnly<C> {
    fn objection(&self, operation: &OperationInfo, context: &Context) -> Option<Reason> {
        let bits = digest_bits_of(operation, context)?;
        let Some(tokenizer) = Tokenizer::of_digest_bits(bits) else {
            return Some(
                Reason::new(ReasonCode::TokenizerIdMismatch)
                    .argument("tokenizer")
                    .required("a handle of type lz_ops::tokenizer::Tokenizer that is still alive")
                    .found("a handle of another type, or one that was dropped"),
            );
        };
        verification::objection::<C>(&tokenizer, operation.name == TOKENIZE_DECODE.name)
    }

    fn settle(&self, operation: &OperationInfo, context: &Context) {
        let tokenizer = digest_bits_of(operation, context).and_then(Tokenizer::of_digest_bits);
        if let Some(tokenizer) = tokenizer {
            verification::settle::<C>(&tokenizer, operation.name == TOKENIZE_DECODE.name);
        }
    }

    fn pending(&self) -> Option<String> {
        match background::pending() {
            0 => None,
            1 => Some("1 verification of a tokenizer is running or waits".to_owned()),
            several => Some(format!("{several} verifications of tokenizers are running or wait")),
        }
    }
}

/// The bits of the tokenizer's digest in a context.
fn digest_bits_of(operation: &OperationInfo, context: &Context) -> Option<u64> {
    let field = operation.fields.iter().find(|field| field.kind == FieldKind::Digest)?;
    match context.value(field) {
        Value::Int(bits) => Some(bits as u64),
        _ => None,
    }
}

impl<C: Candidate> TokenizeEncodeKernel for Encode<C> {
    fn run(
        &self,
        call: &TokenizeEncodeCall<'_>,
        mut out: TokenizeEncodeOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let tokenizer = Tokenizer::from_handle(call.tokenizer)?;
        let verified = verified::<C>(tokenizer).map_err(declined)?;
        let encoded =
            encode(&verified.coder, tokenizer, call.texts, call.add_special_tokens, call.return_offsets)?;
        verified.validate(tokenizer, call.texts, call.add_special_tokens).map_err(declined)?;
        match out.indptr.as_slice_mut::<i64>() {
            Some(indptr) if indptr.len() == encoded.ends.len() + 1 => {
                indptr[0] = 0;
                indptr[1..].copy_from_slice(&encoded.ends);
            }
            _ => {
                out.indptr.set_int(&[0], 0);
                for (end, index) in encoded.ends.iter().zip(1..) {
                    out.indptr.set_int(&[index], *end);
                }
            }
        }
        let total = encoded.ids.len() as i64;
        if let (Some(output), Some(offsets)) = (&mut out.offsets, encoded.offsets) {
            **output = Some(Tensor::from_vec(offsets, &[total, 2]).map_err(KernelError::because)?);
        }
        *out.tokens = Some(Tensor::from_vec(encoded.ids, &[total]).map_err(KernelError::because)?);
        Ok(())
    }
}

fn declined(reason: Reason) -> KernelError {
    KernelError::because(reason).before_writing()
}

/// Encodes a batch, on the thread pool if it is large enough. Task boundaries do not depend on the number of threads.
fn encode<C: Coder>(
    coder: &C,
    tokenizer: &Tokenizer,
    texts: &[&str],
    special: bool,
    offsets: bool,
) -> Result<Encoded, KernelError> {
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    // A text that is most of the batch is split itself.
    if bytes < 2 * TASK_BYTES || 2 * longest > bytes || lz_pool::threads() < 2 {
        let mut whole = Encoded::for_bytes(bytes, texts.len(), offsets)?;
        coder.encode(tokenizer, texts, special, &mut whole)?;
        return Ok(whole);
    }
    let tasks = split_into_tasks(texts);
    type TaskResult = Mutex<Option<Result<Encoded, KernelError>>>;
    let results: Vec<TaskResult> = tasks.iter().map(|_| Mutex::default()).collect();
    lz_pool::for_each(tasks.len(), &|task: usize| {
        let texts = tasks[task];
        let bytes = texts.iter().map(|text| text.len()).sum();
        let outcome = Encoded::for_bytes(bytes, texts.len(), offsets).map_err(KernelError::from);
        let outcome =
            outcome.and_then(|mut part| coder.encode(tokenizer, texts, special, &mut part).map(|()| part));
        *results[task].lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    });
    let mut whole = Encoded::for_bytes(bytes, texts.len(), offsets)?;
    for part in results {
        let part = part.into_inner().unwrap_or_else(PoisonError::into_inner);
        let part = part.unwrap_or_else(|| Err(KernelError::failed("an encoding task did not run")))?;
        whole.append(&part)?;
    }
    Ok(whole)
}

/// Groups consecutive texts into tasks of about the same size.
fn split_into_tasks<'a, 't>(mut texts: &'a [&'t str]) -> Vec<&'a [&'t str]> {
    let mut tasks = Vec::new();
    while !texts.is_empty() {
        let (mut bytes, mut count) = (0, 0);
        while count < texts.len() && bytes < TASK_BYTES {
            bytes += texts[count].len();
            count += 1;
        }
        let (task, rest) = texts.split_at(count);
        tasks.push(task);
        texts = rest;
    }
    tasks
}

impl<C: Candidate> TokenizeDecodeKernel for Decode<C> {
    fn run(
        &self,
        call: &TokenizeDecodeCall<'_>,
        out: TokenizeDecodeOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let tokenizer = Tokenizer::from_handle(call.tokenizer)?;
        let verified = verified::<C>(tokenizer).map_err(declined)?;
        let range = |b: i64| (call.indptr.int_at(&[b]), call.indptr.int_at(&[b + 1]));
        let dense = call.tokens.as_slice::<i32>();
        let one = |b: i64| {
            let (start, end) = range(b);
            // Validation has rejected negative ids.
            let id = |id: i64| u32::try_from(id).ok();
            let count = usize::try_from(end - start).unwrap_or(0);
            let ids: Vec<u32> = match dense.and_then(|ids| ids.get(start as usize..end as usize)) {
                Some(ids) => memory::collect(count, ids.iter().filter_map(|one| id(i64::from(*one))))?,
                None => memory::collect(count, (start..end).filter_map(|t| id(call.tokens.int_at(&[t]))))?,
            };
            verified.coder.decode(tokenizer, &ids, call.skip_special_tokens)
        };
        let mut texts = memory::with_capacity(usize::try_from(call.axes.batch).unwrap_or(0))?;
        for b in 0..call.axes.batch {
            texts.push(one(b)?);
        }
        *out.texts = Some(texts);
        Ok(())
    }
}
