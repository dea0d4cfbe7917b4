//! The tokenizer libraries under comparison: LayerZero first, then the others, each called as documented.

use lz_core::Tensor;
use lz_engine::Engine;
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{TokenizeEncode, tokenize_encode};
use tokenizers_next::pipeline::{EncodeOptions, PipelineToken};

type Encode = Box<dyn Fn(&[&str]) -> Option<Ids>>;

/// Token ids as each library returns them.
pub enum Ids {
    /// As a vector.
    Plain(Vec<u32>),
    /// As a tensor.
    Tensor(Tensor),
}

impl Ids {
    /// The first `max` ids.
    pub fn first(&self, max: usize) -> Vec<u32> {
        match self {
            Ids::Plain(ids) => ids.iter().copied().take(max).collect(),
            Ids::Tensor(ids) => {
                let view = ids.view();
                let ids = view.as_slice::<i32>().unwrap_or_default();
                ids.iter().map(|id| *id as u32).take(max).collect()
            }
        }
    }
}

/// A library that encodes documents.
pub struct Contender {
    /// The name, for the table.
    pub name: &'static str,
    /// Whether a megabyte takes long.
    pub slow: bool,
    /// The encode function.
    pub encode: Encode,
}

impl Contender {
    /// A library that encodes one document at a time: documents are distributed over threads.
    fn new(
        name: &'static str,
        threads: usize,
        one: impl Fn(&str) -> Option<Vec<u32>> + Sync + 'static,
    ) -> Contender {
        let encode = move |documents: &[&str]| {
            let some = |documents: &[&str]| {
                let mut ids = Vec::new();
                for document in documents {
                    ids.append(&mut one(document)?);
                }
                Some(ids)
            };
            let (mine, others) = documents.split_at(documents.len().div_ceil(threads));
            std::thread::scope(|scope| {
                let share = documents.len().div_ceil(threads).max(1);
                let others: Vec<_> =
                    others.chunks(share).map(|documents| scope.spawn(|| some(documents))).collect();
                let mut ids = some(mine)?;
                for other in others {
                    ids.append(&mut other.join().ok()??);
                }
                Some(Ids::Plain(ids))
            })
        };
        Contender { name, slow: false, encode: Box::new(encode) }
    }
}

/// All libraries that support this tokenizer; LayerZero comes first. Loading is not timed.
pub fn contenders(name: &str, tokenizer: &Tokenizer, threads: usize) -> Vec<Contender> {
    let mut all = vec![selection(tokenizer)];
    all.extend(next(tokenizer, threads));
    all.extend(tiktoken(name, threads));
    #[cfg(feature = "peers")]
    all.extend(bpe_openai(name, threads));
    let definition = tokenizer.clone();
    let mut old = Contender::new("tokenizers 0.23", threads, move |text| {
        Some(definition.encode(text, false).ok()?.into_iter().map(|token| token.id).collect())
    });
    old.slow = true;
    all.push(old);
    all
}

/// LayerZero: selection among all kernels; batches use the thread pool.
fn selection(tokenizer: &Tokenizer) -> Contender {
    let engine = Engine::new();
    engine.register(lz_tokenize::kernels()).expect("the kernels register");
    let tokenizer = tokenizer.clone();
    // The kernel is selected and verified before the first text.
    if let Err(reason) = lz_tokenize::prepare(&tokenizer) {
        eprintln!("{reason}");
    }
    let encode = move |documents: &[&str]| {
        let args = TokenizeEncode::new(documents, &tokenizer).add_special_tokens(false);
        Some(Ids::Tensor(tokenize_encode(&engine, args).ok()?.tokens))
    };
    Contender { name: "layerzero", slow: false, encode: Box::new(encode) }
}

fn next(tokenizer: &Tokenizer, threads: usize) -> Option<Contender> {
    let json = std::str::from_utf8(tokenizer.json()).ok()?;
    let canonical = tokenizers_next::canonicalize_str(json).ok()?;
    let built = tokenizers_next::from_json(&canonical).ok()?;
    let options = EncodeOptions { add_special_tokens: false, ..EncodeOptions::default() };
    Some(Contender::new("tokenizers 1.0.0-rc.3", threads, move |text| {
        let mut tokens: Vec<PipelineToken> = Vec::new();
        built.encode_into(text, &options, &mut tokens).ok()?;
        Some(tokens.into_iter().map(u32::from).collect())
    }))
}

fn tiktoken(name: &str, threads: usize) -> Option<Contender> {
    let core = match name {
        "o200k_base" => tiktoken_rs::o200k_base(),
        "cl100k_base" => tiktoken_rs::cl100k_base(),
        _ => return None,
    };
    let core = core.ok()?;
    Some(Contender::new("tiktoken-rs", threads, move |text| Some(core.encode_ordinary(text))))
}

#[cfg(feature = "peers")]
fn bpe_openai(name: &str, threads: usize) -> Option<Contender> {
    let built = match name {
        "o200k_base" => bpe_openai::o200k_base(),
        "cl100k_base" => bpe_openai::cl100k_base(),
        _ => return None,
    };
    Some(Contender::new("bpe-openai", threads, move |text| Some(built.encode(text))))
}
