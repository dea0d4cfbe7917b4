//! `cargo xtask bench tokenize [--json] [--two] [--cold] [--load] [NAME]…`: tokenizer throughput in MB/s, compared with other
//! libraries on the same definition and text in the same run. Tokens are compared before times. With `--two`
//! the text is split into documents, for two threads. With `--cold` only first passes are measured, each
//! several times with newly loaded tokenizers, interleaved with those of `tokenizers` 1.0. With `--load` the times
//! to load a file, of the first call and until the native kernel is verified are measured instead.

mod contenders;
mod load;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use lz_ops::tokenizer::Tokenizer;
use serde_json::json;

use contenders::{Contender, contenders};

/// Bytes of each text.
const BYTES: usize = 4_000_000;
/// Bytes of each document, if there are several.
const DOCUMENT: usize = 16_000;
/// Passes over a text; the first is cold, and the best of the others counts: noise only adds time.
const PASSES: usize = 6;
/// First passes with newly loaded tokenizers; the best counts.
const COLD_PASSES: usize = 5;

fn main() {
    let machine_readable = std::env::args().any(|argument| argument == "--json");
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if std::env::args().any(|argument| argument == "--load") {
        load::report(&only, machine_readable);
        return;
    }
    let texts =
        [("english", read("novel.txt")), ("languages", read("languages.txt")), ("python", python_sources())];
    let threads = if std::env::args().any(|argument| argument == "--two") { 2 } else { 1 };
    let only_cold = std::env::args().any(|argument| argument == "--cold");
    let names = [
        "o200k_base",
        "cl100k_base",
        "llama3",
        "gpt2",
        "qwen3",
        "deepseek_v3",
        "mistral_nemo",
        "llama2",
        "bert",
        "unigram",
    ];
    for name in names {
        if !only.is_empty() && !only.iter().any(|selected| selected == name) {
            continue;
        }
        for (kind, text) in &texts {
            let rows =
                if only_cold { first_passes(name, text, threads) } else { all_passes(name, text, threads) };
            report(&format!("{name} {kind}"), rows, threads, machine_readable);
        }
    }
}

/// Runs every library on one text, with `threads` threads.
fn all_passes(name: &str, text: &str, threads: usize) -> Vec<Row> {
    let tokenizer = tokenizer(name);
    lz_pool::with_threads(threads, || {
        let all = contenders(name, &tokenizer, threads);
        all.iter().filter_map(|one| measure(one, text, size(text, threads), PASSES)).collect()
    })
}

/// Runs the first pass of LayerZero and of the fastest library several times.
fn first_passes(name: &str, text: &str, threads: usize) -> Vec<Row> {
    let mut best: Vec<Row> = Vec::new();
    for _ in 0..COLD_PASSES {
        let tokenizer = tokenizer(name);
        let rows: Vec<Row> = lz_pool::with_threads(threads, || {
            let all = contenders(name, &tokenizer, threads);
            all.iter().take(2).filter_map(|one| measure(one, text, size(text, threads), 1)).collect()
        });
        match best.len() == rows.len() {
            true => best.iter_mut().zip(rows).for_each(|(best, row)| best.cold = best.cold.max(row.cold)),
            false => best = rows,
        }
    }
    best
}

/// The size of documents.
fn size(text: &str, threads: usize) -> usize {
    if threads == 1 { text.len() } else { DOCUMENT }
}

/// Prints the rows of the other libraries next to that of LayerZero, which is the first.
fn report(name: &str, mut rows: Vec<Row>, threads: usize, machine_readable: bool) {
    let ours = rows.remove(0);
    for row in rows {
        if row.tokens != ours.tokens {
            eprintln!("{name}: {} gives different tokens", row.name);
            continue;
        }
        for (state, own, other) in [("cold", ours.cold, row.cold), ("warm", ours.warm, row.warm)] {
            if own == 0.0 {
                continue;
            }
            let case = format!("{name} {state} {threads}t");
            if machine_readable {
                let line = json!({"bench": "tokenize", "case": case, "unit": "MB/s", "ours": round(own),
                    "peer": row.name, "theirs": round(other), "speedup": round(own / other), "limit": null});
                println!("{line}");
            } else {
                println!(
                    "{case:32} ours {own:7.1} MB/s   {:24} {other:7.1} MB/s   {:6.2} x",
                    row.name,
                    own / other
                );
            }
        }
    }
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

struct Row {
    name: &'static str,
    tokens: Vec<u32>,
    cold: f64,
    warm: f64,
}

fn measure(contender: &Contender, text: &str, size: usize, passes: usize) -> Option<Row> {
    // Slow libraries get a part of the text, and two passes.
    let (text, passes) =
        if contender.slow { (&text[..text.floor_char_boundary(400_000)], 2) } else { (text, passes) };
    let documents = cut(text, size);
    let (mut cold, mut warm, mut tokens) = (0.0, 0.0f64, Vec::new());
    for pass in 0..passes {
        let start = Instant::now();
        let ids = (contender.encode)(&documents)?;
        let rate = text.len() as f64 / 1e6 / start.elapsed().as_secs_f64();
        if pass == 0 {
            cold = rate;
            // Only a prefix, because the last tokens of a truncated text differ.
            tokens = ids.first(50_000);
        } else {
            warm = warm.max(rate);
        }
    }
    Some(Row { name: contender.name, tokens, cold, warm })
}

fn cut(mut text: &str, size: usize) -> Vec<&str> {
    let mut documents = Vec::new();
    while !text.is_empty() {
        let (document, rest) = text.split_at(text.floor_char_boundary(size.min(text.len())));
        documents.push(document);
        text = rest;
    }
    documents
}

/// Created for each text, so that nothing is cached from another text.
fn tokenizer(name: &str) -> Tokenizer {
    let loaded = match lz_tokenize::encoding(name).filter(|_| name.ends_with("_base")) {
        Some(loaded) => loaded,
        None => Tokenizer::from_file(folder().join(format!("{name}.json"))),
    };
    loaded.unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/oracles/tokenizers-4")
}

fn read(name: &str) -> String {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo xtask tokenizer-data` fetches it", path.display())
    });
    text[..text.floor_char_boundary(BYTES.min(text.len()))].to_owned()
}

/// Sources of Python's standard library, located with `python3`.
fn python_sources() -> String {
    let print = "import glob, sysconfig\nfor path in sorted(glob.glob(sysconfig.get_paths()['stdlib'] + '/**/*.py', recursive=True)):\n  if 'site-packages' not in path: print(path)";
    let output = Command::new("python3").args(["-c", print]).output();
    let paths = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let mut text = String::new();
    for path in paths.lines() {
        if text.len() >= BYTES {
            break;
        }
        text.push_str(&std::fs::read_to_string(path).unwrap_or_default());
    }
    text[..text.floor_char_boundary(BYTES.min(text.len()))].to_owned()
}
