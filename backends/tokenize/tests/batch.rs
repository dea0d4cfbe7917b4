//! Batches are those of Hugging Face's library: truncation, windows, pairs, special tokens, padding and masks.

use lz_ops::tokenizer::Tokenizer;
use lz_tokenize::{Batch, BatchOptions, Padding, Rows, Side, Truncation, batch, pad_id};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::{
    PaddingDirection, PaddingParams, PaddingStrategy, TruncationDirection, TruncationParams,
    TruncationStrategy,
};

const BYTE_LEVEL: &str = include_str!("../../../lz-ops/tests/data/byte_level_bpe.json");

/// Post-processors with one and several special tokens, with types, and without any.
fn post_processors() -> Vec<Value> {
    let special = |id: &str, type_id: u32| json!({"SpecialToken": {"id": id, "type_id": type_id}});
    let text = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
    let token = |id: &str, ids: &[u32]| json!({"id": id, "ids": ids, "tokens": ids.iter().map(|_| id).collect::<Vec<_>>()});
    let template = json!({"type": "TemplateProcessing",
        "single": [special("B", 0), text("A", 0), special("E", 2)],
        "pair": [special("B", 0), text("A", 0), special("E", 0), text("B", 1), special("B", 1), special("E", 3)],
        "special_tokens": {"B": token("B", &[1]), "E": token("E", &[2, 3])}});
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
    vec![
        Value::Null,
        level.clone(),
        json!({"type": "BertProcessing", "sep": ["b", 5], "cls": ["a", 4]}),
        json!({"type": "RobertaProcessing", "sep": ["b", 5], "cls": ["a", 4], "trim_offsets": false, "add_prefix_space": true}),
        template.clone(),
        json!({"type": "Sequence", "processors": [level, template]}),
    ]
}

/// What the library makes of texts, row after row with their overflow.
fn expected(json: &[u8], texts: &[(String, String)], is_pair: bool, options: &BatchOptions) -> Option<Batch> {
    let mut library = tokenizers::Tokenizer::from_bytes(json).unwrap();
    // `encode` skips tokens that truncation removes, and with them the overflow. So texts are encoded whole, then post-processed.
    let mut whole = library.clone();
    whole.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
    let truncation = options.max_length.map(|max_length| TruncationParams {
        max_length,
        stride: options.stride,
        strategy: match options.truncation {
            Truncation::LongestFirst => TruncationStrategy::LongestFirst,
            Truncation::OnlyFirst => TruncationStrategy::OnlyFirst,
            Truncation::OnlySecond => TruncationStrategy::OnlySecond,
        },
        direction: match options.truncation_side {
            Side::Left => TruncationDirection::Left,
            Side::Right => TruncationDirection::Right,
        },
    });
    library.with_truncation(truncation).ok()?;
    let mut rows = Vec::new();
    for (sample, (first, second)) in texts.iter().enumerate() {
        let first = whole.encode(first.as_str(), false).unwrap();
        let second = is_pair.then(|| whole.encode(("", second.as_str()), false).unwrap());
        let encoded = library.post_process(first, second, options.special).ok()?;
        let overflow = if options.overflow { encoded.get_overflowing().to_vec() } else { Vec::new() };
        rows.push((sample, encoded));
        rows.extend(overflow.into_iter().map(|one| (sample, one)));
    }
    let mut encodings: Vec<tokenizers::Encoding> =
        rows.iter().map(|(_, encoding)| encoding.clone()).collect();
    // The library pads overflow with its row.
    encodings.iter_mut().for_each(|encoding| drop(encoding.take_overflowing()));
    let fixed = match options.padding {
        Padding::Longest => None,
        Padding::MaxLength => Some(options.max_length?),
        Padding::Fixed(length) => Some(length),
    };
    let padding = PaddingParams {
        strategy: fixed.map_or(PaddingStrategy::BatchLongest, PaddingStrategy::Fixed),
        direction: match options.padding_side {
            Side::Left => PaddingDirection::Left,
            Side::Right => PaddingDirection::Right,
        },
        pad_to_multiple_of: Some(options.multiple_of),
        pad_id: options.pad_id.unwrap(),
        ..PaddingParams::default()
    };
    tokenizers::pad_encodings(&mut encodings, &padding).unwrap();
    let length = encodings.first().map_or(0, tokenizers::Encoding::len);
    // The library leaves rows that are too long as they are.
    let too_long = fixed.is_some_and(|fixed| length > fixed.next_multiple_of(options.multiple_of));
    if too_long || encodings.iter().any(|encoding| encoding.len() != length) {
        return None;
    }
    let all = |get: fn(&tokenizers::Encoding) -> &[u32]| {
        encodings
            .iter()
            .flat_map(|encoding| get(encoding).iter().map(|value| i64::from(*value)))
            .collect::<Vec<i64>>()
    };
    Some(Batch {
        rows: encodings.len(),
        length,
        ids: all(tokenizers::Encoding::get_ids),
        attention_mask: all(tokenizers::Encoding::get_attention_mask),
        type_ids: all(tokenizers::Encoding::get_type_ids),
        special_mask: all(tokenizers::Encoding::get_special_tokens_mask),
        offsets: Vec::new(),
        samples: rows.iter().map(|(sample, _)| *sample as i64).collect(),
    })
}

struct Flat {
    ids: Vec<i32>,
    indptr: Vec<i64>,
}

impl Flat {
    fn new<'a>(tokenizer: &Tokenizer, texts: impl Iterator<Item = &'a String>) -> Flat {
        let mut flat = Flat { ids: Vec::new(), indptr: vec![0] };
        for text in texts {
            flat.ids.extend(tokenizer.encode(text, false).unwrap().iter().map(|token| token.id as i32));
            flat.indptr.push(flat.ids.len() as i64);
        }
        flat
    }

    fn rows(&self) -> Rows<'_> {
        Rows { ids: &self.ids, offsets: &[], indptr: &self.indptr }
    }
}

fn options() -> impl Strategy<Value = BatchOptions> {
    let side = || prop_oneof![Just(Side::Left), Just(Side::Right)];
    let truncation = prop_oneof![
        Just(Truncation::LongestFirst),
        Just(Truncation::OnlyFirst),
        Just(Truncation::OnlySecond)
    ];
    let padding = prop_oneof![
        3 => Just(Padding::Longest),
        1 => Just(Padding::MaxLength),
        1 => (1usize..20).prop_map(Padding::Fixed)
    ];
    let max_length = prop::option::weighted(0.8, 7usize..24);
    let first = (any::<bool>(), max_length, 0usize..4, truncation, side());
    let second = (any::<bool>(), padding, 1usize..6, side());
    (first, second).prop_map(|((special, max_length, stride, truncation, truncation_side), rest)| {
        let (overflow, padding, multiple_of, padding_side) = rest;
        BatchOptions {
            special,
            max_length,
            stride,
            truncation,
            truncation_side,
            overflow,
            padding,
            multiple_of,
            padding_side,
            pad_id: Some(9),
            offsets: false,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn batches_equal_those_of_the_library(
        texts in prop::collection::vec(("[a-z ]{0,40}", "[a-z ]{0,40}"), 1..4),
        options in options(),
        is_pair in any::<bool>(),
        processor in 0usize..6,
    ) {
        let mut definition: Value = serde_json::from_str(BYTE_LEVEL).unwrap();
        definition["post_processor"] = post_processors()[processor].clone();
        let json = definition.to_string().into_bytes();
        let tokenizer = Tokenizer::from_json(&json).unwrap();
        let (first, second) = (
            Flat::new(&tokenizer, texts.iter().map(|pair| &pair.0)),
            Flat::new(&tokenizer, texts.iter().map(|pair| &pair.1)),
        );
        // The library aborts the process' test if a stride is too large.
        let wanted = lz_ops::tokenizer::catch_panic(|| expected(&json, &texts, is_pair, &options)).ok().flatten();
        let found = batch(&tokenizer, first.rows(), is_pair.then(|| second.rows()), &options);
        match (found, wanted) {
            (Ok(mut found), Some(mut wanted)) => {
                // Windows after the first keep the type ids from before the post-processor in the library.
                if options.overflow && is_pair {
                    found.type_ids.clear();
                    wanted.type_ids.clear();
                }
                prop_assert_eq!(found, wanted);
            }
            (Err(_), None) => {}
            (found, wanted) => prop_assert!(false, "{:?} instead of {:?}", found, wanted),
        }
    }
}

const PLAIN: BatchOptions = BatchOptions {
    special: true,
    max_length: None,
    stride: 0,
    truncation: Truncation::LongestFirst,
    truncation_side: Side::Right,
    overflow: false,
    padding: Padding::Longest,
    multiple_of: 1,
    padding_side: Side::Right,
    pad_id: None,
    offsets: false,
};

#[test]
fn unsupported_post_processors_are_refused() {
    let mut definition: Value = serde_json::from_str(BYTE_LEVEL).unwrap();
    let template = post_processors().remove(4);
    definition["post_processor"] = json!({"type": "Sequence", "processors": [template.clone(), template]});
    let tokenizer = Tokenizer::from_json(definition.to_string().as_bytes()).unwrap();
    let flat = Flat::new(&tokenizer, [String::from("a")].iter());
    let error = batch(&tokenizer, flat.rows(), None, &PLAIN).unwrap_err();
    assert!(error.to_string().contains("unsupported post-processor"), "{error}");
    assert_eq!(error.argument(), "tokenizer");
}

#[test]
fn invalid_options_are_refused() {
    let tokenizer = Tokenizer::from_json(BYTE_LEVEL.as_bytes()).unwrap();
    let flat = Flat::new(&tokenizer, [String::from("ab"), String::from("a")].iter());
    let padded = BatchOptions { pad_id: Some(0), ..PLAIN };
    let huge = BatchOptions { padding: Padding::Fixed(usize::MAX / 4), ..padded };
    for (options, argument, message) in [
        (PLAIN, "pad_id", "set `pad_id`"),
        (BatchOptions { padding: Padding::MaxLength, ..padded }, "padding", "`max_length` is not given"),
        (BatchOptions { padding: Padding::Fixed(0), ..padded }, "padding", "at least 1, not 0"),
        (BatchOptions { multiple_of: 0, ..padded }, "pad_to_multiple_of", "at least 1, not 0"),
        (huge, "padding", "does not fit into memory"),
        (BatchOptions { multiple_of: usize::MAX, ..huge }, "padding", "does not fit into memory"),
        (
            BatchOptions { padding: Padding::Fixed(usize::MAX), multiple_of: 2, ..huge },
            "padding",
            "does not fit",
        ),
        (BatchOptions { padding: Padding::Fixed(1 << 48), ..padded }, "padding", "does not fit into memory"),
    ] {
        let error = batch(&tokenizer, flat.rows(), None, &options).unwrap_err();
        assert!(error.argument() == argument && error.to_string().contains(message), "{error}");
    }
    assert_eq!(pad_id(&tokenizer, "a").ok(), tokenizer.id_of("a"));
    let error = pad_id(&tokenizer, "no such token").unwrap_err();
    assert!(error.to_string().contains("has no token 'no such token'"), "{error}");
}

#[test]
fn empty_texts_have_offsets() {
    let mut definition: Value = serde_json::from_str(BYTE_LEVEL).unwrap();
    definition["post_processor"] = post_processors().remove(2);
    let tokenizer = Tokenizer::from_json(definition.to_string().as_bytes()).unwrap();
    let flat = Flat::new(&tokenizer, [String::new()].iter());
    let options = BatchOptions { offsets: true, ..PLAIN };
    let found = batch(&tokenizer, flat.rows(), None, &options).unwrap();
    assert_eq!((found.ids, found.offsets), (vec![4, 5], vec![0; 4]));
    let none = Rows { ids: &[], offsets: &[], indptr: &[0] };
    assert_eq!(batch(&tokenizer, none, None, &options).unwrap(), Batch::default());
}
