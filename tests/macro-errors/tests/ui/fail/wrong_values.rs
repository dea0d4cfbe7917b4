//! Numbers and words have their ranges.

trait NormRmsKernel {}

struct Mine;

#[lz_macros::kernel(
    id = "demo.mine",
    operation = "norm.rms",
    priority = 101,
    alignment = 3,
    platform = cpuu,
    strides = dense,
    layouts("BSHD"),
    max_tp_size = 0,
    reduction_order = treee,
    speculative_algorithms("eagle", "eagle4"),
    kv_strategies("pages"),
    adapts("dtype"),
)]
impl NormRmsKernel for Mine {}

fn main() {}
