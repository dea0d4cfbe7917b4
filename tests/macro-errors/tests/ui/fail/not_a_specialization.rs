//! The operation that `specialized` names is not a special case of the kernel's operation, or the id does not contain the name of
//! that operation.

trait AttentionGqaDecodeKernel {}

struct Other;

#[lz_macros::kernel(
    id = "demo.attention.gqa.decode",
    operation = "attention.gqa.decode",
    specialized = "attention.standard.prefill",
)]
impl AttentionGqaDecodeKernel for Other {}

struct Nameless;

#[lz_macros::kernel(
    id = "demo.mine",
    operation = "attention.gqa.decode",
    specialized = "attention.standard.decode",
)]
impl AttentionGqaDecodeKernel for Nameless {}

fn main() {}
