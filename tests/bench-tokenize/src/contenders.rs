//! Who encodes: selection first, then the others, each called as its own documentation says.

use lz_core::Engine;
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{TokenizeEncode, tokenize_encode};
use tokenizers_next::pipeline::{EncodeOptions, PipelineToken};

type Encode = Box<dyn FnMut(&str) -> Option<Vec<u32>>>;

/// Somebody who encodes a text.
pub struct Contender {
    /// The name, for the table.
    pub name: &'static str,
    /// Whether a megabyte takes long.
    pub slow: bool,
    /// How.
    pub encode: Encode,
}

impl Contender {
    fn new(name: &'static str, encode: impl FnMut(&str) -> Option<Vec<u32>> + 'static) -> Contender {
        Contender { name, slow: false, encode: Box::new(encode) }
    }
}

/// All who know this tokenizer; selection comes first. Loading is not part of any time.
pub fn contenders(name: &str, tokenizer: &Tokenizer) -> Vec<Contender> {
    let mut all = vec![selection("layerzero", tokenizer, "")];
    all.push(selection("tokenize.bpe", tokenizer, "tokenize.bpe."));
    all.extend(next(tokenizer));
    all.extend(tiktoken(name));
    #[cfg(feature = "peers")]
    all.extend(bpe_openai(name));
    let definition = tokenizer.clone();
    let mut old = Contender::new("tokenizers 0.23", move |text| {
        Some(definition.encode(text, false).ok()?.into_iter().map(|token| token.id).collect())
    });
    old.slow = true;
    all.push(old);
    all
}

/// Selection among the kernels whose ids begin so.
fn selection(name: &'static str, tokenizer: &Tokenizer, kernels: &str) -> Contender {
    let engine = Engine::new();
    let named = lz_tokenize::kernels().into_iter().filter(|entry| entry.spec.id.starts_with(kernels));
    engine.register(named).expect("the kernels register");
    let tokenizer = tokenizer.clone();
    // Which kernel it is, is decided and proven before the first text.
    if let Err(reason) = lz_tokenize::prepare(&tokenizer) {
        eprintln!("{reason}");
    }
    Contender::new(name, move |text| {
        let texts = [text];
        let args = TokenizeEncode::new(&texts, &tokenizer).add_special_tokens(false);
        let output = tokenize_encode(&engine, args).ok()?;
        Some(output.tokens.view().as_slice::<i32>()?.iter().map(|id| *id as u32).collect())
    })
}

fn next(tokenizer: &Tokenizer) -> Option<Contender> {
    let json = std::str::from_utf8(tokenizer.json()).ok()?;
    let canonical = tokenizers_next::canonicalize_str(json).ok()?;
    let built = tokenizers_next::from_json(&canonical).ok()?;
    let options = EncodeOptions { add_special_tokens: false, ..EncodeOptions::default() };
    Some(Contender::new("tokenizers 1.0.0-rc.3", move |text| {
        let mut tokens: Vec<PipelineToken> = Vec::new();
        built.encode_into(text, &options, &mut tokens).ok()?;
        Some(tokens.into_iter().map(u32::from).collect())
    }))
}

fn tiktoken(name: &str) -> Option<Contender> {
    let core = match name {
        "o200k_base" => tiktoken_rs::o200k_base(),
        "cl100k_base" => tiktoken_rs::cl100k_base(),
        _ => return None,
    };
    let core = core.ok()?;
    Some(Contender::new("tiktoken-rs", move |text| Some(core.encode_ordinary(text))))
}

#[cfg(feature = "peers")]
fn bpe_openai(name: &str) -> Option<Contender> {
    let built = match name {
        "o200k_base" => bpe_openai::o200k_base(),
        "cl100k_base" => bpe_openai::cl100k_base(),
        _ => return None,
    };
    Some(Contender::new("bpe-openai", move |text| Some(built.encode(text))))
}
