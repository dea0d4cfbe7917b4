//! Definitions from outside: whatever they hold, loading and encoding neither panic nor allocate more than a small multiple of their
//! size. Mutations of real definitions of every kind.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lz_core::KernelEntry;
use lz_engine::Engine;
use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use lz_ops::{TokenizeEncode, tokenize_encode};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Counts what is allocated now, and the most that ever was.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

impl Counting {
    fn grow(bytes: usize) {
        let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(now, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::grow(layout.size());
        // SAFETY: the caller vouches for the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::grow(layout.size());
        // SAFETY: the caller vouches for the layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller vouches for the pointer and its layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What kernels keep for any tokenizer: caches, and tables of Unicode.
const BASE: usize = 96 << 20;
/// Bytes of memory for a byte of the definition.
const FACTOR: usize = 64;

const DEFINITIONS: [&str; 4] = [
    include_str!("../../../lz-ops/tests/data/byte_level_bpe.json"),
    include_str!("../../../lz-ops/tests/data/char_bpe.json"),
    include_str!("../../../lz-ops/tests/data/unigram.json"),
    include_str!("../../../lz-ops/tests/data/word_piece.json"),
];

const TEXTS: [&str; 4] =
    ["", "hello world <tool> aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "Straße 東京\u{0} e\u{301} 12345", "  \n\t x'll"];

/// Memory is counted for the process: one definition at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn kernels() -> Vec<KernelEntry> {
    // The release candidate is tried on every code point, which takes too long for hundreds of definitions; it has a test below.
    let encodes = |entry: &KernelEntry| entry.spec.operation == "tokenize.encode";
    lz_tokenize::kernels()
        .into_iter()
        .filter(|entry| encodes(entry) && !entry.spec.id.contains(".hf1."))
        .collect()
}

/// Loads a definition and encodes with each kernel that takes it.
fn run(json: &[u8], kernels: Vec<KernelEntry>) -> Result<(), TokenizerError> {
    let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
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
    drop(alone);
    loaded
}

/// Values that nobody expects.
fn odd() -> impl Strategy<Value = Value> {
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

/// The paths of all values, but few of long lists.
fn paths(value: &Value, path: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    all.push(path.clone());
    let entries: Vec<(String, &Value)> = match value {
        Value::Array(items) => {
            items.iter().enumerate().map(|(place, item)| (place.to_string(), item)).collect()
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
    let place = 0..1_000_000usize;
    prop_oneof![
        4 => (place.clone(), odd()).prop_map(|(place, value)| Mutation::Replace(place, value)),
        1 => place.clone().prop_map(Mutation::Remove),
        2 => (place.clone(), place.clone()).prop_map(|(from, to)| Mutation::Copy(from, to)),
        1 => (place, 1..60u8).prop_map(|(place, depth)| Mutation::Wrap(place, depth)),
    ]
}

fn mutate(definition: &mut Value, mutation: Mutation) {
    let mut all = Vec::new();
    paths(definition, &mut Vec::new(), &mut all);
    let path = |place: usize| all[place % all.len()].clone();
    match mutation {
        Mutation::Replace(place, value) => {
            if let Some(found) = at(definition, &path(place)) {
                *found = value;
            }
        }
        Mutation::Remove(place) => {
            let path = path(place);
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
        Mutation::Wrap(place, depth) => {
            if let Some(found) = at(definition, &path(place)) {
                for _ in 0..depth {
                    *found = json!({"type": "Sequence", "normalizers": [found.clone()], "pretokenizers": [found.clone()]});
                    // Two copies a level would double the size each time.
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
    fn mutated_definitions_are_refused_or_used(which in 0..4usize, mutations in prop::collection::vec(mutation(), 1..4)) {
        let mut definition: Value = serde_json::from_str(DEFINITIONS[which]).unwrap();
        for one in mutations {
            mutate(&mut definition, one);
        }
        let _ = run(definition.to_string().as_bytes(), kernels());
    }

    #[test]
    fn damaged_text_is_refused_or_used(which in 0..4usize, place in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut json = DEFINITIONS[which].as_bytes().to_vec();
        let place = place.index(json.len());
        json[place] = byte;
        if cut {
            json.truncate(place);
        }
        let _ = run(&json, kernels());
    }
}

/// As small a definition as there is with these tokens.
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
fn an_id_beyond_32_bits_is_refused() {
    let refused = run(tiny(&json!({"a": 4_294_967_294u32}), &json!([])).as_bytes(), Vec::new()).unwrap_err();
    assert!(refused.to_string().contains("4294967294"), "{refused}");
}

#[test]
fn ids_that_are_far_apart_take_no_tables() {
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
fn many_long_added_tokens_take_no_large_automaton() {
    let token = |number: usize| {
        // Characters of all kinds, so that the states of an automaton have many different successors.
        let content: String = ('!'..'\u{7ff}').cycle().skip(number).step_by(7).take(3000).collect();
        json!({"id": number, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": false})
    };
    let added: Vec<Value> = (0..90).map(token).collect();
    let mut definition: Value = serde_json::from_str(DEFINITIONS[0]).unwrap();
    definition["added_tokens"] = json!(added);
    let _ = run(definition.to_string().as_bytes(), kernels());
}
