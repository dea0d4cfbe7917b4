//! The targets, one file each.

mod artifact;
mod descriptor;
mod elf;
mod environment;
mod expression;
mod expression_text;
mod files;
mod flashinfer;
mod kernels;
mod lockfile;
mod log_filter;
mod onnx;
mod perfdb;
mod plugin;
mod policy;
mod safetensors;
mod schema;
mod sentencepiece;
mod table;
mod tokenizer;
mod worker;

use crate::Target;

const MEGABYTE: usize = 1 << 20;

const fn target(name: &'static str, run: fn(&[u8]) -> bool, mutations: u32) -> Target {
    Target { name, run, mutations, max_bytes: 4096, base_memory: 64 * MEGABYTE }
}

/// All targets, sorted by name.
pub const TARGETS: &[Target] = &[
    target("artifact", artifact::run, 150),
    target("descriptor", descriptor::run, 150),
    target("elf", elf::run, 2000),
    target("environment", environment::run, 150),
    target("expression", expression::run, 600),
    target("expression_text", expression_text::run, 1500),
    target("flashinfer", flashinfer::run, 100),
    Target { base_memory: 512 * MEGABYTE, ..target("kernels", kernels::run, 150) },
    target("lockfile", lockfile::run, 300),
    target("log_filter", log_filter::run, 3000),
    target("onnx", onnx::run, 150),
    target("perfdb_import", perfdb::import, 25),
    target("perfdb_merge", perfdb::merge, 8),
    target("plugin", plugin::run, 150),
    target("policy", policy::run, 150),
    target("safetensors", safetensors::run, 400),
    target("schema", schema::run, 60),
    Target {
        base_memory: 256 * MEGABYTE,
        max_bytes: 8192,
        ..target("sentencepiece", sentencepiece::run, 40)
    },
    target("table", table::run, 150),
    Target { base_memory: 256 * MEGABYTE, max_bytes: 16384, ..target("tokenizer", tokenizer::run, 40) },
    target("worker", worker::run, 1000),
];
