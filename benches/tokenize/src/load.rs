//! The times to load a tokenizer, of its first call, and until its native kernel is verified, compared with the loading time of
//! `tokenizers` 0.23.

use std::time::Instant;

use lz_engine::Engine;
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{TokenizeEncode, tokenize_encode};
use serde_json::json;

use crate::{folder, round};

/// Loads of each tokenizer; the best counts.
const LOADS: usize = 5;

/// The text of the first call.
const TEXT: &str = "The quick brown fox jumps over the lazy dog. It's the dog's 3rd day, and they'll say WE'VE had 1,234,567.";

const NAMES: [&str; 10] = [
    "llama3",
    "gpt2",
    "gpt4o",
    "qwen3",
    "deepseek_v3",
    "mistral_nemo",
    "gemma3",
    "llama2",
    "bert",
    "unigram",
];

/// Milliseconds.
struct Times {
    peer: f64,
    load: f64,
    first: f64,
    second: f64,
    verified: f64,
}

/// Prints the times of each tokenizer.
pub fn report(only: &[String], machine_readable: bool) {
    for name in NAMES {
        if !only.is_empty() && !only.iter().any(|selected| selected == name) {
            continue;
        }
        let all: Vec<Times> = (0..LOADS).map(|_| measure(name)).collect();
        let best = |time: fn(&Times) -> f64| all.iter().map(time).fold(f64::INFINITY, f64::min);
        let (peer, load) = (best(|times| times.peer), best(|times| times.load));
        let (first, second) = (best(|times| times.first), best(|times| times.second));
        let verified = best(|times| times.verified);
        if machine_readable {
            let line = json!({"bench": "tokenize", "case": format!("{name} load"), "unit": "ms", "ours": round(load),
                "peer": "tokenizers 0.23", "theirs": round(peer), "speedup": round(peer / load), "limit": null,
                "first_call": round(first), "second_call": round(second), "verified": round(verified)});
            println!("{line}");
        } else {
            println!(
                "{name:14} load {load:7.1} ms, {:4.2} x tokenizers 0.23 ({peer:7.1} ms); first call {first:7.2} ms, \
                 second {second:7.2} ms, verified after {verified:8.1} ms",
                load / peer
            );
        }
    }
}

fn measure(name: &str) -> Times {
    let path = folder().join(format!("{name}.json"));
    let milliseconds = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    let peer = tokenizers::Tokenizer::from_file(&path);
    let peer_time = milliseconds(start);
    drop(peer.expect("the file is a tokenizer"));

    let start = Instant::now();
    let tokenizer = Tokenizer::whole_texts_from_file(&path).expect("the file is a tokenizer");
    let load = milliseconds(start);
    let engine = Engine::with_kernels(lz_tokenize::kernels()).expect("the kernels register");
    let call = || {
        let start = Instant::now();
        tokenize_encode(&engine, TokenizeEncode::new(&[TEXT], &tokenizer)).expect("the text is encoded");
        milliseconds(start)
    };
    let start = Instant::now();
    let (first, second) = (call(), call());
    if let Err(reason) = lz_tokenize::prepare(&tokenizer) {
        eprintln!("{name}: {reason}");
    }
    Times { peer: peer_time, load, first, second, verified: milliseconds(start) }
}
