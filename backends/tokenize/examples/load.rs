//! Temporary.
use std::time::Instant;
use lz_core::Engine;
use lz_ops::tokenizer::Tokenizer;
use lz_ops::TokenizeEncode;
fn main() {
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).unwrap();
        let t0 = Instant::now();
        let hf = if std::env::var_os("HF").is_some() { Some(tokenizers::Tokenizer::from_bytes(&bytes).unwrap()) } else { None };
        let t_hf = t0.elapsed();
        drop(hf);
        let t0 = Instant::now();
        let tokenizer = Tokenizer::whole_texts(&bytes).unwrap();
        let t1 = t0.elapsed();
        let prepared = lz_tokenize::prepare(&tokenizer);
        let t2 = t0.elapsed();
        println!("{path}: hf {t_hf:?} load {t1:?} prepared {t2:?} {:?}", prepared.err().map(|r| r.to_string()));
        if std::env::var_os("EXPLAIN").is_some() {
        let texts = ["a"];
        let context = TokenizeEncode::new(&texts, &tokenizer).check().unwrap().context();
        for entry in lz_tokenize::kernels() {
            if entry.spec.operation != "tokenize.encode" { continue }
            let id = entry.spec.id.clone();
            let engine = Engine::new();
            engine.register([entry]).unwrap();
            let t0 = Instant::now();
            let r = match engine.which(&lz_ops::TOKENIZE_ENCODE, &context) { Ok(_) => "ok".to_owned(), Err(e) => e.reasons()[0].to_string() };
            println!("   {id} {:?} {r}", t0.elapsed());
        }
        }
    }
}
