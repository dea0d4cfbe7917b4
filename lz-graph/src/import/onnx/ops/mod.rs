//! Operators, one function each, grouped by theme.

mod activation;
mod attention;
mod constant;
mod convolution;
mod elementwise;
mod gather;
mod matmul;
mod multi_head_attention;
mod norm;
mod pad;
mod quantization;
mod reduce;
mod resize;
mod scatter;
mod shape;
mod slice;
mod window;

pub use slice::slice_arguments;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::op::Handler;

/// Operators of `ai.onnx`, by theme.
const DEFAULT: &[&[(&str, Handler)]] = &[
    activation::OPERATORS,
    attention::OPERATORS,
    constant::OPERATORS,
    convolution::OPERATORS,
    elementwise::OPERATORS,
    gather::OPERATORS,
    matmul::OPERATORS,
    norm::OPERATORS,
    pad::OPERATORS,
    quantization::OPERATORS,
    reduce::OPERATORS,
    resize::OPERATORS,
    scatter::OPERATORS,
    shape::OPERATORS,
    slice::OPERATORS,
    window::OPERATORS,
];

/// Operators of `ai.onnx.preview`.
const PREVIEW: &[&[(&str, Handler)]] = &[attention::PREVIEW];

/// Operators of ONNX Runtime's domain.
const MICROSOFT: &[&[(&str, Handler)]] =
    &[norm::MICROSOFT, activation::MICROSOFT, multi_head_attention::MICROSOFT];

static HANDLERS: LazyLock<HashMap<(&str, &str), Handler>> = LazyLock::new(|| {
    let domains = [("", DEFAULT), ("ai.onnx.preview", PREVIEW), ("com.microsoft", MICROSOFT)];
    let mut handlers = HashMap::new();
    for (domain, themes) in domains {
        for (name, handler) in themes.iter().copied().flatten() {
            handlers.insert((domain, *name), *handler);
        }
    }
    handlers
});

/// The handler of an operator; the default domain is empty.
pub fn find(domain: &str, operator: &str) -> Option<Handler> {
    HANDLERS.get(&(domain, operator)).copied()
}

/// Why an operator without a handler is refused.
pub fn why_refused(domain: &str, operator: &str) -> String {
    if !domain.is_empty() {
        return "the operator is not supported".to_owned();
    }
    match operator {
        "NonZero" | "Unique" | "Compress" | "NonMaxSuppression" => "the shape of the result depends on data",
        "Loop" | "Scan" | "SequenceMap" => "control flow is not supported",
        "RNN" | "LSTM" | "GRU" => "recurrent layers are not supported",
        "RandomNormal" | "RandomNormalLike" | "RandomUniform" | "RandomUniformLike" | "Bernoulli"
        | "Multinomial" => "random numbers are not supported",
        name if name.starts_with("Sequence")
            || name.starts_with("Optional")
            || name.ends_with("Sequence") =>
        {
            "sequences and optional values are not supported"
        }
        name if name.starts_with("String") || name.starts_with("Regex") || name == "TfIdfVectorizer" => {
            "strings are not supported"
        }
        _ => "the operator is not supported",
    }
    .to_owned()
}
