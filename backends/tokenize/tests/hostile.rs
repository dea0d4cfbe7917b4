//! Untrusted definitions: loading and encoding never panic and never allocate more than a small multiple of the definition's size.
//! Tested with mutations of real definitions of every model kind.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lz_core::KernelEntry;
use lz_engine::Engine;
use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use lz_ops::{TokenizeEncode, tokenize_encode};
use proptest::prelude::*;
use serde_json::{Value, json};

/// An allocator that tracks current and peak allocated bytes.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

impl Counting {
    fn grow(bytes: usize) {
        let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(now, Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::grow(layout.size());
        // SAFETY: the caller guarantees a valid layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::grow(layout.size());
        // SAFETY: the caller guarantees a valid layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees a valid pointer and layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory that kernels use for any tokenizer: caches and Unicode tables.
const BASE: usize = 96 << 20;
/// Maximum bytes of memory per byte of the definition.
const FACTOR: usize = 64;

const DEFINITIONS: [&str; 4] = [
    include_str!("../../../lz-ops/tests/data/byte_level_bpe.json"),
    include_str!("../../../lz-ops/tests/data/char_bpe.json"),
    include_str!("../../../lz-ops/tests/data/unigram.json"),
    include_str!("../../../lz-ops/tests/data/word_piece.json"),
];

const TEXTS: [&str; 4] =
    ["", "hello world <tool> aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "Straße 東京\u{0} e\u{301} 12345", "  \n\t x'll"];

/// Memory is counted per process, so that definitions are tested one at a time.
static SERIAL: Mutex<()> = Mutex::new(());

fn kernels() -> Vec<KernelEntry> {
    // `tokenizers` 1.0 is compared on every code point, which is too slow for hundreds of definitions. It has a test below.
    let encodes = |entry: &KernelEntry| entry.spec.operation == "tokenize.encode";
    lz_tokenize::kernels()
        .into_iter()
        .filter(|entry| encodes(entry) && !entry.spec.id.contains(".hf1."))
        .collect()
}

/// Loads a definition and encodes with each kernel that supports it.
fn run(json: &[u8], kernels: Vec<KernelEntry>) -> Result<(), TokenizerError> {
    let serial = SERIAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let loaded = Tokenizer::whole_texts(json).map(|tokenizer| {
        for entry in kernels {
            let id = entry.spec.id.clone();
            let engine = Engine::new();
            engine.register([entry]).unwrap();
            if let Err(error) = tokenize_encode(&engine, TokenizeEncode::new(&TEXTS, &tokenizer)) {
                assert!(!error.to_string().is_empty(), "{id}");
            }
        }
    });
    let used = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    assert!(used < BASE + FACTOR * json.len(), "{used} bytes for a definition of {}", json.len());
    drop(serial);
    loaded
}

/// Unexpected values.
fn unexpected_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(vec![
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(70_000),
            json!(i32::MAX),
            json!(2_147_483_648u32),
            json!(4_294_967_294u32),
            json!(u64::MAX),
            json!(1e308),
            json!(""),
            json!("\0"),
            json!("a b"),
            json!("a".repeat(3000)),
            json!("(a+)+$"),
            json!("(\\p{L}{500}){500}"),
            json!("(?<=x"),
            json!("(".repeat(300)),
            json!([]),
            json!({}),
            json!([["a", 1.5], ["b", null]]),
        ]),
        prop::sample::select(vec![
            "BPE",
            "WordPiece",
            "Unigram",
            "WordLevel",
            "ByteLevel",
            "Metaspace",
            "Sequence",
            "Split",
            "Digits",
            "Punctuation",
            "BertPreTokenizer",
            "Whitespace",
            "FixedLength",
            "UnicodeScripts",
            "Precompiled",
            "NFKC",
            "Strip",
            "Replace",
            "Prepend",
            "TemplateProcessing",
            "BertProcessing",
            "RobertaProcessing",
            "ByteFallback",
            "Fuse",
            "CTC",
            "BPEDecoder",
        ])
        .prop_map(|name| json!(name)),
    ]
}

/// The paths of all values, sampled in long lists.
fn paths(value: &Value, path: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    all.push(path.clone());
    let entries: Vec<(String, &Value)> = match value {
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        Value::Object(entries) => entries.iter().map(|(key, item)| (key.clone(), item)).collect(),
        _ => return,
    };
    let step = (entries.len() / 12).max(1);
    for (key, item) in entries.into_iter().step_by(step) {
        path.push(key);
        paths(item, path, all);
        path.pop();
    }
}

fn at<'v>(value: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, key| match value {
        Value::Array(items) => items.get_mut(key.parse::<usize>().ok()?),
        Value::Object(entries) => entries.get_mut(key),
        _ => None,
    })
}

#[derive(Debug, Clone)]
enum Mutation {
    Replace(usize, Value),
    Remove(usize),
    Copy(usize, usize),
    Wrap(usize, u8),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let index = 0..1_000_000usize;
    prop_oneof![
        4 => (index.clone(), unexpected_value()).prop_map(|(index, value)| Mutation::Replace(index, value)),
        1 => index.clone().prop_map(Mutation::Remove),
        2 => (index.clone(), index.clone()).prop_map(|(from, to)| Mutation::Copy(from, to)),
        1 => (index, 1..60u8).prop_map(|(index, depth)| Mutation::Wrap(index, depth)),
    ]
}

fn mutate(definition: &mut Value, mutation: Mutation) {
    let mut all = Vec::new();
    paths(definition, &mut Vec::new(), &mut all);
    let path = |index: usize| all[index % all.len()].clone();
    match mutation {
        Mutation::Replace(index, value) => {
            if let Some(found) = at(definition, &path(index)) {
                *found = value;
            }
        }
        Mutation::Remove(index) => {
            let path = path(index);
            let Some((key, parent)) = path.split_last() else { return };
            if let Some(Value::Object(entries)) = at(definition, parent) {
                entries.remove(key);
            }
        }
        Mutation::Copy(from, to) => {
            let copied = at(definition, &path(from)).cloned();
            if let (Some(found), Some(copied)) = (at(definition, &path(to)), copied) {
                *found = copied;
            }
        }
        Mutation::Wrap(index, depth) => {
            if let Some(found) = at(definition, &path(index)) {
                for _ in 0..depth {
                    *found = json!({"type": "Sequence", "normalizers": [found.clone()], "pretokenizers": [found.clone()]});
                    // Two copies per level would grow exponentially.
                    if let Value::Object(entries) = found {
                        entries.remove("pretokenizers");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]
    #[test]
    fn mutated_definitions_are_rejected_or_work(which in 0..4usize, mutations in prop::collection::vec(mutation(), 1..4)) {
        let mut definition: Value = serde_json::from_str(DEFINITIONS[which]).unwrap();
        for one in mutations {
            mutate(&mut definition, one);
        }
        let _ = run(definition.to_string().as_bytes(), kernels());
    }

    #[test]
    fn corrupted_json_is_rejected_or_works(which in 0..4usize, index in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut json = DEFINITIONS[which].as_bytes().to_vec();
        let index = index.index(json.len());
        json[index] = byte;
        if cut {
            json.truncate(index);
        }
        let _ = run(&json, kernels());
    }
}

/// A minimal definition with these tokens.
fn tiny(vocabulary: &Value, added: &Value) -> String {
    json!({
        "version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []},
    })
    .to_string()
}

#[test]
fn ids_above_i32_are_rejected() {
    let error = run(tiny(&json!({"a": 4_294_967_294u32}), &json!([])).as_bytes(), Vec::new()).unwrap_err();
    assert!(error.to_string().contains("4294967294"), "{error}");
}

#[test]
fn sparse_ids_do_not_allocate_tables() {
    let token = json!([{"id": 2_000_000_000, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}]);
    let every: Vec<KernelEntry> = lz_tokenize::kernels()
        .into_iter()
        .filter(|entry| entry.spec.operation == "tokenize.encode")
        .collect();
    for json in [
        tiny(&json!({"a": 0, "h": 2_000_000_000}), &json!([])),
        tiny(&json!({"a": 0, "<x>": 2_000_000_000}), &token),
    ] {
        run(json.as_bytes(), every.clone()).unwrap();
        let tokenizer = Tokenizer::from_json(json.as_bytes()).unwrap();
        assert_eq!(tokenizer.encode("a", false).unwrap()[0].id, 0);
    }
}

#[test]
fn many_long_added_tokens_do_not_build_a_large_automaton() {
    let token = |number: usize| {
        // Varied characters, so that the states of an automaton have many different successors.
        let content: String = ('!'..'\u{7ff}').cycle().skip(number).step_by(7).take(3000).collect();
        json!({"id": number, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": false})
    };
    let added: Vec<Value> = (0..90).map(token).collect();
    let mut definition: Value = serde_json::from_str(DEFINITIONS[0]).unwrap();
    definition["added_tokens"] = json!(added);
    let _ = run(definition.to_string().as_bytes(), kernels());
}
