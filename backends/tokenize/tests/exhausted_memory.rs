//! Native tokenizers whose memory runs out: every allocation of a size that comes from the texts, and of a thread's caches, fails once, the
//! call returns `OUT_OF_MEMORY`, and the next call works.
//!
//! Only allocations of this thread fail, so kernels run on one thread. External libraries and the definition allocate infallibly.

use lz_core::expr::Value;
use lz_core::run::{Run, Scratch};
use lz_core::{Arg, DType, KernelEntry, KernelError, OutArg, ReasonCode, Tensor};
use lz_ops::tokenizer::Tokenizer;
use lz_test_support::{FailingAllocator, fail_allocation};
use lz_tokenize::{Rates, set_rates};
use serde_json::json;

/// Texts are long, so their data is larger. Bookkeeping of a call is smaller.
const DATA_BYTES: usize = 1 << 10;

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

fn data(name: &str) -> serde_json::Value {
    let path = format!("{}/../../lz-ops/tests/data/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn kernel(id: &str) -> KernelEntry {
    lz_tokenize::kernels().into_iter().find(|entry| entry.spec.id == id).expect("there is such a kernel")
}

/// Native kernels with a tokenizer that each of them takes, and whether it returns offsets itself: those of a text that a byte-level
/// tokenizer changes are left to the definition.
fn tokenizers() -> Vec<(&'static str, Tokenizer, bool)> {
    let of = |definition: serde_json::Value| Tokenizer::from_json(definition.to_string().as_bytes()).unwrap();
    let mut normalizing = data("byte_level_bpe");
    normalizing["normalizer"] =
        json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]});
    normalizing["pre_tokenizer"]["add_prefix_space"] = true.into();
    vec![
        ("bpe", of(data("byte_level_bpe")), true),
        ("bpe", of(normalizing), false),
        ("spm_bpe", of(data("char_bpe")), true),
        ("unigram", of(data("unigram")), true),
        ("wordpiece", of(data("word_piece")), true),
    ]
}

/// Texts with words, with one long word, and with phrases that repeat.
fn texts() -> Vec<String> {
    let words: String = (0..1500).map(|number| format!(" word{number} Hello")).collect();
    vec![words, "abcdefgh".repeat(600), " hello hello world".repeat(500), "é\u{301} e\u{301}東京".repeat(400)]
}

/// The ids and offsets of texts.
type Tokens = (Vec<u8>, Vec<u8>, Vec<u8>);

/// Encodes while the allocation with this number fails. Returns the result and whether an allocation failed.
fn encode(
    kernel: &KernelEntry,
    tokenizer: &Tokenizer,
    texts: &[&str],
    offsets: bool,
    number: u32,
) -> (Result<Tokens, KernelError>, bool) {
    let (mut tokens, mut ranges) = (None, None);
    let mut indptr = Tensor::zeros(&[texts.len() as i64 + 1], DType::I64).unwrap();
    let flag = |flag| Arg::Value(Value::Bool(flag));
    let mut args = [Arg::Text(texts), Arg::Handle(tokenizer), flag(true), flag(offsets)];
    let ranges_out = if offsets { OutArg::Dynamic(&mut ranges) } else { OutArg::Absent };
    let mut outputs = [OutArg::Dynamic(&mut tokens), OutArg::Tensor(indptr.view_mut()), ranges_out];
    let mut scratch = Scratch::default();
    let (result, failed) = lz_pool::with_threads(1, || {
        fail_allocation(number, DATA_BYTES, || {
            kernel.kernel.run(&mut args, &mut outputs, &mut Run::unbounded(&mut scratch))
        })
    });
    let bytes = |tensor: Option<Tensor>| tensor.map(|tensor| tensor.bytes().to_vec()).unwrap_or_default();
    (result.map(|()| (bytes(tokens), indptr.bytes().to_vec(), bytes(ranges))), failed)
}

/// Decodes while the allocation with this number fails.
fn decode(
    kernel: &KernelEntry,
    tokenizer: &Tokenizer,
    (tokens, indptr): (&Tensor, &Tensor),
    number: u32,
) -> (Result<Vec<String>, KernelError>, bool) {
    let mut texts = None;
    let mut args = [
        Arg::Tensor(tokens.view()),
        Arg::Tensor(indptr.view()),
        Arg::Handle(tokenizer),
        Arg::Value(Value::Bool(false)),
    ];
    let mut outputs = [OutArg::Text(&mut texts)];
    let mut scratch = Scratch::default();
    let (result, failed) = fail_allocation(number, DATA_BYTES, || {
        kernel.kernel.run(&mut args, &mut outputs, &mut Run::unbounded(&mut scratch))
    });
    (result.map(|()| texts.unwrap_or_default()), failed)
}

/// Fails the first, second, … allocation until the call succeeds. Returns how many failed, and the result.
fn fail_each<R>(what: &str, mut call: impl FnMut(u32) -> (Result<R, KernelError>, bool)) -> (u32, R) {
    for number in 0.. {
        match call(number) {
            (Ok(found), failed) => {
                assert!(!failed, "{what}: an allocation failed without an error");
                return (number, found);
            }
            (Err(error), failed) => {
                assert!(failed, "{what}: nothing failed, but: {error}");
                assert_eq!(error.reason.code, ReasonCode::OutOfMemory, "{what}: {error}");
                assert!(error.to_string().contains("bytes"), "{what}: {error}");
            }
        }
    }
    unreachable!("there are fewer allocations than numbers")
}

#[test]
fn tokenizers_report_exhausted_memory() {
    // A comparison with the definition allocates infallibly.
    set_rates(Rates { initial: 0.0, warmup: 0.0, stable: 0.0 });
    let texts = texts();
    let mut failures = 0;
    for (name, tokenizer, has_offsets) in tokenizers() {
        lz_tokenize::wait_verified(&tokenizer, None);
        let encoder = kernel(&format!("tokenize.{name}.encode"));
        for offsets in [false, true] {
            for text in &texts {
                // A text that is normalized may be left to the definition as well.
                if offsets && (!has_offsets || !text.is_ascii()) {
                    continue;
                }
                // The same text three times: its phrases are cached, and found in the cache.
                let batch = [text.as_str(); 3];
                // A call before builds the coder and its tables; one that fails drops the caches.
                let expected = encode(&encoder, &tokenizer, &batch, offsets, u32::MAX).0.unwrap();
                encode(&encoder, &tokenizer, &batch, offsets, 0).0.unwrap_err();
                let what = format!("{name}, offsets {offsets}, {:?}…", &text[..text.floor_char_boundary(12)]);
                let (count, found) =
                    fail_each(&what, |number| encode(&encoder, &tokenizer, &batch, offsets, number));
                failures += count;
                assert!(found == expected, "{what}: other tokens after failures");
            }
        }
        let decoder = kernel(&format!("tokenize.{name}.decode"));
        let ids: Vec<i32> = (0..4000).map(|number| number % 32).collect();
        let indptr = Tensor::from_slice(&[0i64, 2500, 4000], &[3]).unwrap();
        let ids = Tensor::from_slice(&ids, &[4000]).unwrap();
        let (count, found) = fail_each(name, |number| decode(&decoder, &tokenizer, (&ids, &indptr), number));
        assert!(count >= 4 && found.len() == 2, "{count} failures of decoding");
        failures += count;
    }
    assert!(failures >= 150, "{failures} failed allocations");
}
