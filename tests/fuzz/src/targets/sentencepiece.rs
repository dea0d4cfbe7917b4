//! SentencePiece models: any bytes are a model or an error, and kernels that accept the model return its tokens.

use lz_ops::tokenizer::Tokenizer;

use super::tokenizer::compare;

pub fn run(input: &[u8]) -> bool {
    match Tokenizer::from_sentencepiece(input) {
        Ok(tokenizer) => {
            assert!(tokenizer.is_sentencepiece());
            compare(&tokenizer);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}
