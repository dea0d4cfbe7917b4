//! Tokenizer definitions: a kernel that accepts a definition returns the tokens of the library, and digests identify definitions.

use std::sync::OnceLock;

use lz_engine::Engine;
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{TokenizeEncode, tokenize_encode};

const TEXTS: [&str; 4] =
    ["", "hello world <tool> aaaaaaaaaaaaaaaaaaaaaaaa", "Straße 東京\u{0} e\u{301} 12345", "  \n\t x'll"];

pub fn run(input: &[u8]) -> bool {
    match Tokenizer::whole_texts(input) {
        Ok(tokenizer) => {
            compare(&tokenizer);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// One engine for each kernel, so that each is asked for every definition.
fn engines() -> &'static [(String, Engine)] {
    static ENGINES: OnceLock<Vec<(String, Engine)>> = OnceLock::new();
    ENGINES.get_or_init(|| {
        let kernels = lz_tokenize::kernels().into_iter();
        // `tokenizers` 1.0 is compared on every code point, which takes too long for each definition.
        let kernels = kernels
            .filter(|entry| entry.spec.operation == "tokenize.encode" && !entry.spec.id.contains(".hf1."));
        kernels
            .map(|entry| {
                let (id, engine) = (entry.spec.id.clone(), Engine::new());
                engine.register([entry]).unwrap_or_else(|error| panic!("{error}"));
                (id, engine)
            })
            .collect()
    })
}

/// Compares every kernel with the definition's own implementation.
pub fn compare(tokenizer: &Tokenizer) {
    let texts = TEXTS.iter().map(|text| tokenizer.encode(text, true));
    let expected: Result<Vec<_>, _> = texts.collect();
    if let Ok(rows) = &expected {
        for (tokens, text) in rows.iter().zip(TEXTS) {
            for token in tokens {
                let range = &token.bytes;
                assert!(range.start <= range.end && range.end <= text.len(), "{token:?} of {text:?}");
            }
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            for skip in [false, true] {
                if let Err(error) = tokenizer.decode(&ids, skip) {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
    let again = Tokenizer::from_json(tokenizer.json()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(lz_core::Handle::digest(&again), lz_core::Handle::digest(tokenizer));
    for (id, engine) in engines() {
        match tokenize_encode(engine, TokenizeEncode::new(&TEXTS, tokenizer)) {
            Ok(found) => {
                let Ok(expected) = &expected else { panic!("{id} encodes what the definition cannot") };
                let expected: Vec<i32> = expected.iter().flatten().map(|token| token.id as i32).collect();
                assert_eq!(found.tokens.view().as_slice::<i32>(), Some(&expected[..]), "{id}");
            }
            Err(error) => assert!(!error.to_string().is_empty(), "{id}"),
        }
    }
}
